package nodes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
)

// watcher is one watch. Told of a change it looks anew, and sends what is different.
type watcher struct {
	*listener
	store     *store
	workspace logicalcluster.Name
	key       string
	opts      kubestorage.ListOptions

	// shown are what the client knows of, at is the last revision that it was told.
	shown []shown
	at    uint64
	// uncertain is the revision up to which a change may be in shown without that the client was told.
	uncertain uint64

	result chan watch.Event
	done   chan struct{}
	stop   sync.Once
}

// Watch begins at a revision if nothing has changed since, and else has the client list anew: what there was is not kept. Initial
// events come from the layer above, which lists.
func (s *store) Watch(ctx context.Context, key string, opts kubestorage.ListOptions) (watch.Interface, error) {
	cluster, ok := workspace(ctx)
	if !ok {
		return s.Interface.Watch(ctx, key, opts)
	}
	from, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.nodes.changes.complete:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w := &watcher{
		listener: &listener{wake: make(chan struct{}, 1), after: from, of: s.resource},
		store:    s, workspace: cluster, key: key, opts: opts,
		result: make(chan watch.Event), done: make(chan struct{}),
	}
	if err := w.begin(ctx, from); err != nil {
		w.end()
		return nil, err
	}
	go w.run(ctx)
	return w, nil
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

func (w *watcher) Stop() { w.stop.Do(func() { close(w.done) }) }

func (w *watcher) end() { w.store.nodes.changes.listen(w.listener, nil) }

// begin looks what there is at a revision; 0 is now.
func (w *watcher) begin(ctx context.Context, from uint64) error {
	atLeast := from
	if from == 0 {
		var err error
		if atLeast, err = w.store.GetCurrentResourceVersion(ctx); err != nil {
			return err
		}
	}
	// Listened to from before the look, so that nothing is between them.
	w.store.nodes.changes.listen(w.listener, []logicalcluster.Name{w.workspace})
	seen, err := w.look(ctx, atLeast)
	if err != nil {
		return err
	}
	w.at = from
	if from != 0 {
		if seen.newest > from || w.store.nodes.changes.forgets(w.listener, seen.chain, from) {
			return expired("then is not kept")
		}
		w.uncertain = seen.until
	}
	w.shown, err = w.inScope(seen)
	return err
}

// look looks at the workspace, and listens to the logical clusters that this depends on.
func (w *watcher) look(ctx context.Context, atLeast uint64) (*sight, error) {
	for {
		seen, err := w.store.look(ctx, w.workspace, atLeast)
		if err != nil || slices.Equal(seen.chain, w.chain) {
			return seen, err
		}
		w.store.nodes.changes.listen(w.listener, seen.chain)
	}
}

func (w *watcher) inScope(seen *sight) (in []shown, err error) {
	for _, n := range seen.shown {
		matches, err := inScope(n, w.key, w.opts)
		if err != nil {
			return nil, err
		}
		if matches {
			in = append(in, n)
		}
	}
	return in, nil
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.result)
	defer w.end()
	flowcontrol.WatchInitialized(ctx)
	for {
		select {
		case <-w.wake:
		case <-w.done:
			return
		case <-ctx.Done():
			return
		}
		events, err := w.events(ctx)
		if err != nil {
			events = []watch.Event{failure(err)}
		}
		for _, event := range events {
			select {
			case w.result <- event:
			case <-w.done:
				return
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// events returns what the client is to be told since it was told last.
func (w *watcher) events(ctx context.Context) (events []watch.Event, err error) {
	t := w.store.nodes.changes.heard(w.listener)
	if t.broken || t.first > 0 && t.first <= w.uncertain {
		return nil, expired("meanwhile is not known")
	}
	if t.last > 0 {
		seen, err := w.look(ctx, t.last)
		if err != nil {
			return nil, err
		}
		now, err := w.inScope(seen)
		if err != nil {
			return nil, err
		}
		if events, w.at, err = difference(w.shown, now, w.at, t.last); err != nil {
			return nil, err
		}
		w.shown = now
	}
	if w.opts.Predicate.AllowWatchBookmarks && t.all > w.at {
		w.at = t.all
		bookmark := w.store.new()
		if err := versioner.UpdateObject(bookmark, t.all); err != nil {
			return nil, err
		}
		events = append(events, watch.Event{Type: watch.Bookmark, Object: bookmark})
	}
	return events, nil
}

// difference returns the events that turn what a client knows into what there is, both sorted by name, and the revision of the last.
// cause is that of the latest change, at that of the last event before. Only the last event has the revision that all of them lead
// to: who goes on from one in between is told to list anew, and misses none. A row has the revision that it is stored with, which who
// writes it next has to name; no two have the same.
func difference(before, after []shown, at, cause uint64) (events []watch.Event, now uint64, err error) {
	type change struct {
		event watch.EventType
		shown shown
		own   uint64
		exact bool
	}
	var changes []change
	add := func(event watch.EventType, n shown) error {
		stored, err := versioner.ObjectResourceVersion(n.object)
		c := change{event: event, shown: n, own: cause}
		// A row that is seen again, since what hid it is gone, is an older one.
		if c.exact = n.row && event != watch.Deleted && stored > at; c.exact || event == watch.Modified {
			c.own = stored
		}
		changes = append(changes, c)
		return err
	}
	for len(before) > 0 || len(after) > 0 {
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = byName(before[0], after[0])
		}
		switch {
		case order < 0:
			err, before = add(watch.Deleted, before[0]), before[1:]
		case order > 0:
			err, after = add(watch.Added, after[0]), after[1:]
		case before[0].GetUID() != after[0].GetUID():
			// Another one of the same name takes its place, or one that was hidden.
			err = errors.Join(add(watch.Deleted, before[0]), add(watch.Added, after[0]))
			if now := len(changes) - 1; changes[now].exact {
				changes[now-1].own = min(cause, changes[now].own-1) // which goes first
			}
			before, after = before[1:], after[1:]
		default:
			if !same(before[0], after[0]) {
				err = add(watch.Modified, after[0])
			}
			before, after = before[1:], after[1:]
		}
		if err != nil {
			return nil, at, err
		}
	}
	if len(changes) == 0 {
		return nil, at, nil
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		switch order := cmp.Compare(a.own, b.own); {
		case order != 0 || a.exact == b.exact:
			return order
		case a.exact:
			return 1
		}
		return -1
	})
	now = max(at, changes[len(changes)-1].own)
	for i, c := range changes {
		revision := now
		if i < len(changes)-1 {
			revision = max(at, min(c.own, now-1))
		}
		n := c.shown.DeepCopyObject()
		if err := versioner.UpdateObject(n, revision); err != nil {
			return nil, at, err
		}
		events = append(events, watch.Event{Type: c.event, Object: n})
	}
	return events, now, nil
}

// same says whether two objects say the same. Much that is written to a SyncTarget does not change what a workspace sees of it.
func same(a, b shown) bool {
	if a.row || b.row {
		return a.GetResourceVersion() == b.GetResourceVersion()
	}
	alike := a.DeepCopyObject().(object)
	alike.SetResourceVersion(b.GetResourceVersion())
	return apiequality.Semantic.DeepEqual(alike, b.object)
}

// failure is the event that ends a watch.
func failure(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return watch.Event{Type: watch.Error, Object: &s}
}
