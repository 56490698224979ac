package quota

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

// asked are Stores that tell what they are asked, with watches that a test tells something.
type asked struct {
	Stores
	mirror  logicalcluster.Name
	defined bool // widgets.example.com, in every logical cluster

	mu      sync.Mutex // guards what follows
	served  int        // times
	watches map[schema.GroupResource]*watch.FakeWatcher
}

func (a *asked) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	return lcctx.Cluster{Name: name, Mirror: name == a.mirror}, true
}

func (a *asked) Served(_ logicalcluster.Name, resource schema.GroupResource) (served, custom bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served++
	return resource.Group == "" || a.defined, resource.Group != ""
}

func (a *asked) WatchEverywhere(ctx context.Context, resource schema.GroupResource) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := watch.NewFake()
	a.watches[resource] = w
	context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watches, resource)
		w.Stop()
	})
	return w, nil
}

// times is how often was asked what is served.
func (a *asked) times() int {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.served
}

func (a *asked) watched() []string {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for resource := range a.watches {
		all = append(all, resource.String())
	}
	slices.Sort(all)
	return all
}

func limitsOf(cluster, name string, limits ...corev1.ResourceName) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}},
	}
	for _, limit := range limits {
		q.Spec.Hard[limit] = resource.MustParse("10")
	}
	q.Status.Hard = q.Spec.Hard
	return q
}

// watching returns a controller that watches what is limited, and counts nothing, until the test ends.
func watching(t *testing.T, stores Stores) *Controller {
	c := newController(stores, func(client.Key) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.watches.Run(ctx, 1) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		c.running.Wait()
		c.counts.Stop()
		c.uncounted.Stop()
	})
	return c
}

// TestEventsCostNoQuota: what happens to objects of a namespace with many ResourceQuotas, with many limits each, is over with
// what names them: their limits are compared with nothing.
func TestEventsCostNoQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &asked{watches: map[schema.GroupResource]*watch.FakeWatcher{}, defined: true}
		c := watching(t, stores)
		const quotas, limits = 20, 500
		for i := range quotas {
			all := []corev1.ResourceName{corev1.ResourceRequestsCPU, corev1.ResourceConfigMaps}
			for j := range limits {
				all = append(all, corev1.ResourceName(fmt.Sprintf("count/r%d.example.com", j)))
			}
			c.changed(client.Event[*corev1.ResourceQuota]{New: limitsOf("shop", fmt.Sprint("q", i), all...)})
		}
		c.changed(client.Event[*corev1.ResourceQuota]{New: limitsOf("shop", "other", corev1.ResourceConfigMaps)})
		c.changed(client.Event[*corev1.ResourceQuota]{New: limitsOf("bank", "q", corev1.ResourcePods)})
		before := stores.times()
		if n := c.counts.Len(); n != quotas+2 {
			t.Fatalf("%d are to be counted as the watches begin, want all", n)
		}
		c.counts.Stop()
		c.counts = queue.New("quota", c.countAnew)
		for range 100 {
			stores.watches[schema.GroupResource{Resource: "pods"}].Modify(&core.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "p", Annotations: map[string]string{logicalcluster.AnnotationKey: "shop"},
			}})
		}
		if n := stores.times() - before; n > 0 || c.counts.Len() != quotas {
			t.Errorf("asked %d times what is served, and %d ResourceQuotas are to be counted, want none and the %d of that namespace that limit pods", n, c.counts.Len(), quotas)
		}
	})
}

// TestOneChangeLooksAtOne: a change of one ResourceQuota is looked at without the others that there are.
func TestOneChangeLooksAtOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &asked{watches: map[schema.GroupResource]*watch.FakeWatcher{}}
		c := watching(t, stores)
		const quotas = 10_000
		for i := range quotas {
			c.changed(client.Event[*corev1.ResourceQuota]{New: limitsOf(fmt.Sprint("w", i), "q", corev1.ResourcePods, corev1.ResourceConfigMaps)})
		}
		before := stores.times()
		old := limitsOf("w1", "q", corev1.ResourcePods, corev1.ResourceConfigMaps)
		for range 10 {
			with := limitsOf("w1", "q", corev1.ResourcePods)
			c.changed(client.Event[*corev1.ResourceQuota]{Old: old, New: with})
			synctest.Wait()
			c.changed(client.Event[*corev1.ResourceQuota]{Old: with, New: old})
			synctest.Wait()
		}
		if n := stores.times() - before; n == 0 || n > 20 {
			t.Errorf("asked %d times what is served for 20 changes, of one of %d", n, quotas)
		}
	})
}

