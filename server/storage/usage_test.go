package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
	clocktesting "k8s.io/utils/clock/testing"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// as is the context of a request by somebody.
func as(ctx context.Context, groups ...string) context.Context {
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "alice", Groups: groups})
}

// always are limits of all logical clusters.
func always(limits Limits) func(logicalcluster.Name) Limits {
	return func(logicalcluster.Name) Limits { return limits }
}

func tryCreate(store *genericregistry.Store, ctx context.Context, obj runtime.Object) error {
	_, err := store.Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	return err
}

func trySet(s *served, ctx context.Context, name, value string) error {
	_, _, err := s.configMaps.Update(ctx, name, changed(func(cm *api.ConfigMap) { cm.Data = map[string]string{"v": value} }),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

func discard(t *testing.T, s *served, ctx context.Context, name string) {
	t.Helper()
	if _, _, err := s.configMaps.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
}

// wantFull fails unless a write was refused with these words.
func wantFull(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: %v, want 403", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

func mustPass(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v, want no error", what, err)
	}
}

// TestLimitOnObjects: a workspace has as many objects as it may; what it deletes makes room; nobody else is affected.
func TestLimitOnObjects(t *testing.T) {
	limit := func(c *Config) {
		c.Limits = always(Limits{Objects: 5})
		c.Called = func(name logicalcluster.Name) string { return "root:" + name.String() }
	}
	s := serve(t, prefixOf(t), limit)
	shop := as(in("shop", "default"))
	put(t, s, "shop", "before", "v") // by the server
	for i := range 4 {
		mustPass(t, "below the limit", tryCreate(s.configMaps, shop, configMap("default", fmt.Sprint("x", i), "v")))
	}
	wantFull(t, "one too many", tryCreate(s.configMaps, shop, configMap("default", "more")),
		`configmaps "more" is forbidden`, `workspace "root:shop" has 5 objects, and may have 5`, "--max-objects-per-workspace")
	wantFull(t, "of another resource", tryCreate(s.secrets, shop, secret("default", "more")), `secrets "more"`)
	mustPass(t, "an update", trySet(s, shop, "x0", strings.Repeat("v", 1000)))

	mustPass(t, "in another workspace", tryCreate(s.configMaps, as(in("bank", "default")), configMap("default", "x")))
	mustPass(t, "by an administrator", tryCreate(s.configMaps, as(in("shop", "default"), user.SystemPrivilegedGroup), configMap("default", "admins")))
	mirror := as(within(lc.Cluster{Name: "mirror", Mirror: true}, "default"))
	for _, ctx := range []context.Context{mirror, as(in("system:admin", "default"))} {
		for i := range 6 {
			mustPass(t, "in a mirror or a logical cluster of the system", tryCreate(s.configMaps, ctx, configMap("default", fmt.Sprint("x", i))))
		}
	}

	discard(t, s, shop, "x0")
	wantFull(t, "as many as may be, by the administrator's", tryCreate(s.configMaps, shop, configMap("default", "more")), "has 5 objects")
	discard(t, s, shop, "x1")
	mustPass(t, "after deletions", tryCreate(s.configMaps, shop, configMap("default", "more")))

	again := serve(t, prefixOf(t), limit)
	wantFull(t, "after a restart", tryCreate(again.configMaps, shop, configMap("default", "another")), "has 5 objects")
	discard(t, again, shop, "more")
	mustPass(t, "after a restart and a deletion", tryCreate(again.configMaps, shop, configMap("default", "another")))

	if err := again.DeleteClusterData(t.Context(), logicalName("shop"), nil); err != nil {
		t.Fatal(err)
	}
	if again.usage.knows(share{cluster: "shop"}) {
		t.Error("a logical cluster that is deleted is still counted")
	}
	mustPass(t, "in a logical cluster of that name", tryCreate(again.configMaps, shop, configMap("default", "x")))
}

// TestLimitOfOneWorkspace: a workspace may have limits of its own, which hold from the next write on: higher ones, lower ones
// and none, also where others have none.
func TestLimitOfOneWorkspace(t *testing.T) {
	var limits sync.Map
	s := serve(t, prefixOf(t), func(c *Config) {
		c.Limits = func(name logicalcluster.Name) Limits {
			own, _ := limits.Load(name)
			limit, _ := own.(Limits)
			return limit
		}
	})
	shop, bank := as(in("shop", "default")), as(in("bank", "default"))
	set := func(l Limits) { limits.Store(logicalcluster.Name("shop"), l) }
	n := 0
	write := func(ctx context.Context) error {
		n++
		return tryCreate(s.configMaps, ctx, configMap("default", fmt.Sprint("x", n)))
	}
	mustPass(t, "without any", write(shop))
	if s.usage.knows(share{cluster: "shop"}) {
		t.Error("a workspace without limits is counted")
	}
	set(Limits{Objects: 2})
	mustPass(t, "below it", write(shop))
	wantFull(t, "at it", write(shop), "has 2 objects, and may have 2", "limits.atoll.dev/objects of the workspace's LogicalCluster")
	mustPass(t, "in another workspace", write(bank))
	set(Limits{Objects: 3})
	mustPass(t, "it is raised", write(shop))
	wantFull(t, "at the higher one", write(shop), "has 3 objects, and may have 3")
	set(Limits{})
	mustPass(t, "it is taken away", write(shop))
	set(Limits{Objects: 1})
	wantFull(t, "it is lower than what there is", write(shop), "has 4 objects, and may have 1")
	discard(t, s, shop, "x1")
}

// TestLimitOnBytes: what grows a workspace beyond the limit is refused; what makes it smaller, or deletes, passes.
func TestLimitOnBytes(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Bytes: 20_000}) })
	shop := as(in("shop", "default"))
	kilobytes := func(n int) string { return strings.Repeat("v", n*1000) }
	mustPass(t, "below the limit", tryCreate(s.configMaps, shop, configMap("default", "a", kilobytes(9))))
	mustPass(t, "below the limit", tryCreate(s.configMaps, shop, configMap("default", "b", kilobytes(9))))
	wantFull(t, "a creation", tryCreate(s.configMaps, shop, configMap("default", "c", kilobytes(2))), "bytes, and may have 20000", "--max-bytes-per-workspace")
	wantFull(t, "growing", trySet(s, shop, "a", kilobytes(12)), `configmaps "a" is forbidden`)
	mustPass(t, "growing a little", trySet(s, shop, "a", kilobytes(9)+"more"))
	mustPass(t, "shrinking", trySet(s, shop, "b", kilobytes(7)))
	mustPass(t, "growing into the room", trySet(s, shop, "a", kilobytes(11)))

	// An administrator fills it further. What is there can still be made smaller and deleted, finalizers or not.
	held := configMap("default", "held", kilobytes(9))
	held.Finalizers = []string{"example.com/one", "example.com/two"}
	mustPass(t, "by an administrator", tryCreate(s.configMaps, as(shop, user.SystemPrivilegedGroup), held))
	wantFull(t, "growing by a byte", trySet(s, shop, "a", kilobytes(11)+"m"))
	mustPass(t, "shrinking beyond the limit", trySet(s, shop, "a", kilobytes(10)))
	discard(t, s, shop, "held")
	finalize := func(left []string, annotation string) error {
		_, _, err := s.configMaps.Update(shop, "held", changed(func(cm *api.ConfigMap) {
			cm.Finalizers, cm.Annotations = left, map[string]string{"example.com/by": annotation}
		}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	wantFull(t, "growing what is being deleted", finalize([]string{"example.com/one", "example.com/two"}, "me"))
	wantFull(t, "growing much with a finalizer less", finalize([]string{"example.com/one"}, kilobytes(2)))
	mustPass(t, "growing a little with a finalizer less", finalize([]string{"example.com/one"}, strings.Repeat("m", 100)))
	mustPass(t, "the last finalizer", finalize(nil, ""))
	discard(t, s, shop, "b")
	mustPass(t, "after deletions", tryCreate(s.configMaps, shop, configMap("default", "c", kilobytes(2))))
}

// TestLimitOnWhatIsReset: what every logical cluster has can be reset in one that is full, though that may make its row larger.
func TestLimitOnWhatIsReset(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) {
		bootstrap(c)
		c.Limits = always(Limits{Bytes: 20_000})
		c.Shared = func(gr schema.GroupResource) []runtime.Object {
			if gr.Resource != "clusterroles" {
				return nil
			}
			role := clusterRole("large", nil)
			role.Rules[0].ResourceNames = []string{strings.Repeat("x", 5*endingSlack)}
			return []runtime.Object{role}
		}
	})
	shop := as(in("shop"))
	empty := func(r *rbac.ClusterRole) { r.Rules = nil }
	if _, err := updateRole(t, s, shop, "large", empty); err != nil {
		t.Fatal(err)
	}
	fill := strings.Repeat("v", 25_000)
	mustPass(t, "by an administrator", tryCreate(s.configMaps, as(in("shop", "default"), user.SystemPrivilegedGroup), configMap("default", "fill", fill)))
	whole := func(r *rbac.ClusterRole) { r.Rules = getRole(t, s, in("bb"), "large").Rules }
	_, err := updateRole(t, s, shop, "large", whole)
	wantFull(t, "growing", err, `"large" is forbidden`)
	mustPass(t, "reset", deleteRole(t, s, shop, "large", &metav1.DeleteOptions{}))
	if got := getRole(t, s, shop, "large"); len(got.Rules) != 1 {
		t.Errorf("after reset it has %d rules", len(got.Rules))
	}
	has, _, err := s.countShare(t.Context(), share{cluster: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if known := s.use(t, share{cluster: "shop"}); known != has {
		t.Errorf("%+v is known, etcd has %+v", known, has)
	}
}

// TestLimitOfWhatIsStale: an update of what a cache had, when etcd has something newer, is not refused but found out to be stale:
// what its caller makes of the newer object may well pass.
func TestLimitOfWhatIsStale(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Bytes: 1000}) })
	put(t, s, "shop", "a", strings.Repeat("v", 2000))
	base := join(prefixOf(t), "/configmaps")
	client := &limitedClient{Interface: &kubernetes.Client{Client: etcd.Client}, kv: etcd.Client, usage: s.usage, resource: api.Resource("configmaps"), base: base}
	key, value := base+"/shop/default/a", []byte(strings.Repeat("v", 5000))
	ctx := as(in("shop", "default"))
	stale, err := client.OptimisticPut(ctx, key, value, 1, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || stale.Succeeded || stale.KV == nil {
		t.Fatalf("a stale update: %+v, %v; want no success, and what there is", stale, err)
	}
	_, err = client.OptimisticPut(ctx, key, value, stale.KV.ModRevision, kubernetes.PutOptions{GetOnFailure: true})
	wantFull(t, "the same, no longer stale", err)
}

