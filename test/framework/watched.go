package framework

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// byItself are the resources of which something is written all the time, or that nobody can change.
var byItself = []string{"events", "leases", "nodes", "componentstatuses"}

// Listable are the resources that a cluster serves and lists, each in one version, without those that change by themselves: those of
// namespaces, and the others. It is an error if a group of them is not known, as that of a definition that has just come.
func Listable(config *rest.Config) (namespaced, others []schema.GroupVersionResource, err error) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	lists, err := d.ServerPreferredResources()
	if err != nil {
		return nil, nil, fmt.Errorf("discover what %s serves: %w", config.Host, err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "get"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range list.APIResources {
			switch {
			case slices.Contains(byItself, r.Name) || gv.Group == "metrics.k8s.io":
			case r.Namespaced:
				namespaced = append(namespaced, gv.WithResource(r.Name))
			default:
				others = append(others, gv.WithResource(r.Name))
			}
		}
	}
	return namespaced, others, nil
}

// Place is where something may change: a cluster, and those of its objects that are meant.
type Place struct {
	Name   string
	Config *rest.Config
	Of     func(gvr schema.GroupVersionResource, o metav1.Object) bool
}

// Watched is what there is in some places, and what changes there.
type Watched struct {
	// mu guards what follows.
	mu      sync.Mutex
	there   map[string]bool
	changes []string
	last    time.Time // of a change
}

// Watch watches all that places serve and list, from now to the end of the test.
func Watch(t testing.TB, places ...Place) *Watched {
	t.Helper()
	w := &Watched{there: map[string]bool{}, last: time.Now()}
	for _, p := range places {
		config := rest.CopyConfig(p.Config)
		config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // some are deprecated
		objects, err := metadata.NewForConfig(config)
		if err != nil {
			t.Fatalf("%s: make a client: %v", p.Name, err)
		}
		namespaced, others, err := Listable(config)
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		for _, gvr := range append(namespaced, others...) {
			if err := w.watch(t.Context(), p, gvr, objects.Resource(gvr)); err != nil {
				t.Fatalf("%s: watch %s: %v", p.Name, gvr.GroupResource(), err)
			}
		}
	}
	return w
}

func (w *Watched) watch(ctx context.Context, p Place, gvr schema.GroupVersionResource, of metadata.Getter) error {
	list, err := of.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		w.saw(p, gvr, "", &list.Items[i])
	}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return of.Watch(ctx, opts)
		},
	})
	if err != nil {
		return err
	}
	go func() {
		for e := range events.ResultChan() {
			if o, err := meta.Accessor(e.Object); err == nil && e.Type != watch.Error {
				w.saw(p, gvr, e.Type, o)
			} else {
				w.changed(fmt.Sprintf("%s %s: the watch ends: %v", p.Name, gvr.GroupResource(), e.Object))
			}
		}
	}()
	return nil
}

// saw is told of an object that is there, by no event, or changes.
func (w *Watched) saw(p Place, gvr schema.GroupVersionResource, event watch.EventType, o metav1.Object) {
	if p.Of != nil && !p.Of(gvr, o) {
		return
	}
	key := fmt.Sprintf("%s %s %s/%s", p.Name, gvr.GroupResource(), o.GetNamespace(), o.GetName())
	w.mu.Lock()
	if w.there[key] = true; event == watch.Deleted {
		delete(w.there, key)
	}
	w.mu.Unlock()
	if event != "" {
		w.changed(fmt.Sprintf("%s: %s, resourceVersion %s, generation %d", key, event, o.GetResourceVersion(), o.GetGeneration()))
	}
}

func (w *Watched) changed(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes, w.last = append(w.changes, what), time.Now()
}

// There are "PLACE RESOURCE NAMESPACE/NAME" of all that there is.
func (w *Watched) There() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.there)
}

// Rests waits until nothing has changed for a while, and forgets what has.
func (w *Watched) Rests(t testing.TB, timeout, while time.Duration) {
	t.Helper()
	Eventually(t, timeout, fmt.Sprintf("nothing changes for %s", while), func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Since(w.last) < while {
			return "the last changes:\n" + strings.Join(w.changes[max(0, len(w.changes)-20):], "\n")
		}
		w.changes = nil
		return ""
	})
}

// Changes are those since Rests, in their order.
func (w *Watched) Changes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.changes)
}
