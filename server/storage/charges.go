package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// A ResourceQuota is charged in one transaction, what it was charged for is written in a later one, and another server may count
// in between. Two rows of each ResourceQuota, beside its own, make that all of this is as if it were one after the other
// (docs/design/0013-counts.md):
//
//	/atoll/charges/<prefix>/<cluster>/<namespace>/<name>  is written with every charge and with every write that was charged, and
//	                                                      removed with what a count writes: the revision of its creation is a fencing
//	                                                      token, of all charges since the last count
//	/atoll/limits/<prefix>/<cluster>/<namespace>/<name>   is written before limits are counted that were not before; its value may
//	                                                      be that nobody charges the ResourceQuota until that is done
//
// Both go with the ResourceQuota. Other servers may hold up a request, or etcd do it late: what decides is in the transaction.
const (
	chargesKey = "/atoll/charges"
	limitsKey  = "/atoll/limits"

	// heldUp is the value of a row of limits that hold up who charges.
	heldUp = "held"
)

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// rewrites is how often one write is begun anew since counts were faster.
const rewrites = 10

// beside is what a transaction that puts a row has besides, by its context.
type beside interface {
	// demand returns what must be so when a row of a resource is put, what is done with it, and what is read if it is not so.
	demand(schema.GroupResource) (conditions []clientv3.Cmp, with, otherwise []clientv3.Op)
	// done is told what came of with.
	done(with []*pb.ResponseOp)
	// refused is told what was read. The write is tried again unless it returns an error.
	refused(ctx context.Context, otherwise []*pb.ResponseOp) error
}

type besideKey struct{}

// besideKV is the etcd of one resource.
type besideKV struct {
	clientv3.KV
	resource schema.GroupResource
	rows     func(key string) []string // those that go with a row; nil for none
}

// Txn implements clientv3.KV.
func (k *besideKV) Txn(ctx context.Context) clientv3.Txn {
	b, ok := ctx.Value(besideKey{}).(beside)
	if !ok && k.rows == nil {
		return k.KV.Txn(ctx)
	}
	return &besideTxn{ctx: ctx, kv: k, beside: b}
}

type besideTxn struct {
	ctx           context.Context // of one transaction
	kv            *besideKV
	beside        beside // nil for none
	conditions    []clientv3.Cmp
	then, instead []clientv3.Op
}

func (t *besideTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.conditions = append(t.conditions, conditions...)
	return t
}

func (t *besideTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

func (t *besideTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.instead = append(t.instead, ops...)
	return t
}

// Commit implements clientv3.Txn. What it is asked for decides first: a row that has changed is no reason to charge anew.
func (t *besideTxn) Commit() (*clientv3.TxnResponse, error) {
	asked := len(t.then)
	for _, op := range t.then[:asked] {
		if op.IsDelete() && t.kv.rows != nil {
			for _, row := range t.kv.rows(string(op.KeyBytes())) {
				t.then = append(t.then, clientv3.OpDelete(row))
			}
		}
	}
	puts := slices.ContainsFunc(t.then, clientv3.Op.IsPut)
	for range rewrites {
		var conditions []clientv3.Cmp
		var with, otherwise []clientv3.Op
		if puts && t.beside != nil {
			conditions, with, otherwise = t.beside.demand(t.kv.resource)
		}
		if len(conditions)+len(with) == 0 {
			return t.kv.KV.Txn(t.ctx).If(t.conditions...).Then(t.then...).Else(t.instead...).Commit()
		}
		// Puts are in the transaction itself: etcd does not see those of one inside it when it looks whether there is room.
		got, err := t.kv.KV.Txn(t.ctx).If(slices.Concat(t.conditions, conditions)...).
			Then(slices.Concat(t.then, with)...).
			Else(slices.Concat([]clientv3.Op{clientv3.OpTxn(t.conditions, nil, t.instead)}, otherwise)...).Commit()
		if err != nil {
			return got, err
		}
		if got.Succeeded {
			t.beside.done(got.Responses[len(t.then):])
			return &clientv3.TxnResponse{Header: got.Header, Succeeded: true, Responses: got.Responses[:len(t.then)]}, nil
		}
		if asked := got.Responses[0].GetResponseTxn(); !asked.Succeeded {
			return &clientv3.TxnResponse{Header: got.Header, Responses: asked.Responses}, nil
		}
		if err := t.beside.refused(t.ctx, got.Responses[1:]); err != nil {
			return nil, err
		}
	}
	return nil, apierrors.NewTooManyRequests("the ResourceQuotas of the namespace were counted each time before this could be written", 1)
}

// charges are what the writes of one request depend on: that nothing it was charged for has been counted as not there.
type charges struct {
	mu       sync.Mutex // guards what follows
	resource schema.GroupResource
	again    func(context.Context) error
	limits   string           // of the namespace; empty if there is nothing to depend on
	seen     int64            // the revision at which its ResourceQuotas were looked at
	tokens   map[string]int64 // by the key of the charges
}

// WithCharges returns the context of a request that may be charged.
func WithCharges(ctx context.Context) context.Context {
	return context.WithValue(ctx, besideKey{}, beside(&charges{}))
}

// chargesOf returns those of a request. A context without any is an error: what is written in it would depend on nothing.
func chargesOf(ctx context.Context) (*charges, error) {
	c, ok := ctx.Value(besideKey{}).(*charges)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("charge a ResourceQuota: the context is of no request that may be charged"))
	}
	return c, nil
}

