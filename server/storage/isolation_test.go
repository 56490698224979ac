package storage

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// TestVerbsKeepClustersApart runs every verb on a name that exists in two logical clusters.
func TestVerbsKeepClustersApart(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "of a")
	put(t, s, "bb", "x", "of b") // an equal name is free in another cluster
	put(t, s, "bb", "only-b", "of b")
	value := func(cluster, rv string) string {
		t.Helper()
		got, err := s.configMaps.Get(in(cluster, "default"), "x", &metav1.GetOptions{ResourceVersion: rv})
		if err != nil {
			return err.Error()
		}
		return got.(*api.ConfigMap).Data["v"] + " in " + lc.NameFrom(got.(*api.ConfigMap)).String()
	}
	update := func(cluster, v string) {
		t.Helper()
		_, _, err := s.configMaps.Update(in(cluster, "default"), "x", changed(func(cm *api.ConfigMap) { cm.Data["v"] = v }), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}

	if got := value("aa", "") + "; " + value("bb", ""); got != "of a in aa; of b in bb" {
		t.Errorf("get: %s", got)
	}
	for _, opts := range []*metainternalversion.ListOptions{nil, {ResourceVersion: "0"}, {Limit: 10}, {FieldSelector: fields.OneTermEqualSelector("metadata.name", "x")}} {
		if diff := cmp.Diff([]string{"aa/default/x"}, names(t, s.configMaps, in("aa", "default"), opts)); diff != "" {
			t.Errorf("list %+v in aa: %s", opts, diff)
		}
		if diff := cmp.Diff([]string{"aa/default/x"}, names(t, s.configMaps, in("aa"), opts)); diff != "" {
			t.Errorf("list %+v of all namespaces in aa: %s", opts, diff)
		}
	}
	if _, err := s.configMaps.Get(in("aa", "default"), "only-b", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of a name of another cluster: %v, want NotFound", err)
	}
	if _, _, err := s.configMaps.Delete(in("aa", "default"), "only-b", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("delete of a name of another cluster: %v, want NotFound", err)
	}

	inA := startWatch(t, s.configMaps, in("aa", "default"), &metainternalversion.ListOptions{})
	wantEvents(t, inA, "ADDED aa/default/x")
	update("bb", "changed b")
	update("aa", "changed a")
	wantEvents(t, inA, "MODIFIED aa/default/x")
	if got := value("aa", "") + "; " + value("bb", ""); got != "changed a in aa; changed b in bb" {
		t.Errorf("after update: %s", got)
	}

	if _, _, err := s.configMaps.Delete(in("aa", "default"), "x", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, inA, "DELETED aa/default/x")
	if got := value("bb", ""); got != "changed b in bb" {
		t.Errorf("bb after delete in aa: %s", got)
	}

	put(t, s, "aa", "y", "")
	if _, err := s.configMaps.DeleteCollection(in("aa", "default"), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.configMaps, in("aa"), nil); len(got) != 0 {
		t.Errorf("aa after deletecollection: %v", got)
	}
	if diff := cmp.Diff([]string{"bb/default/only-b", "bb/default/x"}, names(t, s.configMaps, in("bb"), nil)); diff != "" {
		t.Errorf("bb after deletecollection in aa: %s", diff)
	}
	// A cluster whose name begins with another's is not in its range.
	put(t, s, "aabb", "z", "")
	if got := names(t, s.configMaps, in("aa"), nil); len(got) != 0 {
		t.Errorf("aa sees %v of aabb", got)
	}
}

