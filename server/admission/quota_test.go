package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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
)

// quotas are the ResourceQuotas of a namespace.
type quotas struct {
	all    []corev1.ResourceQuota
	charge func(context.Context, *corev1.ResourceQuota) error
	held   map[string]bool

	mu      sync.Mutex // guards what follows, of the last request
	again   func(context.Context) error
	charged map[types.UID]bool
	awaited []string
}

func (q *quotas) BeginCharges(_ context.Context, _ schema.GroupResource, again func(context.Context) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.again, q.charged = again, map[types.UID]bool{}
	return nil
}

func (q *quotas) ListQuotas(context.Context, string, bool) ([]corev1.ResourceQuota, error) {
	return slices.Clone(q.all), nil
}

func (q *quotas) Charged(_ context.Context, of *corev1.ResourceQuota) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.charged[of.UID], nil
}

func (q *quotas) CountHolds(_ context.Context, of *corev1.ResourceQuota) (bool, error) {
	return q.held[of.Name], nil
}

func (q *quotas) Charge(ctx context.Context, read *corev1.ResourceQuota) error {
	if err := q.charge(ctx, read); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.charged[read.UID] = true
	return nil
}

func (q *quotas) AwaitCount(_ context.Context, read *corev1.ResourceQuota) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.awaited, q.charged[read.UID] = append(q.awaited, read.Name), true
	return nil
}

// configMapsLimited returns n ResourceQuotas, q0 and so on, that allow so many ConfigMaps, of which none is used.
func configMapsLimited(n int, hard string, charge func(context.Context, *corev1.ResourceQuota) error) *quotas {
	q := &quotas{charge: charge}
	for i := range n {
		name := fmt.Sprintf("q%d", i)
		limit := corev1.ResourceList{"count/configmaps": resource.MustParse(hard)}
		q.all = append(q.all, corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:       corev1.ResourceQuotaSpec{Hard: limit},
			Status:     corev1.ResourceQuotaStatus{Hard: limit, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}},
		})
	}
	return q
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
		q := NewResourceQuota(configMapsLimited(1, "1000", away))
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
			q := NewResourceQuota(configMapsLimited(test.there, "1", func(context.Context, *corev1.ResourceQuota) error { return nil }))
			w := changed
			w.operation = test.operation
			err := q.Validate(shop, w.attributes(), nil)
			if apierrors.IsForbidden(err) != test.refused || test.refused && !strings.Contains(err.Error(), "and may have 20") || !test.refused && err != nil {
				t.Errorf("%v, want refused %v", err, test.refused)
			}
		})
	}
}

// TestLimitsOfAQuota: one has only so many, and what had more may be changed, with as many.
func TestLimitsOfAQuota(t *testing.T) {
	with := func(limits int) *core.ResourceQuota {
		q := &core.ResourceQuota{Spec: core.ResourceQuotaSpec{Hard: core.ResourceList{}}}
		for i := range limits {
			q.Spec.Hard[core.ResourceName(fmt.Sprintf("count/r%d.example.com", i))] = resource.MustParse("1")
		}
		return q
	}
	used := with(maxLimits)
	used.Status.Used = with(maxLimits + 1).Spec.Hard
	for name, test := range map[string]struct {
		object, old *core.ResourceQuota
		subresource string
		mirror      bool
		refused     bool
	}{
		"as many as may be":       {object: with(maxLimits)},
		"one more":                {object: with(maxLimits + 1), refused: true},
		"one more than before":    {object: with(maxLimits + 1), old: with(maxLimits), refused: true},
		"as many as there were":   {object: with(maxLimits + 1), old: with(maxLimits + 1)},
		"in a status":             {object: used, old: with(maxLimits), subresource: "status", refused: true},
		"what somebody else made": {object: with(maxLimits + 1), mirror: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _ := in(logicalcluster.Cluster{Name: "shop", Mirror: test.mirror})
			w := what{resource: "resourcequotas", kind: "ResourceQuota", namespace: "ns", name: "q", subresource: test.subresource, operation: admission.Create, object: test.object}
			if test.old != nil {
				w.operation, w.old = admission.Update, test.old
			}
			err := NewResourceQuota(&quotas{}).Validate(ctx, w.attributes(), nil)
			if apierrors.IsForbidden(err) != test.refused || test.refused && !strings.Contains(err.Error(), "501 limits, and may have 500") || !test.refused && err != nil {
				t.Errorf("%v, want refused %v", err, test.refused)
			}
		})
	}
}