// TestLimitHoldsAtOnce: of creations at the same moment no more pass than there is room for. A write that is done, but does not
// know it yet while its logical cluster is counted, uses up room twice, so that fewer may; later ones find the room.
func TestLimitHoldsAtOnce(t *testing.T) {
	const limit, parallel = 40, 100
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: limit}) })
	var made atomic.Int64
	var group sync.WaitGroup
	for i := range parallel {
		group.Go(func() {
			switch err := tryCreate(s.configMaps, as(in("shop", "default")), configMap("default", fmt.Sprint("x", i))); {
			case err == nil:
				made.Add(1)
			case !apierrors.IsForbidden(err):
				t.Errorf("creation %d: %v", i, err)
			}
		})
	}
	group.Wait()
	if made.Load() > limit || made.Load() == 0 {
		t.Errorf("%d were created at once, want at most %d", made.Load(), limit)
	}
	for ; made.Load() < limit; made.Add(1) {
		mustPass(t, "one for which there is room", tryCreate(s.configMaps, as(in("shop", "default")), configMap("default", fmt.Sprint("y", made.Load()))))
	}
	wantFull(t, "one too many", tryCreate(s.configMaps, as(in("shop", "default")), configMap("default", "more")))
}

// TestLimitOnEvents: Events have a limit of their own, and use up nobody's else.
func TestLimitOnEvents(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: 30}) })
	shop := as(in("shop", "default"))
	for i := range 3 {
		mustPass(t, "an Event", tryCreate(s.events, shop, event("default", fmt.Sprint("e", i))))
	}
	wantFull(t, "an Event too many", tryCreate(s.events, shop, event("default", "more")), "has 3 Events, and may have 3")
	mustPass(t, "another object", tryCreate(s.configMaps, shop, configMap("default", "x")))
	if got := s.use(t, share{cluster: "shop"}); got.objects != 1 {
		t.Errorf("%d objects are counted besides the Events, want 1", got.objects)
	}
}

