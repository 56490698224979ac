package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// durableWatch does as every client does: list, watch from there, and on a break again from the last resourceVersion
// seen, or by a list where the server says that this one is too old.
type durableWatch struct {
	scope logicalcluster.Name // "": all

	mu    sync.Mutex
	known map[string]string // resourceVersion
	last  uint64
	// seen are the events since the last comparison, by logical cluster; holes is what a list jumped over meanwhile.
	seen              map[logicalcluster.Name]map[uint64]watched
	holes             []hole
	resumed, relisted int
	problems          []string
}

// watched is an event of one object at one resourceVersion.
type watched struct {
	kind  watch.EventType
	key   string
	value string
}

// hole are the resourceVersions above from, up to and including to, of which a watch was told nothing.
type hole struct{ from, to uint64 }

func startDurableWatch(t *testing.T, ctx context.Context, scope logicalcluster.Name, clients *client.Clients) *durableWatch {
	t.Helper()
	d := &durableWatch{scope: scope, known: map[string]string{}, seen: map[logicalcluster.Name]map[uint64]watched{}}
	if err := d.list(ctx, clients); err != nil {
		t.Fatalf("start a watch: %v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	first := make(chan struct{})
	go func() {
		defer close(done)
		for once := false; ctx.Err() == nil; {
			watching, err := clients.Kube.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: d.from(), AllowWatchBookmarks: true})
			if err == nil {
				if !once {
					once = true
					close(first)
				} else {
					d.mu.Lock()
					d.resumed++
					d.mu.Unlock()
				}
				err = d.read(ctx, watching)
			}
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				if err := d.list(ctx, clients); err == nil {
					d.mu.Lock()
					d.relisted++
					d.mu.Unlock()
				}
			}
			select { // the server is away
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(time.Minute):
		t.Fatal("a watch did not start in a minute")
	}
	return d
}

func (d *durableWatch) from() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strconv.FormatUint(d.last, 10)
}

func (d *durableWatch) list(ctx context.Context, clients *client.Clients) error {
	list, err := clients.Kube.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := map[string]string{}
	for _, cm := range list.Items {
		if inDurable(d.scope, &cm) {
			known[durableKey(lcctx.NameFrom(&cm), cm.Name)] = cm.ResourceVersion
		}
	}
	d.known = known
	before := d.last
	d.advance(list.ResourceVersion, false)
	d.holes = append(d.holes, hole{from: before, to: d.last})
	return nil
}

// inDurable leaves out of the wildcard what no test wrote.
func inDurable(scope logicalcluster.Name, cm *corev1.ConfigMap) bool {
	cluster := lcctx.NameFrom(cm)
	return scope == cluster || scope == "" && cluster != "root" && !strings.HasPrefix(cluster.String(), "system:")
}

// advance is called with mu held. An event is of a change, of which each has a resourceVersion of its own.
func (d *durableWatch) advance(version string, event bool) uint64 {
	next, err := strconv.ParseUint(version, 10, 64)
	switch {
	case err != nil:
		d.problem("resourceVersion %q: %v", version, err)
	case next < d.last:
		d.problem("resourceVersion went back from %d to %d", d.last, next)
	case next == d.last && event:
		d.problem("a second event at resourceVersion %d", next)
	}
	d.last = max(d.last, next)
	return next
}

func (d *durableWatch) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

// read returns the error that the watch ended with, or nil.
func (d *durableWatch) read(ctx context.Context, watching watch.Interface) error {
	defer watching.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watching.ResultChan():
			if !ok {
				return nil
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			cm, isMap := event.Object.(*corev1.ConfigMap)
			if !isMap {
				return fmt.Errorf("a %T in a watch of ConfigMaps", event.Object)
			}
			d.take(event.Type, cm)
		}
	}
}

func (d *durableWatch) take(kind watch.EventType, cm *corev1.ConfigMap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	version := d.advance(cm.ResourceVersion, kind != watch.Bookmark)
	if kind == watch.Bookmark || !inDurable(d.scope, cm) {
		return
	}
	cluster := lcctx.NameFrom(cm)
	key := durableKey(cluster, cm.Name)
	if _, known := d.known[key]; known != (kind != watch.Added) {
		d.problem("%s of %s at resourceVersion %d, which was known: %v", kind, key, version, known)
	}
	if kind == watch.Deleted {
		delete(d.known, key)
	} else {
		d.known[key] = cm.ResourceVersion
	}
	if d.seen[cluster] == nil {
		d.seen[cluster] = map[uint64]watched{}
	}
	d.seen[cluster][version] = watched{kind, key, cm.Data["value"]}
}

// inHole says whether the watch was told nothing of a resourceVersion, since the server had forgotten what led to it.
func (d *durableWatch) inHole(version uint64) bool {
	return slices.ContainsFunc(d.holes, func(h hole) bool { return h.from < version && version <= h.to })
}

// gaps says how the events that watches saw in a logical cluster since the last comparison differ: from each other's, and
// from the writes that were acknowledged, by resourceVersion. Nobody holds the watches' locks.
func gaps(cluster logicalcluster.Name, watches []*durableWatch, acknowledged map[uint64]watched) []string {
	all := map[uint64]watched{}
	var problems []string
	for i, d := range watches {
		d.mu.Lock()
		for version, event := range d.seen[cluster] {
			if other, known := all[version]; known && other != event {
				problems = append(problems, fmt.Sprintf("watch %d: at resourceVersion %d it saw %+v, others %+v", i, version, event, other))
			}
			all[version] = event
		}
		d.mu.Unlock()
	}
	for version, write := range acknowledged {
		event, seen := all[version]
		if seen && event != write {
			problems = append(problems, fmt.Sprintf("resourceVersion %d: acknowledged was %+v, watches saw %+v", version, write, event))
		}
		all[version] = write
	}
	for _, version := range slices.Sorted(maps.Keys(all)) {
		for i, d := range watches {
			if d.scope != "" && d.scope != cluster {
				continue
			}
			d.mu.Lock()
			if _, seen := d.seen[cluster][version]; !seen && !d.inHole(version) {
				problems = append(problems, fmt.Sprintf("watch %d of %q missed resourceVersion %d, %+v", i, d.scope, version, all[version]))
			}
			d.mu.Unlock()
		}
	}
	return problems
}
