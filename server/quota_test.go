package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/quota"
)

// watchedStores know what is watched.
type watchedStores struct {
	quota.Stores
	mu      sync.Mutex
	watches map[string]int
}

func (s *watchedStores) WatchEverywhere(ctx context.Context, resource schema.GroupResource) (watch.Interface, error) {
	w, err := s.Stores.WatchEverywhere(ctx, resource)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[resource.String()]++
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[resource.String()]--; s.watches[resource.String()] == 0 {
			delete(s.watches, resource.String())
		}
	})
	return w, nil
}

func (s *watchedStores) watched() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(s.watches)), " ")
}

// countQuotas runs the controller that counts, until the test ends.
func (r *running) countQuotas(t *testing.T) *watchedStores {
	t.Helper()
	return r.countQuotasIn(t, r.QuotaStores())
}

func (r *running) countQuotasIn(t *testing.T, all quota.Stores) *watchedStores {
	t.Helper()
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	informers, err := client.NewInformers(clients)
	must(t, err)
	stores := &watchedStores{Stores: all, watches: map[string]int{}}
	controller := quota.New(informers, stores)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { informers.Run(ctx) })
	wg.Go(func() {
		if err := controller.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("count: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return stores
}

// waitUntil waits until see returns want.
func waitUntil(t *testing.T, what, want string, see func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got := see()
		if got == want {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %q, want %q", what, got, want)
		case <-tick.C:
		}
	}
}

// used shows the status of a ResourceQuota: "name used/hard", sorted.
func (p place) used(t *testing.T, namespace, name string) string {
	t.Helper()
	q, err := p.CoreV1().ResourceQuotas(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	var all []string
	for resource, hard := range q.Status.Hard {
		used := "?"
		if u, ok := q.Status.Used[resource]; ok {
			used = u.String()
		}
		all = append(all, fmt.Sprintf("%s %s/%s", resource, used, hard.String()))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (p place) waitUsed(t *testing.T, namespace, name, want string) {
	t.Helper()
	waitUntil(t, "used of ResourceQuota "+name, want, func() string { return p.used(t, namespace, name) })
}

// TestQuota: what is made in a workspace is counted there, refused when there would be too much, and given back.
func TestQuota(t *testing.T) {
	r := startServer(t, nil)
	stores := r.countQuotas(t)
	inShop, inBank := r.place(t, shop), r.place(t, bank)
	const (
		limits = `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {pods: "3", requests.cpu: "1", secrets: "1", count/deployments.apps: "1", requests.storage: 2Gi, count/nothing.example.com: "1"}}}`
		large  = `{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 600m}}}]}}`
		claim  = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %s}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}}}`
		deploy = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`
	)
	inShop.namespace(t, "ns", nil, `{apiVersion: v1, kind: Secret, metadata: {name: before}}`)
	inBank.namespace(t, "ns", nil, "")
	if got := stores.watched(); got != "" {
		t.Errorf("watched without a ResourceQuota: %q", got)
	}
	inShop.told.take()
	_, err := inShop.apply(t, "ns", limits)
	must(t, err)
	if !inShop.told.containing("not yet the pods that physical clusters make") {
		t.Error("nobody is told that pods below are not limited")
	}
	inShop.waitUsed(t, "ns", "q", "count/deployments.apps 0/1, count/nothing.example.com ?/1, pods 0/3, requests.cpu 0/1, requests.storage 0/2Gi, secrets 1/1")
	waitUntil(t, "watched", "deployments.apps persistentvolumeclaims pods secrets", stores.watched)

	for _, step := range []struct {
		object  string
		refused string
		used    string // after it
	}{
		{object: fmt.Sprintf(large, "one"), used: "pods 1/3, requests.cpu 600m/1"},
		{object: fmt.Sprintf(large, "two"), refused: "exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1", used: "pods 1/3, requests.cpu 600m/1"},
		{object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}`, refused: "failed quota: q: must specify requests.cpu", used: "pods 1/3"},
		{object: fmt.Sprintf(claim, "c", "1Gi"), used: "requests.storage 1Gi/2Gi"},
		{object: fmt.Sprintf(claim, "d", "2Gi"), refused: "exceeded quota: q, requested: requests.storage=2Gi", used: "requests.storage 1Gi/2Gi"},
		{object: `{apiVersion: v1, kind: Secret, metadata: {name: s}}`, refused: "exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=1", used: "secrets 1/1"},
		{object: fmt.Sprintf(deploy, "d"), used: "count/deployments.apps 1/1"},
		{object: fmt.Sprintf(deploy, "e"), refused: "exceeded quota: q", used: "count/deployments.apps 1/1"},
		{object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}`, used: "pods 1/3"},
	} {
		_, err := inShop.apply(t, "ns", step.object)
		if step.refused == "" && err != nil || step.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), step.refused)) {
			t.Errorf("%s: %v, want %q", step.object, err, step.refused)
		}
		if got := inShop.used(t, "ns", "q"); !strings.Contains(got, step.used) {
			t.Errorf("%s: used %q, want %q", step.object, got, step.used)
		}
		if _, err := inBank.apply(t, "ns", step.object); err != nil {
			t.Errorf("bank, which has no ResourceQuota: %v", err)
		}
	}

	// What only tries is not charged, and is refused all the same.
	_, err = inShop.CoreV1().Pods("ns").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("100m")}},
	}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	must(t, err)
	if got := inShop.used(t, "ns", "q"); !strings.Contains(got, "pods 1/3, requests.cpu 600m/1") {
		t.Errorf("a dry run was charged: %q", got)
	}

	// What is gone, and what a pod used that has ended, is given back.
	must(t, inShop.CoreV1().Secrets("ns").Delete(t.Context(), "before", metav1.DeleteOptions{}))
	pod, err := inShop.CoreV1().Pods("ns").Get(t.Context(), "one", metav1.GetOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodSucceeded
	_, err = inShop.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	inShop.waitUsed(t, "ns", "q", "count/deployments.apps 1/1, count/nothing.example.com ?/1, pods 0/3, requests.cpu 0/1, requests.storage 1Gi/2Gi, secrets 0/1")
	_, err = inShop.apply(t, "ns", fmt.Sprintf(large, "two"))
	must(t, err)

	// A changed ResourceQuota is counted, and one that is gone is watched for no more.
	q, err := inShop.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
	must(t, err)
	q.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: quantity("1")}
	_, err = inShop.CoreV1().ResourceQuotas("ns").Update(t.Context(), q, metav1.UpdateOptions{})
	must(t, err)
	inShop.waitUsed(t, "ns", "q", "pods 1/1")
	waitUntil(t, "watched", "pods", stores.watched)
	must(t, inShop.CoreV1().ResourceQuotas("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	waitUntil(t, "watched", "", stores.watched)
}

// TestQuotaScopes: a ResourceQuota may be for some pods only.
func TestQuotaScopes(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	in := r.place(t, shop)
	in.namespace(t, "ns", nil, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: besteffort}, spec: {hard: {pods: "1"}, scopes: [BestEffort]}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: high}, spec: {hard: {pods: "1"}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}}}`)
	in.waitUsed(t, "ns", "besteffort", "pods 0/1")
	in.waitUsed(t, "ns", "high", "pods 0/1")
	for _, step := range []struct{ name, spec, refused string }{
		{"a", `{containers: [{name: c, image: i}]}`, ""},
		{"b", `{containers: [{name: c, image: i}]}`, "exceeded quota: besteffort"},
		{"c", `{priorityClassName: high, containers: [{name: c, image: i, resources: {limits: {cpu: "1"}}}]}`, ""},
		{"d", `{priorityClassName: high, containers: [{name: c, image: i, resources: {limits: {cpu: "1"}}}]}`, "exceeded quota: high"},
		{"e", `{containers: [{name: c, image: i, resources: {limits: {cpu: "1"}}}]}`, ""},
	} {
		_, err := in.apply(t, "ns", fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: %s}", step.name, step.spec))
		if step.refused == "" && err != nil || step.refused != "" && (err == nil || !strings.Contains(err.Error(), step.refused)) {
			t.Errorf("pod %s: %v, want %q", step.name, err, step.refused)
		}
	}
	if a, b := in.used(t, "ns", "besteffort"), in.used(t, "ns", "high"); a != "pods 1/1" || b != "pods 1/1" {
		t.Errorf("used %q and %q, want 1/1 of both", a, b)
	}
}

// TestEachQuotaScope: of the pods of a workspace a ResourceQuota counts and refuses those of its scope, and no others.
func TestEachQuotaScope(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	in := r.place(t, shop)
	in.namespace(t, "ns", nil, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}`)
	const (
		plain  = `{containers: [{name: c, image: i}]}`
		ends   = `{activeDeadlineSeconds: 60, containers: [{name: c, image: i}]}`
		sized  = `{containers: [{name: c, image: i, resources: {limits: {cpu: "1"}}}]}`
		ranked = `{priorityClassName: high, containers: [{name: c, image: i}]}`
		apart  = `{containers: [{name: c, image: i}], affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: t, namespaces: [other], labelSelector: {matchLabels: {a: b}}}]}}}`
	)
	for n, tc := range []struct{ scope, inside, outside string }{
		{"scopes: [Terminating]", ends, plain},
		{"scopes: [NotTerminating]", plain, ends},
		{"scopes: [BestEffort]", plain, sized},
		{"scopes: [NotBestEffort]", sized, plain},
		{"scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: Exists}]}", ranked, plain},
		{"scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}", ranked, plain},
		{"scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: NotIn, values: [high]}]}", plain, ranked},
		{"scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: DoesNotExist}]}", plain, ranked},
		{"scopes: [CrossNamespacePodAffinity]", apart, plain},
	} {
		ns := fmt.Sprintf("scope%d", n)
		in.namespace(t, ns, nil, "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {pods: \"1\"}, "+tc.scope+"}}")
		in.waitUsed(t, ns, "q", "pods 0/1")
		for _, step := range []struct {
			name, spec string
			refused    bool
		}{{"outside", tc.outside, false}, {"first", tc.inside, false}, {"second", tc.inside, true}, {"outside-too", tc.outside, false}} {
			_, err := in.apply(t, ns, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: %s}", step.name, step.spec))
			if step.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), "exceeded quota: q") {
				t.Errorf("%s: pod %s: %v, refused %v", tc.scope, step.name, err, step.refused)
			}
		}
		in.waitUsed(t, ns, "q", "pods 1/1")
	}
}