// TestLimitOnPods: what physical clusters show of Pods leaves a workspace its room, and who has used that up still sees how they are.
func TestLimitOnPods(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: 4, Bytes: 40_000}) })
	shop, bank := as(in("shop", "default")), as(in("bank", "default"))
	mustPass(t, "a Pod", tryCreate(s.pods, shop, pod("default", "one")))
	mustPass(t, "a Pod", tryCreate(s.pods, shop, pod("default", "two")))
	wantFull(t, "a Pod too many", tryCreate(s.pods, shop, pod("default", "three")), "has 2 Pods, and may have 2, 1/2 of what it may have otherwise: what physical clusters show of them ends with what it belongs to")
	long := pod("default", "long")
	long.Annotations = map[string]string{"x": strings.Repeat("x", 21_000)}
	wantFull(t, "a long Pod", tryCreate(s.pods, bank, long), "has Pods of 0 bytes, and may have 20000")
	for i := range 4 {
		mustPass(t, "another object", tryCreate(s.configMaps, shop, configMap("default", fmt.Sprint("x", i))))
	}
	wantFull(t, "one more", tryCreate(s.configMaps, shop, configMap("default", "more")), "has 4 objects, and may have 4")
	_, _, err := s.pods.Update(shop, "one", changed(func(p *api.Pod) { p.Annotations = map[string]string{"x": "grows"} }),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	mustPass(t, "what a Pod is like", err)
	if got := s.use(t, share{cluster: "shop"}); got.objects != 4 {
		t.Errorf("%d objects are counted besides the Pods, want 4", got.objects)
	}
}

