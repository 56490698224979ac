package crash

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// answers is the server's end of a line in the tests of the line itself.
type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) { return a(req) }

func ok(body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Body: body}
}

func request(t *testing.T, method, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://atoll"+path, nil)
	must(t, err)
	return req
}

// However many write at the same time: the server sees n writes, nobody hears of the last one, and then nothing more.
func TestLineCrashesAfterTheNthWrite(t *testing.T) {
	const n, writers = 5, 20
	var mu sync.Mutex
	var seen []string
	l := newLine("test", func(w write) bool { return w.info.Resource != "leases" })
	l.crashAfter = n
	e := end{l, hubSide, answers(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, req.URL.Path)
		return ok(http.NoBody), nil
	})}
	if _, err := e.RoundTrip(request(t, http.MethodPut, "/clusters/abc/apis/coordination.k8s.io/v1/namespaces/n/leases/l")); err != nil {
		t.Fatalf("a write that does not count: %v", err)
	}
	heard := make(chan error, writers)
	for i := range writers {
		go func() {
			_, err := e.RoundTrip(request(t, http.MethodPost, fmt.Sprintf("/clusters/abc/api/v1/namespaces/n%d/pods", i)))
			heard <- err
		}()
	}
	answered := 0
	for range writers {
		switch err := <-heard; {
		case err == nil:
			answered++
		case !errors.Is(err, errCrashed):
			t.Error(err)
		}
	}
	if len(seen) != n+1 || answered != n-1 {
		t.Errorf("the server saw %d writes and %d were answered, want %d and %d", len(seen), answered, n+1, n-1)
	}
	if _, err := e.RoundTrip(request(t, http.MethodGet, "/api/v1/namespaces/n/pods/p")); !errors.Is(err, errCrashed) {
		t.Errorf("a read after the crash: %v", err)
	}
}

// That one of many crashes has happened is not enough.
func TestMissedCrashesAreNamed(t *testing.T) {
	of := func(verb, resource string) write {
		return write{side: hubSide, info: &apirequest.RequestInfo{Verb: verb, Resource: resource}}
	}
	l := newLine("test", isContent)
	writes := []write{of("create", "services"), of("create", "deployments"), of("create", "events"), of("update", "deployments"), of("create", "services")}
	// What nothing crashed after in a scenario is not missed where something did in another one.
	var all reached
	r, other := reached{of: &all}, reached{of: &all}
	r.want(l, writes)
	other.add(&writes[3])
	if got, want := all.missed(), []string{"hub create deployments", "hub create services"}; !slices.Equal(got, want) {
		t.Errorf("of both scenarios %q are missed, want %q", got, want)
	}
	for _, step := range []struct {
		last   *write
		missed []string
	}{
		{nil, []string{"hub create deployments", "hub create services", "hub update deployments"}},
		{&writes[4], []string{"hub create deployments", "hub update deployments"}},
		{&writes[1], []string{"hub update deployments"}},
		{&writes[3], nil},
	} {
		r.add(step.last)
		if got := r.missed(); !slices.Equal(got, step.missed) {
			t.Errorf("after a crash after %v: missed %q, want %q", step.last, got, step.missed)
		}
	}
}

// What happens while the filter is shut is never seen, and the client is told that it has missed something.
func TestFilterWithholds(t *testing.T) {
	server, stream := io.Pipe()
	f := newFilter()
	watch := func(from io.ReadCloser) io.ReadCloser {
		t.Helper()
		e := end{newLine("test", nil), hubSide, answers(func(*http.Request) (*http.Response, error) { return ok(from), nil })}
		e.filter = f
		resp, err := e.RoundTrip(request(t, http.MethodGet, "/api/v1/pods?watch=true"))
		must(t, err)
		return resp.Body
	}
	body := watch(server)
	say := func(kind, name, value string) {
		t.Helper()
		_, err := fmt.Fprintf(stream, `{"type":%q,"object":{"metadata":{"name":%q,"namespace":"n"},"value":%q}}`+"\n", kind, name, value)
		must(t, err)
	}
	lines := bufio.NewScanner(body)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the watch ended: %v", lines.Err())
		}
		return lines.Text()
	}
	say("ADDED", "a", "seen")
	if got := next(); !strings.Contains(got, "seen") {
		t.Errorf("an open filter passes %s", got)
	}
	f.close()
	say("MODIFIED", "a", "one")
	say("DELETED", "a", "one")
	say("ADDED", "a", "two")
	say("MODIFIED", "b", "three")
	for deadline := time.Now().Add(patience); f.dropped().events < 4; {
		if time.Now().After(deadline) {
			t.Fatalf("withheld %+v", f.dropped())
		}
		time.Sleep(time.Millisecond)
	}
	f.open()
	if got := next(); !strings.Contains(got, `"code":410`) {
		t.Errorf("after the filter opened comes %s, want that the watch has expired", got)
	}
	if lines.Scan() {
		t.Errorf("after its end the watch says %s", lines.Text())
	}
	must(t, body.Close())
	if f.drops("hub pods/a") != "" || f.drops("hub pods/b") == "" {
		t.Errorf("of what a state was dropped: %v, want a alone", f.missed)
	}
	if got := f.behind(); got != "hub /api/v1/pods" {
		t.Errorf("what has to begin again: %q", got)
	}
	must(t, watch(http.NoBody).Close())
	if got := f.behind(); got != "" {
		t.Errorf("what has to begin again when it has: %q", got)
	}
	if got, want := f.dropped(), (held{events: 4, intermediate: 2, deleted: 1, recreated: 1}); got != want {
		t.Errorf("withheld %+v, want %+v", got, want)
	}
}

// Of controllers that share a line each has kinds of writes, and lists, of its own.
func TestKindsOfTheHouse(t *testing.T) {
	for agent, by := range map[string]string{"atoll-quota": " by quota", "atoll-syncer": "", "quota": "", "": ""} {
		l := newLine("test", func(write) bool { return true })
		e := end{l, hubSide, answers(func(*http.Request) (*http.Response, error) { return ok(http.NoBody), nil })}
		of := func(method string) *http.Request {
			req := request(t, method, "/clusters/abc/api/v1/namespaces/n/resourcequotas/q/status")
			req.Header.Set("User-Agent", agent)
			return req
		}
		_, err := e.RoundTrip(of(http.MethodPut))
		must(t, err)
		writes, _ := l.sent()
		if got, want := writes[0].kind(), "hub update resourcequotas/status"+by; got != want {
			t.Errorf("%q writes %q, want %q", agent, got, want)
		}
		if got := idOf(hubSide, of(http.MethodGet)); !strings.HasSuffix(got, "/status"+by) {
			t.Errorf("%q reads %q, want that it ends with %q", agent, got, by)
		}
	}
}
