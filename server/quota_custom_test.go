package server

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// TestQuotaOfCustomResources: custom resources are counted and refused as those that are built in are, each workspace's by its own
// definition, from when it is there until it goes.
func TestQuotaOfCustomResources(t *testing.T) {
	r := startServer(t, nil)
	stores := r.countQuotas(t)
	const tries = 20
	type workspace struct {
		place
		custom
		hard int
		made []string
	}
	all := map[logicalcluster.Name]*workspace{shop: {hard: 5}, bank: {hard: 3}}
	definition := widgets(`{"size":{"type":"integer"}}`)
	limit := func(name logicalcluster.Name) {
		w := all[name]
		w.place, w.custom = r.place(t, name), r.custom(t, name)
		w.namespace(t, "ns", nil, fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/widgets.shop.example: "%d"}}}`, w.hard))
		w.waitUsed(t, "ns", "q", fmt.Sprintf("count/widgets.shop.example ?/%d", w.hard))
	}
	limit(shop)
	if got := stores.watched(); got != "" {
		t.Errorf("watched although nobody defines them: %q", got)
	}
	create := func(w *workspace, namespace, name string) error {
		_, err := w.custom.objects.Resource(widgetsV1).Namespace(namespace).Create(t.Context(), widget(name, nil), metav1.CreateOptions{})
		return err
	}
	exceeded := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q, requested: count/widgets.shop.example=1")
	}

	// What is defined after the ResourceQuota was made is counted; not in another namespace, nor in a workspace that does not define it.
	all[shop].define(t, definition)
	all[shop].waitUsed(t, "ns", "q", "count/widgets.shop.example 0/5")
	all[shop].namespace(t, "other", nil, "")
	must(t, create(all[shop], "other", "uncounted"))
	limit(bank)
	all[bank].define(t, widgets(`{"color":{"type":"string"}}`))
	all[bank].waitUsed(t, "ns", "q", "count/widgets.shop.example 0/3")
	waitUntil(t, "watched", "widgets.shop.example", stores.watched)

	// Of many at a time there are as many as are allowed.
	var wg sync.WaitGroup
	var mu sync.Mutex
	for name, w := range all {
		for n := range tries {
			wg.Go(func() {
				widget := fmt.Sprintf("w%d", n)
				err := create(w, "ns", widget)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					w.made = append(w.made, "ns/"+widget)
				} else if !exceeded(err) {
					t.Errorf("%s in %s: %v", widget, name, err)
				}
			})
		}
	}
	wg.Wait()
	for name, w := range all {
		there, err := w.custom.objects.Resource(widgetsV1).Namespace("ns").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		slices.Sort(w.made)
		if got := names(there); len(w.made) != w.hard || !slices.Equal(got, w.made) {
			t.Errorf("made in %s: %v, there are %v, want %d", name, w.made, got, w.hard)
		}
		if got, want := w.used(t, "ns", "q"), fmt.Sprintf("count/widgets.shop.example %d/%d", w.hard, w.hard); got != want {
			t.Errorf("in %s: used %q, want %q", name, got, want)
		}
	}

	// What is gone is given back in its own workspace.
	must(t, all[shop].custom.objects.Resource(widgetsV1).Namespace("ns").Delete(t.Context(), strings.TrimPrefix(all[shop].made[0], "ns/"), metav1.DeleteOptions{}))
	all[shop].waitUsed(t, "ns", "q", "count/widgets.shop.example 4/5")
	must(t, create(all[shop], "ns", "again"))
	for _, w := range all {
		if err := create(w, "ns", "more"); !exceeded(err) {
			t.Errorf("one more than %d: %v", w.hard, err)
		}
	}

	// A ResourceQuota that is new counts what there is.
	_, err := all[shop].apply(t, "other", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/widgets.shop.example: "1"}}}`)
	must(t, err)
	all[shop].waitUsed(t, "other", "q", "count/widgets.shop.example 1/1")
	if err := create(all[shop], "other", "more"); !exceeded(err) {
		t.Errorf("one more in the other namespace: %v", err)
	}

	// With its definition everything of it goes, in its own workspace, and counts from nothing when it is defined again.
	definitions := all[shop].definitions.ApiextensionsV1().CustomResourceDefinitions()
	must(t, definitions.Delete(t.Context(), definition.Name, metav1.DeleteOptions{}))
	for _, namespace := range []string{"ns", "other"} {
		waitUntil(t, "used without a definition", "?", func() string {
			_, used, _ := strings.Cut(all[shop].used(t, namespace, "q"), " ")
			used, _, _ = strings.Cut(used, "/")
			return used
		})
	}
	if got := all[bank].used(t, "ns", "q"); got != "count/widgets.shop.example 3/3" {
		t.Errorf("in bank, whose definition is there: %q", got)
	}
	all[shop].define(t, definition)
	all[shop].waitUsed(t, "ns", "q", "count/widgets.shop.example 0/5")
	must(t, create(all[shop], "ns", "first"))
	if err := create(all[bank], "ns", "more"); !exceeded(err) {
		t.Errorf("one more in bank: %v", err)
	}

	// What has no namespace is counted in none.
	clusters := widgets(`{}`)
	clusters.Name, clusters.Spec.Names.Plural, clusters.Spec.Names.Kind, clusters.Spec.Names.ShortNames = "gadgets.shop.example", "gadgets", "Gadget", nil
	clusters.Spec.Scope = apiextensionsv1.ClusterScoped
	all[shop].define(t, clusters)
	_, err = all[shop].apply(t, "ns", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: g}, spec: {hard: {count/gadgets.shop.example: "1", configmaps: "9"}}}`)
	must(t, err)
	all[shop].waitUsed(t, "ns", "g", "configmaps 0/9, count/gadgets.shop.example ?/1")
}

// TestQuotaOfCustomResourcesHolds: also while a ResourceQuota is counted all the time, since others are deleted.
func TestQuotaOfCustomResourcesHolds(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	in, of := r.place(t, shop), r.custom(t, shop)
	in.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/widgets.shop.example: "5"}}}`)
	of.define(t, widgets(`{}`))
	in.waitUsed(t, "ns", "q", "count/widgets.shop.example 0/5")
	objects := of.objects.Resource(widgetsV1).Namespace("ns")
	var there, most atomic.Int64
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			for turn := range 5 {
				name := fmt.Sprintf("w%d-%d", n, turn)
				if _, err := objects.Create(t.Context(), widget(name, nil), metav1.CreateOptions{}); apierrors.IsForbidden(err) {
					continue
				} else if err != nil {
					t.Errorf("create %s: %v", name, err)
					continue
				}
				now := there.Add(1)
				for was := most.Load(); was < now && !most.CompareAndSwap(was, now); was = most.Load() {
				}
				there.Add(-1) // before it is gone: never more than there are
				if err := objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete %s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 5 || most.Load() == 0 {
		t.Errorf("%d at a time, want 1 to 5", most.Load())
	}
	in.waitUsed(t, "ns", "q", "count/widgets.shop.example 0/5")
}

