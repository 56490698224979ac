package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/placement"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/aggregation"
	"atoll.dev/atoll/server/autoscaling"
	"atoll.dev/atoll/server/certificates"
	"atoll.dev/atoll/server/cronjobs"
	"atoll.dev/atoll/server/disruption"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/finishedjobs"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/namespaces"
	"atoll.dev/atoll/server/quota"
	"atoll.dev/atoll/splitter"
	"atoll.dev/atoll/syncer"
	"atoll.dev/atoll/workspaces"
)

// controller works until its context ends. Each serves all logical clusters. What it writes is of the field manager atoll-<name>,
// where it names no other.
type controller struct {
	name string
	run  func(context.Context) error
}

// crew counts controllers.
type crew struct{ wanted, atWork atomic.Int32 }

// ready returns nil while all that are wanted are at work.
func (c *crew) ready() error {
	if n, want := c.atWork.Load(), c.wanted.Load(); n < want {
		return fmt.Errorf("%d of %d controllers are at work", n, want)
	}
	return nil
}

// run runs controllers, which somebody counted as wanted, until ctx ends or one fails.
func (c *crew) run(ctx context.Context, all []controller) error {
	working, ctx := errgroup.WithContext(ctx)
	for _, controller := range all {
		working.Go(func() error {
			c.atWork.Add(1)
			defer c.atWork.Add(-1)
			if err := controller.run(client.As(ctx, "atoll-"+controller.name)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("controller %s: %w", controller.name, err)
			}
			return nil
		})
	}
	return working.Wait()
}

// list is made of controllers from what their packages make of them.
type list struct {
	all    []controller
	failed error
}

func (l *list) add(name string, made interface{ Run(context.Context) error }, err error) {
	if err != nil && l.failed == nil {
		l.failed = fmt.Errorf("make controller %q: %w", name, err)
	}
	l.all = append(l.all, controller{name: name, run: made.Run})
}

// everywhere joins to the server what it asks, and returns the controllers of every server on an etcd, since requests depend
// on them. placer is nil where the placement controller does not run on the same informers.
func everywhere(s *server.Server, c *client.Clients, i *client.Informers, placer server.Placer) ([]controller, error) {
	directory, err := workspaces.NewDirectory(c, i)
	if err != nil {
		return nil, err
	}
	if placer == nil {
		if placer, err = placement.NewPlacer(i); err != nil {
			return nil, err
		}
	}
	var l list
	credentials, err := syncer.NewCredentials(syncer.CredentialsConfig{Clients: c, Informers: i, Sign: s.SignSyncer, Clock: clock.RealClock{}})
	l.add("credentials", credentials, err) // it knows who is a syncer
	if l.failed == nil {
		s.Join(directory, placer, credentials, syncer.NewKubelets(c))
	}
	return l.all, l.failed
}

// ofTheLeader is every controller of which one runs for all servers on an etcd, with all it depends on. What they write, they
// write only while this server leads: c is fenced. Nothing of them is left once they have run and the informers do not run
// any more.
func ofTheLeader(s *server.Server, c *client.Clients, i *client.Informers, lead *leadership) ([]controller, server.Placer, error) {
	clk := clock.RealClock{}
	var l list

	defaults, err := namespaces.New(c, i, namespaces.Options{RootCA: s.CACertificate(), Read: s.Read, Custom: s.CustomIn})
	l.add("namespaces", defaults, err)

	l.add("quota", quota.New(i, lead.counts(s.QuotaStores())), nil)

	collector, err := garbage.New(c, i, garbage.Options{Kinds: s.Kinds(), Read: s.Read})
	l.add("garbage", collector, err)

	roles, err := aggregation.New(c, i, s.ClusterRoles, clk)
	l.add("aggregation", roles, err)

	jobs, err := finishedjobs.New(c, i, clk)
	l.add("finishedjobs", jobs, err)

	crons, err := cronjobs.New(c, i, s.Jobs(), clk)
	l.add("cronjobs", crons, err)

	budgets, err := disruption.New(c, i, clk)
	l.add("disruption", budgets, err)

	services, err := endpoints.New(c, i, s.EndpointRows(), clk)
	l.add("endpoints", services, err)

	scalers, err := autoscaling.New(c, i, clk)
	l.add("autoscaling", scalers, err)

	requests, err := certificates.New(c, i, certificates.Options{
		Sign: s.SignForWorkspace, Reserved: server.ReservedInWorkspaces, Longest: s.CertificateLifetime(), Clock: clk,
	})
	l.add("certificates", requests, err)

	trees, err := workspaces.New(c, i, workspaces.Options{
		URLBase: s.URL(), DeleteData: whileLeading(lead, s.DeleteClusterData), Held: s.Held,
		DeleteRest:    lead.deletes(s.DeleteCluster),
		WriteTogether: lead.writes(s.WriteTogether), Read: s.Read, NamespaceContent: defaults.Content,
	})
	l.add("workspaces", trees, err)

	placements, err := placement.New(c, i, clk)
	l.add("placement", placements, err)

	splits, err := splitter.New(c, i, clk)
	l.add("splitter", splits, err)

	syncers, err := syncer.NewManager(syncer.ManagerConfig{
		Clients: c, Informers: i, Clock: clk,
		MirrorConfig: func(mirror logicalcluster.Name, _ types.UID) (*rest.Config, error) {
			return lead.fence(s.MirrorConfig(mirror)), nil
		},
		DeleteData: lead.deletes(s.DeleteCluster),
		MayWrite:   lead.holds,
		MaxBytes:   s.MaxBytesPerPhysicalCluster(),
		API:        syncer.APIAt(s.URL(), s.CACertificate()),
	})
	l.add("syncers", syncers, err)
	return l.all, placements, l.failed
}
