package storage

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Guard names the row of etcd that new rows depend on, such as the definition of a custom resource, and the revision of its
// last change that the caller knows. It is asked before each attempt to create a row; stale is 0 at first, and then the
// revision that was not the row's any more. Its error is the answer to the request.
type Guard func(ctx context.Context, stale int64) (key string, revision int64, err error)

type guardKey struct{}

// WithGuard returns a context in which a row is created only if the guard's has the revision that it knows, in one
// transaction: whoever changes the guard's row and reads afterwards sees every row that was created before, and none is
// created later by somebody who has not heard of the change. Rows that exist are changed and deleted without it.
func WithGuard(ctx context.Context, g Guard) context.Context {
	return context.WithValue(ctx, guardKey{}, g)
}

// guardedClient is what upstream's store writes through. Both its ways to create a row are a put at revision 0.
type guardedClient struct {
	kubernetes.Interface
	kv clientv3.KV
}

// OptimisticPut implements kubernetes.Interface.
func (c *guardedClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	guard, ok := ctx.Value(guardKey{}).(Guard)
	if !ok || expectedRevision != 0 {
		return c.Interface.OptimisticPut(ctx, key, value, expectedRevision, opts)
	}
	var stale int64
	for { // until the guard's row stays as it is for the time of a transaction, or ctx ends
		guarding, revision, err := guard(ctx, stale)
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		done, err := c.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", 0), clientv3.Compare(clientv3.ModRevision(guarding), "=", revision)).
			Then(clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID))).
			Else(clientv3.OpGet(key)).
			Commit()
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		resp := kubernetes.PutResponse{Revision: done.Header.Revision, Succeeded: done.Succeeded}
		if done.Succeeded {
			return resp, nil
		}
		if len(done.Responses) != 1 {
			return resp, fmt.Errorf("create %s while %s has revision %d: etcd answered %v", key, guarding, revision, done.Responses)
		}
		if there := done.Responses[0].GetResponseRange().Kvs; len(there) > 0 {
			if opts.GetOnFailure {
				resp.KV = there[0]
			}
			return resp, nil
		}
		stale = revision
	}
}

// RowKey is the key in etcd of an object of this resource.
func (r *Resource) RowKey(cluster, namespace, name string) string {
	return r.transformer.base + "/" + cluster + r.Key(namespace, name)[len(r.Prefix):]
}

// Revision is that of the last change of an object of this resource, as etcd has it now, and 0 if there is none. It costs a
// fraction of reading the object.
func (r *Resource) Revision(ctx context.Context, cluster, namespace, name string) (int64, error) {
	got, err := r.kv.Get(ctx, r.RowKey(cluster, namespace, name), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("look for %s %q of logical cluster %q: %w", r.GroupResource, name, cluster, err)
	}
	if len(got.Kvs) == 0 {
		return 0, nil
	}
	return got.Kvs[0].ModRevision, nil
}