// byServer is the context of a request by the server's own controllers.
func byServer(ctx context.Context) context.Context {
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// TestLimitOnWhatTheServerMakes: what the server makes because of what somebody wrote has his limits, and what became of objects it writes
// all the same, so that a workspace which is full can be emptied.
func TestLimitOnWhatTheServerMakes(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: 10}) })
	shop, server := as(in("shop", "default")), byServer(in("shop", "default"))
	held := claim("default", "held")
	held.Finalizers = []string{"example.com/one"}
	mustPass(t, "a claim while there is room", tryCreate(s.claims, server, held))
	for i := range 9 {
		mustPass(t, "below the limit", tryCreate(s.configMaps, shop, configMap("default", fmt.Sprint("x", i), "v")))
	}
	wantFull(t, "a claim too many", tryCreate(s.claims, server, claim("default", "more")), `persistentvolumeclaims "more" is forbidden`, "has 10 objects, and may have 10")
	mustPass(t, "an Event, which counts apart", tryCreate(s.events, server, event("default", "one")))
	wantFull(t, "an Event too many", tryCreate(s.events, server, event("default", "more")), "has 1 Events, and may have 1")
	mustPass(t, "by an administrator", tryCreate(s.claims, as(in("shop", "default"), user.SystemPrivilegedGroup), claim("default", "admins")))
	mustPass(t, "in a mirror", tryCreate(s.claims, byServer(within(lc.Cluster{Name: "mirror", Mirror: true}, "default")), claim("default", "leaf")))

	mustPass(t, "what else it has to write", tryCreate(s.configMaps, server, configMap("default", "its")))
	mustPass(t, "what became of an object", trySet(s, server, "x0", strings.Repeat("v", 30_000)))
	change := func(change func(*api.PersistentVolumeClaim)) error {
		_, _, err := s.claims.Update(server, "held", changed(change), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	mustPass(t, "what became of a claim", change(func(c *api.PersistentVolumeClaim) { c.Annotations = map[string]string{"x": strings.Repeat("v", 1000)} }))
	if _, _, err := s.claims.Delete(server, "held", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	mustPass(t, "its last finalizer", change(func(c *api.PersistentVolumeClaim) { c.Finalizers = nil }))
	wantFull(t, "a claim too many still", tryCreate(s.claims, server, claim("default", "more")), "has 11 objects, and may have 10")
	for _, name := range []string{"x0", "x1", "x2", "its"} {
		discard(t, s, shop, name)
	}
	mustPass(t, "after deletions", tryCreate(s.claims, server, claim("default", "more")))
}

// TestBounded: whose writes of what have limits.
func TestBounded(t *testing.T) {
	u := newUsage(always(Limits{Objects: 1}), nil, clocktesting.NewFakePassiveClock(time.Unix(0, 0)), nil)
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	shop := in("shop", "default")
	named := genericapirequest.WithUser(shop, &user.DefaultInfo{Name: user.APIServerUser})
	for _, tc := range []struct {
		reason   string
		ctx      context.Context
		resource schema.GroupResource
		isNew    bool
		want     bool
	}{
		{"somebody", as(shop), api.Resource("secrets"), false, true},
		{"an administrator", as(shop, user.SystemPrivilegedGroup), jobs, true, false},
		{"nobody asks", shop, jobs, true, false},
		{"a Job of a CronJob", byServer(shop), jobs, true, true},
		{"what became of it", byServer(shop), jobs, false, false},
		{"a custom resource of that name", byServer(shop), schema.GroupResource{Group: "shop.example", Resource: "jobs"}, true, false},
		{"a revision of a Deployment", byServer(shop), schema.GroupResource{Group: "apps", Resource: "replicasets"}, true, true},
		{"of a StatefulSet", byServer(shop), schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}, true, true},
		{"a claim of a StatefulSet", byServer(shop), api.Resource("persistentvolumeclaims"), true, true},
		{"an Event", byServer(shop), api.Resource("events"), true, true},
		{"an EndpointSlice of a Service", byServer(shop), endpointSlices, true, true},
		{"what comes to it", byServer(shop), endpointSlices, false, true},
		{"Endpoints of a Service", byServer(shop), endpoints, true, true},
		{"what comes to them", byServer(shop), endpoints, false, true},
		{"a Placement", byServer(shop), schema.GroupResource{Group: "placement.atoll.dev", Resource: "placements"}, true, false},
		{"the server's name alone", named, api.Resource("secrets"), true, true},
		{"in a mirror", byServer(within(lc.Cluster{Name: "shop", Mirror: true})), jobs, true, false},
	} {
		if got := u.bounded(tc.ctx, "shop", tc.resource, tc.isNew); got != tc.want {
			t.Errorf("%s: bounded is %v", tc.reason, got)
		}
	}
}

// use is what is known of a share.
func (s *served) use(t *testing.T, of share) amount {
	t.Helper()
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	e, ok := s.usage.byName[of]
	if !ok {
		t.Fatalf("%v is not counted", of)
	}
	c := e.Value.(*counter)
	if c.reserved != (amount{}) {
		t.Errorf("%v is reserved and nobody writes", c.reserved)
	}
	return c.now
}

// TestUsageIsWhatEtcdHas: whatever is written, and while others count, what is known is what etcd has.
func TestUsageIsWhatEtcdHas(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: 1000, Bytes: 100_000}) })
	of := share{cluster: "shop"}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			ctx, dice := as(in("shop", "default")), rand.New(rand.NewPCG(1, uint64(worker)))
			if worker == 0 {
				ctx = in("shop", "default") // the server
			}
			for range 100 {
				// Workers get in each other's way: what is refused or not found is no fault.
				name, value := fmt.Sprint("x", dice.IntN(20)), strings.Repeat("v", dice.IntN(3000))
				switch dice.IntN(3) {
				case 0:
					_ = tryCreate(s.configMaps, ctx, configMap("default", name, value))
				case 1:
					_ = trySet(s, ctx, name, value)
				case 2:
					_, _, _ = s.configMaps.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
				}
			}
		})
	}
	group.Wait()
	if won, _, err := s.Exclusive(in("shop"), "things/one", "me"); err != nil || !won {
		t.Fatal(won, err)
	}
	row := Row{Resource: api.Resource("configmaps"), Cluster: "shop", Object: configMap("default", "together", "v")}
	if written, err := s.WriteTogether(t.Context(), row); err != nil || !written {
		t.Fatal(written, err)
	}
	row.Object, _ = s.configMaps.Get(in("shop", "default"), "together", &metav1.GetOptions{})
	row.Object = row.Object.DeepCopyObject()
	row.Object.(*api.ConfigMap).Data["v"] = "longer than before"
	if written, err := s.WriteTogether(t.Context(), row); err != nil || !written {
		t.Fatal(written, err)
	}
	has, _, err := s.countShare(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	if known := s.use(t, of); known != has || has.objects == 0 {
		t.Errorf("%+v is known, etcd has %+v", known, has)
	}
	if _, err := s.Release(in("shop"), "things/one", "me"); err != nil {
		t.Fatal(err)
	}
	if known := s.use(t, of); known.objects != has.objects-1 {
		t.Errorf("%d objects after a lock was given back, want %d", known.objects, has.objects-1)
	}
}

