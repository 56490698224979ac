package client

import (
	"net/http"
	"strings"
	"testing"
)

type record struct{ path string }

func (r *record) RoundTrip(req *http.Request) (*http.Response, error) {
	r.path = req.URL.EscapedPath()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestRequestsGoWhereTheContextSays(t *testing.T) {
	for name, test := range map[string]struct {
		reason, path, want string
		in                 func(*http.Request) *http.Request
		fault              string
	}{
		"named": {
			reason: "the logical cluster comes first", path: "/api/v1/namespaces", want: "/clusters/a1/api/v1/namespaces",
			in: func(r *http.Request) *http.Request { return r.WithContext(In(r.Context(), "a1")) },
		},
		"escaped": {
			reason: "what is escaped stays so", path: "/api/v1/namespaces/a%2Fb", want: "/clusters/a1/api/v1/namespaces/a%2Fb",
			in: func(r *http.Request) *http.Request { return r.WithContext(In(r.Context(), "a1")) },
		},
		"all": {
			reason: "the wildcard", path: "/api/v1/pods", want: "/clusters/%2A/api/v1/pods",
			in: func(r *http.Request) *http.Request { return r.WithContext(Everywhere(r.Context())) },
		},
		"none": {
			reason: "a forgotten context fails, and goes nowhere", path: "/api/v1/pods",
			in: func(r *http.Request) *http.Request { return r }, fault: "names no logical cluster",
		},
	} {
		t.Run(name, func(t *testing.T) {
			next := &record{}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://atoll"+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = clusterRoundTripper{next}.RoundTrip(test.in(req))
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) || next.path != "" {
					t.Errorf("error %v, path %q, want %q and no request: %s", err, next.path, test.fault, test.reason)
				}
				return
			}
			if err != nil || next.path != test.want {
				t.Errorf("path %q, %v, want %q: %s", next.path, err, test.want, test.reason)
			}
		})
	}
}

func TestKeysAreReadAsWritten(t *testing.T) {
	for _, k := range []Key{{"a1", "default", "web"}, {"a1", "", "east"}, {"system:admin", "kube-system", "x.y"}} {
		if got, err := ParseKey(k.String()); err != nil || got != k {
			t.Errorf("%v is read as %v, %v", k, got, err)
		}
	}
	if _, err := ParseKey("default/web"); err == nil {
		t.Error("a key without a logical cluster is read")
	}
}
