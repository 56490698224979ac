package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// startLoopback serves handler over connections in memory and returns a client, and what ends it.
func startLoopback(t *testing.T, handler http.HandlerFunc) (*loopback, *http.Client, func() error) {
	t.Helper()
	l := newLoopback()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.serve(ctx, handler) }()
	client, err := rest.HTTPClientFor(l.config)
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceValue(func() error {
		cancel()
		err := <-done
		client.CloseIdleConnections()
		return err
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return l, client, stop
}

func get(ctx context.Context, client *http.Client, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://atoll"+path, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// Connections are used again and again, by many at once, and no request ends for another.
func TestLoopbackManyRequests(t *testing.T) {
	_, client, _ := startLoopback(t, func(w http.ResponseWriter, req *http.Request) {
		if err := req.Context().Err(); err != nil {
			t.Errorf("%s was cancelled before it began: %v", req.URL.Path, err)
		}
		fmt.Fprint(w, strings.Repeat(req.URL.Path, 1000))
	})
	var wg sync.WaitGroup
	for worker := range 20 {
		wg.Go(func() {
			for i := range 200 {
				path := fmt.Sprintf("/%d/%d", worker, i)
				if body, err := get(t.Context(), client, path); err != nil || body != strings.Repeat(path, 1000) {
					t.Errorf("%s: %v, %.30q", path, err, body)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A client that gives up ends its request's context, and leaves the server to others.
func TestLoopbackCancellation(t *testing.T) {
	ended := make(chan struct{}, 1)
	begun := make(chan struct{}, 1)
	_, client, _ := startLoopback(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/wait" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		<-req.Context().Done()
		ended <- struct{}{}
	})
	for _, how := range []string{"cancelled", "deadline"} {
		ctx, cancel := context.WithCancel(t.Context())
		if how == "deadline" {
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		}
		failed := make(chan error, 1)
		go func() { _, err := get(ctx, client, "/wait"); failed <- err }()
		<-begun
		if how == "cancelled" {
			cancel()
		}
		if err := <-failed; !errors.Is(err, ctx.Err()) || err == nil {
			t.Errorf("%s: %v", how, err)
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the request's context did not end", how)
		}
		cancel()
		if _, err := get(t.Context(), client, "/"); err != nil {
			t.Errorf("after one was %s: %v", how, err)
		}
	}
}

// The end of the server ends open requests, refuses new ones, and leaves no goroutine.
func TestLoopbackStops(t *testing.T) {
	before := runtime.NumGoroutine()
	open := make(chan struct{}, 10)
	l, client, stop := startLoopback(t, func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).Flush()
		open <- struct{}{}
		<-req.Context().Done()
	})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _, _ = get(t.Context(), client, "/watch") }) // how it ends is not the question, only that it does
	}
	for range 10 {
		<-open
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	wg.Wait()
	if _, err := l.listener.DialContext(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial after the end: %v, want %v", err, net.ErrClosed)
	}
	if _, err := l.listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after the end: %v, want %v", err, net.ErrClosed)
	}
	if err := l.listener.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

// A dial that nobody accepts ends with its context.
func TestLoopbackDialGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	want := errors.New("gave up")
	cancel(want)
	if _, err := newPipes().DialContext(ctx); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// A listener that breaks is an error of serve, not silence.
func TestLoopbackSaysWhyItEnded(t *testing.T) {
	l := newLoopback()
	if err := l.listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.serve(t.Context(), http.NotFoundHandler()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}
