package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
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

// Whichever of the clients writes, the server is told which part of the process it is.
func TestRequestsSayWhoAsks(t *testing.T) {
	agents := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		agents <- req.UserAgent()
		http.NotFound(w, req)
	}))
	defer server.Close()
	named := &rest.Config{Host: server.URL, UserAgent: "atoll-server"}
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	for kind, get := range map[string]func(context.Context, *Clients) error{
		"objects": func(ctx context.Context, c *Clients) error {
			return c.Objects.Get(ctx, ctrlclient.ObjectKey{Namespace: "a", Name: "b"}, &corev1.ConfigMap{})
		},
		"typed": func(ctx context.Context, c *Clients) error {
			_, err := c.Kube.CoreV1().ConfigMaps("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		},
		"dynamic": func(ctx context.Context, c *Clients) error {
			_, err := c.Dynamic.Resource(maps).Namespace("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		},
		"metadata": func(ctx context.Context, c *Clients) error {
			_, err := c.Metadata.Resource(maps).Namespace("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		},
	} {
		in := In(t.Context(), "a1")
		for reason, test := range map[string]struct {
			config *rest.Config
			ctx    context.Context
			want   string
		}{
			"a part of the process": {named, As(in, "atoll-splitter"), "atoll-splitter"},
			"the process":           {named, in, "atoll-server"},
			"a command":             {&rest.Config{Host: server.URL}, in, rest.DefaultKubernetesUserAgent()},
		} {
			c, err := New(test.config)
			if err != nil {
				t.Fatal(err)
			}
			if err := get(test.ctx, c); !apierrors.IsNotFound(err) {
				t.Errorf("%s, %s: %v", kind, reason, err)
			}
			if got := <-agents; got != test.want {
				t.Errorf("%s, %s: the server is asked by %q, want %q", kind, reason, got, test.want)
			}
		}
	}
}