// TestQuotaHoldsAtOnce: many creations at a time get exactly what there is, also while what watches ConfigMaps has just begun,
// and counts.
func TestQuotaHoldsAtOnce(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	const hard, tries = 20, 60
	namespaces := []string{"one", "two"}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[string]int{}
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		for _, namespace := range namespaces {
			in := r.place(t, cluster)
			in.namespace(t, namespace, nil, fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "%d"}}}`, hard))
			in.waitUsed(t, namespace, "q", fmt.Sprintf("count/configmaps 0/%d", hard))
		}
	}
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		for _, namespace := range namespaces {
			in := r.place(t, cluster)
			for n := range tries {
				wg.Go(func() {
					_, err := in.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", n)}}, metav1.CreateOptions{})
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						made[string(cluster)+"/"+namespace]++
					} else if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q") {
						t.Errorf("in %s/%s: %v", cluster, namespace, err)
					}
				})
			}
		}
	}
	wg.Wait()
	want := map[string]int{}
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		for _, namespace := range namespaces {
			want[string(cluster)+"/"+namespace] = hard
		}
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
}

// heldWrites is an etcd in which the first write of a key waits, with all that it demands.
type heldWrites struct {
	clientv3.KV
	mu   sync.Mutex
	held map[string]*heldWrite
}

type heldWrite struct {
	come    chan struct{} // closed when it waits
	wait    chan struct{} // until this is closed
	release func()
}

// await returns when it waits.
func (h *heldWrite) await(t *testing.T, what string) {
	t.Helper()
	select {
	case <-h.come:
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing is about to be written", what)
	}
}

// hold holds the next write of a key, until the end of the test at most: servers end with their requests.
func (h *heldWrites) hold(t *testing.T, key string) *heldWrite {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := &heldWrite{come: make(chan struct{}), wait: make(chan struct{})}
	held.release = sync.OnceFunc(func() { close(held.wait) })
	t.Cleanup(held.release)
	h.held[key] = held
	return held
}

func (h *heldWrites) wait(op clientv3.Op) {
	if op.IsTxn() {
		_, then, otherwise := op.Txn()
		for _, op := range slices.Concat(then, otherwise) {
			h.wait(op)
		}
	}
	if !op.IsPut() {
		return
	}
	h.mu.Lock()
	held := h.held[string(op.KeyBytes())]
	delete(h.held, string(op.KeyBytes()))
	h.mu.Unlock()
	if held != nil {
		close(held.come)
		<-held.wait
	}
}

func (h *heldWrites) Txn(ctx context.Context) clientv3.Txn {
	return &heldTxn{Txn: h.KV.Txn(ctx), writes: h}
}

type heldTxn struct {
	clientv3.Txn
	writes *heldWrites
	then   []clientv3.Op
}

func (h *heldTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	h.Txn = h.Txn.If(conditions...)
	return h
}

func (h *heldTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	h.Txn, h.then = h.Txn.Then(ops...), append(h.then, ops...)
	return h
}

func (h *heldTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	h.Txn = h.Txn.Else(ops...)
	return h
}

func (h *heldTxn) Commit() (*clientv3.TxnResponse, error) {
	for _, op := range h.then {
		h.writes.wait(op)
	}
	return h.Txn.Commit()
}

// quotaRace is a workspace at two servers on one etcd, of which the second counts. Writes can be held.
type quotaRace struct {
	*heldWrites
	place // at the second server
	first place
	etcd  *clientv3.Client
}

func raceForQuota(t *testing.T, objects string) *quotaRace {
	t.Helper()
	return raceForQuotaIn(t, objects, func(stores quota.Stores) quota.Stores { return stores })
}

// raceForQuotaIn has the second server count in what stores makes of its stores.
func raceForQuotaIn(t *testing.T, objects string, stores func(quota.Stores) quota.Stores) *quotaRace {
	t.Helper()
	etcd := startEtcd(t)
	held := &heldWrites{KV: etcd.KV, held: map[string]*heldWrite{}}
	etcd.KV = held
	first, second := serveOn(t, etcd, few{}, nil), serveOn(t, etcd, few{}, nil)
	second.countQuotasIn(t, stores(second.QuotaStores()))
	q := &quotaRace{heldWrites: held, place: second.place(t, shop), first: first.place(t, shop), etcd: etcd}
	q.namespace(t, "ns", nil, objects)
	waitUntil(t, "the namespace at the first server", "<nil>", func() string {
		_, err := q.first.CoreV1().Namespaces().Get(t.Context(), "ns", metav1.GetOptions{})
		return fmt.Sprint(err)
	})
	return q
}

func (q *quotaRace) key(resource, name string) string {
	return "/registry/" + resource + "/" + string(shop) + "/ns/" + name
}

func (p place) configMap(t *testing.T, name string) error {
	_, err := p.CoreV1().ConfigMaps("ns").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// heldConfigMap begins to create one at the first server, and returns when it is charged and about to be written, as far as it is to be.
func (q *quotaRace) heldConfigMap(t *testing.T, name string) (release func() error) {
	t.Helper()
	held, answer := q.hold(t, q.key("configmaps", name)), make(chan error, 1)
	go func() { answer <- q.first.configMap(t, name) }()
	select {
	case <-held.come:
	case err := <-answer:
		t.Fatalf("ConfigMap %s is not about to be written: %v", name, err)
	}
	return func() error {
		held.release()
		return <-answer
	}
}

func (in place) limit(t *testing.T, hard string) {
	t.Helper()
	_, err := in.CoreV1().ResourceQuotas("ns").Patch(t.Context(), "q", types.MergePatchType, []byte(`{"spec":{"hard":`+hard+`}}`), metav1.PatchOptions{})
	must(t, err)
}

func (q *quotaRace) there(t *testing.T) int {
	t.Helper()
	list, err := q.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return len(list.Items)
}

// neverShort looks at all that the ResourceQuota ever said: that at least as many are used as there were.
func (q *quotaRace) neverShort(t *testing.T) {
	t.Helper()
	said := 0
	for at := int64(0); ; { // the revision, from the last one back
		got, err := q.etcd.Get(t.Context(), q.key("resourcequotas", "q"), clientv3.WithRev(at))
		must(t, err)
		if len(got.Kvs) == 0 {
			break
		}
		stored, err := runtime.Decode(legacyscheme.Codecs.UniversalDeserializer(), got.Kvs[0].Value)
		must(t, err)
		at = got.Kvs[0].ModRevision
		there, err := q.etcd.Get(t.Context(), q.key("configmaps", ""), clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(at))
		must(t, err)
		used, counted := stored.(*corev1.ResourceQuota).Status.Used["count/configmaps"]
		if counted && used.Value() < there.Count {
			t.Errorf("at revision %d %s ConfigMaps were used, and there were %d", at, used.String(), there.Count)
		}
		if counted {
			said++
		}
		at--
	}
	if said == 0 {
		t.Error("the ResourceQuota never said what is used")
	}
}

func exceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1")
}

const twoConfigMaps = `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "2"}}}`

// TestQuotaCountedBeforeTheWrite: what is charged at one server, and counted at another before it is written, is charged anew: it is
// written if there is room then, and refused else. However long it took from the charge to the write.
func TestQuotaCountedBeforeTheWrite(t *testing.T) {
	q := raceForQuota(t, twoConfigMaps)
	q.waitUsed(t, "ns", "q", "count/configmaps 0/2")
	must(t, q.configMap(t, "goes"))
	release := q.heldConfigMap(t, "first")
	q.waitUsed(t, "ns", "q", "count/configmaps 2/2")
	must(t, q.CoreV1().ConfigMaps("ns").Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	q.waitUsed(t, "ns", "q", "count/configmaps 0/2") // of two that were charged one is gone, and one is not there
	must(t, release())
	q.waitUsed(t, "ns", "q", "count/configmaps 1/2")

	release = q.heldConfigMap(t, "late")
	must(t, q.CoreV1().ConfigMaps("ns").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	q.waitUsed(t, "ns", "q", "count/configmaps 0/2")
	must(t, q.configMap(t, "a"))
	must(t, q.configMap(t, "b"))
	if err := release(); !exceeded(err) || q.there(t) != 2 {
		t.Errorf("a third of two, charged before the count: %v, there are %d, want exceeded quota and 2", err, q.there(t))
	}
	q.waitUsed(t, "ns", "q", "count/configmaps 2/2")
}

// TestQuotaWrittenBesideTheCount: what is written, by whichever server, between the lists of a count and what it writes is not taken for
// nothing.
func TestQuotaWrittenBesideTheCount(t *testing.T) {
	q := raceForQuota(t, twoConfigMaps)
	q.waitUsed(t, "ns", "q", "count/configmaps 0/2")
	must(t, q.configMap(t, "goes"))
	release := q.heldConfigMap(t, "held")
	counting := q.hold(t, q.key("resourcequotas", "q"))
	must(t, q.CoreV1().ConfigMaps("ns").Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	counting.await(t, "a count") // which has listed none
	must(t, release())
	counting.release()
	q.waitUsed(t, "ns", "q", "count/configmaps 1/2")
	must(t, q.configMap(t, "second"))
	if err := q.configMap(t, "third"); !exceeded(err) {
		t.Errorf("a third of two: %v, want exceeded quota", err)
	}
	q.neverShort(t)
}

// TestQuotaOfUpdatesCountedBeforeTheWrite: so is a change by which an object uses more.
func TestQuotaOfUpdatesCountedBeforeTheWrite(t *testing.T) {
	q := raceForQuota(t, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {services: "9", services.nodeports: "1"}}}`)
	q.waitUsed(t, "ns", "q", "services 0/9, services.nodeports 0/1")
	for _, name := range []string{"one", "two", "goes"} {
		_, err := q.CoreV1().Services("ns").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	grow := func(p place, name string) error {
		_, err := p.CoreV1().Services("ns").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"type":"NodePort"}}`), metav1.PatchOptions{})
		return err
	}
	held, answer := q.hold(t, "/registry/services/specs/"+string(shop)+"/ns/one"), make(chan error, 1)
	go func() { answer <- grow(q.first, "one") }()
	select {
	case <-held.come:
	case err := <-answer:
		t.Fatalf("the Service is not about to be written: %v", err)
	}
	q.waitUsed(t, "ns", "q", "services 3/9, services.nodeports 1/1")
	must(t, q.CoreV1().Services("ns").Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	q.waitUsed(t, "ns", "q", "services 2/9, services.nodeports 0/1")
	must(t, grow(q.place, "two"))
	held.release()
	if err := <-answer; !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: services.nodeports=1") {
		t.Errorf("a second node port of one: %v, want exceeded quota", err)
	}
	q.waitUsed(t, "ns", "q", "services 2/9, services.nodeports 1/1")
}

// TestNewLimitsHold: what was let through by a server before there was a limit, and is written after that was counted, is limited by
// it; what is written before is counted.
func TestNewLimitsHold(t *testing.T) {
	for name, test := range map[string]struct {
		before, counted string // the ResourceQuota, if there is one
		used            string // with one ConfigMap, of one that is allowed
	}{
		"a new ResourceQuota": {"", "", "count/configmaps 1/1"},
		"one that limited other things": {
			`{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {secrets: "5"}}}`, "secrets 0/5", "count/configmaps 1/1, secrets 0/5",
		},
		"one that allowed more": {twoConfigMaps, "count/configmaps 0/2", "count/configmaps 1/1"},
	} {
		t.Run(name, func(t *testing.T) {
			q := raceForQuota(t, test.before)
			if test.before != "" {
				q.waitUsed(t, "ns", "q", test.counted)
			}
			release := q.heldConfigMap(t, "late")
			if test.before == "" {
				_, err := q.apply(t, "ns", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "1"}}}`)
				must(t, err)
			} else {
				q.limit(t, `{"count/configmaps":"1"}`)
			}
			q.waitUsed(t, "ns", "q", strings.Replace(test.used, "1/1", "0/1", 1))
			must(t, q.configMap(t, "there"))
			if err := release(); !exceeded(err) {
				t.Errorf("let through before there was a limit: %v, want exceeded quota", err)
			}
			q.waitUsed(t, "ns", "q", test.used)
		})
	}
}