// TestQuotaChargesOnce: a ResourceQuota that was charged is not charged again when another has changed meanwhile, and again when
// that was for nothing.
func TestQuotaChargesOnce(t *testing.T) {
	charges, conflicts := map[string]int{}, 2
	var there *quotas
	there = configMapsLimited(3, "1", func(_ context.Context, read *corev1.ResourceQuota) error {
		if read.Name == "q1" && conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(resourceQuotas, read.Name, errAway)
		}
		charges[read.Name]++
		for i := range there.all {
			if there.all[i].Name == read.Name {
				there.all[i].Status.Used = read.Status.Used
			}
		}
		return nil
	})
	q := NewResourceQuota(there)
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	if err := q.Validate(shop, newConfigMap.attributes(), nil); err != nil {
		t.Errorf("the only ConfigMap, and one is allowed: %v", err)
	}
	if diff := cmp.Diff(map[string]int{"q0": 1, "q1": 1, "q2": 1}, charges); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	// A count was faster than the write, and has not seen it.
	there.all[1].Status.Used = corev1.ResourceList{"count/configmaps": resource.MustParse("0")}
	delete(there.charged, "q1")
	if err := there.again(shop); err != nil {
		t.Errorf("its charge was for nothing: %v", err)
	}
	if diff := cmp.Diff(map[string]int{"q0": 1, "q1": 2, "q2": 1}, charges); diff != "" {
		t.Errorf("charges after a count (-want +got):\n%s", diff)
	}
	delete(there.charged, "q1") // and another one was faster
	if err := there.again(shop); !apierrors.IsForbidden(err) {
		t.Errorf("its charge was for nothing, and there is another now: %v, want Forbidden", err)
	}
	if err := q.Validate(shop, newConfigMap.attributes(), nil); !apierrors.IsForbidden(err) {
		t.Errorf("the second ConfigMap: %v, want Forbidden", err)
	}
	if len(there.awaited) > 0 {
		t.Errorf("waits for counts of %v, which are counted", there.awaited)
	}
}

// TestQuotaAwaitsCounts: what a ResourceQuota will limit is part of its count, and nothing else is.
func TestQuotaAwaitsCounts(t *testing.T) {
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	limit := func(names ...corev1.ResourceName) corev1.ResourceList {
		all := corev1.ResourceList{}
		for _, name := range names {
			all[name] = resource.MustParse("1")
		}
		return all
	}
	for name, test := range map[string]struct {
		spec, status  corev1.ResourceList
		want, charged bool
		dry           bool
	}{
		"new":                        {spec: limit("configmaps"), want: true},
		"new, of something else":     {spec: limit("secrets")},
		"new, and nothing is made":   {spec: limit("configmaps"), dry: true},
		"limits more":                {spec: limit("secrets", "count/configmaps"), status: limit("secrets"), want: true},
		"limits more things besides": {spec: limit("secrets", "configmaps"), status: limit("configmaps"), charged: true}, // as good
		"counted":                    {spec: limit("secrets"), status: limit("secrets")},
	} {
		t.Run(name, func(t *testing.T) {
			charged := false
			there := &quotas{charge: func(context.Context, *corev1.ResourceQuota) error { charged = true; return nil }, all: []corev1.ResourceQuota{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q", UID: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: test.spec},
				Status: corev1.ResourceQuotaStatus{Hard: test.status, Used: corev1.ResourceList{}},
			}}}
			for limited := range test.status {
				there.all[0].Status.Used[limited] = resource.Quantity{}
			}
			w := newConfigMap
			w.dryRun = test.dry
			if err := NewResourceQuota(there).Validate(shop, w.attributes(), nil); err != nil {
				t.Error(err)
			}
			if waits := len(there.awaited) == 1; waits != test.want || charged != test.charged {
				t.Errorf("waits for the count %v, charged %v, want %v and %v", waits, charged, test.want, test.charged)
			}
		})
	}
}