// TestQuotaOfCustomResourcesOfTwoServers: of two servers on one etcd, asked at the same moment, one hands out the last unit.
func TestQuotaOfCustomResourcesOfTwoServers(t *testing.T) {
	leader := startServer(t, nil)
	leader.countQuotas(t)
	servers := []*running{leader, serveOn(t, leader.data, few{}, nil)}
	w := leader.place(t, shop)
	w.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/widgets.shop.example: "0"}}}`)
	leader.custom(t, shop).define(t, widgets(`{"size":{"type":"integer"}}`))
	objects := func(r *running) dynamic.ResourceInterface {
		return r.custom(t, shop).objects.Resource(widgetsV1).Namespace("ns")
	}
	waitFor(t, 30*time.Second, "the other server serves what is defined", func() (string, bool) {
		_, err := objects(servers[1]).List(t.Context(), metav1.ListOptions{})
		return fmt.Sprint(err), err == nil
	})
	limit := func(hard int) {
		t.Helper()
		_, err := w.CoreV1().ResourceQuotas("ns").Patch(t.Context(), "q", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"hard":{"count/widgets.shop.example":"%d"}}}`, hard), metav1.PatchOptions{})
		must(t, err)
		w.waitUsed(t, "ns", "q", fmt.Sprintf("count/widgets.shop.example %d/%d", hard-1, hard))
	}
	const rounds, each = 8, 4
	for hard := 1; hard <= rounds; hard++ {
		limit(hard)
		var asked sync.WaitGroup
		var made atomic.Int32
		for n, r := range servers {
			client := objects(r)
			for i := range each {
				asked.Go(func() {
					_, err := client.Create(t.Context(), widget(fmt.Sprintf("w%d-%d-%d", hard, n, i), nil), metav1.CreateOptions{})
					switch {
					case err == nil:
						made.Add(1)
					case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q"):
						t.Errorf("round %d, server %d: %v", hard, n, err)
					}
				})
			}
		}
		asked.Wait()
		there, err := objects(leader).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		if made.Load() != 1 || len(there.Items) != hard {
			t.Fatalf("round %d: %d made, there are %d", hard, made.Load(), len(there.Items))
		}
	}
}
