package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// profileRate is how many bytes the server allocates between two that its profile of the heap tells of.
const profileRate = 4096

// leftovers is what a server holds when all workspaces of a round are gone.
type leftovers struct {
	heap, goroutines float64         // bytes after a collection, as its profile estimates them, and a number
	series           map[string]bool // by name and labels; buckets of histograms are not counted by themselves

	// What each kind of it is: a leak is a small part of the whole, which rises and falls by more.
	byMetric map[string]float64 // series, by the name of the metric
	byStart  map[string]float64 // goroutines, by the function they began with
	objects  map[string]float64 // of all logical clusters, by resource
	bytes    map[string]float64 // of the heap, by the calls that allocated them; an estimate

	// windows are how many events the watch caches have room for, together. Each has less again when an event of its kind comes, and of some
	// none may. The least room, for 100 events, is never emptied: it has what happened last, after one round, and after another, in which
	// the room was larger for a while, fillers.
	windows float64
}

// starters begin goroutines for others.
var starters = []string{"sync.(*WaitGroup).", "golang.org/x/sync/errgroup.", "k8s.io/apimachinery/pkg/util/wait."}

// bounded are calls that keep what they allocate within bounds that have tests of their own, and that a round may not reach: etcd, until it
// compacts its history, caches of so many entries, and what was made for the requests of a workspace, for some minutes after its end.
var bounded = []string{
	"go.etcd.io/etcd/server/", "k8s.io/utils/lru.(*Cache).", "apiserver/pkg/util/webhook.",
	"server/admission.(*dynamic)", "server/webhooks.", "server/discovery.(*documentCache)",
}

func isBounded(stack string) bool {
	return slices.ContainsFunc(bounded, func(calls string) bool { return strings.Contains(stack, calls) })
}

// leaks says of what there is more after the third round than after the first, in each of which n workspaces were used in all ways: more
// than a goroutine of a kind or an object of a resource for each twenty of them, a series of a metric for each four, or half a kilobyte by
// the same calls for each.
// It is of no use below 200: of some metrics there is one series more for each resource that is served, of what happens after minutes.
//
// What is in watch caches may be as much more as they have room for. What else they have are the objects that are.
func leaks(first, third leftovers, n int) []string {
	more := func(what string, first, third map[string]float64, most func(of string) float64) (said []string) {
		for of, now := range third {
			if most := most(of); now-first[of] > most {
				said = append(said, fmt.Sprintf("%s: %.0f after the first round, %.0f after the third, want at most %.0f more: %s", what, first[of], now, most, of))
			}
		}
		return said
	}
	each := func(most float64) func(string) float64 { return func(string) float64 { return most } }
	said := slices.Concat(
		more("goroutines", first.byStart, third.byStart, each(float64(n)/10)),
		more("objects", first.objects, third.objects, each(float64(n)/10)),
		more("series", first.byMetric, third.byMetric, each(float64(n)/2)),
		more("bytes of the heap", first.bytes, third.bytes, func(of string) float64 {
			if isBounded(of) {
				return math.Inf(1)
			}
			most := 1024 * float64(n)
			if strings.Contains(of, "storage/etcd3.(*watchChan).") {
				most += 2 * 1024 * third.windows // an event has the object as it is and as it was
			}
			return most
		}),
	)
	slices.Sort(said)
	return said
}

// risen are the calls by which most of the heap is more than after the first round, most first.
func risen(first, now map[string]float64, most int) (said []string) {
	more := func(stack string) float64 { return now[stack] - first[stack] }
	stacks := slices.SortedFunc(maps.Keys(now), func(a, b string) int { return cmp.Or(cmp.Compare(more(b), more(a)), cmp.Compare(a, b)) })
	for _, stack := range stacks[:min(most, len(stacks))] {
		if more(stack) > 0 {
			said = append(said, fmt.Sprintf("%.1f MB of the heap more than after the first round: %s", more(stack)/1e6, stack))
		}
	}
	return said
}

// say logs the figures, which `make soak` takes to docs/soak.md.
func (l leftovers) say(t *testing.T, when string) {
	t.Helper()
	t.Logf("figure MB of heap %s: %.1f", when, l.heap/1e6)
	t.Logf("figure goroutines %s: %.0f", when, l.goroutines)
	t.Logf("figure series %s: %d", when, len(l.series))
	t.Logf("figure events that watch caches have room for %s: %.0f", when, l.windows)
}