// TestNamespacesAreOfOneWorkspace: however many namespaces of a workspace limit what nobody serves, one change asks once whether
// it does, and what is defined there, or anywhere, is counted in all of them.
func TestNamespacesAreOfOneWorkspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &asked{watches: map[schema.GroupResource]*watch.FakeWatcher{}}
		c := watching(t, stores)
		const namespaces = 5000
		in := func(i int, limits ...corev1.ResourceName) *corev1.ResourceQuota {
			q := limitsOf("shop", "q", limits...)
			q.Namespace = fmt.Sprint("ns", i)
			return q
		}
		const limit = corev1.ResourceName("count/widgets.example.com")
		for i := range namespaces {
			c.changed(client.Event[*corev1.ResourceQuota]{New: in(i, limit)})
		}
		c.changed(client.Event[*corev1.ResourceQuota]{New: limitsOf("bank", "q", limit)})
		before := stores.times()
		c.changed(client.Event[*corev1.ResourceQuota]{Old: in(0, limit), New: in(0)})
		if n := stores.times() - before; n == 0 || n > 3 {
			t.Errorf("asked %d times what two workspaces serve, one of them with %d namespaces", n, namespaces)
		}
		widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
		for of, want := range map[logicalcluster.Name]int{"shop": namespaces - 1, "bank": 1, "": namespaces, "none": 0} {
			if n := len(c.limits.everywhere(widgets, of)); n != want {
				t.Errorf("%d ResourceQuotas of %q limit it, want %d", n, of, want)
			}
		}
	})
}

// TestWatchesAreOfWhatIsLimited: a resource is watched as long as some ResourceQuota of a workspace that serves it limits it.
func TestWatchesAreOfWhatIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &asked{watches: map[schema.GroupResource]*watch.FakeWatcher{}, mirror: "east"}
		c := watching(t, stores)
		wants := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, stores.watched()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		const widgets = corev1.ResourceName("count/widgets.example.com")
		set := func(old, now *corev1.ResourceQuota) {
			c.changed(client.Event[*corev1.ResourceQuota]{Old: old, New: now})
		}
		mirrors := limitsOf("east", "q", corev1.ResourceSecrets)
		set(nil, mirrors)
		wants("of a mirror")
		shop, bank := limitsOf("shop", "q", corev1.ResourcePods, widgets), limitsOf("bank", "q", corev1.ResourcePods)
		set(nil, shop)
		set(nil, bank)
		wants("of two workspaces", "pods")
		stores.defined = true
		c.defined("bank", schema.GroupResource{Group: "example.com", Resource: "widgets"}) // which does not limit it
		wants("defined elsewhere", "pods")
		c.defined("shop", schema.GroupResource{Group: "example.com", Resource: "widgets"})
		wants("defined", "pods", "widgets.example.com")
		if n := c.uncounted.Len(); n != 1 {
			t.Errorf("%d are to be counted, want the one that limits what is defined now", n)
		}
		stores.defined = false
		c.defined("shop", schema.GroupResource{Group: "example.com", Resource: "widgets"})
		wants("defined no more", "pods")
		other := limitsOf("shop", "q", corev1.ResourceSecrets)
		set(shop, other)
		wants("changed", "pods", "secrets")
		set(bank, nil)
		wants("one is gone", "secrets")
		set(other, nil)
		wants("all are gone")
		set(mirrors, nil)
		if len(c.limits.of)+len(c.limits.by) > 0 {
			t.Errorf("what is gone is kept: %v, %v", c.limits.of, c.limits.by)
		}
	})
}

func TestLimitedBy(t *testing.T) {
	for limit, want := range map[corev1.ResourceName]string{
		"pods": "pods", "count/pods": "pods", "cpu": "pods", "limits.memory": "pods", "requests.ephemeral-storage": "pods",
		"requests.nvidia.com/gpu": "pods", "hugepages-2Mi": "pods",
		"services": "services", "services.nodeports": "services", "count/services": "services",
		"requests.storage": "persistentvolumeclaims", "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "persistentvolumeclaims",
		"configmaps": "configmaps", "count/secrets": "secrets", "resourcequotas": "resourcequotas", "replicationcontrollers": "replicationcontrollers",
		"count/deployments.apps": "deployments.apps", "count/widgets.example.com": "widgets.example.com",
		"count/.": "", "example.com/gpu": "",
	} {
		var got []string
		for _, resource := range limitedBy(corev1.ResourceList{limit: resource.MustParse("1")}) {
			got = append(got, resource.String())
		}
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%s limits %q, want %q", limit, got, want)
		}
	}
	many := corev1.ResourceList{"pods": resource.MustParse("1"), "cpu": resource.MustParse("1"), "count/pods": resource.MustParse("1"), "secrets": resource.MustParse("1")}
	if got := limitedBy(many); len(got) != 2 {
		t.Errorf("%v limit %v, want each once", slices.Collect(maps.Keys(many)), got)
	}
}
