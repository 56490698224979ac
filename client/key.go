package client

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Key names an object, of a kind known from elsewhere, among all logical clusters.
type Key struct {
	Cluster logicalcluster.Name
	// Namespace is empty for cluster-scoped kinds.
	Namespace, Name string
}

// KeyOf returns an object's key.
func KeyOf(obj metav1.Object) Key {
	return Key{Cluster: lcctx.NameFrom(obj), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// String is "cluster|namespace/name", or "cluster|name".
func (k Key) String() string {
	if k.Namespace == "" {
		return string(k.Cluster) + "|" + k.Name
	}
	return string(k.Cluster) + "|" + k.Namespace + "/" + k.Name
}

// Space is the key of its namespace, which has no name.
func (k Key) Space() Key { return Key{Cluster: k.Cluster, Namespace: k.Namespace} }

// Tenant is the logical cluster: controllers handle the keys of each in turn.
func (k Key) Tenant() string { return string(k.Cluster) }

// ParseKey reads what Key.String writes.
func ParseKey(s string) (Key, error) {
	cluster, rest, ok := strings.Cut(s, "|")
	if !ok {
		return Key{}, fmt.Errorf("key %q: want cluster|namespace/name", s)
	}
	k := Key{Cluster: logicalcluster.Name(cluster), Name: rest}
	if ns, name, ok := strings.Cut(rest, "/"); ok {
		k.Namespace, k.Name = ns, name
	}
	return k, nil
}

// keyFunc is the cache.KeyFunc of informers.
func keyFunc(obj any) (string, error) {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return d.Key, nil
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		return "", fmt.Errorf("key of %T: not an API object", obj)
	}
	return KeyOf(o).String(), nil
}