// TestContextWithoutClusterIsRefused: a path that lost its context fails, and says where.
func TestContextWithoutClusterIsRefused(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "")
	lost := genericapirequest.WithNamespace(genericapirequest.NewContext(), "default")
	verbs := map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			_, err := s.configMaps.Get(ctx, "x", &metav1.GetOptions{})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := s.configMaps.List(ctx, nil)
			return err
		},
		"watch": func(ctx context.Context) error {
			_, err := s.configMaps.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: "1"})
			return err
		},
		"create": func(ctx context.Context) error {
			_, err := s.configMaps.Create(ctx, configMap("default", "new"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
			return err
		},
		"update": func(ctx context.Context) error {
			return s.configMaps.Storage.Storage.GuaranteedUpdate(ctx, "/configmaps/default/x", &api.ConfigMap{}, false, nil,
				func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					return input, nil, nil
				}, nil)
		},
		"delete": func(ctx context.Context) error {
			return s.configMaps.Storage.Storage.Delete(ctx, "/configmaps/default/x", &api.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		},
	}
	for verb, do := range verbs {
		err := do(lost)
		if err == nil {
			t.Errorf("%s without a logical cluster succeeded", verb)
			continue
		}
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), verb) || !strings.Contains(err.Error(), "configmaps") {
			t.Errorf("%s without a logical cluster: %v, want an internal error that names the verb and the resource", verb, err)
		}
		for _, bad := range []string{"", "..", "*", "aa/default", "system:a/b"} {
			if err := do(in(bad, "default")); !apierrors.IsBadRequest(err) {
				t.Errorf("%s in cluster %q: %v, want BadRequest", verb, bad, err)
			}
		}
	}
}

// TestCacheHoldsEqualNames (X1): the cache of a restarted server has every cluster's object of one name.
func TestCacheHoldsEqualNames(t *testing.T) {
	const clusters = 200
	s := serve(t, prefixOf(t), nil)
	want := []string{}
	for i := range clusters {
		cluster := fmt.Sprintf("cluster-%03d", i)
		put(t, s, cluster, "same", cluster)
		want = append(want, cluster+"/default/same")
	}
	s.Destroy()

	if !etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
		t.Fatal("without progress requests a cacher never streams its initial state, and this test could not fail")
	}
	s = serve(t, prefixOf(t), nil)
	for name, opts := range map[string]*metainternalversion.ListOptions{"cache": {ResourceVersion: "0"}, "consistent": {}} {
		if diff := cmp.Diff(want, names(t, s.configMaps, everywhere(), opts)); diff != "" {
			t.Errorf("%s list of all clusters after a restart (-want +got):\n%s", name, diff)
		}
		for i := range clusters {
			cluster := fmt.Sprintf("cluster-%03d", i)
			if got := names(t, s.configMaps, in(cluster, "default"), opts); len(got) != 1 || got[0] != cluster+"/default/same" {
				t.Fatalf("%s list in %s after a restart: %v", name, cluster, got)
			}
		}
	}
}

// spy records what reaches the layers below clusterStorage.
type spy struct {
	storage.Interface
	watches, lists *[]storage.ListOptions
}

func (s spy) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	*s.watches = append(*s.watches, opts)
	return s.Interface.Watch(ctx, key, opts)
}

func (s spy) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	*s.lists = append(*s.lists, opts)
	return s.Interface.GetList(ctx, key, opts, list)
}

