package storage

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Condition is what must be so of another row when a row is created.
type Condition struct {
	Key string
	// Revision is that of the other row's last change; Exists means any.
	Revision int64
}

// Exists is the Revision of a Condition that a row be there, however it is.
const Exists = -1

func (c Condition) compare() clientv3.Cmp {
	if c.Revision == Exists {
		return clientv3.Compare(clientv3.CreateRevision(c.Key), ">", 0)
	}
	return clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Revision)
}

// met says whether the condition holds of what is there, which is one row or none.
func (c Condition) met(there []*mvccpb.KeyValue) bool {
	if c.Revision == Exists {
		return len(there) > 0
	}
	return len(there) > 0 && there[0].ModRevision == c.Revision
}

// Guard names a row of etcd that new rows depend on, such as the definition of a custom resource, as far as the caller knows it. It
// is asked before each attempt to create a row; failed says that what it named last was not so. Its error is the answer to the request.
type Guard func(ctx context.Context, failed bool) (Condition, error)

type guardKey struct{}

// WithGuard returns a context in which a row is created only if what the guard names is so, in one
// transaction: whoever changes the guard's row and reads afterwards sees every row that was created before, and none is
// created later by somebody who has not heard of the change. Rows that exist are changed and deleted without it.
func WithGuard(ctx context.Context, g Guard) context.Context {
	return context.WithValue(ctx, guardKey{}, g)
}

// guardedClient is what upstream's store writes through. Both its ways to create a row are a put at revision 0.
type guardedClient struct {
	kubernetes.Interface
	kv clientv3.KV
	// homes are the guards of every row that is created, besides that of the context.
	homes func(key string) ([]Guard, error)
}

// OptimisticPut implements kubernetes.Interface.
func (c *guardedClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	if expectedRevision != 0 {
		return c.Interface.OptimisticPut(ctx, key, value, expectedRevision, opts)
	}
	guards, err := c.homes(key)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	if guard, ok := ctx.Value(guardKey{}).(Guard); ok {
		guards = append(guards, guard)
	}
	if len(guards) == 0 {
		return c.Interface.OptimisticPut(ctx, key, value, 0, opts)
	}
	failed := make([]bool, len(guards))
	for { // until the guards' rows stay as they are for the time of a transaction, or ctx ends
		conditions := make([]Condition, len(guards))
		compares, reads := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", 0)}, []clientv3.Op{clientv3.OpGet(key)}
		for i, guard := range guards {
			if conditions[i], err = guard(ctx, failed[i]); err != nil {
				return kubernetes.PutResponse{}, err
			}
			compares, reads = append(compares, conditions[i].compare()), append(reads, clientv3.OpGet(conditions[i].Key, clientv3.WithKeysOnly()))
		}
		done, err := c.kv.Txn(ctx).If(compares...).Then(clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID))).Else(reads...).Commit()
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		resp := kubernetes.PutResponse{Revision: done.Header.Revision, Succeeded: done.Succeeded}
		if done.Succeeded {
			return resp, nil
		}
		if len(done.Responses) != len(reads) {
			return resp, fmt.Errorf("create %s under the conditions %+v: etcd answered %v", key, conditions, done.Responses)
		}
		if there := done.Responses[0].GetResponseRange().Kvs; len(there) > 0 {
			if opts.GetOnFailure {
				resp.KV = there[0]
			}
			return resp, nil
		}
		for i, condition := range conditions {
			failed[i] = !condition.met(done.Responses[1+i].GetResponseRange().Kvs)
		}
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
