package syncer

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWantsToBeLeftAlone: a server that refuses and asks to be left alone for minutes keeps no worker waiting, and its
// words are told.
func TestWantsToBeLeftAlone(t *testing.T) {
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			refuse := func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "300")
				http.Error(w, "come back tomorrow", code)
			}
			s := newIdle(t, refuse, refuse)
			k := key{configMapsGVR, "shop-1", "settings"}
			failed := make(chan error, 1)
			go func() {
				_, err := s.apply(t.Context(), k, nil, configMap("1", "x"))
				failed <- err
			}()
			select {
			case err := <-failed:
				if r := refusalOf(err); r == nil || r.reason != refusedUnreachable {
					t.Errorf("the error is %v, taken for %+v, want %s", err, r, refusedUnreachable)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("a worker does what it is told, and waits")
			}
			if _, err := s.physical.dynamic.Resource(configMapsGVR).Watch(t.Context(), metav1.ListOptions{}); err == nil {
				t.Error("a refused watch is no error")
			}
		})
	}
}

// TestNeverAnswered: a request that gets no answer, or not the whole of one, ends; a watch goes on.
func TestNeverAnswered(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/none" {
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
		}
		select {
		case <-time.After(time.Second):
			_, _ = io.WriteString(w, "second\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: impatient{http.DefaultTransport, 300 * time.Millisecond}}
	tests := map[string]struct {
		path, want string
		reason     string
	}{
		"no answer":     {path: "/none", want: "", reason: "nobody answers"},
		"half of one":   {path: "/half", want: "first\n", reason: "the answer stops in the middle"},
		"watch":         {path: "/half?watch=true&timeoutSeconds=2", want: "first\nsecond\n", reason: "a watch may be silent until its time is over, and a little longer"},
		"watch unheard": {path: "/none?watch=true&timeoutSeconds=2", want: "", reason: "a watch begins at once"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			began := time.Now()
			resp, err := client.Get(server.URL + tc.path)
			if err == nil {
				lines := bufio.NewReader(resp.Body)
				for err == nil {
					var line string
					line, err = lines.ReadString('\n')
					got.WriteString(line)
				}
				resp.Body.Close()
			}
			if got.String() != tc.want || err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%s: got %q and then %v after %s, want %q and an error", tc.reason, got.String(), err, time.Since(began), tc.want)
			}
			if cause := rootCause(err); got.Len() == 0 && cause != "timeout" {
				t.Errorf("%s: the cause is %q, want timeout", tc.reason, cause)
			}
		})
	}
}
