package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// A namespace or name that no path can hold is refused for what it is, whoever asks and however it is written, and
// leads to nothing.
func TestImpossibleNamesInPaths(t *testing.T) {
	r := startServer(t, withTokens(t))
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		_, err := r.in(t, cluster).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		must(t, err)
		_, err = r.in(t, cluster).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "canary"}}, metav1.CreateOptions{})
		must(t, err)
	}
	const of = "/clusters/shopname/api/v1/namespaces/"
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`
	for _, dots := range []string{"..", ".", "%2e%2e", "%2E", ".%2e", "..%2f..%2fbankname", "%2e%2e/bankname", "%252e%252e"} {
		for _, a := range []asked{
			{path: of + dots},
			{path: of + dots + "/configmaps"},
			{path: of + dots + "/configmaps/canary"},
			{path: of + dots + "/configmaps?watch=true&timeoutSeconds=1"},
			{path: of + dots + "/configmaps?resourceVersion=0"},
			{path: of + dots + "/configmaps", method: http.MethodPost, body: body},
			{path: of + dots + "/configmaps", method: http.MethodDelete},
			{path: of + dots + "/configmaps/canary", method: http.MethodDelete},
			{path: of + dots + "/configmaps/canary", method: http.MethodPut, body: body},
			{path: of + dots + "/configmaps/canary", method: http.MethodPatch, body: `{}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
			{path: of + dots + "/pods/x/log"},
			{path: of + "default/configmaps/" + dots},
			{path: of + "default/configmaps/" + dots, method: http.MethodDelete},
			{path: of + "default/configmaps/" + dots, method: http.MethodPut, body: body},
			{path: "/clusters/shopname/apis/rbac.authorization.k8s.io/v1/clusterroles/" + dots},
		} {
			a.token = root
			got := r.ask(t, a)
			status := &metav1.Status{}
			if err := json.Unmarshal([]byte(got.body), status); err != nil || got.code != http.StatusBadRequest || status.Reason != metav1.StatusReasonBadRequest ||
				!strings.Contains(status.Message, "may not") || strings.Contains(got.body, "canary\"") {
				t.Errorf("%s %s: %d %.300s, want 400 with a Status that says what may not be", a.method, a.path, got.code, got.body)
			}
			a.token = bob
			if got := r.ask(t, a); got.code != http.StatusForbidden {
				t.Errorf("%s %s by somebody else: %d %.300s, want 403", a.method, a.path, got.code, got.body)
			}
		}
	}
	if got := r.ask(t, asked{path: "/clusters/*/api/v1/namespaces/%2e%2e/configmaps", token: root}); got.code != http.StatusBadRequest {
		t.Errorf("in all logical clusters: %d %.300s, want 400", got.code, got.body)
	}
	for _, selector := range []string{"metadata.namespace%3D..", "metadata.name%3D.."} {
		if got := r.ask(t, asked{path: "/clusters/shopname/api/v1/configmaps?fieldSelector=" + selector, token: root}); got.code != http.StatusOK || strings.Contains(got.body, "canary") {
			t.Errorf("selector %s: %d %.300s, want an empty list", selector, got.code, got.body)
		}
	}
}

