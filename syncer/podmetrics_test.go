package syncer

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestPodMetrics: the Metrics API is asked for the pod that was found, or for its namespace, whatever the path says of it, and as nobody but the syncer. JSON comes
// back as it is, up to a length.
func TestPodMetrics(t *testing.T) {
	for name, over := range ways {
		t.Run(name, func(t *testing.T) {
			below := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json; charset=utf-8")
				w.Header().Set("Set-Cookie", "a=b")
				_, _ = io.WriteString(w, `{"items":[]}`)
			})
			client := over(t, below)
			for _, tc := range []struct{ asked, want string }{
				{"/podMetrics/prod", ""},
				{"/podMetrics/other?fieldSelector=a&limit=1", ""},
				{"/podMetrics/prod/web-1", "fieldSelector=metadata.name%3Dweb-1"},
				{"/podMetrics/prod/..%2F..%2Fsecrets", "fieldSelector=metadata.name%3Dweb-1"},
			} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://east"+tc.asked, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, header := range []string{"Authorization", "Impersonate-User", "Cookie", "Accept"} {
					req.Header.Set(header, "system:masters")
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK || string(text) != `{"items":[]}` || res.Header.Get("Content-Type") != "application/json" || res.Header.Get("Set-Cookie") != "" {
					t.Errorf("%s: %s %v %s (%v)", tc.asked, res.Status, res.Header, text, err)
				}
				if len(below.asked) != 1 {
					t.Fatalf("%s: %d went down", tc.asked, len(below.asked))
				}
				got := <-below.asked
				if got.URL.Path != "/apis/metrics.k8s.io/v1beta1/namespaces/prod-x/pods" || got.URL.RawQuery != tc.want || got.Method != http.MethodGet {
					t.Errorf("%s: asks %s %s", tc.asked, got.Method, got.URL)
				}
				if got.Header.Get("Authorization") != "Bearer syncer" || got.Header.Get("Accept") != "application/json" || got.Header.Get("Impersonate-User")+got.Header.Get("Cookie") != "" {
					t.Errorf("%s: goes down with %v", tc.asked, got.Header)
				}
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://east/podMetrics/prod", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _ = res.Body.Close(); res.StatusCode != http.StatusMethodNotAllowed || len(below.asked) > 0 {
				t.Errorf("POST: %s, and %d went down", res.Status, len(below.asked))
			}
		})
	}
}

// TestPodMetricsRefusals: why there are none is said in words that lead on, with the name of the physical cluster.
func TestPodMetricsRefusals(t *testing.T) {
	status := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			s := err.Status()
			s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(s.Code))
			_ = json.NewEncoder(w).Encode(s)
		}
	}
	pods := schema.GroupResource{Group: "metrics.k8s.io", Resource: "pods"}
	for reason, tc := range map[string]struct {
		answer http.HandlerFunc
		code   int
		want   string
	}{
		"there is no such API":        {http.NotFound, http.StatusNotImplemented, `physical cluster "east": it has no Metrics API: install metrics-server there`},
		"an API server says so":       {status(apierrors.NewNotFound(pods, "")), http.StatusNotImplemented, `physical cluster "east": it has no Metrics API: install metrics-server there`},
		"a right is missing":          {status(apierrors.NewForbidden(pods, "", errors.New("no right"))), http.StatusForbidden, "its syncer needs the right to list pods of metrics.k8s.io there"},
		"the credential is not taken": {status(apierrors.NewUnauthorized("who are you")), http.StatusServiceUnavailable, "who are you"},
		"metrics-server is away": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		}, http.StatusServiceUnavailable, `physical cluster "east": its Metrics API does not answer`},
		"it says why": {status(apierrors.NewServiceUnavailable("not ready yet")), http.StatusServiceUnavailable, "does not answer: not ready yet"},
		"something else than JSON": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "a secret")
		}, http.StatusServiceUnavailable, "something else than JSON"},
		"no API server, with other words": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "a secret", http.StatusForbidden) }, http.StatusForbidden, "needs the right"},
		"a redirect":                      {func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/secret", http.StatusFound) }, http.StatusServiceUnavailable, "does not answer"},
		"a code that nobody knows":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, http.StatusServiceUnavailable, "does not answer"},
		"it hangs up":                     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, http.StatusServiceUnavailable, "does not answer"},
		"JSON that is no answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"items":["a secret"]}`)
		}, http.StatusServiceUnavailable, "does not answer"},
	} {
		for name, over := range ways {
			t.Run(reason+", "+name, func(t *testing.T) {
				res, err := over(t, newAPIBelow(tc.answer)).Get("http://east/podMetrics/prod")
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close() //nolint:errcheck // only read
				text, err := io.ReadAll(res.Body)
				said := string(text)
				if err != nil || res.StatusCode != tc.code || !strings.Contains(said, tc.want) || strings.Count(said, `"east"`) != 1 || strings.Contains(said, "secret") || strings.Contains(said, "127.0.0.1") {
					t.Errorf("answered %s: %s (%v), want %d and %q", res.Status, said, err, tc.code, tc.want)
				}
			})
		}
	}
}

// TestPodMetricsOfAnEarlierSyncer: what does not know the path is told from a physical cluster that has no metrics.
func TestPodMetricsOfAnEarlierSyncer(t *testing.T) {
	earlier := httptest.NewServer(http.NewServeMux())
	t.Cleanup(earlier.Close)
	at, err := url.Parse(earlier.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{cluster: "east", patience: time.Minute, noMetrics: earlierSyncer, transport: http.DefaultTransport, at: func(pod shownPod, subresource, container string, asked url.Values) *url.URL {
		path := *atKubelet(pod, subresource, container, asked)
		path.Host = at.Host
		return &path
	}}
	answer := httptest.NewRecorder()
	r.handler(podOfShop).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/podMetrics/prod", nil))
	if said := answer.Body.String(); answer.Code != http.StatusNotImplemented || !strings.Contains(said, `physical cluster "east": its syncer is of an earlier version`) {
		t.Errorf("%d %s", answer.Code, said)
	}
}

// TestPodMetricsAreBounded: an answer without end is passed on as none that is whole, and what is asked for too long is given up.
func TestPodMetricsAreBounded(t *testing.T) {
	long := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for range 9 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	for name, over := range ways {
		res, err := over(t, long).Get("http://east/podMetrics/prod")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		if _ = res.Body.Close(); err == nil || n > mostMetrics+1 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	k, client := kubeletOver(t, newAPIBelow(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }))
	k.patience = 100 * time.Millisecond
	res, err := client.Get("http://east/podMetrics/prod")
	if err != nil {
		t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one that is silent: %s", res.Status)
	}
}
