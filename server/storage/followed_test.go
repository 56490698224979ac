package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// followedWidgets are custom resources that are stored as definitions are.
type followedWidgets struct {
	*genericregistry.Store
	rows     *Resource
	followed *followed
	prefix   string
}

func followWidgets(t *testing.T) *followedWidgets {
	t.Helper()
	prefix := prefixOf(t)
	b := serve(t, prefix, nil).Backend
	w := &followedWidgets{Store: widgetStore(t, b), prefix: prefix}
	w.rows, _ = b.Resource(schema.GroupResource{Group: "shop.example", Resource: "widgets"})
	w.followed = w.rows.Storage.(*clusterStorage).Interface.(*followed)
	return w
}

// open follows the widgets of all logical clusters.
func (w *followedWidgets) open(t *testing.T) watch.Interface {
	t.Helper()
	ctx := lc.WithCluster(Following(t.Context()), lc.Cluster{Wildcard: true})
	live, err := w.rows.Storage.Watch(ctx, w.rows.Key("", ""), storage.ListOptions{ResourceVersion: fmt.Sprint(w.now(t)), Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(live.Stop)
	return live
}

// follow follows them with a reader, and returns how that is ended.
func (w *followedWidgets) follow(t *testing.T) (end func()) {
	t.Helper()
	live := w.open(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range live.ResultChan() {
		}
	}()
	end = func() {
		live.Stop()
		<-done
	}
	t.Cleanup(end)
	return end
}

// watch is of what happens in a logical cluster after a position.
func (w *followedWidgets) watch(t *testing.T, cluster, from string) watch.Interface {
	t.Helper()
	return startWatch(t, w.Store, in(cluster, "default"), &metainternalversion.ListOptions{ResourceVersion: from})
}

func (w *followedWidgets) now(t *testing.T) uint64 {
	t.Helper()
	rv, err := w.rows.Storage.GetCurrentResourceVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rv
}

// served is how many watches of a logical cluster are served from the one that follows.
func (w *followedWidgets) served(cluster string) int {
	w.followed.mu.Lock()
	defer w.followed.mu.Unlock()
	return len(w.followed.watchers[cluster])
}

func (w *followedWidgets) put(t *testing.T, cluster, name, value string) string {
	t.Helper()
	if _, err := w.Get(in(cluster, "default"), name, &metav1.GetOptions{}); err != nil {
		return versionOf(t, create(t, w.Store, in(cluster, "default"), widget(name, value)).(metav1.Object))
	}
	got, _, err := w.Update(in(cluster, "default"), name, changed(func(w *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(w.Object, value, "spec", "v"); err != nil {
			t.Error(err)
		}
	}), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return versionOf(t, got.(metav1.Object))
}

func versionOf(t *testing.T, obj metav1.Object) string {
	t.Helper()
	if obj.GetResourceVersion() == "" {
		t.Fatal("no resourceVersion")
	}
	return obj.GetResourceVersion()
}

// TestFollowedTellsWhatEtcdTells: watches that are served from the one of all logical clusters tell exactly what etcd's own would, from
// wherever they begin, and which of the two serves one shows in nothing.
func TestFollowedTellsWhatEtcdTells(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	clusters, names := []string{"aa", "bb", "aabb"}, []string{"x", "y", "xy"}
	type watching struct {
		watch.Interface
		cluster, name string // name is empty for all
		from          uint64
	}
	version := func(event watch.Event) uint64 {
		v, err := w.rows.Storage.Versioner().ObjectResourceVersion(event.Object)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	tells := func(event watch.Event) string {
		o := event.Object.(*unstructured.Unstructured)
		value, _, _ := unstructured.NestedString(o.Object, "spec", "v")
		return fmt.Sprintf("%s %s %s at %s", event.Type, describe(o), value, o.GetResourceVersion())
	}
	// All that ever happens, as etcd's own watch of everything tells it.
	began := w.now(t)
	all, err := w.rows.Storage.Watch(lc.WithCluster(t.Context(), lc.Cluster{Wildcard: true}), w.rows.Key("", ""),
		storage.ListOptions{ResourceVersion: fmt.Sprint(began), Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Stop()
	var history []watch.Event
	var watches []*watching
	start := func() {
		one := &watching{cluster: clusters[random.IntN(len(clusters))], name: names[random.IntN(len(names))], from: began}
		if n := len(history); n > 0 { // more than are remembered
			one.from = version(history[n-1-random.IntN(min(n, 2*lastEvents))])
		}
		opts := &metainternalversion.ListOptions{ResourceVersion: fmt.Sprint(one.from)}
		namespaces := []string{"default"}
		switch random.IntN(4) {
		case 0:
			one.name, namespaces = "", nil
		case 1:
			one.name = ""
		case 2:
			opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", one.name)
		case 3:
			opts.LabelSelector = labels.SelectorFromSet(labels.Set{"name": one.name}) // that etcd's serves
		}
		one.Interface = startWatch(t, w.Store, in(one.cluster, namespaces...), opts)
		watches = append(watches, one)
	}
	happened := func() {
		_, event := next(t, all)
		history = append(history, event)
	}
	for n := range 3 * lastEvents {
		cluster, name := clusters[random.IntN(len(clusters))], names[random.IntN(len(names))]
		if random.IntN(4) > 0 {
			w.put(t, cluster, name, fmt.Sprint(n))
		} else if _, _, err := w.Delete(in(cluster, "default"), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
			continue // it is not there
		}
		happened()
		if n%6 == 0 {
			start()
		}
	}
	// The last event of each watch: one too many would come before it.
	for _, cluster := range clusters {
		for _, name := range names {
			w.put(t, cluster, name, "last")
			happened()
		}
	}
	served := 0
	for _, cluster := range clusters {
		served += w.served(cluster)
	}
	t.Logf("%d of %d watches are served from the one that follows, of %d events", served, len(watches), len(history))
	if served < len(watches)/4 || served == len(watches) {
		t.Error("one kind of watches is missing")
	}
	for _, one := range watches {
		var want, got []string
		for _, event := range history {
			o := event.Object.(*unstructured.Unstructured)
			if lc.NameFrom(o).String() == one.cluster && version(event) > one.from && (one.name == "" || o.GetName() == one.name) {
				want = append(want, tells(event))
			}
		}
		for range want {
			_, event := next(t, one)
			got = append(got, tells(event))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("of %s %q from %d (-want +got):\n%s", one.cluster, one.name, one.from, diff)
		}
	}
}

// TestFollowedInitialEvents: a watch that begins with what there is goes on from there.
func TestFollowedInitialEvents(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	w.put(t, "aa", "x", "1")
	w.put(t, "bb", "x", "1")
	for name, opts := range map[string]*metainternalversion.ListOptions{
		"no position": {}, "0": {ResourceVersion: "0"},
		"stream": {SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
	} {
		before := w.served("aa")
		live := startWatch(t, w.Store, in("aa", "default"), opts)
		wantEvents(t, live, "ADDED aa/default/x")
		if now := w.served("aa"); now != before+1 {
			t.Errorf("%s: %d watches more are served from the one that follows", name, now-before)
		}
		w.put(t, "aa", "x", name)
		wantEvents(t, live, "MODIFIED aa/default/x")
	}
	everything := startWatch(t, w.Store, everywhere(), &metainternalversion.ListOptions{})
	wantEvents(t, everything, "ADDED aa/default/x", "ADDED bb/default/x")
}

// TestFollowedEnds: watches end with the one that they are served from, and others serve while there is none.
func TestFollowedEnds(t *testing.T) {
	w := followWidgets(t)
	end := w.follow(t)
	at := w.put(t, "aa", "x", "1")
	first := w.watch(t, "aa", at)
	end()
	wantEnd(t, first)
	second := w.watch(t, "aa", at)
	if n := w.served("aa"); n != 0 {
		t.Errorf("%d watches are served when nobody follows", n)
	}
	w.follow(t)
	third := w.watch(t, "aa", w.put(t, "aa", "x", "2"))
	w.follow(t) // the newest serves
	wantEnd(t, third)
	last := w.put(t, "aa", "x", "3")
	fourth := w.watch(t, "aa", last)
	ctx, cancel := context.WithCancel(in("aa", "default"))
	fifth := startWatch(t, w.Store, ctx, &metainternalversion.ListOptions{ResourceVersion: last})
	if n := w.served("aa"); n != 2 {
		t.Errorf("%d watches are served, want 2", n)
	}
	cancel()
	wantEnd(t, fifth)
	w.put(t, "aa", "x", "4")
	wantEvents(t, second, "MODIFIED aa/default/x", "MODIFIED aa/default/x", "MODIFIED aa/default/x")
	wantEvents(t, fourth, "MODIFIED aa/default/x")
	fourth.Stop()
	if n := w.served("aa"); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

// TestFollowedSlowReaders: who does not read holds up nobody, and loses its watch.
func TestFollowedSlowReaders(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	at := w.put(t, "aa", "x", "1")
	slow := w.watch(t, "aa", at)
	quick := w.watch(t, "aa", at)
	for n := range lastEvents + followerRoom + 10 {
		w.put(t, "aa", "x", fmt.Sprint(n))
		wantEvents(t, quick, "MODIFIED aa/default/x")
	}
	told := 0
	for range slow.ResultChan() {
		told++
	}
	if n := w.served("aa"); n != 1 || told < lastEvents+followerRoom || told > lastEvents+followerRoom+2 {
		t.Errorf("%d watches are left, and who did not read was told %d events", n, told)
	}
}

func wantEnd(t *testing.T, w watch.Interface) {
	t.Helper()
	if got, _ := nextOrEnd(t, w); got != ended {
		t.Errorf("it goes on with %s", got)
	}
}

// TestFollowedForgets: what is remembered is forgotten after a while, also if nothing happens any more; then etcd tells it.
func TestFollowedForgets(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	before := w.put(t, "aa", "y", "1")
	told := w.watch(t, "aa", before)
	w.put(t, "aa", "x", "1")
	wantEvents(t, told, "ADDED aa/default/x")
	w.followed.mu.Lock()
	for i := range w.followed.last {
		w.followed.last[i].at = w.followed.last[i].at.Add(-lastFor)
	}
	w.followed.forget.Reset(0)
	w.followed.mu.Unlock()
	forgotten := func(context.Context) (bool, error) {
		w.followed.mu.Lock()
		defer w.followed.mu.Unlock()
		return len(w.followed.last) == 0 && w.followed.forget == nil, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, forgotten); err != nil {
		t.Fatal("it is remembered for ever")
	}
	old := w.watch(t, "aa", before)
	wantEvents(t, old, "ADDED aa/default/x")
	if n := w.served("aa"); n != 1 {
		t.Errorf("%d watches more are served of what is forgotten", n-1)
	}
}

// TestFollowedUnreadable: a row that cannot be read ends the watches of its own logical cluster, with an error that names it.
func TestFollowedUnreadable(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	at := w.put(t, "aa", "x", "1")
	own := w.watch(t, "aa", at)
	others := w.watch(t, "bb", at)
	spoil(t, w.prefix+"/shop.example/widgets/aa/default/spoilt")
	w.put(t, "bb", "x", "1")
	wantEvents(t, others, "ADDED bb/default/x")
	_, event := nextOrEnd(t, own)
	if status, ok := event.Object.(*metav1.Status); event.Type != watch.Error || !ok || !strings.Contains(status.Message, `"default/spoilt" of logical cluster "aa" cannot be read`) {
		t.Errorf("%v, want an error that names the row", event)
	}
	wantEnd(t, own)
	again := w.watch(t, "aa", at)
	if n := w.served("aa"); n != 0 {
		t.Errorf("%d watches are served of a row that may be readable by now", n)
	}
	again.Stop()
}

// TestFollowedCopies: what one receiver makes of an object is no concern of others.
func TestFollowedCopies(t *testing.T) {
	w := followWidgets(t)
	w.follow(t)
	at := w.put(t, "aa", "y", "1")
	watches := []watch.Interface{w.watch(t, "aa", at)}
	watches = append(watches, w.watch(t, "aa", at))
	w.put(t, "aa", "x", "1")
	for i := range 3 {
		if i == 2 { // of what is remembered
			watches = append(watches, w.watch(t, "aa", at))
		}
		_, event := next(t, watches[i])
		got := event.Object.(*unstructured.Unstructured)
		if value, _, _ := unstructured.NestedString(got.Object, "spec", "v"); value != "1" || got.GetLabels()["name"] != "x" {
			t.Errorf("watch %d is told %v", i, got)
		}
		got.SetLabels(map[string]string{"name": "changed"})
		if err := unstructured.SetNestedField(got.Object, "changed", "spec", "v"); err != nil {
			t.Error(err)
		}
	}
	if n := w.served("aa"); n != 3 {
		t.Errorf("%d watches are served from the one that follows", n)
	}
}

// TestFollowingHearsFirst: when others are told of something, the reader of the watch of all logical clusters has done with it.
func TestFollowingHearsFirst(t *testing.T) {
	w := followWidgets(t)
	live := w.open(t)
	at := w.put(t, "aa", "y", "1")
	served := w.watch(t, "aa", at)
	w.put(t, "aa", "x", "1")
	nothing := func(when string) {
		t.Helper()
		select {
		case event := <-served.ResultChan():
			t.Errorf("told of %v %s", event, when)
		case <-time.After(200 * time.Millisecond):
		}
	}
	for _, want := range []string{"ADDED aa/default/y", "BOOKMARK aa/default/y", "ADDED aa/default/x"} {
		wantEvents(t, live, want)
	}
	nothing("while the reader has it")
	wantEvents(t, live, "BOOKMARK aa/default/x")
	wantEvents(t, served, "ADDED aa/default/x")
}