// A watch of all logical clusters starts from the store, as on a single API server: with no position and with 0, with
// initial events asked for or not. Nothing is missed or told twice, equal names are two objects, and selectors filter.
func TestWatchOfAllStartsFromTheStore(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.makeAdmin(t, shop, "alice")
	ctx := t.Context()
	make := func(cluster logicalcluster.Name, name, tier string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tier": tier}}}
		_, err := r.in(t, cluster).CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		must(t, err)
	}
	clusters := []logicalcluster.Name{bank, shop}
	for _, cluster := range clusters {
		_, err := r.in(t, cluster).CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		must(t, err)
		make(cluster, "canary", "front")
		make(cluster, "other", "back")
	}
	all := r.as(t, r.LoopbackConfig(), "/clusters/*")
	starts := map[string]metav1.ListOptions{
		"no position":                 {},
		"0":                           {ResourceVersion: "0"},
		"no position, with bookmarks": {AllowWatchBookmarks: true},
		"initial events":              {SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		"initial events, from 0":      {SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, ResourceVersion: "0"},
	}
	scopes := map[string]struct {
		namespace, label, field string
		want                    []string
	}{
		"all":         {want: []string{"canary", "other"}},
		"a namespace": {namespace: "default", want: []string{"canary", "other"}},
		"a label":     {label: "tier=front", want: []string{"canary"}},
		"a name":      {field: "metadata.name=canary", want: []string{"canary"}},
		"elsewhere":   {namespace: string(bank)},
	}
	for start, options := range starts {
		for scope, sc := range scopes {
			t.Run(start+"/"+scope, func(t *testing.T) {
				// The cache must have what is there before position 0 can be expected to show it.
				_, err := all.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
				must(t, err)
				options.LabelSelector, options.FieldSelector = sc.label, sc.field
				watching, err := all.CoreV1().ConfigMaps(sc.namespace).Watch(ctx, options)
				must(t, err)
				defer watching.Stop()
				next := func() string {
					t.Helper()
					for timeout := time.After(30 * time.Second); ; {
						select {
						case event, ok := <-watching.ResultChan():
							if ok && event.Type == watch.Bookmark {
								continue
							}
							cm, isConfigMap := event.Object.(*corev1.ConfigMap)
							if !ok || !isConfigMap {
								t.Fatalf("event %v", event)
							}
							return string(event.Type) + " " + cm.Annotations[lcctx.Annotation] + "/" + cm.Name
						case <-timeout:
							t.Fatal("no event for 30 s")
						}
					}
				}
				var want, got []string
				for _, cluster := range clusters {
					for _, name := range sc.want {
						want = append(want, "ADDED "+string(cluster)+"/"+name)
						got = append(got, next())
					}
				}
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("the start (-want +got):\n%s", diff)
				}
				for _, cluster := range clusters {
					must(t, r.in(t, cluster).CoreV1().ConfigMaps("default").Delete(ctx, "canary", metav1.DeleteOptions{}))
					make(cluster, "canary", "front")
					if len(sc.want) == 0 {
						continue
					}
					for _, want := range []string{"DELETED ", "ADDED "} {
						if got := next(); got != want+string(cluster)+"/canary" {
							t.Fatalf("%s, want %s%s/canary", got, want, cluster)
						}
					}
				}
			})
		}
	}
	// Only an administrator may, and a client that would merge equal names while it collects is told to list.
	const path = "/clusters/*/api/v1/configmaps?watch=true&timeoutSeconds=1"
	if got := r.ask(t, asked{path: path, token: alice}); got.code != http.StatusForbidden {
		t.Errorf("a watch of all by a tenant: %d %.300s, want 403", got.code, got.body)
	}
	collecting := path + "&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&sendInitialEvents="
	for _, yes := range []string{"true", "1"} {
		if got := r.ask(t, asked{path: collecting + yes, token: root}); got.code != http.StatusBadRequest || strings.Contains(got.body, "canary") {
			t.Errorf("initial events until a bookmark: %d %.300s, want 400, on which clients list", got.code, got.body)
		}
	}
}

// An update that takes the last finalizer of what is being deleted is answered with what was sent, and not with what is stored: it
// says the workspace that it was sent to all the same, whatever the sender claims.
func TestLastUpdateSaysItsWorkspace(t *testing.T) {
	r := startServer(t, withTokens(t))
	configMaps := r.in(t, shop).CoreV1().ConfigMaps("default")
	_, err := r.in(t, shop).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)
	object, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{})
	must(t, err)
	must(t, configMaps.Delete(t.Context(), object.Name, metav1.DeleteOptions{}))
	object.ResourceVersion, object.Finalizers = "", nil
	object.Annotations = map[string]string{lcctx.Annotation: bank.String(), "kept": "yes"}
	last, err := configMaps.Update(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
	if diff := cmp.Diff(map[string]string{lcctx.Annotation: shop.String(), "kept": "yes"}, last.Annotations); diff != "" {
		t.Errorf("the answer has annotations (-want +got):\n%s", diff)
	}
}
