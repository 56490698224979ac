package namespaces

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// A namespace in which nothing happens is looked at less and less often.
func TestRounds(t *testing.T) {
	stuck := content{remaining: map[string]int64{"pods": 2}, finalizers: map[string]int64{"a": 2}}
	for _, tc := range []struct {
		reason string
		before round
		uid    types.UID
		found  content
		want   time.Duration
	}{
		{"the first", round{}, "u", stuck, firstLook},
		{"nothing happened", round{"u", stuck.remaining, stuck.finalizers, firstLook}, "u", stuck, 2 * firstLook},
		{"nothing happened for long", round{"u", stuck.remaining, stuck.finalizers, 40 * time.Second}, "u", stuck, lastLook},
		{"something went", round{"u", map[string]int64{"pods": 3}, stuck.finalizers, lastLook}, "u", stuck, firstLook},
		{"a finalizer went", round{"u", stuck.remaining, map[string]int64{"a": 2, "b": 1}, lastLook}, "u", stuck, firstLook},
		{"another namespace of that name", round{"old", stuck.remaining, stuck.finalizers, lastLook}, "u", stuck, firstLook},
	} {
		if got := tc.before.next(tc.uid, tc.found); got.rest != tc.want || got.uid != tc.uid {
			t.Errorf("%s: %+v, want a rest of %s", tc.reason, got, tc.want)
		}
	}
	c := &Controller{waits: map[client.Key]round{}}
	k := client.Key{Cluster: "c", Name: "shop"}
	if c.rest(k, "u", stuck); c.rest(k, "u", stuck) != 2*firstLook {
		t.Errorf("rounds are not remembered: %+v", c.waits)
	}
}

// TestDeletesOnlyWhatIsBeingDeleted: an informer that is behind shows a namespace that is being deleted when it is gone,
// and somebody may have made another of that name. What is in that one is nobody's to delete.
func TestDeletesOnlyWhatIsBeingDeleted(t *testing.T) {
	namespace := func(uid types.UID, going bool) *corev1.Namespace {
		ns := &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: uid, ResourceVersion: "7",
				Annotations: map[string]string{lcctx.Annotation: "cluster-c"}},
			Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		}
		if going {
			ns.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		return ns
	}
	seen := namespace("old", true)
	for _, tc := range []struct {
		reason string
		stored *corev1.Namespace // nil if it is gone
		custom int64             // rows of a custom resource that discovery does not name
		want   []string
	}{
		{"it is as the informer shows it", seen, 0, []string{"DELETE /clusters/cluster-c/api/v1/namespaces/shop/configmaps", "PUT /clusters/cluster-c/api/v1/namespaces/shop/finalize"}},
		{"etcd has in it what discovery does not name", seen, 2, []string{"DELETE /clusters/cluster-c/api/v1/namespaces/shop/configmaps", "PUT /clusters/cluster-c/api/v1/namespaces/shop/status"}},
		{"it is gone", nil, 0, nil},
		{"another has its name", namespace("new", false), 0, nil},
		{"another that is being deleted has its name: that has an event of its own", namespace("new", true), 0, nil},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := &store{seen: seen, stored: tc.stored}
			server := httptest.NewServer(s)
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer server.CloseClientConnections()
			clients, err := client.New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			informers, err := client.NewInformers(clients)
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(clients, informers, Options{RootCA: []byte("pem"), Custom: func(_ context.Context, cluster logicalcluster.Name, namespace string) (map[schema.GroupResource]int64, error) {
				if cluster != "cluster-c" || namespace != "shop" || tc.custom == 0 {
					return nil, nil
				}
				return map[schema.GroupResource]int64{{Group: "shop.example", Resource: "widgets"}: tc.custom}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { informers.Namespaces.Run(ctx) })
			defer running.Wait()
			defer cancel()
			if err := informers.Namespaces.WaitSynced(ctx); err != nil {
				t.Fatal(err)
			}
			key := client.Key{Cluster: "cluster-c", Name: "shop"}
			c.waits[key] = round{uid: "old"}
			again, err := c.takeRound(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if (again > 0) != (tc.custom > 0) || (len(c.waits) > 0) != (tc.custom > 0) {
				t.Errorf("looked at again after %s, rounds are kept: %+v", again, c.waits)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if diff := cmp.Diff(tc.want, s.writes); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// store is a server that holds one namespace with one ConfigMap, and shows another state of the namespace in lists.
type store struct {
	seen, stored *corev1.Namespace

	mu     sync.Mutex // guards writes
	writes []string
}

func (s *store) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	answer := func(code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(obj)
	}
	s.mu.Lock()
	cleared := len(s.writes) > 0
	if req.Method != http.MethodGet {
		s.writes = append(s.writes, req.Method+" "+req.URL.Path)
	}
	s.mu.Unlock()
	configMaps := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	if !cleared {
		configMaps.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}}
	}
	discovery := func(resources ...apidiscoveryv2.APIResourceDiscovery) *apidiscoveryv2.APIGroupDiscoveryList {
		return &apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"},
			Items:    []apidiscoveryv2.APIGroupDiscovery{{Versions: []apidiscoveryv2.APIVersionDiscovery{{Version: "v1", Resources: resources}}}},
		}
	}
	switch path := strings.TrimPrefix(req.URL.Path, "/clusters/"); {
	case req.Method != http.MethodGet:
		answer(http.StatusOK, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	case req.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	case path == "*/api/v1/namespaces":
		answer(http.StatusOK, &corev1.NamespaceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Namespace{*s.seen}})
	case path == "cluster-c/api/v1/namespaces/shop" && s.stored != nil:
		answer(http.StatusOK, s.stored)
	case path == "cluster-c/api/v1/namespaces/shop/configmaps":
		answer(http.StatusOK, configMaps)
	case path == "cluster-c/api":
		answer(http.StatusOK, discovery(apidiscoveryv2.APIResourceDiscovery{Resource: "configmaps", Scope: apidiscoveryv2.ScopeNamespace,
			Verbs: []string{"list", "delete", "deletecollection"}}))
	case path == "cluster-c/apis":
		answer(http.StatusOK, discovery())
	default:
		answer(http.StatusNotFound, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	}
}

// TestWhatAWorkspaceRefuses: a namespace whose content a webhook of the workspace keeps says so, and is looked at again more
// and more seldom; it is no failure of the server, as any other is.
func TestWhatAWorkspaceRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		code    int
		message string
		fails   bool
	}{
		"a webhook denies":         {http.StatusForbidden, `admission webhook "keep.example.com" denied the request: they stay`, false},
		"a webhook has any answer": {http.StatusNotFound, `admission webhook "keep.example.com" denied the request: they stay`, false},
		"the server fails":         {http.StatusInternalServerError, "etcd is away", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if req.Method != http.MethodDelete {
					_ = json.NewEncoder(w).Encode(&metav1.PartialObjectMetadataList{
						TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
						Items:    []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}},
					})
					return
				}
				w.WriteHeader(tc.code)
				_ = json.NewEncoder(w).Encode(&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
					Code: int32(tc.code), Message: tc.message})
			}))
			defer server.Close()
			clients, err := client.New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			configMaps := client.Deletable{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("configmaps"), Collection: true}
			found := (&Controller{clients: clients}).clear(client.In(t.Context(), "cluster-c"), "shop", []client.Deletable{configMaps})
			if found.deletion == nil || found.refused == tc.fails || found.gone() || !strings.Contains(found.deletion.Error(), tc.message) {
				t.Errorf("%+v", found)
			}
		})
	}
}
