package main

import (
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"

	"atoll.dev/atoll/contrib/dns/workspaces"
)

func main() {
	dnsserver.Directives = withWorkspaces(dnsserver.Directives)
	coremain.Run()
}

// answering are the plugins that answer, or change what is asked or answered, for all who ask alike: what a pod may know is decided before any of them is asked.
// Those that look names up in several namespaces, as autopath does, are left out of the program for the same reason.
var answering = []string{"rewrite", "cache", "template", "hosts", "kubernetes", "forward"}

// withWorkspaces puts our plugin into the order in which plugins are asked, which CoreDNS changes from time to time.
func withWorkspaces(directives []string) []string {
	first := slices.IndexFunc(directives, func(name string) bool { return slices.Contains(answering, name) })
	return slices.Insert(slices.Clone(directives), max(first, 0), workspaces.Name)
}
