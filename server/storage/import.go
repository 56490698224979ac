package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/storage/value"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Ready is a row that can be written to a logical cluster.
type Ready struct {
	Resource schema.GroupResource
	// Meta is the object's; empty for a lock, and for what comes to nothing.
	Meta metav1.ObjectMeta

	ops []clientv3.Op // none for that
}

// Amend changes an object of a built-in resource before it is imported, of the type that its registry stores.
type Amend func(resource schema.GroupResource, obj runtime.Object) error

// Ready checks a row that an Export of this or another store passed on and makes it one of the given logical cluster: what
// this server cannot read, or would find elsewhere, is refused. Nothing is written. locks are the kinds of those that are taken.
func (b *Backend) Ready(ctx context.Context, cluster logicalcluster.Name, row PlainRow, locks []string, amend Amend) (*Ready, error) {
	ready, err := b.ready(ctx, cluster, row, locks, amend)
	if err != nil {
		return nil, fmt.Errorf("import %s %q: %w", strings.TrimPrefix(row.Prefix, "/"), row.Key, err)
	}
	return ready, nil
}

func (b *Backend) ready(ctx context.Context, cluster logicalcluster.Name, row PlainRow, locks []string, amend Amend) (*Ready, error) {
	if err := lc.ValidateName(cluster.String()); err != nil {
		return nil, err
	}
	segments := strings.Split(row.Key, "/")
	if len(segments) > 2 || slices.ContainsFunc(segments, func(s string) bool { return s == "" || s == "." || s == ".." }) {
		return nil, errors.New("this is no key of an object")
	}
	key := join(b.prefix, ClusterKey(row.Prefix, cluster, row.Key))
	if kind := strings.TrimPrefix(row.Prefix, "/"); slices.Contains(locks, kind) && row.Prefix == "/"+kind {
		if err := b.rememberPrefix(row.Prefix); err != nil {
			return nil, err
		}
		return &Ready{Resource: schema.GroupResource{Resource: kind}, ops: []clientv3.Op{clientv3.OpPut(key, string(row.Value))}}, nil
	}
	if row.Custom {
		return b.readyCustom(ctx, cluster, key, row)
	}
	r, ok := b.builtinAt(row.Prefix)
	if !ok {
		return nil, errors.New("this server does not serve such objects")
	}
	plain, reset := cutMark(row.Value)
	obj, _, err := r.codec.decodePlain(cluster.String(), plain, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("this server cannot read it: %w", err)
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if err := storable(object); err != nil {
		return nil, err
	}
	if err := amend(r.GroupResource, obj); err != nil {
		return nil, err
	}
	if err := sameKey(row.Key, r.Namespaced, object); err != nil {
		return nil, err
	}
	if reset && r.codec.marks {
		// What is shared, if it is, is there already, and nobody knows a later resourceVersion of it there.
		return &Ready{Resource: r.GroupResource}, nil
	}
	data, err := r.encode(ctx, key, Row{Resource: r.GroupResource, Cluster: cluster, Object: obj})
	if err != nil {
		return nil, err
	}
	ready := &Ready{Resource: r.GroupResource, ops: []clientv3.Op{clientv3.OpPut(key, string(data))}}
	ready.Meta = metav1.ObjectMeta{Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(), OwnerReferences: object.GetOwnerReferences()}
	return ready, nil
}

// readyCustom is of objects of CustomResourceDefinitions, which are stored as JSON. Their bytes stay as they are.
func (b *Backend) readyCustom(ctx context.Context, cluster logicalcluster.Name, key string, row PlainRow) (*Ready, error) {
	gr, ok := b.customAt(row.Prefix)
	if !ok || row.Prefix != uncachedPrefix(gr) {
		return nil, errors.New("this is no custom resource")
	}
	object := &metav1.PartialObjectMetadata{}
	if err := utiljson.Unmarshal(row.Value, object); err != nil { // as metadataCodec does
		return nil, fmt.Errorf("this server cannot read it: %w", err)
	}
	if err := storable(object); err != nil {
		return nil, err
	}
	if err := sameKey(row.Key, strings.Contains(row.Key, "/"), object); err != nil {
		return nil, err
	}
	data, err := b.transformerOf(gr).TransformToStorage(ctx, row.Value, value.DefaultContext(key))
	if err != nil {
		return nil, err
	}
	return &Ready{
		Resource: gr, Meta: object.ObjectMeta,
		// On record before it is there, see RecordCustom.
		ops: []clientv3.Op{clientv3.OpPut(customRecord(cluster, gr), ""), clientv3.OpPut(key, string(data))},
	}, nil
}

// customAt returns the custom resource that may be at a prefix: no store of what is built in is there, and a definition may have
// such names. Others, as ".." for a group, would lead out of the prefix of the store.
func (b *Backend) customAt(prefix string) (schema.GroupResource, bool) {
	group, resource, _ := strings.Cut(strings.TrimPrefix(prefix, "/"), "/")
	_, builtin := b.builtinAt(prefix)
	named := strings.Contains(group, ".") && len(validation.IsDNS1123Subdomain(group)) == 0 && len(validation.IsDNS1035Label(resource)) == 0
	return schema.GroupResource{Group: group, Resource: resource}, named && !builtin
}

// builtinAt returns the store of what is built in at a prefix.
func (b *Backend) builtinAt(prefix string) (*Resource, bool) {
	for _, r := range b.Resources() {
		if r.Prefix == prefix && !r.Custom {
			return r, true
		}
	}
	return nil, false
}

// storable refuses a UID that means something in the server's memory, which no row has. What is imported keeps its UID.
func storable(object metav1.Object) error {
	if uid := object.GetUID(); uid == fillerUID || uid == unreadableUID || strings.HasPrefix(string(uid), resetUID) {
		return fmt.Errorf("it has the UID %q, which no object has", uid)
	}
	return nil
}

func sameKey(key string, namespaced bool, object metav1.Object) error {
	want := object.GetName()
	if namespaced {
		want = object.GetNamespace() + "/" + want
	}
	if key != want || object.GetName() == "" || namespaced != (object.GetNamespace() != "") {
		return fmt.Errorf("it is an object with the namespace %q and the name %q", object.GetNamespace(), object.GetName())
	}
	return nil
}

// WriteReady writes a row, whatever is there, if the object of while is stored at its resourceVersion still, and says whether
// it did. The logical cluster must be one into which nobody else writes what is not made anew.
func (b *Backend) WriteReady(ctx context.Context, row *Ready, while Row) (written bool, err error) {
	r, ok := b.Resource(while.Resource)
	if !ok {
		return false, fmt.Errorf("import %s %q: no store of %s is open", row.Resource, row.Meta.Name, while.Resource)
	}
	key, version, err := b.place(r, while)
	if err != nil {
		return false, fmt.Errorf("import %s %q: %w", row.Resource, row.Meta.Name, err)
	}
	got, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", version)).Then(row.ops...).Commit()
	if err != nil {
		return false, fmt.Errorf("import %s %q: %w", row.Resource, row.Meta.Name, err)
	}
	return got.Succeeded, nil
}
