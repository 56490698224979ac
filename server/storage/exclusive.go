package storage

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Exclusive takes a lock that is a plain row, for things that two requests must not both get, such as the node port
// 30080 of a logical cluster. key is "<kind>/<name>", for instance "nodeports/30080"; the logical cluster comes from the
// context and value says who holds it, for instance a namespace and name. It returns whether value holds the lock now:
// won is true also if it held it before. current is the holder. In a logical cluster that is no more nothing is locked:
// nobody would give it back.
func (b *Backend) Exclusive(ctx context.Context, key, value string) (won bool, current string, err error) {
	full, err := b.exclusiveKey(ctx, key)
	if err != nil {
		return false, "", err
	}
	kind, _, _ := strings.Cut(key, "/")
	resource := schema.GroupResource{Resource: kind}
	there, err := b.isThere(ctx, shareOf(ctx).cluster, resource)
	if err != nil {
		return false, "", fmt.Errorf("lock %s: %w", key, err)
	}
	got, err := b.client.Txn(ctx).
		If(append(there, clientv3.Compare(clientv3.CreateRevision(full), "=", 0))...).
		Then(clientv3.OpPut(full, value)).
		Else(clientv3.OpGet(full)).
		Commit()
	if err != nil {
		return false, "", fmt.Errorf("lock %s: %w", key, explained(err))
	}
	if got.Succeeded {
		b.usage.add(shareOf(ctx), got.Header.Revision, amount{1, sizeOf(full, value)})
		return true, value, nil
	}
	held := got.Responses[0].GetResponseRange().Kvs
	if len(held) == 0 { // so it is the logical cluster that is missing
		_, err := home{b, resource, shareOf(ctx).cluster}.logicalCluster(ctx, true)
		return false, "", fmt.Errorf("lock %s: %w", key, err)
	}
	current = string(held[0].Value)
	return current == value, current, nil
}

// Release gives a lock back if value holds it, and says whether it did.
func (b *Backend) Release(ctx context.Context, key, value string) (bool, error) {
	full, err := b.exclusiveKey(ctx, key)
	if err != nil {
		return false, err
	}
	got, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(full), "=", value)).
		Then(clientv3.OpDelete(full)).
		Commit()
	if err != nil {
		return false, fmt.Errorf("release %s: %w", key, err)
	}
	if got.Succeeded {
		b.usage.add(shareOf(ctx), got.Header.Revision, amount{-1, -sizeOf(full, value)})
	}
	return got.Succeeded, nil
}

func shareOf(ctx context.Context) share {
	c, _ := lc.ClusterFrom(ctx) // exclusiveKey has looked
	return share{cluster: c.Name}
}

// Holder returns who holds a lock, and false if nobody does.
func (b *Backend) Holder(ctx context.Context, key string) (value string, held bool, err error) {
	full, err := b.exclusiveKey(ctx, key)
	if err != nil {
		return "", false, err
	}
	got, err := b.client.Get(ctx, full)
	if err != nil {
		return "", false, fmt.Errorf("read the lock %s: %w", key, err)
	}
	if len(got.Kvs) == 0 {
		return "", false, nil
	}
	return string(got.Kvs[0].Value), true, nil
}

// exclusiveKey is <prefix>/<kind>/<cluster>/<name>, and makes sure that DeleteClusterData knows the kind.
func (b *Backend) exclusiveKey(ctx context.Context, key string) (string, error) {
	c, ok := lc.ClusterFrom(ctx)
	if !ok || c.Wildcard {
		return "", fmt.Errorf("lock %s: the context names no one logical cluster", key)
	}
	if err := lc.ValidateName(c.Name.String()); err != nil {
		return "", fmt.Errorf("lock %s: %w", key, err)
	}
	kind, name, ok := strings.Cut(key, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("lock %q: the key must be <kind>/<name>", key)
	}
	if err := b.rememberPrefix("/" + kind); err != nil {
		return "", err
	}
	return join(b.prefix, ClusterKey("/"+kind, c.Name, name)), nil
}
