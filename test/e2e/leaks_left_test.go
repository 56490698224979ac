package e2e

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// profileRate is how many bytes the server allocates between two that its profile of the heap tells of.
const profileRate = 4096

// leftovers is what a server holds when all workspaces of a round are gone.
type leftovers struct {
	heap, goroutines float64         // bytes after a collection, and a number
	series           map[string]bool // by name and labels; buckets of histograms are not counted by themselves

	// What each kind of it is: a leak is a small part of the whole, which rises and falls by more.
	byMetric map[string]float64 // series, by the name of the metric
	byStart  map[string]float64 // goroutines, by the function they began with
	bytes    map[string]float64 // of the heap, by the calls that allocated them; an estimate
}

// starters begin goroutines for others.
var starters = []string{"sync.(*WaitGroup).", "golang.org/x/sync/errgroup.", "k8s.io/apimachinery/pkg/util/wait."}

// bounded are calls that keep what they allocate within bounds that have tests of their own, and that a round may not reach: etcd, until it
// compacts its history, caches of so many entries, and what was made for the requests of a workspace, for some minutes after its end.
var bounded = []string{
	"go.etcd.io/etcd/server/", "k8s.io/utils/lru.(*Cache).", "apiserver/pkg/util/webhook.",
	"server/admission.(*dynamic)", "server/webhooks.", "server/discovery.(*documentCache)",
}

// leaks says of what there is more after the third round than after the first, in each of which n workspaces were used in all ways: more
// than a goroutine of a kind for each twenty of them, a series of a metric for each four, or half a kilobyte by the same calls for each.
// It is of no use below 200: of some metrics there is one series more for each resource that is served, of what happens after minutes.
func leaks(first, third leftovers, n int) []string {
	more := func(what string, first, third map[string]float64, most float64) (said []string) {
		for of, now := range third {
			if now-first[of] > most {
				said = append(said, fmt.Sprintf("%s: %.0f after the first round, %.0f after the third, want at most %.0f more: %s", what, first[of], now, most, of))
			}
		}
		return said
	}
	said := slices.Concat(
		more("goroutines", first.byStart, third.byStart, float64(n)/10),
		more("series", first.byMetric, third.byMetric, float64(n)/2),
		more("bytes of the heap", first.bytes, third.bytes, 1024*float64(n)),
	)
	slices.Sort(said)
	return said
}

// say logs the figures, which `make soak` takes to docs/soak.md.
func (l leftovers) say(t *testing.T, when string) {
	t.Helper()
	t.Logf("figure MB of heap %s: %.1f", when, l.heap/1e6)
	t.Logf("figure goroutines %s: %.0f", when, l.goroutines)
	t.Logf("figure series %s: %d", when, len(l.series))
}

// left collects the server's garbage and measures what is left.
func (w *leaking) left(t *testing.T) leftovers {
	t.Helper()
	left := leftovers{series: map[string]bool{}, byMetric: map[string]float64{}, bytes: map[string]float64{}}
	for line := range strings.Lines(w.raw(t, "/metrics")) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if labels := strings.LastIndexByte(line, '}'); labels >= 0 {
			name, ok = line[:labels+1], true
		}
		if !ok || strings.HasPrefix(line, "#") || strings.Contains(name, "_bucket{") {
			continue
		}
		metric, _, _ := strings.Cut(name, "{")
		left.series[name] = true
		left.byMetric[metric]++
	}
	left.byStart, left.goroutines = w.goroutines(t)
	w.raw(t, "/debug/pprof/heap?gc=1") // pools keep what they hold over one collection
	heap := w.raw(t, "/debug/pprof/heap?gc=1&debug=1")
	if rate := fmt.Sprintf("@ heap/%d\n", 2*profileRate); !strings.Contains(heap, rate) {
		t.Fatalf("the profile of the heap begins with %.100q, want %q", heap, rate)
	}
	eachStack(heap, func(said string, calls []string) {
		stack := strings.Join(calls, " < ")
		var number, bytes float64
		if _, err := fmt.Sscanf(said, "%f: %f", &number, &bytes); err != nil {
			t.Fatalf("the profile of the heap says %q: %v", said, err)
		}
		if number > 0 && !slices.ContainsFunc(bounded, func(calls string) bool { return strings.Contains(stack, calls) }) {
			left.bytes[stack] += bytes / (1 - math.Exp(-bytes/number/profileRate)) // as likely as it is told of
		}
	})
	for line := range strings.Lines(heap) {
		if value, ok := strings.CutPrefix(line, "# HeapAlloc = "); ok {
			left.heap = w.number(t, strings.TrimSpace(value))
		}
	}
	if left.heap == 0 || left.goroutines == 0 || len(left.series) < 100 || len(left.bytes) < 100 {
		t.Fatalf("the server says it has %.0f bytes of heap by %d stacks, %.0f goroutines, %d series", left.heap, len(left.bytes), left.goroutines, len(left.series))
	}
	return left
}

