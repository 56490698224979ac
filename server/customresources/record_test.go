package customresources

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
