package main

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/placement"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/aggregation"
	"atoll.dev/atoll/server/certificates"
	"atoll.dev/atoll/server/finishedjobs"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/namespaces"
	"atoll.dev/atoll/server/quota"
	"atoll.dev/atoll/splitter"
	"atoll.dev/atoll/syncer"
	"atoll.dev/atoll/workspaces"
)

// controller works until its context ends. Each serves all logical clusters.
type controller struct {
	name string
	run  func(context.Context) error
	// everywhere says that it runs in every server on an etcd, since requests depend on it; else it runs in one.
	everywhere bool
}

// controllers is every controller of the server, with all it depends on. Those that the server asks are joined to it. What
// runs in one of several servers writes only while that one leads.
func controllers(s *server.Server, every *client.Clients, i *client.Informers, l *leadership) ([]controller, error) {
	directory, err := workspaces.NewDirectory(every, i)
	if err != nil {
		return nil, err
	}
	c := every
	if !l.alone {
		if c, err = client.New(l.fence(s.LoopbackConfig())); err != nil {
			return nil, err
		}
		c.Objects = s.Everywhere(c.Objects)
	}
	clk := clock.RealClock{}
	var all []controller
	var failed error
	add := func(name string, made interface{ Run(context.Context) error }, err error) {
		if err != nil && failed == nil {
			failed = fmt.Errorf("make controller %q: %w", name, err)
		}
		all = append(all, controller{name: name, run: made.Run})
	}

	defaults, err := namespaces.New(c, i, namespaces.Options{RootCA: s.CACertificate(), Read: s.Read})
	add("namespaces", defaults, err)

	add("quota", quota.New(i, s.QuotaStores()), nil)

	collector, err := garbage.New(c, i, garbage.Options{Kinds: s.Kinds(), Read: s.Read})
	add("garbage", collector, err)

	roles, err := aggregation.New(c, i)
	add("aggregation", roles, err)

	jobs, err := finishedjobs.New(c, i, clk)
	add("finishedjobs", jobs, err)

	requests, err := certificates.New(c, i, certificates.Options{
		Sign: s.SignForWorkspace, Reserved: server.ReservedInWorkspaces, Longest: s.CertificateLifetime(), Clock: clk,
	})
	add("certificates", requests, err)

	trees, err := workspaces.New(c, i, workspaces.Options{
		URLBase: s.URL(), DeleteData: whileLeading(l, s.DeleteClusterData), Held: s.Held,
		WriteTogether: l.writes(s.WriteTogether), Read: s.Read, NamespaceContent: defaults.Content,
	})
	add("workspaces", trees, err)

	placements, err := placement.New(c, i, clk)
	add("placement", placements, err)

	splits, err := splitter.New(c, i, clk)
	add("splitter", splits, err)

	syncers, err := syncer.NewManager(syncer.ManagerConfig{
		Clients: c, Informers: i, Clock: clk,
		MirrorConfig: func(mirror logicalcluster.Name, _ types.UID) (*rest.Config, error) {
			return l.fence(s.MirrorConfig(mirror)), nil
		},
		DeleteData: l.deletes(s.DeleteCluster),
	})
	add("syncers", syncers, err)

	credentials, err := syncer.NewCredentials(syncer.CredentialsConfig{Clients: every, Informers: i, Sign: s.SignSyncer, Clock: clk})
	add("credentials", credentials, err)
	all[len(all)-1].everywhere = true // it knows who is a syncer

	if failed == nil {
		s.Join(directory, placements, credentials)
	}
	return all, failed
}