// goroutines are how many the server has, by the function they began with and in all.
func (w *leaking) goroutines(t *testing.T) (byStart map[string]float64, all float64) {
	t.Helper()
	byStart = map[string]float64{}
	eachStack(w.raw(t, "/debug/pprof/goroutine?debug=1"), func(said string, calls []string) {
		number := w.number(t, strings.TrimSpace(said))
		byStart[startOf(calls)] += number
		all += number
	})
	return byStart, all
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

// eachStack reads a profile in its form for people: what it says of each stack, and the calls in that, the innermost first.
func eachStack(profile string, each func(said string, calls []string)) {
	var said string
	var calls []string
	for line := range strings.Lines(profile + "\n") {
		if frame, ok := strings.CutPrefix(line, "#\t"); ok {
			if fields := strings.Split(frame, "\t"); len(fields) > 1 {
				function, _, _ := strings.Cut(fields[1], "+0x")
				calls = append(calls, function)
			}
			continue
		}
		if strings.TrimSpace(line) == "" && len(calls) > 0 {
			each(said, calls)
			said, calls = "", nil
		}
		if before, _, ok := strings.Cut(line, "@ 0x"); ok {
			said = before
		}
	}
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
		"a series for each resource": {
			reason: "upstream compares each cache with etcd every few minutes",
			third:  leftovers{byMetric: map[string]float64{"apiserver_storage_consistency_checks_total": 61}},
		},
		"2 kB for each": {
			reason: "0.8 MB of 270",
			first:  leftovers{bytes: map[string]float64{"leak < seed": 386_460}}, third: leftovers{bytes: map[string]float64{"leak < seed": 1_251_503}},
			want: "bytes of the heap: 386460 after the first round, 1251503 after the third, want at most 204800 more: leak < seed",
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

// TestEachStack reads what the runtime writes, of goroutines and of the heap.
func TestEachStack(t *testing.T) {
	const profile = `goroutine profile: total 63
61 @ 0x1 0x2
# labels: {"a":"b"}
#	0x1	k8s.io/apiserver/pkg/storage/cacher.consistencyChecker.startChecking+0x5c		/cacher.go:1
#	0x2	k8s.io/apiserver/pkg/storage/cacher.NewCacheDelegator.func1+0x1c	/delegator.go:2

2 @ 0x3 0x4
#	0x3	atoll.dev/atoll/server/garbage.(*Collector).Run.func3+0x1	/collector.go:3
#	0x4	sync.(*WaitGroup).Go.func1+0x49					/waitgroup.go:4

heap profile: 1: 2 [3: 4] @ heap/8192
1: 2048 [5: 10240] @ 0x5 0x6
#	0x5	atoll.dev/atoll/internal/queue.(*Queue[...]).next+0x5e	/queue.go:5

0: 0 [3: 192] @ 0x7

# runtime.MemStats
# HeapAlloc = 1
`
	var got []string
	eachStack(profile, func(said string, calls []string) {
		got = append(got, fmt.Sprintf("%s: %s, from %s", strings.TrimSpace(said), strings.Join(calls, " < "), startOf(calls)))
	})
	const cacher = "k8s.io/apiserver/pkg/storage/cacher."
	want := []string{
		"61: " + cacher + "consistencyChecker.startChecking < " + cacher + "NewCacheDelegator.func1, from " + cacher + "NewCacheDelegator.func1",
		"2: atoll.dev/atoll/server/garbage.(*Collector).Run.func3 < sync.(*WaitGroup).Go.func1, from atoll.dev/atoll/server/garbage.(*Collector).Run.func3",
		"1: 2048 [5: 10240]: atoll.dev/atoll/internal/queue.(*Queue[...]).next, from atoll.dev/atoll/internal/queue.(*Queue[...]).next",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
