package storage

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
)

// changeOf is a change of the object that has a UID.
type changeOf struct {
	uid    types.UID
	change func(old runtime.Object) (runtime.Object, error)
}

// ChangeOf is what change makes of the object that has a UID, and of no other of its name: an update by it is a Conflict then. A registry looks at
// the UID again where the change takes away the last finalizer of an object that is being deleted. It deletes it by a request of its own,
// which without a UID would be one of whatever has come to that name meanwhile.
func ChangeOf(uid types.UID, change func(old runtime.Object) (runtime.Object, error)) rest.UpdatedObjectInfo {
	return changeOf{uid, change}
}

// Preconditions implements rest.UpdatedObjectInfo.
func (c changeOf) Preconditions() *metav1.Preconditions { return &metav1.Preconditions{UID: &c.uid} }

// UpdatedObject implements rest.UpdatedObjectInfo.
func (c changeOf) UpdatedObject(_ context.Context, old runtime.Object) (runtime.Object, error) {
	return c.change(old)
}