// TestNewLimitsCountWhatIsWrittenBeside: a new limit is counted with what is written while it is counted, by a server that knows of it, or does not.
func TestNewLimitsCountWhatIsWrittenBeside(t *testing.T) {
	for name, knows := range map[string]bool{"unknown": false, "known": true} {
		t.Run(name, func(t *testing.T) {
			q := raceForQuota(t, "")
			create := func() error { return q.first.configMap(t, "beside") }
			if !knows {
				create = q.heldConfigMap(t, "beside")
			}
			told := q.hold(t, "/atoll/limits/registry/"+string(shop)+"/ns/q")
			_, err := q.apply(t, "ns", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "1"}}}`)
			must(t, err)
			told.await(t, "a new limit")
			counting := q.hold(t, q.key("resourcequotas", "q"))
			told.release()
			counting.await(t, "a count") // which has listed none
			must(t, create())
			counting.release()
			q.waitUsed(t, "ns", "q", "count/configmaps 1/1")
			if err := q.configMap(t, "second"); !exceeded(err) {
				t.Errorf("a second of one: %v, want exceeded quota", err)
			}
			q.neverShort(t)
		})
	}
}

// busyStores are those of a namespace in which clients create without pause, once they have begun: beside each list some are answered.
type busyStores struct {
	quota.Stores
	begun, ended chan struct{} // closed
	answers      chan struct{}
}

const busyClients = 4

func (s *busyStores) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	found, err := s.Stores.List(ctx, resource, namespace)
	select {
	case <-s.begun:
	default:
		return found, err
	}
	for range busyClients + 1 { // one of them was asked for after the list
		select {
		case <-s.answers:
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	return found, err
}

// TestNewLimitsBesideSteadyWrites: a limit that is new, or lower, comes into force also where clients create without pause, who are told to wait
// for that; and what is used is exact then.
func TestNewLimitsBesideSteadyWrites(t *testing.T) {
	const before, limited = `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "100k"}}}`, "count/configmaps"
	for name, lowered := range map[string]bool{"new": false, "lowered": true} {
		t.Run(name, func(t *testing.T) {
			busy := &busyStores{begun: make(chan struct{}), ended: make(chan struct{}), answers: make(chan struct{})}
			var clients sync.WaitGroup
			end := sync.OnceFunc(func() { close(busy.ended); clients.Wait() })
			t.Cleanup(end)
			q := raceForQuotaIn(t, "", func(stores quota.Stores) quota.Stores {
				busy.Stores = stores
				return busy
			})
			limits := "100k"
			if lowered {
				_, err := q.apply(t, "ns", before)
				must(t, err)
				q.waitUsed(t, "ns", "q", "count/configmaps 0/100k")
				waitUntil(t, "the ResourceQuota at the first server", "count/configmaps 0/100k", func() string { return q.first.used(t, "ns", "q") })
				limits = "50k"
			}
			var made, waits atomic.Int64
			create := func(name string) error { // the usual client waits by itself
				c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				return q.first.CoreV1().RESTClient().Post().Namespace("ns").Resource("configmaps").Body(c).MaxRetries(0).Do(t.Context()).Error()
			}
			close(busy.begun)
			for client := range busyClients {
				clients.Go(func() {
					for n := 0; ; n++ {
						switch err := create(fmt.Sprintf("c%d-%d", client, n)); {
						case err == nil:
							made.Add(1)
						case apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), `ResourceQuota "q" of namespace "ns" is being counted`):
							waits.Add(1)
						case t.Context().Err() != nil:
							return
						default:
							t.Errorf("ConfigMap %d of client %d: %v", n, client, err)
							return
						}
						select {
						case <-busy.ended:
							return
						case busy.answers <- struct{}{}:
						default:
						}
					}
				})
			}
			if lowered {
				q.limit(t, `{"count/configmaps":"50k"}`)
			} else {
				_, err := q.apply(t, "ns", before)
				must(t, err)
			}
			start := time.Now()
			waitUntil(t, "the limit", limits, func() string {
				of, err := q.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
				must(t, err)
				hard := of.Status.Hard[limited]
				return hard.String()
			})
			t.Logf("in force after %v, %d ConfigMaps, and %d times one was to wait", time.Since(start), made.Load(), waits.Load())
			then := made.Load()
			waitUntil(t, "written after that", "true", func() string { return fmt.Sprint(made.Load() > then+50) })
			end()
			if waits.Load() == 0 {
				t.Error("nobody was told to wait for the count")
			}
			q.waitUsed(t, "ns", "q", fmt.Sprintf("count/configmaps %d/%s", q.there(t), limits))
			q.neverShort(t)
			rows, err := q.etcd.Get(t.Context(), "/atoll/limits/registry/"+string(shop)+"/ns/q")
			must(t, err)
			if len(rows.Kvs) != 1 || len(rows.Kvs[0].Value) > 0 {
				t.Errorf("still held up when it is counted: %v", rows.Kvs)
			}
		})
	}
}

// TestHeldLimits: who would use something waits until the count is done or begins anew, also where that is up to another server; who writes
// nothing does not wait.
func TestHeldLimits(t *testing.T) {
	r := startServer(t, nil)
	in := r.place(t, shop)
	in.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "10"}}}`)
	stores := r.QuotaStores()
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop})
	begin := func(hold bool) (*corev1.ResourceQuota, int64) {
		t.Helper()
		read, err := stores.Quota(ctx, "ns", "q")
		must(t, err)
		begun, err := stores.BeginCount(ctx, read, true, hold)
		must(t, err)
		return read, begun
	}
	waits := func(what string, want bool) {
		t.Helper()
		create := func(dryRun ...string) error {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
			return in.CoreV1().RESTClient().Post().Namespace("ns").Resource("configmaps").VersionedParams(&metav1.CreateOptions{DryRun: dryRun}, metav1.ParameterCodec).
				Body(c).MaxRetries(0).Do(t.Context()).Error()
		}
		must(t, create(metav1.DryRunAll))
		err := create()
		if apierrors.IsTooManyRequests(err) != want || !want && err != nil {
			t.Errorf("%s: %v, is to wait %v", what, err, want)
		}
		if err == nil {
			must(t, in.CoreV1().ConfigMaps("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}))
		}
	}
	waits("nobody counts", false)
	begin(true)
	waits("held", true)
	begin(false) // one that failed begins again
	waits("begun anew", false)

	read, begun := begin(true)
	read.Status.Hard, read.Status.Used = read.Spec.Hard, corev1.ResourceList{"count/configmaps": apiresource.MustParse("0")}
	must(t, stores.UpdateQuotaStatus(ctx, read, begun))
	waits("counted", false)
	in.limit(t, `{"count/configmaps":"20"}`)
	waits("other limits", false)

	begin(true) // by a server that dies now
	waits("held, and nobody counts", true)
	r.countQuotas(t)
	in.waitUsed(t, "ns", "q", "count/configmaps 0/20")
	waits("counted by another server", false)
}

// TestNothingIsLeftOfQuotas: what etcd has beside a ResourceQuota goes with it.
func TestNothingIsLeftOfQuotas(t *testing.T) {
	q := raceForQuota(t, twoConfigMaps)
	q.waitUsed(t, "ns", "q", "count/configmaps 0/2")
	must(t, q.configMap(t, "c"))
	rows := func() string {
		var found []string
		for _, prefix := range []string{"/atoll/charges/", "/atoll/limits/"} {
			got, err := q.etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
			must(t, err)
			for _, kv := range got.Kvs {
				found = append(found, string(kv.Key))
			}
		}
		return strings.Join(found, " ")
	}
	below := "/registry/" + string(shop) + "/ns/q"
	if got, want := rows(), "/atoll/charges"+below+" /atoll/limits"+below; got != want {
		t.Errorf("there is %q, want %q", got, want)
	}
	must(t, q.CoreV1().ResourceQuotas("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	if got := rows(); got != "" {
		t.Errorf("left of it: %q", got)
	}
}

// TestQuotaOfAMirror: nothing is counted or refused there.
func TestQuotaOfAMirror(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	in := r.place(t, east)
	in.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "0"}}}`)
	// One of a workspace that is made later is counted later.
	later := r.place(t, shop)
	later.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/configmaps: "0"}}}`)
	later.waitUsed(t, "ns", "q", "count/configmaps 0/0")
	if got := in.used(t, "ns", "q"); got != "" {
		t.Errorf("counted in a mirror: %q", got)
	}
	q, err := in.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
	must(t, err)
	q.Status.Hard = q.Spec.Hard
	_, err = in.CoreV1().ResourceQuotas("ns").UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
	must(t, err)
	for _, p := range []struct {
		place
		refused bool
	}{{in, false}, {later, true}} {
		if _, err := p.apply(t, "ns", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}`); apierrors.IsForbidden(err) != p.refused {
			t.Errorf("%v, want refused %v", err, p.refused)
		}
	}
}
