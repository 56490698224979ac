package crash

import (
	"context"
	"errors"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/placement"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/splitter"
	"atoll.dev/atoll/syncer"
	"atoll.dev/atoll/workspaces"
)

// subject is a controller that can be put under a fault. It shares nothing with the others but the server.
type subject struct {
	name string
	// role is the controller, if several entries are about one; else it is the name.
	role string
	// make returns a new life of the controller, all of whose requests go over the line.
	make func(*world, *line) (func(context.Context) error, error)
	// counts says which writes count for crashes; nil is all of them.
	counts func(write) bool
	// crash, older and dropped name the scenarios for each fault, and more those that `make soak` adds to the first two.
	crash, older, dropped, more []string
	// lanes is how many runs with crashes `make soak` has at a time, each in a world of its own; 0 is one.
	lanes int
	// seed draws the writes to crash after.
	seed uint64
	// reached is what its runs crashed after.
	reached *reached
	// atOnce leaves to `make soak` the older views of one list at a time, beside others that show what is: they are too many.
	atOnce bool
	// soak entries are for `make soak` alone.
	soak bool
}

// everyone is in the world at all times.
var everyone = []string{"house", "workspaces", "placement", "splitter", "syncer", "garbage", "credentials"}

// subjects: where writes of one controller are divided over several entries, it is because together they are too many to crash
// after each in a test that everybody runs.
var subjects = []subject{
	{
		// Over the line they see by the informers that they share, and each by its own lists and watches, of what it has looked at or
		// waits for: that may be the past. What they decide by they read when they look, by a request or, past every line, from the stores
		// in their process: what is counted for ResourceQuotas, and what becomes less of it; all ClusterRoles; Jobs of CronJobs; pods and
		// slices of Services; what each namespace has, and what is hidden in it.
		name: "house", make: makeHouse, counts: not(isEvent), lanes: 2, atOnce: true,
		crash: []string{"house"}, older: []string{"house"}, dropped: []string{"house"}, more: []string{"house moves"},
	},
	{
		// What warns of the same once more does so when it likes.
		name: "house's events", role: "house", make: makeHouse, counts: isEvent,
		crash: []string{"house"}, soak: true,
	},
	{
		name: "placement", make: makePlacement,
		crash: []string{"once"}, older: []string{"move"}, dropped: []string{"life"}, more: []string{"move", "life"},
	},
	{
		name: "splitter", make: makeSplitter, counts: isContent, lanes: 2,
		crash: []string{"once", "others"}, older: []string{"move"}, dropped: []string{"life"}, more: []string{"move", "life", "others move"},
	},
	{
		name: "splitter's statuses", role: "splitter", make: makeSplitter, counts: not(isContent),
		crash: []string{"move"}, soak: true,
	},
	{
		name: "syncer", make: makeSyncer, counts: func(w write) bool { return isContent(w) && !isHeartbeat(w) }, lanes: 3,
		crash: []string{"once", "others"}, older: []string{"change"}, dropped: []string{"life"}, more: []string{"change", "move", "life", "others move"},
	},
	{
		name: "syncer's statuses", role: "syncer", make: makeSyncer, counts: not(isContent),
		crash: []string{"change"}, soak: true,
	},
	{
		// Heartbeats come when they like, so that the n-th write would be another one in each run if they counted above.
		name: "heartbeat", role: "syncer", make: makeSyncer, counts: isHeartbeat,
		crash: []string{"once"}, soak: true,
	},
	{
		name: "workspaces", make: makeWorkspaces,
		crash: []string{"bare tree"}, older: []string{"bare tree"}, dropped: []string{"regret"}, more: []string{"tree"},
	},
	{
		// What it sees comes from the stores in its process, past every line, and no write of it rests on that alone.
		name: "garbage", make: makeGarbage,
		crash: []string{"owned"},
	},
	{
		name: "credentials", make: makeCredentials,
		crash: []string{"pull"}, older: []string{"pull"}, dropped: []string{"pull"},
	},
}

// isContent says that a write is more than a report.
func isContent(w write) bool { return w.info.Subresource != "status" && !isEvent(w) }

func isEvent(w write) bool { return w.info.Resource == "events" }

func isHeartbeat(w write) bool { return w.info.Resource == "leases" }

func not(f func(write) bool) func(write) bool { return func(w write) bool { return !f(w) } }

func subjectOf(name string) subject {
	for _, s := range subjects {
		if s.name == name {
			return s
		}
	}
	panic("no subject " + name)
}

// shared is what each controller of the server has over a line of its own.
func (w *world) shared(l *line) (*client.Clients, *client.Informers, error) {
	c, err := client.New(l.over(hubSide, w.server.LoopbackConfig()))
	if err != nil {
		return nil, nil, err
	}
	i, err := client.NewInformers(c)
	return c, i, err
}

// together runs informers and the controller that uses them, until that ends.
func together(i *client.Informers, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		wg.Go(func() { i.Run(ctx) })
		return run(ctx)
	}
}

func makePlacement(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	p, err := placement.New(c, i, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	return together(i, p.Run), nil
}

func makeSplitter(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	s, err := splitter.New(c, i, w.fast)
	if err != nil {
		return nil, err
	}
	return together(i, s.Run), nil
}

func makeWorkspaces(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	ws, err := workspaces.New(c, i, workspaces.Options{
		URLBase: w.server.URL(),
		DeleteData: func(ctx context.Context, cluster logicalcluster.Name) (held lcctx.Held, err error) {
			err = l.call("data", func() error {
				held, err = w.server.DeleteClusterData(ctx, cluster)
				return err
			})
			return held, err
		},
		Held: w.server.Held,
		DeleteRest: func(ctx context.Context, cluster logicalcluster.Name) error {
			return l.call("rest", func() error { return w.server.DeleteCluster(ctx, cluster) })
		},
		WriteTogether: func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (written bool, err error) {
			err = l.call("together", func() error {
				written, err = w.server.WriteTogether(ctx, while, objects...)
				return err
			})
			return written, err
		},
		Read: w.server.Read, NamespaceContent: w.namespaces.Content,
	})
	if err != nil {
		return nil, err
	}
	return together(i, ws.Run), nil
}

func makeGarbage(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	g, err := garbage.New(c, i, garbage.Options{Kinds: w.server.Kinds(), Read: w.server.Read})
	if err != nil {
		return nil, err
	}
	return together(i, g.Run), nil
}

func makeCredentials(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	creds, err := syncer.NewCredentials(syncer.CredentialsConfig{Clients: c, Informers: i, Sign: w.server.SignSyncer, Clock: clock.RealClock{}})
	if err != nil {
		return nil, err
	}
	return together(i, creds.Run), nil
}

// makeSyncer makes the syncers of all physical clusters: they live in one process.
func makeSyncer(w *world, l *line) (func(context.Context) error, error) {
	var all []*syncer.Syncer
	for _, name := range clusterNames {
		target := w.targets[name]
		s, err := syncer.New(syncer.Config{
			Name: name, UID: string(target.UID), Clock: clock.RealClock{},
			Mirror:   l.over(hubSide, w.server.MirrorConfig(logicalcluster.Name(target.Status.Mirror))),
			Physical: l.over(name, w.fleet[name].RESTConfig()),
		})
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return func(ctx context.Context) error {
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() { errs[i] = s.Run(ctx) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}, nil
}