// TestWatchStartsFromOwnCluster (X2): all ways to ask for initial events deliver those of the own cluster, and none
// makes the cacher walk the objects of all clusters.
func TestWatchStartsFromOwnCluster(t *testing.T) {
	var watches, lists []storage.ListOptions
	s := serve(t, prefixOf(t), func(c *Config) {
		c.Overlay = func(gr schema.GroupResource) func(storage.Interface) storage.Interface {
			if gr.Resource != "configmaps" {
				return nil
			}
			return func(inner storage.Interface) storage.Interface { return spy{inner, &watches, &lists} }
		}
	})
	for _, c := range []string{"aa", "bb", "cc"} {
		put(t, s, c, "x", c)
		put(t, s, c, "y", c)
	}
	last := put(t, s, "bb", "z", "").ResourceVersion

	for name, tc := range map[string]struct {
		opts     metainternalversion.ListOptions
		bookmark bool
	}{
		"no position":          {opts: metainternalversion.ListOptions{}},
		"position 0":           {opts: metainternalversion.ListOptions{ResourceVersion: "0"}},
		"stream, newest":       {opts: metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan", AllowWatchBookmarks: true}, bookmark: true},
		"stream, any":          {opts: metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan", ResourceVersion: "0", AllowWatchBookmarks: true}, bookmark: true},
		"stream, not older":    {opts: metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan", ResourceVersion: last, AllowWatchBookmarks: true}, bookmark: true},
		"stream, no bookmarks": {opts: metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan"}},
	} {
		t.Run(name, func(t *testing.T) {
			watches, lists = nil, nil
			// The cache must have seen the last write before "any" can be expected to.
			names(t, s.configMaps, in("bb"), nil)
			w := startWatch(t, s.configMaps, in("bb", "default"), &tc.opts)
			wantEvents(t, w, "ADDED bb/default/x", "ADDED bb/default/y", "ADDED bb/default/z")
			if tc.bookmark {
				got, event := next(t, w)
				if ends, err := storage.HasInitialEventsEndBookmarkAnnotation(event.Object); event.Type != watch.Bookmark || !ends || err != nil {
					t.Fatalf("event %s, want the bookmark that ends the initial events", got)
				}
				if rv, err := s.configMaps.Storage.Versioner().ObjectResourceVersion(event.Object); err != nil || fmt.Sprint(rv) < last {
					t.Errorf("the bookmark is at %d, before the last object at %s (%v)", rv, last, err)
				}
			}
			if len(watches) != 1 || wantsInitialEvents(watches[0]) {
				t.Errorf("the cacher was asked for initial events: %+v", watches)
			}
			put(t, s, "aa", "live-"+strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", ""), "")
			live := "live"
			put(t, s, "bb", live, "")
			wantEvents(t, w, "ADDED bb/default/live")
			if _, _, err := s.configMaps.Delete(in("bb", "default"), live, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			wantEvents(t, w, "DELETED bb/default/live")
		})
	}
}

// TestInitialEventsAreCopies: what a watcher does to an event reaches neither the cache nor other watchers.
func TestInitialEventsAreCopies(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "clean")
	for range 2 {
		w := startWatch(t, s.configMaps, in("aa", "default"), &metainternalversion.ListOptions{})
		_, event := next(t, w)
		cm := event.Object.(*api.ConfigMap)
		if cm.Data["v"] != "clean" || cm.Annotations["dirt"] != "" {
			t.Fatalf("an event shows another watcher's changes: %v %v", cm.Data, cm.Annotations)
		}
		cm.Data["v"], cm.Annotations["dirt"] = "dirty", "yes"
	}
}

// TestWildcardNamespaceIsAFilter (X4): on the wildcard, namespace "bb" is not logical cluster "bb".
func TestWildcardNamespaceIsAFilter(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	for _, cluster := range []string{"aa", "bb"} {
		for _, ns := range []string{"aa", "bb"} {
			create(t, s.configMaps, in(cluster, ns), configMap(ns, "x"))
			create(t, s.events, in(cluster, ns), event(ns, "x"))
		}
		create(t, s.clusterRoles, in(cluster), clusterRole("bb", nil))
		create(t, s.clusterRoles, in(cluster), clusterRole("other", nil))
	}
	byName := &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "x")}
	for name, got := range map[string][]string{
		"list":          names(t, s.configMaps, everywhere("bb"), nil),
		"list, cache":   names(t, s.configMaps, everywhere("bb"), &metainternalversion.ListOptions{ResourceVersion: "0"}),
		"list, name":    names(t, s.configMaps, everywhere("bb"), byName),
		"list uncached": names(t, s.events, everywhere("bb"), nil),
		"uncached name": names(t, s.events, everywhere("bb"), byName),
	} {
		if diff := cmp.Diff([]string{"aa/bb/x", "bb/bb/x"}, got); diff != "" {
			t.Errorf("%s in namespace bb of all clusters (-want +got):\n%s", name, diff)
		}
	}
	all := []string{"aa/aa/x", "aa/bb/x", "bb/aa/x", "bb/bb/x"}
	if diff := cmp.Diff(all, names(t, s.configMaps, everywhere(), byName)); diff != "" {
		t.Errorf("one name in all clusters: %s", diff)
	}
	roles := names(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "bb")})
	if diff := cmp.Diff([]string{"aa/bb", "bb/bb"}, roles); diff != "" {
		t.Errorf("one cluster-scoped name in all clusters: %s", diff)
	}

	list, err := s.configMaps.List(everywhere(), nil)
	if err != nil {
		t.Fatal(err)
	}
	rv := list.(*api.ConfigMapList).ResourceVersion
	inNamespace := startWatch(t, s.configMaps, everywhere("bb"), &metainternalversion.ListOptions{ResourceVersion: rv})
	ofName := startWatch(t, s.configMaps, everywhere("bb"), &metainternalversion.ListOptions{ResourceVersion: rv, FieldSelector: fields.OneTermEqualSelector("metadata.name", "new")})
	ofEvents := startWatch(t, s.events, everywhere("bb"), &metainternalversion.ListOptions{ResourceVersion: rv})
	create(t, s.configMaps, in("bb", "aa"), configMap("aa", "new"))
	create(t, s.configMaps, in("aa", "bb"), configMap("bb", "other"))
	create(t, s.configMaps, in("aa", "bb"), configMap("bb", "new"))
	create(t, s.events, in("bb", "aa"), event("aa", "new"))
	create(t, s.events, in("aa", "bb"), event("bb", "new"))
	wantEvents(t, inNamespace, "ADDED aa/bb/other", "ADDED aa/bb/new")
	wantEvents(t, ofName, "ADDED aa/bb/new")
	wantEvents(t, ofEvents, "ADDED aa/bb/new")
}

// TestWildcardVerbs: on all logical clusters there is list and watch only.
func TestWildcardVerbs(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "")
	ctx := everywhere("default")
	_, get := s.configMaps.Get(ctx, "x", &metav1.GetOptions{})
	_, created := s.configMaps.Create(ctx, configMap("default", "new"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	_, _, deleted := s.configMaps.Delete(ctx, "x", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	_, _, updated := s.configMaps.Update(ctx, "x", rest.DefaultUpdatedObjectInfo(configMap("default", "x")), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	_, collection := s.configMaps.DeleteCollection(ctx, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{})
	for verb, err := range map[string]error{"get": get, "create": created, "delete": deleted, "update": updated, "deletecollection": collection} {
		if status, ok := err.(apierrors.APIStatus); !ok || status.Status().Code != http.StatusMethodNotAllowed {
			t.Errorf("%s on all clusters: %v, want 405", verb, err)
		}
	}
	if got := names(t, s.configMaps, in("aa"), nil); !slices.Equal(got, []string{"aa/default/x"}) {
		t.Errorf("after refused writes: %v", got)
	}
}

// TestSelectors (X5): the cacher's own field does not reach whoever lists or watches etcd.
func TestSelectors(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	labelled := func(cluster, name, tier string) *api.ConfigMap {
		cm := configMap("default", name)
		cm.Labels = map[string]string{"tier": tier}
		create(t, s.configMaps, in(cluster, "default"), cm)
		e := event("default", name)
		e.Labels = cm.Labels
		create(t, s.events, in(cluster, "default"), e)
		return cm
	}
	for _, c := range []string{"aa", "bb"} {
		labelled(c, "front", "front")
		labelled(c, "back", "back")
	}
	front := &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"tier": "front"})}
	frontAtZero := &metainternalversion.ListOptions{LabelSelector: front.LabelSelector, ResourceVersion: "0"}
	list, err := s.configMaps.List(in("aa"), nil)
	if err != nil {
		t.Fatal(err)
	}
	rv := list.(*api.ConfigMapList).ResourceVersion
	exact := &metainternalversion.ListOptions{LabelSelector: front.LabelSelector, ResourceVersion: rv, ResourceVersionMatch: "Exact"}
	paged := &metainternalversion.ListOptions{LabelSelector: front.LabelSelector, Limit: 1}
	for name, opts := range map[string]*metainternalversion.ListOptions{"consistent": front, "cache": frontAtZero, "exact": exact, "paged": paged} {
		if diff := cmp.Diff([]string{"aa/default/front"}, names(t, s.configMaps, in("aa"), opts)); diff != "" {
			t.Errorf("%s list by label: %s", name, diff)
		}
	}
	if diff := cmp.Diff([]string{"aa/default/front"}, names(t, s.events, in("aa"), front)); diff != "" {
		t.Errorf("uncached list by label: %s", diff)
	}
	watchOpts := &metainternalversion.ListOptions{LabelSelector: front.LabelSelector}
	cached := startWatch(t, s.configMaps, in("aa", "default"), watchOpts)
	uncached := startWatch(t, s.events, in("aa", "default"), watchOpts)
	wantEvents(t, cached, "ADDED aa/default/front")
	wantEvents(t, uncached, "ADDED aa/default/front")
	labelled("aa", "more-back", "back")
	labelled("aa", "more", "front")
	wantEvents(t, cached, "ADDED aa/default/more")
	wantEvents(t, uncached, "ADDED aa/default/more")

	// A position from before a restart is in no cache's snapshots, so this list reads etcd with the caller's predicate.
	s.Destroy()
	s = serve(t, prefixOf(t), nil)
	if diff := cmp.Diff([]string{"aa/default/front"}, names(t, s.configMaps, in("aa"), exact)); diff != "" {
		t.Errorf("list by label at a position from before a restart: %s", diff)
	}

	// Pods have indexes by node and namespace upstream, which span clusters; lists by them stay in the cluster.
	for _, c := range []string{"aa", "bb"} {
		create(t, s.pods, in(c, "default"), pod("default", "p"))
	}
	if diff := cmp.Diff([]string{"aa/default/p"}, names(t, s.pods, in("aa", "default"), nil)); diff != "" {
		t.Errorf("pods: %s", diff)
	}
	onNode := &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "")}
	podWatch := startWatch(t, s.pods, in("aa"), onNode)
	wantEvents(t, podWatch, "ADDED aa/default/p")
}

