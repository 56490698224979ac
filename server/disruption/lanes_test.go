package disruption

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/client/clienttest"
	"atoll.dev/atoll/internal/queue"
)

// answering gives a controller clients of a handler, and informers that know nothing.
func answering(t *testing.T, c *Controller, handler http.HandlerFunc) {
	t.Helper()
	c.clients, c.informers = clienttest.Serve(t, handler)
}

// TestLanes: of a workspace two looks go on at once.
func TestLanes(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := laned(clk)
	clienttest.Lanes(t, clienttest.Laned{Clock: clk, AtOnce: 2, Apart: apart, Look: c.reconcile, Going: c.lanes.Going}, func(handler http.HandlerFunc) { answering(t, c, handler) })
}

func laned(clk *clocktesting.FakePassiveClock) *Controller { return newController(clk) }

// TestForgetsWorkspaces: of a workspace that is gone nothing is kept, whether or not anybody told of its budgets and pods.
func TestForgetsWorkspaces(t *testing.T) {
	for name, keys := range map[string][]string{"by its namespace": {""}, "by its budgets": {"a", "b", "c"}} {
		c := newController(clocktesting.NewFakePassiveClock(noon))
		c.queue = queue.New("test", c.reconcile)
		t.Cleanup(c.queue.Stop)
		answering(t, c, clienttest.NotFound)
		for _, name := range []string{"a", "b", "c"} {
			c.remember(keyIn("shop", name), labels.Everything())
		}
		c.onPod(podOf("shop", "a"), false)
		c.until["shop"] = noon
		for _, name := range keys {
			if _, err := c.reconcile(t.Context(), keyIn("shop", name)); err != nil {
				t.Error(err)
			}
			c.clock.(*clocktesting.FakePassiveClock).SetTime(c.clock.Now().Add(time.Minute))
		}
		if len(c.named)+len(c.beyond)+len(c.spaces)+len(c.filed) > 0 || keys[0] != "" && len(c.until) > 0 {
			t.Errorf("%s: kept are %v, %v, %v, %v, %v", name, c.named, c.beyond, c.spaces, c.filed, c.until)
		}
	}
}

// TestRelabelledMeanwhile: what is labelled otherwise while budgets are looked at, some for each list, has all of them looked
// at once more.
func TestRelabelledMeanwhile(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := newController(clk)
	c.queue = queue.New("test", working(c, func(client.Key) {}))
	t.Cleanup(c.queue.Stop)
	c.remember(keyIn("shop", "a"), labels.Everything())
	c.remember(keyIn("shop", "b"), labels.Everything())
	in := keyIn("shop", "")
	c.onPod(podOf("shop", "web"), false)
	c.take(in)
	round := func(wantFrom, last string, want time.Duration) {
		t.Helper()
		clk.SetTime(clk.Now().Add(relabelled))
		_, from, budgets := c.listed(in)
		if len(budgets) != 2 || from != wantFrom {
			t.Fatalf("of %d budgets those after %q are looked at, want 2 and %q", len(budgets), from, wantFrom)
		}
		if wait := c.looked(in, last); wait != want {
			t.Errorf("up to %q they were looked at, the next time is in %s, want %s", last, wait, want)
		}
	}
	c.ask(in, nil, relabelled)
	round("", "a", client.WhileSettling)
	c.ask(in, nil, relabelled)
	c.ask(in, nil, relabelled)
	round("a", "", relabelled)
	round("", "a", client.WhileSettling)
	round("a", "", 0)
	if len(c.spaces) > 0 {
		t.Errorf("kept: %v", c.spaces)
	}
}
