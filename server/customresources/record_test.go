package customresources

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// records are those that were asked for.
type records struct{ made []string }

func (r *records) RecordCustom(_ context.Context, cluster logicalcluster.Name, gr schema.GroupResource) error {
	r.made = append(r.made, string(cluster)+"|"+gr.String())
	return nil
}

func (r *records) ForgetCustom(context.Context, logicalcluster.Name, schema.GroupResource, int64) (bool, error) {
	return true, nil
}

// A definition that is established when it is first seen, as whoever may write its status can have it, is recorded like all
// others, and once.
func TestEstablishedIsRecorded(t *testing.T) {
	d := newDefinitions(nil, Names{})
	r := newReconciler(d, nil, nil, nil)
	defer r.stop()
	made := &records{}
	r.rows = made
	d.changed = r.onChange
	see := func(version, uid string, want ...string) {
		t.Helper()
		status := r.decide("a", defined(t, &d.specs, "a", version, nil))
		d.put(defined(t, &d.specs, "a", version, func(c *apiextensionsv1.CustomResourceDefinition) {
			c.UID, c.Status = types.UID(uid), status
		}), told)
		for range 2 {
			if _, err := r.reconcile(t.Context(), key{"a", "widgets.shop.example"}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, made.made); diff != "" {
			t.Errorf("%s of version %s: recorded (-want +got):\n%s", uid, version, diff)
		}
	}
	const record = "a|widgets.shop.example"
	see("5", "first", record)
	see("6", "first", record)
	see("7", "another", record, record) // whose predecessor was forgotten, as another server may have done
	d.drop("a", "widgets.shop.example", 8)
	if len(r.recorded.of) != 0 {
		t.Errorf("known of definitions that are gone: %v", r.recorded.of)
	}
}

// TestRecordedBeforeItIsServed: what may have an object made of a definition puts it on record, whoever had it established.
func TestRecordedBeforeItIsServed(t *testing.T) {
	d := newDefinitions(&storage.Resource{}, Names{})
	r := newReconciler(d, nil, nil, nil)
	defer r.stop()
	made := &records{}
	r.rows = made
	d.changed = r.onChange
	s := &Server{definitions: d, reconciler: r}
	s.instances, _ = newTestInstances(1 << 30)
	var seen []string
	s.instances.make = func(def *Definition) (*instance, error) {
		return &instance{definition: canonical(def), served: serving(func() { seen = slices.Clone(made.made) })}, nil
	}
	put := func(version string, change func(*apiextensionsv1.CustomResourceDefinition)) {
		status := r.decide("a", defined(t, &d.specs, "a", version, nil))
		d.put(defined(t, &d.specs, "a", version, func(c *apiextensionsv1.CustomResourceDefinition) {
			c.UID, c.Status = "first", status
			change(c)
		}), told)
	}
	ask := func(verb string, want ...string) {
		t.Helper()
		seen = []string{"nobody answered"}
		ctx := request.WithRequestInfo(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "a"}), &request.RequestInfo{
			IsResourceRequest: true, Verb: verb, APIGroup: "shop.example", APIVersion: "v1", Resource: "widgets", Namespace: "ns",
		})
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/apis/shop.example/v1/namespaces/ns/widgets", nil))
		if !slices.Equal(seen, want) {
			t.Errorf("%s: on record when it is answered: %q, want %q", verb, seen, want)
		}
	}
	put("5", func(*apiextensionsv1.CustomResourceDefinition) {})
	ask("list")
	for _, verb := range []string{"create", "create", "patch", "update"} {
		ask(verb, "a|widgets.shop.example")
	}
	d.drop("a", "widgets.shop.example", 6)
	if err := r.record(t.Context(), key{"a", "widgets.shop.example"}, defined(t, &d.specs, "a", "5", nil)); err != nil || len(r.recorded.of) != 0 {
		t.Errorf("%v; known of one that is gone meanwhile: %v", err, r.recorded.of)
	}
}

// serving answers everything.
type serving func()

func (s serving) ServeHTTP(http.ResponseWriter, *http.Request) { s() }

func (serving) GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return nil, errors.New("it has no objects")
}
