package fairness

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ask is a request as it comes to Around: for a workspace, with what it asks for.
func ask(t *testing.T, cluster, method, path string) *http.Request {
	t.Helper()
	req := httptest.NewRequest(method, path, nil)
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := resolver.NewRequestInfo(req)
	if err != nil {
		t.Fatal(err)
	}
	ctx := request.WithRequestInfo(t.Context(), info)
	return req.WithContext(lcctx.WithCluster(ctx, lcctx.Cluster{Name: logicalcluster.Name(cluster)}))
}

func TestEstimate(t *testing.T) {
	// As server/storage has it: sizes are not kept for each logical cluster.
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.SizeBasedListCostEstimate, false)
	f, err := New(Config{Seats: 40})
	if err != nil {
		t.Fatal(err)
	}
	configMaps := schema.GroupResource{Resource: "configmaps"}
	f.Listed("shop", configMaps, "", 750)
	f.Listed("shop", configMaps, "large", 700)
	f.Listed("shop", configMaps, "small", 3)
	f.Listed("huge", configMaps, "", 1_000_000)
	f.Listed("shrunk", configMaps, "", 5000)
	f.Listed("shrunk", configMaps, "", 50)
	for range 100 {
		if _, _, ok := f.watches.begin("shop", "", "configmaps", DefaultWatches, func() {}); !ok {
			t.Fatal("no watch could begin")
		}
	}
	for _, test := range []struct {
		reason, cluster, method, path string
		initial, final                uint64
	}{
		{"one object", "shop", "GET", "/api/v1/namespaces/large/configmaps/a", 1, 0},
		{"a long list", "shop", "GET", "/api/v1/configmaps?resourceVersion=0", 8, 0},
		{"a long list of a namespace", "shop", "GET", "/api/v1/namespaces/large/configmaps?limit=500&resourceVersion=0", 7, 0},
		{"a short list beside it", "shop", "GET", "/api/v1/namespaces/small/configmaps", 1, 0},
		{"the same list in another workspace", "bank", "GET", "/api/v1/configmaps", 1, 0},
		{"a list that only etcd can answer, which decodes it", "shop", "GET", "/api/v1/namespaces/large/configmaps?limit=100&continue=x", 2, 0},
		{"no list is more than ten", "huge", "GET", "/api/v1/configmaps", 10, 0},
		{"what was deleted is forgotten", "shrunk", "GET", "/api/v1/configmaps", 1, 0},
		{"a watch that begins with all there is", "shop", "GET", "/api/v1/configmaps?watch=1", 8, 0},
		{"a watch that goes on", "shop", "GET", "/api/v1/configmaps?watch=1&resourceVersion=7", 1, 0},
		{"a write that a hundred watches hear of", "shop", "POST", "/api/v1/namespaces/small/configmaps", 1, 10},
		{"a write that nobody hears of", "bank", "POST", "/api/v1/namespaces/small/configmaps", 1, 0},
	} {
		got := f.estimate(ask(t, test.cluster, test.method, test.path), "", "workspaces")
		if got.InitialSeats != test.initial || got.FinalSeats != test.final {
			t.Errorf("%s: %d seats and then %d, want %d and %d", test.reason, got.InitialSeats, got.FinalSeats, test.initial, test.final)
		}
	}
	without := httptest.NewRequest("GET", "/api/v1/configmaps", nil).WithContext(context.Background())
	if got := f.estimate(without, "", "workspaces"); got.InitialSeats != 10 {
		t.Errorf("what cannot be told: %d seats, want 10", got.InitialSeats)
	}
}

func TestWatches(t *testing.T) {
	w := newWatches()
	_, end1, ok1 := w.begin("shop", "", "pods", 2, func() {})
	_, end2, ok2 := w.begin("shop", "", "configmaps", 2, func() {})
	_, _, ok3 := w.begin("shop", "", "pods", 2, func() {})
	_, _, other := w.begin("bank", "", "pods", 1, func() {})
	_, _, ofItsOwn := w.begin("bank", "", "pods", 1, func() {})
	_, free, unbounded := w.begin("shop", "", "pods", 0, func() {})
	if ofItsOwn {
		t.Error("a second watch began where one is the limit")
	}
	if !ok1 || !ok2 || ok3 || !other || !unbounded {
		t.Errorf("began: %v %v %v, in another workspace %v, unbounded %v; want true true false true true", ok1, ok2, ok3, other, unbounded)
	}
	if got := w.interested("shop", "", "pods"); got != 2 {
		t.Errorf("%d hear of pods, want 2", got)
	}
	end1()
	end1() // counts once
	if _, _, ok := w.begin("shop", "", "pods", 2, func() {}); !ok {
		t.Error("one ended, and no other can begin")
	}
	end2()
	free()
	if got := len(w.clusters["shop"].resources); got != 1 {
		t.Errorf("%d resources are watched, want pods alone", got)
	}
}

// TestWatchesOfWhatIsGone: what is open of a logical cluster that has gone is stopped, once, and nothing of others.
func TestWatchesOfWhatIsGone(t *testing.T) {
	w := newWatches()
	stopped := map[string]int{}
	open := func(cluster logicalcluster.Name, name string, most int) (end func()) {
		_, end, ok := w.begin(cluster, "", "pods", most, func() { stopped[name]++ })
		if !ok {
			t.Fatalf("%s may not be open", name)
		}
		return end
	}
	open("shop", "ended", 3)()
	ends := []func(){open("shop", "bounded", 3), open("shop", "administrator's", 0)}
	open("bank", "of another", 3)
	w.gone("shop")
	for _, end := range ends {
		end()
	}
	w.gone("shop")
	if diff := cmp.Diff(map[string]int{"bounded": 1, "administrator's": 1}, stopped); diff != "" {
		t.Errorf("stopped (-want +got):\n%s", diff)
	}
	if len(w.clusters) != 1 {
		t.Errorf("%d logical clusters have something open, want one", len(w.clusters))
	}
}
