package disruption

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

// answering gives a controller clients of a server, and informers that know nothing.
func answering(t *testing.T, c *Controller, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	var err error
	if c.clients, err = client.New(&rest.Config{Host: server.URL}); err != nil {
		t.Fatal(err)
	}
	clusters, err := client.NewInformer(c.clients, &corev1alpha1.LogicalCluster{}, client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	if err != nil {
		t.Fatal(err)
	}
	c.informers = &client.Informers{LogicalClusters: clusters}
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// notFound is said of everything.
func notFound(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// TestLanes: of a workspace two looks go on at once, however many wait, and no other workspace waits for them. Whoever is told to
// wait has neither failed nor done anything.
func TestLanes(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := laned(clk)
	reached, release := make(chan struct{}, 10), make(chan struct{})
	answering(t, c, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/clusters/shop/") {
			reached <- struct{}{}
			<-release
		}
		notFound(w, req)
	})
	look := func(cluster logicalcluster.Name, name string) (wait time.Duration, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return c.reconcile(ctx, client.Key{Cluster: cluster, Namespace: "team", Name: name})
	}
	ended := make(chan error, atOnce)
	for _, name := range []string{"a", "b"} {
		go func() {
			_, err := look("shop", name)
			ended <- err
		}()
		<-reached
		clk.SetTime(clk.Now().Add(time.Minute))
	}
	if again, err := look("shop", "c"); again != 0 || !errors.Is(err, queue.Later(apart)) {
		t.Errorf("the third of a workspace: %s, %v; want that it waits %s", again, err, apart)
	}
	if again, err := look("bank", "a"); again != 0 || err != nil {
		t.Errorf("the first of another workspace: %s, %v", again, err)
	}
	close(release)
	for range atOnce {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := c.lanes.Going("shop"); n != 0 {
		t.Errorf("%d go on", n)
	}
}

func laned(clk *clocktesting.FakePassiveClock) *Controller { return newController(clk) }

// TestForgetsWorkspaces: of a workspace that is gone nothing is kept, whether or not anybody told of its budgets and pods.
func TestForgetsWorkspaces(t *testing.T) {
	for name, keys := range map[string][]string{"by its namespace": {""}, "by its budgets": {"a", "b", "c"}} {
		c := newController(clocktesting.NewFakePassiveClock(noon))
		c.queue = queue.New("test", c.reconcile)
		t.Cleanup(c.queue.Stop)
		answering(t, c, notFound)
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
