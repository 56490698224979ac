package identity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
// for a moment who was just deleted. It returns the metadata alone, and notes in the context what it read (readings).
type getter struct{ objects Objects }

func (g getter) read(ctx context.Context, resource, namespace, name string) (metav1.ObjectMeta, error) {
	r := reading{resource: resource, namespace: namespace, name: name}
	all, _ := ctx.Value(readingsKey{}).(*readings)
	if all != nil {
		all.asked = true
	}
	found, err := g.fromEtcd(ctx, r)
	if err != nil && !apierrors.IsNotFound(err) {
		// By the word of watch caches roles decide, too. Whom they do not know may be new.
		if all != nil {
			all.doubtful = true
		}
		if cached, cacheErr := g.at(ctx, r, "0"); cacheErr == nil {
			found, err = cached, nil
		}
	}
	if all != nil && err == nil {
		r.found = found
		all.of = append(all.of, r)
	}
	return found, err
}

// fromEtcd is what etcd has now, if it says so in time.
func (g getter) fromEtcd(ctx context.Context, r reading) (metav1.ObjectMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return g.at(ctx, r, "")
}

// at is what is there at a resourceVersion: "0" is what the watch cache has.
func (g getter) at(ctx context.Context, of reading, resourceVersion string) (metav1.ObjectMeta, error) {
	gr := schema.GroupResource{Resource: of.resource}
	r, ok := g.objects.Resource(gr)
	if !ok {
		return metav1.ObjectMeta{}, fmt.Errorf("read %s %q: they are not served", of.resource, of.name)
	}
	found := r.New()
	if err := r.Storage.Get(ctx, r.Key(of.namespace, of.name), kubestorage.GetOptions{ResourceVersion: resourceVersion}, found); err != nil {
		return metav1.ObjectMeta{}, storeerr.InterpretGetError(err, gr, of.name)
	}
	object, err := meta.Accessor(found)
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	return metav1.ObjectMeta{Namespace: of.namespace, Name: of.name, UID: object.GetUID(), DeletionTimestamp: object.GetDeletionTimestamp()}, nil
}

// reading is an object that a token depends on, and what was found.
type reading struct {
	resource, namespace, name string
	found                     metav1.ObjectMeta
}

// readingsKey is where a context has the readings of one token.
type readingsKey struct{}

type readings struct {
	of []reading
	// asked says that something was read, or tried to be: the signature of the token is verified before.
	asked bool
	// doubtful says that etcd did not answer for all of them.
	doubtful bool
}

// still says whether the watch cache has what was read as it was.
func (g getter) still(ctx context.Context, read []reading) bool {
	for _, r := range read {
		now, err := g.at(ctx, r, "0")
		if err != nil || now.UID != r.found.UID || !now.DeletionTimestamp.Equal(r.found.DeletionTimestamp) {
			return false
		}
	}
	return true
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