// BeginCharges forgets what the request in ctx was charged for in an earlier attempt; it is about to write an object of a resource.
// again is called when that must not be written, since something was counted meanwhile: it charges what is not Charged any more, by
// what there is then.
func (b *Backend) BeginCharges(ctx context.Context, resource schema.GroupResource, again func(context.Context) error) error {
	c, err := chargesOf(ctx)
	if err != nil {
		return err
	}
	if _, open := b.Resource(resource); !open { // or its writes would depend on nothing
		return apierrors.NewInternalError(fmt.Errorf("charge a ResourceQuota for %s: they are not served", resource))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resource, c.again, c.limits, c.seen, c.tokens = resource, again, "", 0, map[string]int64{}
	return nil
}

func (c *charges) demand(resource schema.GroupResource) (conditions []clientv3.Cmp, with, otherwise []clientv3.Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limits == "" || c.resource != resource {
		return nil, nil, nil
	}
	conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(c.limits), "<", c.seen+1).WithPrefix())
	for _, key := range slices.Sorted(maps.Keys(c.tokens)) {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(key), "=", c.tokens[key]))
		with = append(with, clientv3.OpPut(key, ""))
		otherwise = append(otherwise, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	return conditions, with, otherwise
}

// done is the end of it: what else the request writes uses nothing.
func (c *charges) done([]*pb.ResponseOp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = ""
}

func (c *charges) refused(ctx context.Context, otherwise []*pb.ResponseOp) error {
	c.mu.Lock()
	for i, key := range slices.Sorted(maps.Keys(c.tokens)) {
		if there := otherwise[i].GetResponseRange().Kvs; len(there) == 0 || there[0].CreateRevision != c.tokens[key] {
			delete(c.tokens, key)
		}
	}
	again := c.again
	c.mu.Unlock()
	return again(ctx)
}

func (c *charges) take(key string, token int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[key] = token
}

// LookedAt is told the revision at which somebody has looked at the ResourceQuotas of a namespace for the request in ctx.
func (b *Backend) LookedAt(ctx context.Context, namespace string, revision int64) error {
	c, err := chargesOf(ctx)
	if err != nil {
		return err
	}
	rows, err := b.quotaRows(ctx, namespace, "")
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits, c.seen = rows.limits, revision
	return nil
}

// Charged says whether the request in ctx has charged a ResourceQuota, or waits for its count, and was not told otherwise.
func (b *Backend) Charged(ctx context.Context, q *corev1.ResourceQuota) (bool, error) {
	c, err := chargesOf(ctx)
	if err != nil {
		return false, err
	}
	rows, err := b.quotaRows(ctx, q.Namespace, q.Name)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.tokens[rows.charges]
	return ok, nil
}

// Charge calls write, which writes to a ResourceQuota what it is charged for the request in ctx.
func (b *Backend) Charge(ctx context.Context, q *corev1.ResourceQuota, write func(context.Context) error) error {
	c, err := chargesOf(ctx)
	if err != nil {
		return err
	}
	rows, err := b.quotaRows(ctx, q.Namespace, q.Name)
	if err != nil {
		return err
	}
	return write(context.WithValue(ctx, besideKey{}, beside(&charge{charges: c, key: rows.charges})))
}