// TestCountManyRows: rows of several pages are all counted, and those of others are not.
func TestCountManyRows(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	for i := range 50 {
		put(t, s, "shop", fmt.Sprint("x", i), strings.Repeat("v", i*100))
		put(t, s, "shop2", fmt.Sprint("x", i), "v")
	}
	create(t, s.secrets, in("shop", "default"), secret("default", "s"))
	var want amount
	for _, prefix := range []string{"/configmaps/shop/", "/secrets/shop/"} {
		got, err := etcd.Client.Get(t.Context(), prefixOf(t)+prefix, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			want = want.plus(amount{1, int64(len(kv.Key) + len(kv.Value))})
		}
	}
	if got, revision, err := s.countShare(t.Context(), share{cluster: "shop"}); err != nil || got != want || revision == 0 || want.objects != 51 {
		t.Errorf("counted %+v at revision %d, %v; want %+v", got, revision, err, want)
	}
}

// TestUsage: when etcd is asked, and what is kept.
func TestUsage(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	var counts int
	has, revision, during := amount{}, int64(1), func() {}
	failure := error(nil)
	u := newUsage(always(Limits{Objects: 100}), nil, clk, func(context.Context, share) (amount, int64, error) {
		counts++
		during()
		return has, revision, failure
	})
	shop := share{cluster: "shop"}
	one := amount{1, 10}
	// write creates n objects, and returns the first error.
	write := func(s share, n int) error {
		for range n {
			c, err := u.reserve(t.Context(), s, one)
			if err != nil {
				return err
			}
			revision++
			u.settle(c, one, revision, one)
		}
		return nil
	}
	wantCounts := func(what string, want int) {
		t.Helper()
		if counts != want {
			t.Errorf("%s: counted %d times, want %d", what, counts, want)
		}
		counts = 0
	}
	failure = errors.New("etcd is away")
	if err := write(shop, 1); !errors.Is(err, failure) {
		t.Errorf("a write while etcd does not answer: %v", err)
	}
	failure, counts = nil, 0

	// What is written while it is counted is in the count, or not, by its revision.
	has = amount{80, 800}
	during = func() {
		u.add(shop, revision, amount{1, 10})
		u.add(shop, revision+1, amount{2, 20})
	}
	mustPass(t, "the first write", write(shop, 1))
	during = func() {}
	u.add(shop, 1, amount{50, 0}) // told late, and counted
	wantCounts("the first write", 1)
	mustPass(t, "further ones", write(shop, 8))
	wantCounts("further ones", 0)
	has = amount{95, 950} // another server has written
	mustPass(t, "a tenth more", write(shop, 2))
	wantCounts("a tenth more", 1)

	has = amount{100, 1000}
	if err := write(shop, 10); err == nil {
		t.Error("more than 100 pass")
	}
	wantCounts("full, a moment after it was counted", 0)
	clk.SetTime(clk.Now().Add(recount))
	if err := write(shop, 1); err == nil {
		t.Error("more than 100 pass")
	}
	wantCounts("full, some time after it was counted", 1)
	has = amount{90, 900} // another server has deleted
	if err := write(shop, 1); err == nil {
		t.Error("full and counted a moment ago: passes")
	}
	clk.SetTime(clk.Now().Add(recount))
	mustPass(t, "some time after others have deleted", write(shop, 1))
	wantCounts("some time after others have deleted", 1)

	// What took a second is not counted every ten.
	has = amount{100, 1000}
	u.forget("shop")
	during = func() { clk.SetTime(clk.Now().Add(time.Second)) }
	if err := write(shop, 1); err == nil {
		t.Error("more than 100 pass")
	}
	clk.SetTime(clk.Now().Add(2 * recount))
	_ = write(shop, 1)
	wantCounts("after 20 s, when it takes a second to count", 1)
	during = func() {}

	has = amount{}
	for i := range maxCounters + 10 {
		mustPass(t, "many", write(share{cluster: logicalName(fmt.Sprint("c", i))}, 1))
	}
	if n := len(u.byName); n != maxCounters || u.recent.Len() != n || u.knows(shop) {
		t.Errorf("%d and %d counters are kept, want %d, the last used", n, u.recent.Len(), maxCounters)
	}
	clk.SetTime(clk.Now().Add(idleCounter + time.Second))
	mustPass(t, "after an hour", write(shop, 1))
	if n := len(u.byName); n != 1 || u.recent.Len() != 1 {
		t.Errorf("%d counters are kept after an idle hour, want 1", n)
	}

	has = amount{98, 980}
	under, err := u.reserve(t.Context(), share{cluster: "full"}, amount{2, 20})
	mustPass(t, "the last two at once", err)
	if err := write(share{cluster: "full"}, 1); err == nil || !strings.Contains(err.Error(), "has 100 objects, and may have 100") {
		t.Errorf("one more while those are written: %v", err)
	}
	u.settle(under, amount{2, 20}, revision, amount{})

	if u := newUsage(nil, nil, clk, nil); u != nil || u.bounded(as(in("shop")), "shop", api.Resource("configmaps"), true) || u.knows(shop) {
		t.Error("without limits something is bounded or counted")
	}
}
