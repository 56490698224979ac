package storage

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// TestAlikeIsHeldOnce: the objects of a watch cache share the annotation of their logical cluster and long equal data,
// whether the cache was filled with them or was told of them, and a change of one leaves the others as they are.
func TestAlikeIsHeldOnce(t *testing.T) {
	ca := strings.Repeat("certificate ", 100)
	prefix := prefixOf(t)
	for round, when := range []string{"told of them", "filled with them"} {
		t.Run(when, func(t *testing.T) {
			s := serve(t, prefix, nil)
			if round == 0 {
				for _, cluster := range []string{"aa", "bb"} {
					for _, name := range []string{"one", "two"} {
						cm := configMap("default", name)
						cm.Data = map[string]string{"ca.crt": ca + "end"} // another string each time
						cm.Labels = map[string]string{"app": "web"}
						create(t, s.configMaps, in(cluster, "default"), cm)
					}
				}
			}
			configMaps, _ := s.Resource(api.Resource("configmaps"))
			list := func() map[string]api.ConfigMap {
				var got api.ConfigMapList
				if err := configMaps.ListEverywhere(t.Context(), metav1.ListOptions{}, &got); err != nil {
					t.Fatal(err)
				}
				byName := map[string]api.ConfigMap{}
				for _, cm := range got.Items {
					byName[cm.Annotations[lc.Annotation]+"/"+cm.Name] = cm
				}
				return byName
			}
			annotations := func(cm api.ConfigMap) uintptr { return reflect.ValueOf(cm.Annotations).Pointer() }
			data := func(cm api.ConfigMap) *byte { return unsafe.StringData(cm.Data["ca.crt"]) }
			held := list()
			if len(held) != 4 {
				t.Fatalf("the cache has %d objects, want 4", len(held))
			}
			if annotations(held["aa/one"]) != annotations(held["aa/two"]) || annotations(held["bb/one"]) != annotations(held["bb/two"]) {
				t.Error("two objects of a logical cluster have an annotation each")
			}
			if annotations(held["aa/one"]) == annotations(held["bb/one"]) {
				t.Error("objects of two logical clusters share their annotation")
			}
			if data(held["aa/one"]) != data(held["bb/two"]) {
				t.Error("equal data of two logical clusters is held twice")
			}
			// As a namespace's, by which those of all logical clusters are found.
			if labels := func(cm api.ConfigMap) uintptr { return reflect.ValueOf(cm.Labels).Pointer() }; labels(held["aa/one"]) != labels(held["bb/two"]) {
				t.Error("equal labels of two logical clusters are held twice")
			}

			// An update gives the cached object to what changes it.
			update := func(change func(*api.ConfigMap)) {
				t.Helper()
				_, _, err := s.configMaps.Update(in("aa", "default"), "one", rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
					change(old.(*api.ConfigMap))
					return old, nil
				}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			update(func(cm *api.ConfigMap) {
				cm.Annotations["mine"], cm.Labels["mine"], cm.Data["mine"] = when, "yes", when
			})
			for name, cm := range list() {
				for part, of := range map[string]map[string]string{"annotations": cm.Annotations, "labels": cm.Labels, "data": cm.Data} {
					if (of["mine"] != "") != (name == "aa/one") {
						t.Errorf("after an update of aa/one, %s has the %s %v", name, part, of)
					}
				}
			}
			update(func(cm *api.ConfigMap) {
				for _, of := range []map[string]string{cm.Annotations, cm.Labels, cm.Data} {
					delete(of, "mine")
				}
			})
		})
	}
}
