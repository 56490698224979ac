package builtin

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
)

// errNodesAreShown answers who writes a Node: it shows a physical cluster (server/nodes), and there is something else to write.
func errNodesAreShown(name string) error {
	target := "its SyncTarget"
	if name != "" {
		target = fmt.Sprintf("SyncTarget %q", name)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Details: &metav1.StatusDetails{Kind: "nodes", Name: name},
		Message: fmt.Sprintf("a node shows a physical cluster that this workspace may use, and cannot be written:"+
			" register, label, cordon or remove %s instead, in the workspace that holds it, which is this one or one above it (atoll cluster --help)", target),
	}}
}

// shownNodes are nodes that nobody writes, whatever roles say.
type shownNodes struct {
	*nodestore.REST
}

func (shownNodes) Create(_ context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return nil, errNodesAreShown(object.GetName())
}

func (shownNodes) Update(_ context.Context, name string, _ rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return nil, false, errNodesAreShown(name)
}

func (shownNodes) Delete(_ context.Context, name string, _ rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return nil, false, errNodesAreShown(name)
}

func (shownNodes) DeleteCollection(context.Context, rest.ValidateObjectFunc, *metav1.DeleteOptions, *metainternalversion.ListOptions) (runtime.Object, error) {
	return nil, errNodesAreShown("")
}

// shownNodeStatus is their status.
type shownNodeStatus struct {
	*nodestore.StatusREST
}

func (shownNodeStatus) Update(_ context.Context, name string, _ rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return nil, false, errNodesAreShown(name)
}