// TestConsistentListsAreServedFromCache (X6).
func TestConsistentListsAreServedFromCache(t *testing.T) {
	if !etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
		t.Error("upstream believes that the in-process etcd cannot report progress: consistent lists all read etcd")
	}
}

// TestContinueTokens: a token continues in the cluster that presents it, and nowhere else.
func TestContinueTokens(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	for _, c := range []string{"aa", "bb", "cc"} {
		for i := range 5 {
			put(t, s, c, fmt.Sprintf("%s-%d", c, i), "")
		}
	}
	for _, ctx := range []context.Context{in("bb"), in("bb", "default")} {
		first, token := page(t, s.configMaps, ctx, &metainternalversion.ListOptions{Limit: 2})
		if !slices.Equal(first, []string{"bb/default/bb-0", "bb/default/bb-1"}) || token == "" {
			t.Fatalf("first page %v, token %q", first, token)
		}
		if decoded, err := base64.RawURLEncoding.DecodeString(token); err != nil || bytes.Contains(decoded, []byte(`"bb/`)) || bytes.Contains(decoded, []byte("/bb/")) {
			t.Errorf("token %s names the cluster (%v)", decoded, err)
		}
		var rest []string
		for next := token; next != ""; {
			var some []string
			some, next = page(t, s.configMaps, ctx, &metainternalversion.ListOptions{Limit: 2, Continue: next})
			rest = append(rest, some...)
		}
		if !slices.Equal(rest, []string{"bb/default/bb-2", "bb/default/bb-3", "bb/default/bb-4"}) {
			t.Errorf("next pages %v", rest)
		}
		for _, other := range []string{"aa", "cc"} {
			got, _ := page(t, s.configMaps, in(other), &metainternalversion.ListOptions{Continue: token})
			for _, id := range got {
				if !strings.HasPrefix(id, other+"/") {
					t.Errorf("bb's token shows %s in %s", id, other)
				}
			}
		}
	}
	for _, start := range []string{"../aa/default/x", "/../aa/", "a/../../aa/x", "..", "./x"} {
		forged := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":"meta.k8s.io/v1","rv":-1,"start":%q}`, start))
		for name, store := range map[string]func() error{
			"cached": func() error {
				_, err := s.configMaps.List(in("bb"), &metainternalversion.ListOptions{Continue: forged})
				return err
			},
			"uncached": func() error {
				_, err := s.events.List(in("bb"), &metainternalversion.ListOptions{Continue: forged})
				return err
			},
		} {
			if err := store(); !apierrors.IsBadRequest(err) {
				t.Errorf("%s list with a token that starts at %q: %v, want BadRequest", name, start, err)
			}
		}
	}
}