// TestQuotaAwaitsWhatUses: only what may use something of a ResourceQuota when that is counted waits for the count, and puts it off: not what
// its scopes leave out, nor a change that uses no more.
func TestQuotaAwaitsWhatUses(t *testing.T) {
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	pod := func(cpu string) *core.Pod {
		p := &core.Pod{Spec: core.PodSpec{Containers: []core.Container{{Name: "c", Image: "i"}}}}
		if cpu != "" {
			p.Spec.Containers[0].Resources.Requests = core.ResourceList{core.ResourceCPU: resource.MustParse(cpu)}
		}
		return p
	}
	service := func(kind core.ServiceType, label string) *core.Service {
		s := &core.Service{Spec: core.ServiceSpec{Type: kind, Ports: []core.ServicePort{{Port: 80}}}}
		s.ResourceVersion, s.Labels = "5", map[string]string{"a": label}
		return s
	}
	created := what{resource: "pods", kind: "Pod", namespace: "ns", name: "p", operation: admission.Create}
	changed := what{resource: "services", kind: "Service", namespace: "ns", name: "s", operation: admission.Update, old: service(core.ServiceTypeClusterIP, "b")}
	with := func(w what, object runtime.Object) what {
		w.object = object
		return w
	}
	for name, test := range map[string]struct {
		what
		limited corev1.ResourceName
		scopes  []corev1.ResourceQuotaScope
		want    bool
	}{
		"a pod":                                {what: with(created, pod("")), limited: "pods", want: true},
		"of the scope":                         {what: with(created, pod("")), limited: "pods", scopes: []corev1.ResourceQuotaScope{"BestEffort"}, want: true},
		"not of the scope":                     {what: with(created, pod("1")), limited: "pods", scopes: []corev1.ResourceQuotaScope{"BestEffort"}},
		"more than it will allow":              {what: with(created, pod("7")), limited: "requests.cpu", want: true},
		"without what it will demand":          {what: with(created, pod("")), limited: "requests.cpu", want: true},
		"a change that uses no more":           {what: with(changed, service(core.ServiceTypeClusterIP, "c")), limited: "services.nodeports"},
		"a change of what is there already":    {what: with(changed, service(core.ServiceTypeClusterIP, "c")), limited: "services"},
		"a change that uses more":              {what: with(changed, service(core.ServiceTypeNodePort, "b")), limited: "services.nodeports", want: true},
		"a change that uses more of elsewhere": {what: with(changed, service(core.ServiceTypeNodePort, "b")), limited: "services"},
	} {
		t.Run(name, func(t *testing.T) {
			there := &quotas{all: []corev1.ResourceQuota{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q", UID: "q"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{test.limited: resource.MustParse("2")}, Scopes: test.scopes},
			}}}
			if err := NewResourceQuota(there).Validate(shop, test.attributes(), nil); err != nil {
				t.Error(err)
			}
			if waits := len(there.awaited) == 1; waits != test.want {
				t.Errorf("waits for the count %v, want %v", waits, test.want)
			}
			there.held = map[string]bool{"q": true}
			if err := NewResourceQuota(there).Validate(shop, test.attributes(), nil); apierrors.IsTooManyRequests(err) != test.want || !test.want && err != nil {
				t.Errorf("while it is being counted: %v, want TooManyRequests %v", err, test.want)
			}
		})
	}
}

// TestQuotaHeld: while a ResourceQuota with new limits is being counted, what uses something of it charges none, and says for what it waits;
// what tries only, and one that is counted, waits for nothing.
func TestQuotaHeld(t *testing.T) {
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	for name, test := range map[string]struct {
		status      string // what q1 allows, as counted; empty is never
		held        string
		dry         bool
		refused     bool
		used, waits int // ResourceQuotas
	}{
		"new":             {held: "q1", refused: true},
		"lowered":         {status: "5", held: "q1", refused: true},
		"new, not held":   {used: 1, waits: 1},
		"tries only":      {held: "q1", dry: true},
		"another is held": {status: "1", held: "q0", used: 2}, // what is left of a count
	} {
		t.Run(name, func(t *testing.T) {
			charges := 0
			there := configMapsLimited(2, "1", func(context.Context, *corev1.ResourceQuota) error { charges++; return nil })
			there.held = map[string]bool{test.held: true}
			there.all[1].Status = corev1.ResourceQuotaStatus{}
			if test.status != "" {
				there.all[1].Status.Hard = corev1.ResourceList{"count/configmaps": resource.MustParse(test.status)}
				there.all[1].Status.Used = corev1.ResourceList{"count/configmaps": resource.MustParse("0")}
			}
			w := newConfigMap
			w.dryRun = test.dry
			err := NewResourceQuota(there).Validate(shop, w.attributes(), nil)
			if !test.refused && err != nil || test.refused && (!apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), `ResourceQuota "q1" of namespace "ns" is being counted`)) {
				t.Errorf("%v, refused %v", err, test.refused)
			}
			if seconds, ok := apierrors.SuggestsClientDelay(err); test.refused && (!ok || seconds != 1) {
				t.Errorf("asks to come again in %d s, want 1", seconds)
			}
			if charges != test.used || len(there.awaited) != test.waits {
				t.Errorf("%d charges, waits for %v, want %d and %d", charges, there.awaited, test.used, test.waits)
			}
		})
	}
}
