package identity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"atoll.dev/atoll/server/storage"
)

// Objects are the stores of the server; see storage.Backend.
type Objects interface {
	Resource(schema.GroupResource) (*storage.Resource, bool)
}

// getter reads what a token depends on, in the logical cluster of the context, and from etcd: a watch cache would let in
// for a moment who was just deleted. It returns the metadata alone.
type getter struct{ objects Objects }

func (g getter) read(ctx context.Context, resource, namespace, name string) (metav1.ObjectMeta, error) {
	gr := schema.GroupResource{Resource: resource}
	r, ok := g.objects.Resource(gr)
	if !ok {
		return metav1.ObjectMeta{}, fmt.Errorf("read %s %q: they are not served", resource, name)
	}
	found := r.New()
	if err := r.Storage.Get(ctx, r.Key(namespace, name), kubestorage.GetOptions{}, found); err != nil {
		return metav1.ObjectMeta{}, storeerr.InterpretGetError(err, gr, name)
	}
	object, err := meta.Accessor(found)
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: object.GetUID(), DeletionTimestamp: object.GetDeletionTimestamp()}, nil
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter, as the others do.
func (g getter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	found, err := g.read(ctx, "serviceaccounts", namespace, name)
	return &corev1.ServiceAccount{ObjectMeta: found}, err
}

func (g getter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	found, err := g.read(ctx, "pods", namespace, name)
	return &corev1.Pod{ObjectMeta: found}, err
}

func (g getter) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	found, err := g.read(ctx, "secrets", namespace, name)
	return &corev1.Secret{ObjectMeta: found}, err
}

// nodeOf is the UID of the Node that a token claims to be bound to, empty for none: upstream asks for it by its name alone, and compares then.
func nodeOf(token string) types.UID {
	var claims struct {
		Kubernetes struct {
			Node struct {
				UID types.UID `json:"uid"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if !unverified(token, &claims) {
		return ""
	}
	return claims.Kubernetes.Node.UID
}

func (g getter) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	found, err := g.read(ctx, "nodes", "", name)
	return &corev1.Node{ObjectMeta: found}, err
}
