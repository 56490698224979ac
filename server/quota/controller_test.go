package quota

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// one is Stores with one ResourceQuota in each workspace, and no objects.
type one struct {
	Stores
	mu    sync.Mutex
	q     *corev1.ResourceQuota
	reads int
	held  map[logicalcluster.Name]chan struct{}     // lists of these wait
	told  func(client.Event[*corev1.ResourceQuota]) // of what is written

	there    int // objects
	charging bool
	shared   bool
}

func (o *one) Charging(client.Key) bool { return o.charging }

func (o *one) Shared() bool { return o.shared }

func (*one) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	return lcctx.Cluster{Name: name}, true
}

func (*one) Served(logicalcluster.Name, schema.GroupResource) (served, custom bool) {
	return true, false
}

func (o *one) List(ctx context.Context, _ schema.GroupResource, _ string) ([]runtime.Object, error) {
	cluster, _ := lcctx.ClusterFrom(ctx)
	if held := o.held[cluster.Name]; held != nil {
		<-held
	}
	var all []runtime.Object
	for range o.there {
		all = append(all, &core.ConfigMap{})
	}
	return all, nil
}

func (o *one) Quota(context.Context, string, string) (*corev1.ResourceQuota, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads++
	return o.q.DeepCopy(), nil
}

func (o *one) UpdateQuotaStatus(_ context.Context, read *corev1.ResourceQuota) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.q
	o.q = read.DeepCopy()
	if o.told != nil {
		o.told(client.Event[*corev1.ResourceQuota]{Old: old, New: o.q.DeepCopy()})
	}
	return nil
}

// counted is the number of counts, and what is used as the last one has it.
func (o *one) counted() (int, string) {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	used := o.q.Status.Used[corev1.ResourceConfigMaps]
	return o.reads, used.String()
}

func quotaOf(cluster, used string) *corev1.ResourceQuota {
	hard := corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse("10")}
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q", UID: "uid", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
	}
	if used != "" {
		q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(used)}}
	}
	return q
}

// work runs the queues until the test ends.
func (c *Controller) work(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.counts.Run(ctx, workers) })
	running.Go(func() { c.uncounted.Run(ctx, workers) })
	t.Cleanup(func() { cancel(); c.watches.Stop(); running.Wait() })
}

// TestIdleQuotasAreNotCounted: what was charged is counted five minutes after the first charge, so is what that count wrote,
// and then nothing is.
func TestIdleQuotasAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &one{q: quotaOf("shop", "0")}
		c := newController(stores, func(client.Key) bool { return true })
		stores.told = c.changed
		c.work(t)
		want := func(when string, counts int, used string) {
			t.Helper()
			if n, u := stores.counted(); n != counts || u != used {
				t.Errorf("%s: %d counts, used %s, want %d and %s", when, n, u, counts, used)
			}
		}
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "0"), Initial: true})
		want("at the start", 1, "0")
		time.Sleep(time.Hour)
		want("after an idle hour", 1, "0")
		// Two creations are charged, and both fail.
		stores.q = quotaOf("shop", "2")
		c.changed(client.Event[*corev1.ResourceQuota]{Old: quotaOf("shop", "0"), New: quotaOf("shop", "1")})
		time.Sleep(time.Minute)
		c.changed(client.Event[*corev1.ResourceQuota]{Old: quotaOf("shop", "1"), New: quotaOf("shop", "2")})
		time.Sleep(recount - time.Minute - time.Second)
		want("before it is time", 1, "2")
		time.Sleep(2 * time.Second)
		want("five minutes after the first", 2, "0")
		time.Sleep(recount)
		want("five minutes after that count", 3, "0")
		time.Sleep(time.Hour)
		want("after an idle hour more", 3, "0")
	})
}

// TestNewQuotasDoNotWait: a new ResourceQuota is counted while counts of others fill the workers.
func TestNewQuotasDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		stores := &one{q: quotaOf("shop", ""), held: map[logicalcluster.Name]chan struct{}{}}
		c := newController(stores, func(client.Key) bool { return true })
		c.work(t)
		defer close(held)
		for _, busy := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
			stores.held[logicalcluster.Name(busy)] = held
		}
		for busy := range stores.held {
			c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf(busy.String(), "0"), Initial: true})
		}
		if n, _ := stores.counted(); n != workers {
			t.Fatalf("%d counts go on, want %d that are held", n, workers)
		}
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "")})
		if n, _ := stores.counted(); n != workers+1 || len(stores.q.Status.Hard) == 0 {
			t.Errorf("%d counts, status %v: want the new ResourceQuota counted", n, stores.q.Status)
		}
	})
}

// TestCountsWaitForCharges: what was charged and may not be written yet is not taken for nothing.
func TestCountsWaitForCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &one{q: quotaOf("shop", "2"), there: 1, charging: true}
		c := newController(stores, func(client.Key) bool { return true })
		c.work(t)
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "2"), Initial: true})
		time.Sleep(10 * time.Second)
		if _, used := stores.counted(); used != "2" {
			t.Errorf("while the request that charged goes on: used %s, want 2", used)
		}
		stores.there, stores.charging = 2, false
		time.Sleep(2 * whileCharging)
		counts, used := stores.counted()
		if used != "2" {
			t.Errorf("after the request that charged: used %s, want 2", used)
		}
		stores.there = 1
		c.counts.Add(client.KeyOf(stores.q))
		if n, used := stores.counted(); n != counts+1 || used != "1" {
			t.Errorf("nothing is charged: %d counts more, used %s, want one and 1", n-counts, used)
		}
		// A new one, which nobody can have charged, does not wait.
		stores.charging, stores.q = true, quotaOf("shop", "")
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "")})
		if _, used := stores.counted(); used != "1" {
			t.Errorf("a new one while there is something in flight: used %s, want 1", used)
		}
	})
}

// TestCountsBesideOtherServers: a count waits until nobody has charged for two seconds.
func TestCountsBesideOtherServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &one{q: quotaOf("shop", "2"), there: 1, shared: true}
		stores.q.ResourceVersion = "1"
		c := newController(stores, func(client.Key) bool { return true })
		c.work(t)
		c.counts.Add(client.KeyOf(stores.q))
		want := func(when, used string) {
			t.Helper()
			if _, u := stores.counted(); u != used {
				t.Errorf("%s: used %s, want %s", when, u, used)
			}
		}
		want("at once", "2")
		time.Sleep(settled - time.Millisecond)
		stores.mu.Lock()
		stores.q = quotaOf("shop", "3") // another server charges
		stores.q.ResourceVersion = "2"
		stores.mu.Unlock()
		time.Sleep(settled - time.Millisecond)
		want("less than two seconds after a charge", "3")
		time.Sleep(2 * time.Millisecond)
		want("two seconds after it", "1")
		if len(c.waiting) != 0 {
			t.Errorf("%v is kept of a count that is done", c.waiting)
		}
	})
}