// TestSpoofedAnnotation: what a client writes about the cluster is ignored, on create and on update.
func TestSpoofedAnnotation(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	spoof := map[string]string{lc.Annotation: "bb", "own": "kept"}
	cm := configMap("default", "x")
	cm.Annotations = spoof
	created := create(t, s.configMaps, in("aa", "default"), cm).(*api.ConfigMap)
	if created.Annotations[lc.Annotation] != "aa" || created.Annotations["own"] != "kept" {
		t.Errorf("created with %v", created.Annotations)
	}
	updated, _, err := s.configMaps.Update(in("aa", "default"), "x", changed(func(cm *api.ConfigMap) {
		cm.Annotations = spoof
		cm.Data = map[string]string{"v": "2"}
	}), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := updated.(*api.ConfigMap).Annotations; got[lc.Annotation] != "aa" || got["own"] != "kept" {
		t.Errorf("updated to %v", got)
	}
	if spoof[lc.Annotation] != "bb" {
		t.Error("the caller's map was written to")
	}
	if got := names(t, s.configMaps, in("bb"), nil); len(got) != 0 {
		t.Errorf("bb has %v", got)
	}
	if got := names(t, s.configMaps, everywhere(), &metainternalversion.ListOptions{ResourceVersion: "0"}); !slices.Equal(got, []string{"aa/default/x"}) {
		t.Errorf("all clusters have %v", got)
	}
	raw, err := etcd.Client.Get(t.Context(), prefixOf(t)+"/configmaps/aa/default/x")
	if err != nil || len(raw.Kvs) != 1 {
		t.Fatal(raw, err)
	}
	if bytes.Contains(raw.Kvs[0].Value, []byte(lc.Annotation)) || bytes.Contains(raw.Kvs[0].Value, []byte(headerStart+"aa")) {
		t.Errorf("the row holds the cluster: %q", raw.Kvs[0].Value)
	}
}

// TestRows: a row is plain Kubernetes bytes, its key says whose it is, and a copy below another cluster's key is that
// cluster's object.
func TestRows(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "of a")
	raw, err := etcd.Client.Get(t.Context(), prefixOf(t)+"/configmaps/aa/default/x")
	if err != nil || len(raw.Kvs) != 1 {
		t.Fatal(raw, err)
	}
	row := raw.Kvs[0].Value
	if !bytes.HasPrefix(row, []byte("k8s\x00")) {
		t.Errorf("the row begins with %q, want plain Kubernetes protobuf", row[:min(8, len(row))])
	}
	bWatch := startWatch(t, s.configMaps, in("bb", "default"), &metainternalversion.ListOptions{})
	if _, err := etcd.Client.Put(t.Context(), prefixOf(t)+"/configmaps/bb/default/x", string(row)); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, bWatch, "ADDED bb/default/x")
	got, err := s.configMaps.Get(in("bb", "default"), "x", &metav1.GetOptions{})
	if err != nil || describe(got) != "bb/default/x" {
		t.Errorf("the copied row is read as %v, %v", got, err)
	}
	if got := names(t, s.configMaps, in("aa"), nil); !slices.Equal(got, []string{"aa/default/x"}) {
		t.Errorf("aa has %v", got)
	}
}

