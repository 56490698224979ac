package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	there     int  // objects
	charging  int  // so many counts have somebody who charges beside them
	listFails int  // so many times
	writing   bool // somebody else writes the ResourceQuota beside each count
	newLimits []bool
	holds     []bool
}

func (o *one) BeginCount(_ context.Context, _ *corev1.ResourceQuota, newLimits, hold bool) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.newLimits, o.holds = append(o.newLimits, newLimits), append(o.holds, hold)
	return int64(len(o.newLimits)), nil
}

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
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listFails > 0 && len(o.holds) > 0 && o.holds[len(o.holds)-1] {
		o.listFails--
		return nil, errors.New("away")
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

func (o *one) UpdateQuotaStatus(_ context.Context, read *corev1.ResourceQuota, begun int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.charging > 0 || begun != int64(len(o.newLimits)) {
		o.charging--
		if o.writing {
			o.q.Annotations["written"] = fmt.Sprint(o.charging)
		}
		return apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, read.Name, errors.New("charged"))
	}
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
		stores := &one{q: quotaOf("shop", "0"), held: map[logicalcluster.Name]chan struct{}{}}
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
		stores.q = quotaOf("shop", "")
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "")})
		if n, _ := stores.counted(); n != workers+1 || len(stores.q.Status.Hard) == 0 {
			t.Errorf("%d counts, status %v: want the new ResourceQuota counted", n, stores.q.Status)
		}
	})
}

// TestCountsBesideCharges: a count beside which others charge, or write, is done again, in a while, and not after more and more.
func TestCountsBesideCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := &one{q: quotaOf("shop", "2"), there: 1, charging: 100}
		c := newController(stores, func(client.Key) bool { return true })
		c.work(t)
		c.changed(client.Event[*corev1.ResourceQuota]{New: quotaOf("shop", "2"), Initial: true})
		time.Sleep(100*whileCharging - time.Millisecond)
		if n, used := stores.counted(); n != 100 || used != "2" {
			t.Errorf("while others charge: %d counts, used %s, want 100 and 2", n, used)
		}
		time.Sleep(2 * time.Millisecond)
		if n, used := stores.counted(); n != 101 || used != "1" {
			t.Errorf("when they do not: %d counts, used %s, want 101 and 1", n, used)
		}
	})
}

// TestNewLimitsHoldUp: a count of limits that are not counted yet is refused three times, and then holds up who charges. It does not where
// it fails for itself, or is refused for what others do: that may go on.
func TestNewLimitsHoldUp(t *testing.T) {
	for name, test := range map[string]struct {
		used      string // empty is never counted
		hard      string
		charging  int // so many counts are refused
		listFails int // while it holds up others
		writing   bool
		want      []bool
	}{
		"new":             {hard: "10", charging: 4, want: []bool{false, false, false, true, true}},
		"lowered":         {used: "1", hard: "5", charging: 4, want: []bool{false, false, false, true, true}},
		"not so long":     {hard: "10", charging: 3, want: []bool{false, false, false, true}},
		"soon":            {hard: "10", charging: 2, want: []bool{false, false, false}},
		"counted already": {used: "2", hard: "10", charging: 5, want: make([]bool, 6)},
		"fails for itself": {hard: "10", charging: 6, listFails: 1, want: []bool{
			false, false, false, true, // fails
			false, false, false, true,
		}},
		"others write it": {hard: "10", charging: 6, writing: true, want: make([]bool, 7)},
		"it does not help": {hard: "10", charging: 3 + 10 + 1, want: []bool{
			false, false, false, true, true, true, true, true, true, true, true, true, true,
			false, false,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores := &one{q: quotaOf("shop", test.used), there: 1, charging: test.charging, listFails: test.listFails, writing: test.writing}
				stores.q.Spec.Hard = corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(test.hard)}
				c := newController(stores, func(client.Key) bool { return true })
				c.work(t)
				c.changed(client.Event[*corev1.ResourceQuota]{New: stores.q.DeepCopy(), Initial: true})
				time.Sleep(time.Minute)
				if _, used := stores.counted(); used != "1" {
					t.Errorf("used %s, want 1", used)
				}
				if diff := cmp.Diff(test.want, stores.holds); diff != "" {
					t.Errorf("holds up who charges (-want +got):\n%s", diff)
				}
				if len(c.refused) > 0 {
					t.Errorf("remembers refusals when all is counted: %v", c.refused)
				}
			})
		})
	}
}

// TestNewLimitsAreCountedInTurns: whoever asks that a ResourceQuota is counted anew leaves its new limits to those who count them.
func TestNewLimitsAreCountedInTurns(t *testing.T) {
	stores := &one{q: quotaOf("shop", ""), there: 1}
	c := newController(stores, func(client.Key) bool { return true })
	key := client.KeyOf(stores.q)
	if _, err := c.countAnew(t.Context(), key); err != nil || len(stores.newLimits) > 0 {
		t.Errorf("%d counts begin, %v", len(stores.newLimits), err)
	}
	if _, err := c.count(t.Context(), key); err != nil || !LimitsCounted(stores.q) {
		t.Errorf("not counted: %v, %v", stores.q.Status, err)
	}
}

// TestNewLimitsAreTold: before a limit is counted that was not before, and not otherwise.
func TestNewLimitsAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		used string // empty is never counted
		hard string
		want bool
	}{"new": {"", "10", true}, "counted": {"2", "10", false}, "changed": {"2", "5", true}} {
		stores := &one{q: quotaOf("shop", test.used)}
		stores.q.Spec.Hard = corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(test.hard)}
		c := newController(stores, func(client.Key) bool { return true })
		_, err := c.count(t.Context(), client.KeyOf(stores.q))
		c.counts.Stop()
		c.uncounted.Stop()
		c.watches.Stop()
		if diff := cmp.Diff([]bool{test.want}, stores.newLimits); diff != "" || err != nil {
			t.Errorf("%s: error %v, told (-want +got):\n%s", name, err, diff)
		}
	}
}
