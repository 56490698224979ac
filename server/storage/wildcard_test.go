package storage

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"
)

// TestWildcardWatchStarts: a watch of all logical clusters that names no position, or 0, or asks for initial events
// starts with the objects of all of them, each once, and goes on with what happens, each once; selectors and a namespace
// filter both. Equal names in two logical clusters are two objects. With and without a cache.
func TestWildcardWatchStarts(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	resources := map[string]struct {
		store *genericregistry.Store
		make  func(cluster, namespace, name, tier string)
	}{
		"cached": {s.configMaps, func(cluster, namespace, name, tier string) {
			cm := configMap(namespace, name)
			cm.Labels = map[string]string{"tier": tier}
			create(t, s.configMaps, in(cluster, namespace), cm)
		}},
		"uncached": {s.events, func(cluster, namespace, name, tier string) {
			e := event(namespace, name)
			e.Labels = map[string]string{"tier": tier}
			create(t, s.events, in(cluster, namespace), e)
		}},
	}
	// Namespace bb is also the name of a logical cluster, whose prefix it must not become.
	for _, r := range resources {
		for _, cluster := range []string{"aa", "bb"} {
			r.make(cluster, "bb", "canary", "front")
			r.make(cluster, "default", "canary", "front")
			r.make(cluster, "default", "back", "back")
		}
	}
	initial := ptr.To(true)
	starts := map[string]struct {
		opts     metainternalversion.ListOptions
		bookmark bool
	}{
		"no position": {opts: metainternalversion.ListOptions{}},
		"position 0":  {opts: metainternalversion.ListOptions{ResourceVersion: "0"}},
		"no position, as the API server hands it on": {opts: metainternalversion.ListOptions{SendInitialEvents: initial, ResourceVersionMatch: "NotOlderThan"}},
		"position 0, as the API server hands it on":  {opts: metainternalversion.ListOptions{SendInitialEvents: initial, ResourceVersionMatch: "NotOlderThan", ResourceVersion: "0"}},
		"with bookmarks": {opts: metainternalversion.ListOptions{SendInitialEvents: initial, ResourceVersionMatch: "NotOlderThan", AllowWatchBookmarks: true}, bookmark: true},
	}
	front, canary := labels.SelectorFromSet(labels.Set{"tier": "front"}), fields.OneTermEqualSelector("metadata.name", "canary")
	scopes := map[string]struct {
		namespace []string
		label     labels.Selector
		field     fields.Selector
		want      []string // below each cluster
	}{
		"all":         {want: []string{"bb/canary", "default/back", "default/canary"}},
		"a namespace": {namespace: []string{"bb"}, want: []string{"bb/canary"}},
		"a label":     {label: front, want: []string{"bb/canary", "default/canary"}},
		"a name":      {field: canary, want: []string{"bb/canary", "default/canary"}},
		"all of them": {namespace: []string{"default"}, label: front, field: canary, want: []string{"default/canary"}},
	}
	for resource, r := range resources {
		for start, st := range starts {
			for scope, sc := range scopes {
				t.Run(resource+"/"+start+"/"+scope, func(t *testing.T) {
					// Caches must have seen what is there before position 0 can be expected to show it.
					names(t, r.store, everywhere(), nil)
					opts := st.opts
					opts.LabelSelector, opts.FieldSelector = sc.label, sc.field
					w := startWatch(t, r.store, everywhere(sc.namespace...), &opts)
					var want, got []string
					for _, cluster := range []string{"aa", "bb"} {
						for _, rest := range sc.want {
							want = append(want, "ADDED "+cluster+"/"+rest)
							event, _ := next(t, w)
							got = append(got, event)
						}
					}
					slices.Sort(got)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("the start (-want +got):\n%s", diff)
					}
					if st.bookmark {
						got, event := next(t, w)
						if ends, err := storage.HasInitialEventsEndBookmarkAnnotation(event.Object); event.Type != watch.Bookmark || !ends || err != nil {
							t.Fatalf("event %s, want the bookmark that ends the initial events", got)
						}
					}
					// Of what is changed while etcd registers a watch it does not tell the value before, without which the watch ends:
					// what comes next meets one that is there.
					at := append(sc.namespace, "default")[0]
					r.make("cc", at, "canary", "front")
					wantEvents(t, w, "ADDED cc/"+at+"/canary")
					if _, _, err := r.store.Delete(in("cc", at), "canary", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					wantEvents(t, w, "DELETED cc/"+at+"/canary")
					// Afterwards every change is told once, of both clusters, and what the scope leaves out is not.
					for _, cluster := range []string{"aa", "bb"} {
						for _, namespace := range []string{"bb", "default"} {
							if _, _, err := r.store.Delete(in(cluster, namespace), "canary", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
								t.Fatal(err)
							}
							r.make(cluster, namespace, "canary", "front")
							if id := namespace + "/canary"; slices.Contains(sc.want, id) {
								wantEvents(t, w, "DELETED "+cluster+"/"+id, "ADDED "+cluster+"/"+id)
							}
						}
					}
				})
			}
		}
	}
}

