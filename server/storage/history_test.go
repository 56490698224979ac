package storage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubernetes/pkg/apis/core"
	clocktesting "k8s.io/utils/clock/testing"
)

// roomForEvents is how many events of config maps the cacher has room for.
func roomForEvents(t *testing.T) int {
	t.Helper()
	room, err := roomOf(schema.GroupResource{Resource: "configmaps"})
	if err != nil {
		t.Fatal(err)
	}
	return room
}

// TestOldEventsAreForgotten: what a busy time left in a cache goes when the resource is quiet, and nobody is told of how.
// Who has seen everything can go on from there; who has not is told that he missed something.
func TestOldEventsAreForgotten(t *testing.T) {
	for name, events := range map[string]int{"Part": 1000, "Full": 1599} {
		t.Run(name, func(t *testing.T) { forgetsOldEvents(t, events) })
	}
}

// forgetsOldEvents makes that many after the first. The room for them is 100, 200, 400, 800, 1,600.
func forgetsOldEvents(t *testing.T, events int) {
	clk := clocktesting.NewFakeClock(time.Now())
	s := serve(t, prefixOf(t), func(c *Config) { c.Clock = clk })
	from := func(cm *api.ConfigMap) *metainternalversion.ListOptions {
		return &metainternalversion.ListOptions{ResourceVersion: cm.ResourceVersion}
	}
	first := put(t, s, "aa", "first", "v")
	watches := map[string]watch.Interface{
		"one cluster":  startWatch(t, s.configMaps, in("aa", "default"), from(first)),
		"all clusters": startWatch(t, s.configMaps, everywhere(), from(first)),
		"a namespace":  startWatch(t, s.configMaps, everywhere("default"), from(first)),
	}
	made := []string{"aa/default/first"}
	var last, lastButOne *api.ConfigMap
	for n := range events {
		lastButOne, last = last, put(t, s, "aa", fmt.Sprintf("x%04d", n), "v")
		made = append(made, describe(last))
		for name, w := range watches {
			if got, _ := next(t, w); got != "ADDED "+describe(last) {
				t.Fatalf("%s: event %q, want that %s was added", name, got, describe(last))
			}
		}
	}
	if room := roomForEvents(t); room <= events {
		t.Fatalf("there is room for %d events after %d, so nothing is shown by this test", room, events)
	}

	// The others' writes bring etcd beyond the last event.
	create(t, s.secrets, in("bb", "default"), secret("default", ""))
	deadline := time.Now().Add(30 * time.Second)
	for roomForEvents(t) > leastRoom {
		if time.Now().After(deadline) {
			t.Fatalf("there still is room for %d events", roomForEvents(t))
		}
		clk.Step(time.Second)
		time.Sleep(time.Millisecond) // for the goroutines that wait for the clock
	}

	got := names(t, s.configMaps, everywhere(), nil)
	if diff := cmp.Diff(made, got); diff != "" {
		t.Errorf("a list of all clusters (-want +got):\n%s", diff)
	}
	const tooOld = "too old resource version"
	if got, _ := next(t, startWatch(t, s.configMaps, in("aa", "default"), from(first))); !strings.Contains(got, tooOld) {
		t.Errorf("a watch from the first event begins with %q, want that it is too old", got)
	}
	missed, _ := next(t, startWatch(t, s.configMaps, in("aa", "default"), from(lastButOne)))
	if missed != "ADDED "+describe(last) && !strings.Contains(missed, tooOld) {
		t.Errorf("a watch from the last event but one begins with %q, want the last event, or that it is too old", missed)
	}
	fromLast := func() watch.Interface { return startWatch(t, s.configMaps, in("aa", "default"), from(last)) }
	watches["from the last"] = fromLast()
	after := describe(put(t, s, "aa", "y", "v"))
	for name, w := range watches {
		got, _ := nextOrEnd(t, w)
		// A cacher that forgets what a watch begins with ends it without a word. Clients begin again.
		for again := 0; name == "from the last" && got == ended && again < 10; again++ {
			got, _ = nextOrEnd(t, fromLast())
		}
		if got != "ADDED "+after {
			t.Errorf("%s: event %q, want that %s was added", name, got, after)
		}
	}
	if got := names(t, s.configMaps, in("aa"), nil); !slices.Equal(got, append(made, after)) {
		t.Errorf("aa has %d objects, want %d", len(got), len(made)+1)
	}
}

func TestTally(t *testing.T) {
	for name, tc := range map[string]struct {
		tally    tally
		bookmark uint64
		want     uint64
		ok       bool
		reason   string
	}{
		"NothingElse": {tally{changed: 7, seen: 7}, 7, 8, false, "a filler at the last event would hide that it is forgotten"},
		"Later":       {tally{changed: 7, seen: 7}, 9, 8, true, "as early as can be: who has seen the last event goes on"},
		"SeenMore":    {tally{changed: 7, seen: 20}, 20, 20, true, "the cacher never goes back"},
	} {
		if got, ok := tc.tally.fillerAt(tc.bookmark); got != tc.want || ok != tc.ok {
			t.Errorf("%s: %d, %t, want %d, %t: %s", name, got, ok, tc.want, tc.ok, tc.reason)
		}
	}
}