// charge is beside the write of what is used.
type charge struct {
	charges *charges
	key     string
}

func (c *charge) demand(schema.GroupResource) (conditions []clientv3.Cmp, with, otherwise []clientv3.Op) {
	return nil, tokenOf(c.key), nil
}

func (c *charge) done(with []*pb.ResponseOp) { c.charges.take(c.key, tokenIn(with)) }

func (c *charge) refused(context.Context, []*pb.ResponseOp) error { return nil } // it demands nothing

// tokenOf are the operations that make a token, or find the one there is.
func tokenOf(key string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpPut(key, ""), clientv3.OpGet(key, clientv3.WithKeysOnly())}
}

func tokenIn(responses []*pb.ResponseOp) int64 {
	return responses[1].GetResponseRange().Kvs[0].CreateRevision // the same transaction has put it
}

// AwaitCount makes the writes of the request in ctx depend on a ResourceQuota that does not limit them as it is, and will when it is
// counted: they are part of that count, or limited. It returns a conflict if the ResourceQuota has changed since it was read.
func (b *Backend) AwaitCount(ctx context.Context, read *corev1.ResourceQuota) error {
	c, err := chargesOf(ctx)
	if err != nil {
		return err
	}
	rows, err := b.quotaRows(ctx, read.Namespace, read.Name)
	if err != nil {
		return err
	}
	asRead, err := rows.asRead(read)
	if err != nil {
		return err
	}
	got, err := b.client.Txn(ctx).If(asRead).Then(tokenOf(rows.charges)...).Commit()
	if err != nil {
		return fmt.Errorf("wait for the count of ResourceQuota %s/%s: %w", read.Namespace, read.Name, explained(err))
	}
	if !got.Succeeded {
		return apierrors.NewConflict(resourceQuotas, read.Name, errChanged)
	}
	c.take(rows.charges, tokenIn(got.Responses))
	return nil
}

// CountHolds says whether nothing is to be charged to a ResourceQuota, nor to wait for its count, until its limits are counted. It is no
// matter if somebody is told too early that it is not: he makes the count begin once more.
func (b *Backend) CountHolds(ctx context.Context, q *corev1.ResourceQuota) (bool, error) {
	rows, err := b.quotaRows(ctx, q.Namespace, q.Name)
	if err != nil {
		return false, err
	}
	got, err := b.client.Get(ctx, rows.limits+q.Name)
	if err != nil {
		return false, fmt.Errorf("look whether ResourceQuota %s/%s is counted: %w", q.Namespace, q.Name, explained(err))
	}
	return len(got.Kvs) > 0 && string(got.Kvs[0].Value) == heldUp, nil
}

// release holds up nobody any more. A row that is written is news to everybody who writes in the namespace: it is not if it holds nobody up.
func release(limits string) clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(limits), "=", heldUp)}, []clientv3.Op{clientv3.OpPut(limits, "")}, nil)
}

var (
	errChanged = errors.New("it has changed")
	errCharged = errors.New("what it was charged for was written while it was counted")
)

// BeginCount comes after a ResourceQuota was read and before what it limits is. Where its limits are new, who has not heard of them
// writes nothing from here on without hearing of them; with hold nobody charges it until the count is written, or another one of new
// limits begins without. It returns a conflict if it has new limits and has changed since it was read: its count could not be written. The
// result is for Count.
func (b *Backend) BeginCount(ctx context.Context, read *corev1.ResourceQuota, newLimits, hold bool) (begun int64, err error) {
	rows, err := b.quotaRows(ctx, read.Namespace, read.Name)
	if err != nil {
		return 0, err
	}
	var conditions []clientv3.Cmp
	ops := []clientv3.Op{clientv3.OpGet(rows.charges, clientv3.WithKeysOnly())}
	if newLimits {
		asRead, err := rows.asRead(read)
		if err != nil {
			return 0, err
		}
		value := ""
		if hold {
			value = heldUp
		}
		conditions = append(conditions, asRead)
		ops = append(ops, clientv3.OpPut(rows.limits+read.Name, value))
	}
	got, err := b.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return 0, fmt.Errorf("begin to count for ResourceQuota %s/%s: %w", read.Namespace, read.Name, explained(err))
	}
	if !got.Succeeded {
		return 0, apierrors.NewConflict(resourceQuotas, read.Name, errChanged)
	}
	if there := got.Responses[0].GetResponseRange().Kvs; len(there) > 0 {
		return there[0].ModRevision, nil
	}
	return 0, nil
}