// TestWildcardWatchStartsWhileOthersWrite: wherever in a stream of writes a watch of all logical clusters starts, it
// shows each object once, as there already or as new.
func TestWildcardWatchStartsWhileOthersWrite(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	clusters := []string{"aa", "bb"}
	const each, watchers = 150, 12
	var working sync.WaitGroup
	defer working.Wait()
	begun := make(chan struct{}, len(clusters))
	for _, cluster := range clusters {
		working.Go(func() {
			begin := sync.OnceFunc(func() { begun <- struct{}{} })
			defer begin() // also when it fails
			for n := range each {
				_, err := s.configMaps.Create(in(cluster, "default"), configMap("default", fmt.Sprintf("canary-%03d", n)), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
				if err != nil {
					t.Errorf("create in %s: %v", cluster, err)
					return
				}
				if n == each/10 {
					begin()
				}
			}
		})
	}
	for range clusters {
		<-begun
	}
	for i := range watchers {
		opts := &metainternalversion.ListOptions{}
		if i%2 == 1 {
			opts = &metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan"}
		}
		if i%4 >= 2 {
			opts.ResourceVersion = "0"
		}
		working.Go(func() {
			seen := map[string]bool{}
			var last uint64 // the newest resourceVersion seen; the initial events are not in its order
			deadline := time.After(30 * time.Second)
			for len(seen) < each*len(clusters) {
				w, err := s.configMaps.Watch(everywhere(), opts)
				if err != nil {
					t.Errorf("watch %d: %v", i, err)
					return
				}
				for ended := false; !ended && len(seen) < each*len(clusters); {
					select {
					case event, ok := <-w.ResultChan():
						if !ok {
							// A watch that takes events too slowly, for the load of the machine, is ended by the cache, as a
							// client of any Kubernetes knows it: it goes on after what it has seen last.
							ended = true
							break
						}
						if event.Type != watch.Added {
							t.Errorf("watch %d: event %v after %d objects", i, event, len(seen))
							w.Stop()
							return
						}
						id := describe(event.Object)
						if seen[id] {
							t.Errorf("watch %d shows %s twice", i, id)
						}
						seen[id] = true
						version, err := storage.APIObjectVersioner{}.ObjectResourceVersion(event.Object)
						if err != nil {
							t.Errorf("watch %d: %s: %v", i, id, err)
						}
						last = max(last, version)
						opts = &metainternalversion.ListOptions{ResourceVersion: strconv.FormatUint(last, 10)}
					case <-deadline:
						t.Errorf("watch %d shows %d of %d objects", i, len(seen), each*len(clusters))
						w.Stop()
						return
					}
				}
				w.Stop()
			}
		})
	}
}
