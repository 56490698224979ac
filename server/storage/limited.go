package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"

	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// limitedClient is what a store writes through if there are Limits: here rows are as large as they are in etcd. It refuses
// what is beyond the limits, and adds up the rest.
type limitedClient struct {
	kubernetes.Interface
	kv       clientv3.KV
	usage    *usage
	resource schema.GroupResource
	base     string // of the keys
	prefix   string // of the resource
}

// endingSlack is by how much one step of a deletion may make an object grow that is full of finalizers: the marks of a
// deletion, and of who takes a finalizer away.
const endingSlack = 1 << 10

// OptimisticPut implements kubernetes.Interface.
func (c *limitedClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	resp, err := c.limitedPut(ctx, key, value, expectedRevision, opts)
	return resp, explained(err)
}

// limitedPut writes a row if there is room for it.
func (c *limitedClient) limitedPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	s, err := c.share(key)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	need := amount{bytes: int64(plainSize(value))} // at most, if it is an update
	if expectedRevision == 0 {
		need = amount{1, sizeOf(key, value)}
	}
	bounded := c.usage.bounded(ctx, s.cluster, c.resource, expectedRevision == 0)
	if !bounded && !c.usage.knows(s) {
		return c.Interface.OptimisticPut(ctx, key, value, expectedRevision, opts)
	}
	if !bounded {
		resp, by, err := c.put(ctx, key, value, expectedRevision, opts)
		if err == nil && resp.Succeeded {
			c.usage.add(s, resp.Revision, by)
		}
		return resp, err
	}
	counter, err := c.usage.reserve(ctx, s, need)
	var full *fullError
	if errors.As(err, &full) && expectedRevision != 0 {
		var grows int64
		if grows, err = c.grows(ctx, key, value, expectedRevision); err != nil {
			return kubernetes.PutResponse{}, err
		}
		need.bytes = grows
		if grows <= slackOf(ctx) {
			need.bytes = 0
		}
		counter, err = c.usage.reserve(ctx, s, need)
	}
	if errors.As(err, &full) {
		refused := apierrors.NewForbidden(c.resource, path.Base(key), full)
		refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: CauseNoRoom}}
		return kubernetes.PutResponse{}, refused
	}
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	resp, by, err := c.put(ctx, key, value, expectedRevision, opts)
	if err != nil || !resp.Succeeded {
		by = amount{}
	}
	c.usage.settle(counter, need, resp.Revision, by)
	return resp, err
}

// put writes a row, and returns by how much there is more if it succeeded.
func (c *limitedClient) put(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, amount, error) {
	if expectedRevision == 0 {
		resp, err := c.Interface.OptimisticPut(ctx, key, value, 0, opts)
		return resp, amount{1, sizeOf(key, value)}, err
	}
	done, err := c.instead(ctx, key, expectedRevision, clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID), clientv3.WithPrevKV()), opts.GetOnFailure)
	if err != nil {
		return kubernetes.PutResponse{}, amount{}, err
	}
	resp := kubernetes.PutResponse{Revision: done.Header.Revision, Succeeded: done.Succeeded}
	if done.Succeeded {
		return resp, amount{bytes: sizeOf(key, value) - sizeOf(key, done.Responses[0].GetResponsePut().PrevKv.Value)}, nil
	}
	if opts.GetOnFailure {
		resp.KV = only(done)
	}
	return resp, amount{}, nil
}

// OptimisticDelete implements kubernetes.Interface.
func (c *limitedClient) OptimisticDelete(ctx context.Context, key string, expectedRevision int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	s, err := c.share(key)
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	if !c.usage.knows(s) {
		return c.Interface.OptimisticDelete(ctx, key, expectedRevision, opts)
	}
	done, err := c.instead(ctx, key, expectedRevision, clientv3.OpDelete(key, clientv3.WithPrevKV()), opts.GetOnFailure)
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	resp := kubernetes.DeleteResponse{Revision: done.Header.Revision, Succeeded: done.Succeeded}
	switch {
	case done.Succeeded:
		for _, was := range done.Responses[0].GetResponseDeleteRange().PrevKvs {
			c.usage.add(s, resp.Revision, amount{-1, -sizeOf(key, was.Value)})
		}
	case opts.GetOnFailure:
		resp.KV = only(done)
	}
	return resp, nil
}

// instead does what upstream's client does, with an operation that tells what was there: in the same transaction, so that it
// costs no second one.
func (c *limitedClient) instead(ctx context.Context, key string, expectedRevision int64, op clientv3.Op, getOnFailure bool) (*clientv3.TxnResponse, error) {
	txn := c.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", expectedRevision)).Then(op)
	if getOnFailure {
		txn = txn.Else(clientv3.OpGet(key))
	}
	return txn.Commit()
}

// only is the row that was there instead of the one that was expected, and nil if there was none.
func only(done *clientv3.TxnResponse) *mvccpb.KeyValue {
	if there := done.Responses[0].GetResponseRange().Kvs; len(there) > 0 {
		return there[0]
	}
	return nil
}

// grows reads by how much a value is larger than what is there. It is 0 if that is not what is expected: the value was made of
// what a cache had, the write will fail, and its caller tries again with what is there.
func (c *limitedClient) grows(ctx context.Context, key string, value []byte, expectedRevision int64) (int64, error) {
	got, err := c.kv.Get(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("find out by how much %s %q grows: %w", c.resource, path.Base(key), err)
	}
	if len(got.Kvs) == 0 || got.Kvs[0].ModRevision != expectedRevision {
		return 0, nil
	}
	return sizeOf(key, value) - sizeOf(key, got.Kvs[0].Value), nil
}

func (c *limitedClient) share(key string) (share, error) {
	cluster, err := clusterOf(c.base, key)
	if err != nil {
		return share{}, apierrors.NewInternalError(err)
	}
	return shareIn(logicalcluster.Name(cluster), c.prefix), nil
}

// ending says by how much what an update is about to write may make an object grow in a workspace that has too much: a step of a deletion
// must go on there.
type ending struct{ slack int64 }

type endingKey struct{}

func slackOf(ctx context.Context) int64 {
	if e, ok := ctx.Value(endingKey{}).(*ending); ok {
		return e.slack
	}
	return 0
}

// deleting is the context of an update that is a deletion, and leaves what is not of the workspace's making.
func deleting(ctx context.Context) context.Context {
	return context.WithValue(ctx, endingKey{}, &ending{math.MaxInt64})
}

// watched notes whether an update is a step of a deletion: one that marks the object, that follows from a request to delete, or
// that takes a finalizer away.
func (e *ending) watched(ctx context.Context, input runtime.Object, update func() (runtime.Object, *uint64, error)) (runtime.Object, *uint64, error) {
	e.slack = 0
	before, err := marksOf(input) // the update may change its input
	if err != nil {
		return nil, nil, err
	}
	output, ttl, err := update()
	if err != nil {
		return output, ttl, err
	}
	after, err := marksOf(output)
	if err != nil {
		return nil, nil, err
	}
	info, ok := request.RequestInfoFrom(ctx)
	asked := ok && (info.Verb == "delete" || info.Verb == "deletecollection")
	if after.deleted && (!before.deleted || after.finalizers < before.finalizers || asked) {
		e.slack = endingSlack
	}
	return output, ttl, nil
}

type marks struct {
	deleted    bool
	finalizers int
}

func marksOf(obj runtime.Object) (marks, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return marks{}, apierrors.NewInternalError(fmt.Errorf("update %T: %w", obj, err))
	}
	return marks{object.GetDeletionTimestamp() != nil, len(object.GetFinalizers())}, nil
}