// TestTransformerRefusesForeignObject: an object that names one cluster is never written below another's key.
func TestTransformerRefusesForeignObject(t *testing.T) {
	tr := &clusterTransformer{inner: plain{}, base: "/registry/configmaps"}
	at := func(key string) keyContext { return keyContext(key) }
	if _, err := tr.TransformToStorage(t.Context(), []byte("lc:bb\nx"), at("/registry/configmaps/aa/default/x")); err == nil {
		t.Error("an object of bb was written below aa")
	}
	if out, err := tr.TransformToStorage(t.Context(), []byte("lc:aa\nx"), at("/registry/configmaps/aa/default/x")); err != nil || string(out) != "x" {
		t.Errorf("own object: %q, %v", out, err)
	}
	for _, key := range []string{"/registry/configmaps/aa", "/registry/configmaps//x", "/registry/secrets/aa/x", "/registry/configmapsaa/x/y"} {
		if _, _, err := tr.TransformFromStorage(t.Context(), []byte("x"), at(key)); err == nil {
			t.Errorf("a row at %s was read", key)
		}
	}
	for _, value := range []string{"", "x", "lc:", "lc:aa", "lc:\nx"} {
		if _, err := tr.TransformToStorage(t.Context(), []byte(value), at("/registry/configmaps/aa/x")); err == nil {
			t.Errorf("value %q without a header was written", value)
		}
	}
}

