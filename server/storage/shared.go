package storage

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

func newSharedObjects(inner storage.Interface, config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc func() runtime.Object, attrs storage.AttrFunc, objects []runtime.Object) (storage.Interface, error) {
	return nil, errors.New("shared objects are not served yet")
}
