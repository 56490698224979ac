package storage

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Row is an object for WriteTogether, of the type that the resource's registry stores.
type Row struct {
	Resource schema.GroupResource
	Cluster  logicalcluster.Name
	// Object must not exist if it has no resourceVersion, and otherwise be stored at that one.
	Object runtime.Object
	// Guard says that the object is not written; only what is said of it must be so.
	Guard bool
}

// WriteTogether writes rows in one transaction of etcd, if all of them are as their Objects say, and otherwise nothing; it
// returns which. The bytes are those that each store would write by itself. Strategies and validation are the caller's;
// Objects are changed by the call.
//
// No two rows that are written may be of one resource: a watch cache takes the first event of a revision for all there is
// at that revision.
func (b *Backend) WriteTogether(ctx context.Context, rows ...Row) (written bool, err error) {
	var conditions []clientv3.Cmp
	var puts []clientv3.Op
	var counts []counted // of puts
	resources := map[*Resource]bool{}
	for _, row := range rows {
		r, ok := b.Resource(row.Resource)
		if !ok {
			return false, fmt.Errorf("write %s with others: no store is open", row.Resource)
		}
		key, version, err := b.place(r, row)
		if err != nil {
			return false, fmt.Errorf("write %s with others: %w", row.Resource, err)
		}
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", version))
		if row.Guard {
			continue
		}
		if resources[r] {
			return false, fmt.Errorf("write %s with others: there are two of them", row.Resource)
		}
		resources[r] = true
		data, err := r.encode(ctx, key, row)
		if err != nil {
			return false, fmt.Errorf("write %s with others: %w", key, err)
		}
		put := clientv3.OpPut(key, string(data))
		c := counted{shareIn(row.Cluster, r.Prefix), sizeOf(key, data), version == 0}
		if !c.isNew && b.usage.knows(c.share) {
			put = clientv3.OpPut(key, string(data), clientv3.WithPrevKV())
		}
		puts, counts = append(puts, put), append(counts, c)
	}
	got, err := b.client.Txn(ctx).If(conditions...).Then(puts...).Commit()
	if err != nil {
		return false, fmt.Errorf("write %d objects together: %w", len(puts), explained(err))
	}
	if !got.Succeeded {
		return false, nil
	}
	for i, c := range counts {
		was := got.Responses[i].GetResponsePut().GetPrevKv()
		switch {
		case c.isNew:
			b.usage.add(c.share, got.Header.Revision, amount{1, c.size})
		case was != nil:
			b.usage.add(c.share, got.Header.Revision, amount{0, c.size - sizeOf(string(was.Key), was.Value)})
		}
	}
	return true, nil
}

// counted is what a row is for usage.
type counted struct {
	share share
	size  int64
	isNew bool
}

// place is the full key of a row, and the revision at which it must have been written last; 0 if never.
func (b *Backend) place(r *Resource, row Row) (key string, version int64, err error) {
	if err := lc.ValidateName(row.Cluster.String()); err != nil {
		return "", 0, err
	}
	object, err := meta.Accessor(row.Object)
	if err != nil {
		return "", 0, err
	}
	if object.GetName() == "" || r.Namespaced != (object.GetNamespace() != "") {
		return "", 0, fmt.Errorf("an object has the namespace %q and the name %q", object.GetNamespace(), object.GetName())
	}
	rest, err := restOf(r.Prefix, r.Key(object.GetNamespace(), object.GetName()))
	if err != nil {
		return "", 0, err
	}
	at, err := r.Storage.Versioner().ObjectResourceVersion(row.Object)
	return join(b.prefix, ClusterKey(r.Prefix, row.Cluster, rest)), int64(at), err
}

// encode returns what etcd holds of an object.
func (r *Resource) encode(ctx context.Context, key string, row Row) ([]byte, error) {
	if err := own(row.Object, lc.Cluster{Name: row.Cluster}); err != nil {
		return nil, err
	}
	if err := r.Storage.Versioner().PrepareObjectForStorage(row.Object); err != nil {
		return nil, err
	}
	data, err := runtime.Encode(r.codec, row.Object)
	if err != nil {
		return nil, err
	}
	data, err = r.transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return data, nil
}