// TestCodecRefusesObjectWithoutCluster, and leaves the object as it was.
func TestCodecRefusesObjectWithoutCluster(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	config, err := s.factory.NewConfig(schema.GroupResource{Resource: "configmaps"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	codec := newClusterCodec(config.Codec, false)
	cm := configMap("default", "x")
	if err := codec.Encode(cm, &bytes.Buffer{}); err == nil {
		t.Error("an object without a cluster was encoded")
	}
	shared := map[string]string{lc.Annotation: "aa", "k": "v"}
	cm.Annotations = shared
	if err := codec.Encode(cm, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{lc.Annotation: "aa", "k": "v"}, cm.Annotations); diff != "" || len(shared) != 2 {
		t.Errorf("Encode changed its object: %s", diff)
	}
}

// TestNoOpUpdateWritesNothing, with and without the cached object that spares a read.
func TestNoOpUpdateWritesNothing(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	before := put(t, s, "aa", "x", "1")
	revision := func() int64 {
		got, err := etcd.Client.Get(t.Context(), prefixOf(t)+"/configmaps/aa/default/x")
		if err != nil || len(got.Kvs) != 1 {
			t.Fatal(got, err)
		}
		return got.Kvs[0].ModRevision
	}
	first := revision()
	names(t, s.configMaps, in("aa"), nil) // a consistent list: now the cache has it, and suggests it to the update
	for name, change := range map[string]func(*api.ConfigMap){
		"nothing":              func(*api.ConfigMap) {},
		"annotation dropped":   func(cm *api.ConfigMap) { cm.Annotations = nil },
		"annotation to others": func(cm *api.ConfigMap) { cm.Annotations = map[string]string{lc.Annotation: "bb"} },
	} {
		out, _, err := s.configMaps.Update(in("aa", "default"), "x", changed(change), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if rv := out.(*api.ConfigMap).ResourceVersion; rv != before.ResourceVersion || revision() != first {
			t.Errorf("%s: update moved the row from %d to %d, resourceVersion %s to %s", name, first, revision(), before.ResourceVersion, rv)
		}
	}
}

// TestWatchersAreFiledByCluster (seam 2): the cacher is told the cluster of a watcher, so that events of others do not
// wake it; on the wildcard it is told to leave out placeholders of unreadable rows, which have none.
func TestWatchersAreFiledByCluster(t *testing.T) {
	var seen storage.ListOptions
	d := &dispatch{Interface: watchRecorder{opts: &seen}}
	opts := storage.ListOptions{Predicate: storage.Everything}
	if _, err := d.Watch(in("aa"), "/configmaps/aa", opts); err != nil {
		t.Fatal(err)
	}
	if v, ok := seen.Predicate.Field.RequiresExactMatch(clusterField); !ok || v != "aa" || !slices.Equal(seen.Predicate.IndexFields, []string{clusterField}) {
		t.Errorf("a watcher in aa reaches the cacher with fields %q, indexes %v", seen.Predicate.Field, seen.Predicate.IndexFields)
	}
	if _, err := d.Watch(everywhere(), "/configmaps", opts); err != nil {
		t.Fatal(err)
	}
	if seen.Predicate.Field.String() != clusterField+"!=" || len(seen.Predicate.IndexFields) != 0 {
		t.Errorf("a wildcard watcher reaches the cacher with fields %q", seen.Predicate.Field)
	}
	// The index and the attributes say the same of an object.
	cm := configMap("default", "x")
	setCluster(cm, "aa")
	_, f, err := withClusterField(storage.DefaultNamespaceScopedAttr, (*sharedObjects)(nil).resetAs)(cm)
	if err != nil || f[clusterField] != "aa" || clusterIndex()[clusterField](cm) != "aa" {
		t.Errorf("fields %v, index %q, %v", f, clusterIndex()[clusterField](cm), err)
	}
}

// TestWatchDeliversOwnEventsOnly, to many watchers at once, in all clusters.
func TestWatchDeliversOwnEventsOnly(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	const clusters = 20
	watches := make([]watch.Interface, clusters)
	for i := range watches {
		watches[i] = startWatch(t, s.configMaps, in(fmt.Sprintf("c%02d", i)), &metainternalversion.ListOptions{})
	}
	all := startWatch(t, s.configMaps, everywhere(), &metainternalversion.ListOptions{})
	for range 3 {
		for i := range watches {
			cluster := fmt.Sprintf("c%02d", i)
			put(t, s, cluster, "x", "")
			wantEvents(t, watches[i], "ADDED "+cluster+"/default/x")
			wantEvents(t, all, "ADDED "+cluster+"/default/x")
			if _, _, err := s.configMaps.Delete(in(cluster, "default"), "x", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			wantEvents(t, watches[i], "DELETED "+cluster+"/default/x")
			wantEvents(t, all, "DELETED "+cluster+"/default/x")
		}
	}
}

// TestStoppedWatchEnds, also when nobody reads it.
func TestStoppedWatchEnds(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "")
	w := startWatch(t, s.configMaps, in("aa"), &metainternalversion.ListOptions{})
	w.Stop()
	for range w.ResultChan() {
	}
	ctx, cancel := context.WithCancel(in("aa"))
	w = startWatch(t, s.configMaps, ctx, &metainternalversion.ListOptions{})
	cancel()
	for range w.ResultChan() {
	}
}

type watchRecorder struct {
	storage.Interface
	opts *storage.ListOptions
}

func (r watchRecorder) Watch(_ context.Context, _ string, opts storage.ListOptions) (watch.Interface, error) {
	*r.opts = opts
	return watch.NewEmptyWatch(), nil
}
