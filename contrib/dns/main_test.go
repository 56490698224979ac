package main

import (
	"slices"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"

	"atoll.dev/atoll/contrib/dns/workspaces"
)

// TestOrder: whoever answers all alike is asked after it was decided what a pod may know, in whichever order CoreDNS has them.
func TestOrder(t *testing.T) {
	reversed := slices.Clone(dnsserver.Directives)
	slices.Reverse(reversed)
	for _, directives := range [][]string{dnsserver.Directives, reversed} {
		all := withWorkspaces(directives)
		own := slices.Index(all, workspaces.Name)
		for _, name := range answering {
			if at := slices.Index(all, name); at < 0 || own < 0 || at < own {
				t.Errorf("%s is at %d, and %s at %d", name, at, workspaces.Name, own)
			}
		}
	}
}
