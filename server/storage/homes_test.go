package storage

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// TestRowsAreCreatedInHomesThatStay: what happens between the last look at a namespace, or a logical cluster, and the write decides.
func TestRowsAreCreatedInHomesThatStay(t *testing.T) {
	outer := t
	homes := Homes{
		LogicalClusters: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		Namespaces:      schema.GroupResource{Resource: "namespaces"}, Name: "cluster",
	}
	s := serve(t, prefixOf(t), func(c *Config) { c.Homes = homes })
	resource := func(gr schema.GroupResource) *Resource {
		r, ok := s.Resource(gr)
		if !ok {
			t.Fatalf("%s are not served", gr)
		}
		return r
	}
	add := func(gr schema.GroupResource, cluster, name string) {
		t.Helper()
		r := resource(gr)
		obj := r.New()
		object, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		object.SetName(name)
		if err := r.Storage.Create(in(cluster), r.Key("", name), obj, r.New(), 0); err != nil {
			t.Fatalf("create %s %s: %v", gr, name, err)
		}
	}
	remove := func(gr schema.GroupResource, cluster, name string) {
		t.Helper()
		r := resource(gr)
		if err := r.Storage.Delete(in(cluster), r.Key("", name), r.New(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Fatalf("delete %s %s: %v", gr, name, err)
		}
	}
	change := func(cluster string, how func(*api.Namespace)) {
		t.Helper()
		r := resource(homes.Namespaces)
		err := r.Storage.GuaranteedUpdate(in(cluster), r.Key("", "shop"), r.New(), false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			how(obj.(*api.Namespace))
			return obj, nil
		}), nil)
		if err != nil {
			t.Fatalf("change the namespace: %v", err)
		}
	}
	add(homes.LogicalClusters, "elsewhere", homes.Name)

	for name, tc := range map[string]struct {
		meanwhile func(cluster string)
		refused   func(error) bool // nil: it is created
	}{
		"nothing": {func(string) {}, nil},
		"the namespace changes": {func(cluster string) {
			change(cluster, func(n *api.Namespace) { n.Labels = map[string]string{"a": "b"} })
		}, nil},
		"the namespace begins to end": {func(cluster string) {
			change(cluster, func(n *api.Namespace) {
				now := metav1.Now()
				n.DeletionTimestamp, n.Status.Phase = &now, api.NamespaceTerminating
			})
		}, func(err error) bool {
			return apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
		}},
		"the namespace is gone": {func(cluster string) { remove(homes.Namespaces, cluster, "shop") }, apierrors.IsNotFound},
		"the namespace is made again": {func(cluster string) {
			remove(homes.Namespaces, cluster, "shop")
			add(homes.Namespaces, cluster, "shop")
		}, nil},
		"the logical cluster is gone": {func(cluster string) { remove(homes.LogicalClusters, cluster, homes.Name) }, apierrors.IsForbidden},
	} {
		for how, write := range map[string]func(ctx context.Context) error{
			"create": func(ctx context.Context) error {
				_, err := s.configMaps.Create(ctx, configMap("shop", "late"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
				return err
			},
			"update": func(ctx context.Context) error {
				_, _, err := s.configMaps.Update(ctx, "late", rest.DefaultUpdatedObjectInfo(configMap("shop", "late")),
					rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
				return err
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				cluster := strings.ReplaceAll(name, " ", "") + how
				add(homes.LogicalClusters, cluster, homes.Name)
				add(homes.Namespaces, cluster, "shop")
				var once sync.Once
				ctx := WithGuard(in(cluster, "shop"), func(context.Context, bool) (Condition, error) { // asked when the homes were
					once.Do(func() { tc.meanwhile(cluster) })
					return Condition{resource(homes.LogicalClusters).RowKey("elsewhere", "", homes.Name), Exists}, nil
				})
				err := write(ctx)
				if tc.refused == nil && err != nil || tc.refused != nil && (err == nil || !tc.refused(err)) {
					t.Errorf("answered %v", err)
				}
				want := 1
				if tc.refused != nil {
					want = 0
				}
				if got := rowsOf(outer, cluster); got != want {
					t.Errorf("%d rows are there, want %d", got, want)
				}
			})
		}
	}
	t.Run("where there is none", func(t *testing.T) {
		if _, err := s.configMaps.Create(in("nowhere", "shop"), configMap("shop", "late"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("created in a namespace that is not there: %v", err)
		}
	})
	t.Run("beside the rows", func(t *testing.T) {
		add(homes.LogicalClusters, "besideis", homes.Name)
		for cluster, want := range map[string]int{"besideis": 1, "besidegone": 0} {
			won, _, err := s.Exclusive(in(cluster), "nodeports/30080", "shop/web")
			if won != (want == 1) || (want == 0) != apierrors.IsForbidden(err) {
				t.Errorf("a lock in %s: %v, %v", cluster, won, err)
			}
			if err := s.RecordCustom(t.Context(), logicalName(cluster), schema.GroupResource{Group: "homes.example", Resource: "gadgets"}); err != nil {
				t.Errorf("a record of %s: %v", cluster, err)
			}
			for _, prefix := range []string{prefixOf(outer) + "/nodeports/", customKey} {
				if rows := rowsBelow(outer, prefix+cluster+"/"); len(rows) != want {
					t.Errorf("rows below %s: %v, want %d", prefix+cluster, rows, want)
				}
			}
		}
		if won, holder, err := s.Exclusive(in("besideis"), "nodeports/30080", "shop/other"); won || holder != "shop/web" || err != nil {
			t.Errorf("a lock that another holds: %v, %q, %v", won, holder, err)
		}
	})
}