// left collects the server's garbage and measures what is left.
func (w *leaking) left(t *testing.T) leftovers {
	t.Helper()
	left := leftovers{series: map[string]bool{}, byMetric: map[string]float64{}, bytes: map[string]float64{}}
	left.byStart, left.goroutines = w.goroutines(t)
	left.objects = w.objects(t)
	w.raw(t, "/debug/pprof/heap?gc=1") // pools keep what they hold over one collection
	heap := w.profile(t, "/debug/pprof/heap?gc=1")
	if heap.Period != profileRate {
		t.Fatalf("the profile of the heap is of one in %d bytes, want %d", heap.Period, profileRate)
	}
	w.eachStack(t, heap, "inuse_space", func(bytes float64, calls []string) {
		left.heap += bytes
		if bytes > 0 {
			left.bytes[strings.Join(calls, " < ")] += bytes
		}
	})
	for line := range strings.Lines(w.raw(t, "/metrics")) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if labels := strings.LastIndexByte(line, '}'); labels >= 0 {
			name, ok = line[:labels+1], true
		}
		if !ok || strings.HasPrefix(line, "#") || strings.Contains(name, "_bucket{") {
			continue
		}
		metric, _, _ := strings.Cut(name, "{")
		if metric == "watch_cache_capacity" {
			left.windows += w.number(t, strings.TrimSpace(line[len(name):]))
		}
		left.series[strings.Clone(name)] = true // a part of the text would keep all of it
		left.byMetric[strings.Clone(metric)]++
	}
	if left.heap == 0 || left.goroutines == 0 || len(left.series) < 100 || len(left.bytes) < 100 {
		t.Fatalf("the server says it has %.0f bytes of heap by %d stacks, %.0f goroutines, %d series", left.heap, len(left.bytes), left.goroutines, len(left.series))
	}
	return left
}

// ofConnection are the goroutines of a connection of HTTP/1.1 within the server, at both of its ends.
var ofConnection = []string{"net/http.(*conn).serve", "net/http.(*persistConn).readLoop", "net/http.(*persistConn).writeLoop"}

// goroutines are how many the server has, by the function they began with and in all, without those of idle connections to
// itself: as many are kept for a minute and a half as there were requests at one time, which nobody leaves behind.
func (w *leaking) goroutines(t *testing.T) (byStart map[string]float64, all float64) {
	t.Helper()
	byStart = map[string]float64{}
	var idle float64
	w.eachStack(t, w.profile(t, "/debug/pprof/goroutine"), "goroutine", func(number float64, calls []string) {
		byStart[startOf(calls)] += number
		all += number
		// It waits for the next request.
		if slices.Contains(calls, "net.(*pipe).Read") && slices.Contains(calls, "net/http.(*conn).readRequest") {
			idle += number
		}
	})
	for _, of := range ofConnection {
		byStart[of] -= idle
		all -= idle
	}
	return byStart, all
}

// objects are how many there are in all logical clusters, by resource. There is an event for each tick.
func (w *leaking) objects(t *testing.T) map[string]float64 {
	t.Helper()
	objects := map[string]float64{}
	for _, of := range w.served {
		list, err := w.clients.Metadata.Resource(of).List(client.Everywhere(t.Context()), metav1.ListOptions{Limit: 1})
		if err != nil {
			t.Fatalf("list %s: %v", of, err)
		}
		objects[of.GroupResource().String()] = float64(len(list.Items)) + float64(ptr.Deref(list.GetRemainingItemCount(), 0))
	}
	return objects
}

// listed are the resources that can be listed, but events.
func (w *leaking) listed(t *testing.T) (resources []schema.GroupVersionResource) {
	t.Helper()
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(w.clients.ConfigFor("root")).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		for _, r := range list.APIResources {
			if r.Name != "events" {
				resources = append(resources, resourceAt(list.GroupVersion, r.Name))
			}
		}
	}
	if len(resources) < 50 {
		t.Fatalf("only %d resources are served: %v", len(resources), resources)
	}
	return resources
}

// profile reads a profile of the server.
func (w *leaking) profile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	p, err := profile.ParseData([]byte(w.raw(t, path)))
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return p
}

// eachStack reads a kind of sample of a profile: its value for each stack, and the calls in that, the innermost first.
func (w *leaking) eachStack(t *testing.T, p *profile.Profile, kind string, each func(value float64, calls []string)) {
	t.Helper()
	index := slices.IndexFunc(p.SampleType, func(of *profile.ValueType) bool { return of.Type == kind })
	if index < 0 {
		t.Fatalf("a profile has no %s: %v", kind, p.SampleType)
	}
	for _, sample := range p.Sample {
		if calls := framework.Calls(sample); len(calls) > 0 {
			each(float64(sample.Value[index]), calls)
		}
	}
}

// startOf is the function that a goroutine began with.
func startOf(calls []string) string {
	for _, call := range slices.Backward(calls) {
		if !slices.ContainsFunc(starters, func(starter string) bool { return strings.HasPrefix(call, starter) }) {
			return call
		}
	}
	return calls[len(calls)-1]
}

