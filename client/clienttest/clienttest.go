// Package clienttest has tests of controllers talk to handlers of their own, in place of a server.
package clienttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

// Serve returns clients of a handler, and informers that know nothing.
func Serve(t *testing.T, handler http.Handler) (*client.Clients, *client.Informers) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	clients, err := client.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	return clients, informers
}

// Answer answers a request with JSON.
func Answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// NotFound is a handler that has nothing.
func NotFound(w http.ResponseWriter, _ *http.Request) {
	Answer(w, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// Laned is a controller whose looks at the objects of a workspace take turns.
type Laned struct {
	Clock *clocktesting.FakePassiveClock
	// AtOnce is how many looks of a workspace go on at once, and Apart how long one more is told to wait.
	AtOnce int
	Apart  time.Duration
	Look   func(context.Context, client.Key) (time.Duration, error)
	// Going is how many looks of a workspace go on.
	Going func(logicalcluster.Name) int
}

// Lanes tests that of a workspace AtOnce looks go on at once, however many wait, and that no other workspace waits for them. Whoever
// is told to wait has neither failed nor done anything. The controller gets what it serves by serve.
func Lanes(t *testing.T, c Laned, serve func(http.HandlerFunc)) {
	t.Helper()
	reached, release := make(chan struct{}, 10), make(chan struct{})
	serve(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/clusters/shop/") {
			reached <- struct{}{}
			<-release
		}
		NotFound(w, req)
	})
	look := func(cluster logicalcluster.Name, name string) (wait time.Duration, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return c.Look(ctx, client.Key{Cluster: cluster, Namespace: "team", Name: name})
	}
	ended := make(chan error, c.AtOnce)
	for i := range c.AtOnce {
		go func() {
			_, err := look("shop", fmt.Sprint(i))
			ended <- err
		}()
		<-reached
		c.Clock.SetTime(c.Clock.Now().Add(time.Minute))
	}
	if again, err := look("shop", "one more"); again != 0 || !errors.Is(err, queue.Later(c.Apart)) {
		t.Errorf("one more of a workspace: %s, %v; want that it waits %s", again, err, c.Apart)
	}
	if again, err := look("bank", "a"); again != 0 || err != nil {
		t.Errorf("the first of another workspace: %s, %v", again, err)
	}
	close(release)
	for range c.AtOnce {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := c.Going("shop"); n != 0 {
		t.Errorf("%d go on", n)
	}
}
