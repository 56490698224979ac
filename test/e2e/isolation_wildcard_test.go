package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
)

// TestI1_NoBleed_Wildcard: /clusters/* answers an administrator's list and watch with all logical clusters, a
// namespace or name there filters and never reaches into the logical cluster of that name, nobody else may ask, and
// nothing else works there.
func TestI1_NoBleed_Wildcard(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	admin := adminHTTP(t, w)
	// A namespace whose name is that of a logical cluster: on the wildcard its key would be the prefix of that one.
	trap := w.b.String()
	ctx := client.In(t.Context(), w.a)
	for _, object := range []ctrlclient.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trap}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trap, Name: "trap"}},
	} {
		if err := w.clients.Objects.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range w.resources {
		t.Run(r.Resource+"."+r.Group, func(t *testing.T) {
			both := map[string]bool{w.a.String(): true, w.b.String(): true}
			of := func(path string, mine func(namespace, name string) bool) map[string]bool {
				t.Helper()
				got := admin(request{path: path})
				if got.code != http.StatusOK {
					t.Errorf("%s: %d %s", path, got.code, got.message())
					return nil
				}
				clusters := map[string]bool{}
				for _, o := range got.items(t) {
					if !mine(o.GetNamespace(), o.GetName()) {
						t.Errorf("%s shows %s/%s", path, o.GetNamespace(), o.GetName())
					}
					if cluster := o.GetAnnotations()[clusterAnnotation]; both[cluster] {
						clusters[cluster] = true
					}
				}
				return clusters
			}
			any := func(string, string) bool { return true }
			named := func(_, name string) bool { return name == r.name() }
			if diff := cmp.Diff(both, of(r.path("*", "", ""), any)); diff != "" {
				t.Errorf("list of all (- want):\n%s", diff)
			}
			for _, rv := range []string{"", "&resourceVersion=0"} {
				if diff := cmp.Diff(both, of(r.path("*", "", "")+"?fieldSelector=metadata.name%3D"+r.name()+rv, named)); diff != "" {
					t.Errorf("list by name%s (- want):\n%s", rv, diff)
				}
			}
			if r.namespaced {
				in := func(namespace string) func(string, string) bool {
					return func(ns, _ string) bool { return ns == namespace }
				}
				for _, rv := range []string{"", "?resourceVersion=0"} {
					if diff := cmp.Diff(both, of(r.path("*", isoNamespace, "")+rv, in(isoNamespace))); diff != "" {
						t.Errorf("list of a namespace%s (- want):\n%s", rv, diff)
					}
				}
				got := of(r.path("*", trap, ""), in(trap))
				if got[w.b.String()] {
					t.Errorf("list of the namespace %q shows the logical cluster of that name: %v", trap, got)
				}
				if r.Resource == "configmaps" && !got[w.a.String()] {
					t.Errorf("list of the namespace %q lacks what is there: %v", trap, got)
				}
			}
			w.wildcardWatches(t, admin, r)
			w.wildcardRefuses(t, admin, r)
		})
	}
}

// wildcardWatches reads the beginning of watches: both clusters' objects, in the scope asked for.
func (w *isoWorld) wildcardWatches(t *testing.T, admin func(request) answer, r isoResource) {
	t.Helper()
	list := admin(request{path: r.path("*", r.namespace(), "") + "?limit=1"})
	var start metav1.List
	if err := json.Unmarshal([]byte(list.body), &start); err != nil {
		t.Fatalf("list: %v: %s", err, list.body)
	}
	for _, cluster := range []logicalcluster.Name{w.a, w.b} {
		w.change(t, r, client.In(t.Context(), cluster))
	}
	watching, err := w.in(r).Watch(client.Everywhere(t.Context()), metav1.ListOptions{ResourceVersion: start.ResourceVersion, FieldSelector: "metadata.name=" + r.name()})
	if err != nil {
		t.Fatalf("watch all: %v", err)
	}
	defer watching.Stop()
	seen := map[string]bool{}
	for timeout := time.After(30 * time.Second); !seen[w.a.String()] || !seen[w.b.String()]; {
		select {
		case event, ok := <-watching.ResultChan():
			object, isObject := event.Object.(*unstructured.Unstructured)
			if !ok || !isObject || object.GetName() != r.name() || object.GetNamespace() != r.namespace() {
				t.Fatalf("watch all by namespace and name shows %v %v", event.Type, event.Object)
			}
			seen[object.GetAnnotations()[clusterAnnotation]] = true
		case <-timeout:
			t.Fatalf("watch all shows changes in %v, want %s and %s", seen, w.a, w.b)
		}
	}
	// client-go would merge equal names, so it is told to list instead.
	path := r.path("*", "", "") + "?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	if got := admin(request{path: path}); got.code == http.StatusOK && !strings.Contains(got.body, `"ERROR"`) || strings.Contains(got.body, canary) {
		t.Errorf("%s: %d, want a refusal: %.300s", path, got.code, got.body)
	}
}

// wildcardRefuses tries every other verb.
func (w *isoWorld) wildcardRefuses(t *testing.T, admin func(request) answer, r isoResource) {
	t.Helper()
	one, all := r.path("*", r.namespace(), r.name()), r.path("*", r.namespace(), "")
	body := string(mustJSON(t, w.object(r, "a").Object))
	for _, try := range []request{
		{path: one},
		{method: http.MethodPost, path: all, body: body},
		{method: http.MethodPut, path: one, body: body},
		{method: http.MethodPatch, path: one, body: `{}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
		{method: http.MethodPatch, path: one + "?fieldManager=x&force=true", body: body, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
		{method: http.MethodDelete, path: one},
		{method: http.MethodDelete, path: all},
		{path: one + "/status"},
	} {
		got := admin(try)
		if got.code != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d %s, want 405", try.method, try.path, got.code, got.message())
		}
		if strings.Contains(got.body, canary) {
			t.Errorf("%s %s shows an object: %s", try.method, try.path, got.body)
		}
		try.token = tokenA
		if got := w.do(t, try); got.code != http.StatusForbidden {
			t.Errorf("%s %s by a tenant: %d %s, want 403", try.method, try.path, got.code, got.message())
		}
	}
	for _, path := range []string{all, r.path("*", "", ""), all + "?watch=true&timeoutSeconds=1", all + "?fieldSelector=metadata.name%3D" + r.name()} {
		if got := w.do(t, request{path: path, token: tokenA}); got.code != http.StatusForbidden || strings.Contains(got.body, canary) {
			t.Errorf("%s by a tenant: %d %s, want 403", path, got.code, got.message())
		}
	}
}