func (w *leaking) number(t *testing.T, text string) float64 {
	t.Helper()
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestLeaks: what there is more of for each workspace is a leak, however much else comes and goes.
func TestLeaks(t *testing.T) {
	for name, test := range map[string]struct {
		reason       string
		first, third leftovers
		want         string
	}{
		"a goroutine for each": {
			reason: "after the first round there were 220 more for a moment: 2212 in all, and 2348 after the third",
			first:  leftovers{byStart: map[string]float64{"leak": 200, "net/http.(*conn).serve": 220}},
			third:  leftovers{byStart: map[string]float64{"leak": 600, "net/http.(*conn).serve": 2}},
			want:   "goroutines: 200 after the first round, 600 after the third, want at most 20 more: leak",
		},
		"a goroutine for each tenth": {
			reason: "those with definitions of their own",
			first:  leftovers{byStart: map[string]float64{"leak": 20}}, third: leftovers{byStart: map[string]float64{"leak": 60}},
			want: "goroutines: 20 after the first round, 60 after the third, want at most 20 more: leak",
		},
		"a series for each": {
			reason: "1965 in all, and 2365 after the third, were hardly more than 1.2 times as many",
			first:  leftovers{byMetric: map[string]float64{"leak_total": 200}}, third: leftovers{byMetric: map[string]float64{"leak_total": 600}},
			want: "series: 200 after the first round, 600 after the third, want at most 100 more: leak_total",
		},
		"an object for each tenth": {
			first: leftovers{objects: map[string]float64{"configmaps": 1}}, third: leftovers{objects: map[string]float64{"configmaps": 22}},
			want: "objects: 1 after the first round, 22 after the third, want at most 20 more: configmaps",
		},
		"a series for each resource": {
			reason: "upstream compares each cache with etcd every few minutes",
			third:  leftovers{byMetric: map[string]float64{"apiserver_storage_consistency_checks_total": 61}},
		},
		"2 kB for each": {
			reason: "0.8 MB of 270",
			first:  leftovers{bytes: map[string]float64{"leak < seed": 386_460}}, third: leftovers{bytes: map[string]float64{"leak < seed": 1_251_503}},
			want: "bytes of the heap: 386460 after the first round, 1251503 after the third, want at most 204800 more: leak < seed",
		},
		"what is bounded": {
			reason: "etcd has not compacted its history",
			third:  leftovers{bytes: map[string]float64{"bytes.Clone < go.etcd.io/etcd/server/v3/storage/mvcc.(*keyIndex).put": 9_000_000}},
		},
		"a window": {
			reason: "the least room of one cache has fillers after the first round, and after the third the events of Jobs",
			first:  leftovers{windows: 6100, bytes: map[string]float64{"reflect.New < k8s.io/apiserver/pkg/storage/etcd3.(*watchChan).transform": 238_795}},
			third:  leftovers{windows: 6100, bytes: map[string]float64{"reflect.New < k8s.io/apiserver/pkg/storage/etcd3.(*watchChan).transform": 477_301}},
		},
		"more than a window": {
			first: leftovers{windows: 200, bytes: map[string]float64{"etcd3": 1, "storage/etcd3.(*watchChan).transform": 190_454}},
			third: leftovers{windows: 100, bytes: map[string]float64{"etcd3": 204_802, "storage/etcd3.(*watchChan).transform": 600_055}},
			want: "bytes of the heap: 1 after the first round, 204802 after the third, want at most 204800 more: etcd3\n" +
				"bytes of the heap: 190454 after the first round, 600055 after the third, want at most 409600 more: storage/etcd3.(*watchChan).transform",
		},
		"what comes and goes": {
			first: leftovers{byStart: map[string]float64{"a": 40}, bytes: map[string]float64{"events": 5e6}},
			third: leftovers{byStart: map[string]float64{"a": 55}, bytes: map[string]float64{"other": 2e5}},
		},
	} {
		if got := strings.Join(leaks(test.first, test.third, 200), "\n"); got != test.want {
			t.Errorf("%s: %q, want %q: %s", name, got, test.want, test.reason)
		}
	}
}

// TestStartOf: who began a goroutine for others is not whose it is.
func TestStartOf(t *testing.T) {
	const collector, cacher = "atoll.dev/atoll/server/garbage.(*Collector).Run.func3", "k8s.io/apiserver/pkg/storage/cacher.NewCacheDelegator.func1"
	for want, calls := range map[string][]string{
		cacher:                       {"k8s.io/apiserver/pkg/storage/cacher.consistencyChecker.startChecking", cacher},
		collector:                    {collector, "sync.(*WaitGroup).Go.func1"},
		"sync.(*WaitGroup).Go.func1": {"sync.(*WaitGroup).Go.func1"},
	} {
		if got := startOf(calls); got != want {
			t.Errorf("%v began with %s, want %s", calls, got, want)
		}
	}
}
