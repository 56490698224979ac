package storage

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// beforeDelete does something before an object is deleted in etcd.
type beforeDelete struct {
	storage.Interface
	do func()
}

func (b beforeDelete) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc,
	cached runtime.Object, opts storage.DeleteOptions) error {
	b.do()
	return b.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
}

// TestChangeOfIsOfNoOther: who lets an object go does not delete another one that has its name by then.
func TestChangeOfIsOfNoOther(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	ctx := in("aa", "default")
	held := configMap("default", "one", "old")
	held.Finalizers = []string{"example.com/hold"}
	old := create(t, s.configMaps, ctx, held).(*api.ConfigMap)
	if _, _, err := s.configMaps.Delete(ctx, "one", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	below := s.configMaps.Storage.Storage
	swapped := false
	s.configMaps.Storage.Storage = beforeDelete{below, func() {
		if swapped {
			return
		}
		swapped = true
		if _, err := etcd.Client.Delete(t.Context(), prefixOf(t)+"/configmaps/aa/default/one"); err != nil {
			t.Error(err)
		}
		create(t, s.configMaps, ctx, configMap("default", "one", "new"))
	}}
	_, _, err := s.configMaps.Update(ctx, "one", ChangeOf(old.UID, func(was runtime.Object) (runtime.Object, error) {
		was = was.DeepCopyObject()
		was.(*api.ConfigMap).Finalizers = nil
		return was, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if !swapped || !apierrors.IsConflict(err) {
		t.Errorf("another one came meanwhile: %v; the update says %v, want Conflict", swapped, err)
	}
	if got, err := s.configMaps.Get(ctx, "one", &metav1.GetOptions{}); err != nil || got.(*api.ConfigMap).UID == old.UID {
		t.Errorf("the other one is %v, %v", got, err)
	}
}
