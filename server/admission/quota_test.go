package admission

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/quota"
)

// quotas are Objects: the ResourceQuotas of a namespace.
type quotas []*core.ResourceQuota

func (quotas) Get(context.Context, schema.GroupResource, string, string, bool) (runtime.Object, error) {
	return nil, errAway
}

func (q quotas) List(context.Context, schema.GroupResource, string, bool) ([]runtime.Object, error) {
	var all []runtime.Object
	for _, one := range q {
		all = append(all, one)
	}
	return all, nil
}

// configMapsLimited returns n ResourceQuotas, q0 and so on, that allow so many ConfigMaps, of which none is used.
func configMapsLimited(n int, hard string) quotas {
	var all quotas
	for i := range n {
		name := fmt.Sprintf("q%d", i)
		limit := core.ResourceList{"count/configmaps": resource.MustParse(hard)}
		all = append(all, &core.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:       core.ResourceQuotaSpec{Hard: limit},
			Status:     core.ResourceQuotaStatus{Hard: limit, Used: core.ResourceList{"count/configmaps": resource.MustParse("0")}},
		})
	}
	return all
}

var newConfigMap = what{resource: "configmaps", kind: "ConfigMap", namespace: "ns", name: "c", operation: admission.Create, object: &core.ConfigMap{}}

// TestQuotaTurns: who waits behind the charges of a namespace waits no longer than its request and 10 s, and only so many do.
func TestQuotaTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var charging atomic.Int32
		away := func(ctx context.Context, _ *corev1.ResourceQuota) error { // as etcd is when nothing comes back
			charging.Add(1)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		q := NewResourceQuota(configMapsLimited(1, "1000"), away, quota.NewCharges())
		shop, _ := in(logicalcluster.Cluster{Name: "shop"})
		bank, _ := in(logicalcluster.Cluster{Name: "bank"})
		start := time.Now()
		ask := func(ctx context.Context) <-chan error {
			answer := make(chan error, 1)
			go func() { answer <- q.Validate(ctx, newConfigMap.attributes(), nil) }()
			synctest.Wait()
			return answer
		}
		first := ask(shop)
		gone, cancel := context.WithCancel(shop)
		cancelled := ask(gone)
		cancel()
		if err := <-cancelled; !apierrors.IsTooManyRequests(err) || time.Since(start) > 0 {
			t.Errorf("its client is gone: %v after %v, want TooManyRequests at once", err, time.Since(start))
		}
		var waiting []<-chan error
		for range maxWaiting {
			waiting = append(waiting, ask(shop))
		}
		if err := <-ask(shop); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), `100 requests wait for the ResourceQuotas of namespace "ns"`) || time.Since(start) > 0 {
			t.Errorf("one more than may wait: %v after %v, want TooManyRequests at once", err, time.Since(start))
		}
		if other := ask(bank); charging.Load() != 2 {
			t.Errorf("%d charge, want one of each logical cluster: %v", charging.Load(), <-other)
		}
		if err := <-first; err == nil || time.Since(start) != patience {
			t.Errorf("charging: %v after %v, want an error after %v", err, time.Since(start), patience)
		}
		for _, answer := range waiting {
			if err := <-answer; err == nil || time.Since(start) != patience {
				t.Errorf("waiting: %v after %v, want an error after %v", err, time.Since(start), patience)
			}
		}
		synctest.Wait()
		if n := q.turns.Len(); n != 0 {
			t.Errorf("%d turns are left", n)
		}
	})
}

// TestQuotasOfANamespace: there are only so many.
func TestQuotasOfANamespace(t *testing.T) {
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	changed := what{resource: "resourcequotas", kind: "ResourceQuota", namespace: "ns", name: "new", object: &core.ResourceQuota{}, old: &core.ResourceQuota{}}
	for name, test := range map[string]struct {
		there     int
		operation admission.Operation
		refused   bool
	}{
		"the first":       {0, admission.Create, false},
		"the last":        {maxQuotas - 1, admission.Create, false},
		"one more":        {maxQuotas, admission.Create, true},
		"change one":      {maxQuotas, admission.Update, false},
		"there were more": {maxQuotas + 1, admission.Create, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := NewResourceQuota(configMapsLimited(test.there, "1"), func(context.Context, *corev1.ResourceQuota) error { return nil }, quota.NewCharges())
			w := changed
			w.operation = test.operation
			err := q.Validate(shop, w.attributes(), nil)
			if apierrors.IsForbidden(err) != test.refused || test.refused && !strings.Contains(err.Error(), "and may have 20") || !test.refused && err != nil {
				t.Errorf("%v, want refused %v", err, test.refused)
			}
		})
	}
}

// TestQuotaChargesOnce: a ResourceQuota that was charged is not charged again when another has changed meanwhile.
func TestQuotaChargesOnce(t *testing.T) {
	there := configMapsLimited(3, "1")
	charges, conflicts := map[string]int{}, 2
	q := NewResourceQuota(there, func(_ context.Context, read *corev1.ResourceQuota) error {
		if read.Name == "q1" && conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(resourceQuotas, read.Name, errAway)
		}
		charges[read.Name]++
		for _, one := range there {
			if one.Name == read.Name {
				one.Status.Used = core.ResourceList{"count/configmaps": read.Status.Used["count/configmaps"]}
			}
		}
		return nil
	}, quota.NewCharges())
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	if err := q.Validate(shop, newConfigMap.attributes(), nil); err != nil {
		t.Errorf("the only ConfigMap, and one is allowed: %v", err)
	}
	if diff := cmp.Diff(map[string]int{"q0": 1, "q1": 1, "q2": 1}, charges); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	if err := q.Validate(shop, newConfigMap.attributes(), nil); !apierrors.IsForbidden(err) {
		t.Errorf("the second ConfigMap: %v, want Forbidden", err)
	}
}