// Count calls write, which writes what was counted to a ResourceQuota. It returns a conflict if something was charged, or written
// that had been charged, since BeginCount; what was charged before and is not written yet has to be charged anew.
func (b *Backend) Count(ctx context.Context, read *corev1.ResourceQuota, begun int64, write func(context.Context) error) error {
	rows, err := b.quotaRows(ctx, read.Namespace, read.Name)
	if err != nil {
		return err
	}
	return write(context.WithValue(ctx, besideKey{}, beside(&count{name: read.Name, key: rows.charges, limits: rows.limits + read.Name, begun: begun})))
}

// count is beside the write of what was counted.
type count struct {
	name, key, limits string
	begun             int64
}

func (c *count) demand(schema.GroupResource) (conditions []clientv3.Cmp, with, otherwise []clientv3.Op) {
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(c.key), "=", c.begun)}, []clientv3.Op{clientv3.OpDelete(c.key), release(c.limits)}, nil
}

func (*count) done([]*pb.ResponseOp) {}

func (c *count) refused(context.Context, []*pb.ResponseOp) error {
	return apierrors.NewConflict(resourceQuotas, c.name, errCharged)
}

// quotaRows are the keys in etcd of a ResourceQuota.
type quotaRows struct {
	quota, charges string
	limits         string // of all of its namespace: what its own begins with
}

// asRead is the condition that the ResourceQuota has not changed since it was read.
func (r quotaRows) asRead(read *corev1.ResourceQuota) (clientv3.Cmp, error) {
	version, err := storage.APIObjectVersioner{}.ParseResourceVersion(read.ResourceVersion)
	return clientv3.Compare(clientv3.ModRevision(r.quota), "=", int64(version)), err
}

func (b *Backend) quotaRows(ctx context.Context, namespace, name string) (quotaRows, error) {
	c, ok := lc.ClusterFrom(ctx)
	r, open := b.Resource(resourceQuotas)
	switch {
	case !ok || c.Wildcard:
		return quotaRows{}, fmt.Errorf("ResourceQuota %s/%s: the context names no one logical cluster", namespace, name)
	case !open:
		return quotaRows{}, fmt.Errorf("ResourceQuota %s/%s: ResourceQuotas are not served", namespace, name)
	}
	return quotaRows{
		quota:   r.RowKey(c.Name.String(), namespace, name),
		charges: b.ofQuotas(chargesKey, c.Name) + namespace + "/" + name,
		limits:  b.ofQuotas(limitsKey, c.Name) + namespace + "/",
	}, nil
}

// ofQuotas is what keys of a logical cluster begin with.
func (b *Backend) ofQuotas(key string, cluster logicalcluster.Name) string {
	return key + join(b.prefix, "/"+cluster.String()) + "/"
}

// rowsOf returns the function that tells which rows go with one of a resource, and nil if none do.
func (b *Backend) rowsOf(resource schema.GroupResource, base string) func(key string) []string {
	if resource != resourceQuotas {
		return nil
	}
	return func(key string) []string {
		rest, ok := strings.CutPrefix(key, base+"/")
		if !ok {
			return nil
		}
		below := join(b.prefix, "/"+rest)
		return []string{chargesKey + below, limitsKey + below}
	}
}

// forgetCharges removes what a logical cluster has besides its ResourceQuotas, when those are gone.
func (b *Backend) forgetCharges(ctx context.Context, cluster logicalcluster.Name) error {
	_, err := b.client.Txn(ctx).Then(
		clientv3.OpDelete(b.ofQuotas(chargesKey, cluster), clientv3.WithPrefix()),
		clientv3.OpDelete(b.ofQuotas(limitsKey, cluster), clientv3.WithPrefix()),
	).Commit()
	return err
}
