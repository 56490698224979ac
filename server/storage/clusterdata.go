package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// maxOps is etcd's limit on the operations of one transaction, less some.
	maxOps = 120
	// deleteBatch is about how many rows are looked up and removed before the progress is told.
	deleteBatch = 1000
	// deleteParallel is how many transactions are under way at once: etcd syncs them to disk together. More would hold up
	// other writers.
	deleteParallel = 64

	prefixTimeout = 10 * time.Second
)

// loadPrefixes reads which resource prefixes have had rows in earlier runs, also of resources that are not served any more.
func (b *Backend) loadPrefixes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prefixTimeout)
	defer cancel()
	got, err := b.client.Get(ctx, prefixesKey, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("read the resource prefixes: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, kv := range got.Kvs {
		b.prefixes["/"+strings.TrimPrefix(string(kv.Key), prefixesKey)] = true
	}
	return nil
}

// rememberPrefix makes a resource prefix known for good, before the first row is written below it.
func (b *Backend) rememberPrefix(prefix string) error {
	b.mu.RLock()
	known := b.prefixes[prefix]
	b.mu.RUnlock()
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), prefixTimeout)
	defer cancel()
	if _, err := b.client.Put(ctx, prefixesKey+strings.TrimPrefix(prefix, "/"), builtIn); err != nil {
		return fmt.Errorf("remember the resource prefix %s: %w", prefix, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prefixes[prefix] = true
	return nil
}

func (b *Backend) knownPrefixes() []string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	known := make([]string, 0, len(b.prefixes))
	for p := range b.prefixes {
		known = append(known, p)
	}
	slices.Sort(known)
	return known
}

// DeleteClusterData removes every row of a logical cluster, of all resources, without finalizers or events to anybody
// but watchers. Callers first make sure that nobody writes there any more; it returns when a whole pass finds nothing.
// progress, if not nil, is told the number of rows removed so far. Rows of the resources in keep stay. After an error it
// can be called again.
func (b *Backend) DeleteClusterData(ctx context.Context, cluster logicalcluster.Name, progress func(deleted int64), keep ...schema.GroupResource) error {
	if err := lc.ValidateName(cluster.String()); err != nil {
		return fmt.Errorf("delete the data of a logical cluster: %w", err)
	}
	defer b.usage.forget(cluster)
	if b.deleted != nil {
		defer b.deleted.AllDeleted(cluster)
	}
	var deleted int64
	for {
		// What others write meanwhile may be of a resource that was not known before.
		prefixes, err := b.prefixesOf(ctx, cluster, keep)
		if err != nil {
			return fmt.Errorf("delete the data of logical cluster %q after %d rows: %w", cluster, deleted, err)
		}
		before := deleted
		for some := range slices.Chunk(prefixes, maxOps) {
			n, err := b.deleteSome(ctx, cluster, some)
			deleted += n
			if err != nil {
				return fmt.Errorf("delete the data of logical cluster %q after %d rows: %w", cluster, deleted, err)
			}
			if n > 0 && progress != nil {
				progress(deleted)
			}
		}
		if deleted > before {
			continue
		}
		if err := b.forgetRecords(ctx, cluster); err != nil {
			return fmt.Errorf("delete the data of logical cluster %q after %d rows: %w", cluster, deleted, err)
		}
		if err := b.forgetCharges(ctx, cluster); err != nil {
			return fmt.Errorf("delete the data of logical cluster %q after %d rows: %w", cluster, deleted, err)
		}
		return nil
	}
}

// prefixesOf returns the resource prefixes below which a logical cluster may have rows, but for those of some resources.
func (b *Backend) prefixesOf(ctx context.Context, cluster logicalcluster.Name, keep []schema.GroupResource) ([]string, error) {
	// Other servers on the same etcd may have begun to store a resource that this one never heard of.
	if err := b.loadPrefixes(ctx); err != nil {
		return nil, err
	}
	custom, err := b.customPrefixes(ctx, cluster)
	if err != nil {
		return nil, err
	}
	kept := map[string]bool{}
	for _, gr := range keep {
		r, ok := b.Resource(gr)
		if !ok {
			return nil, fmt.Errorf("keep its %s: these are not served", gr)
		}
		kept[r.Prefix] = true
	}
	prefixes := slices.DeleteFunc(slices.Concat(b.knownPrefixes(), custom), func(p string) bool { return kept[p] })
	slices.Sort(prefixes)
	return slices.Compact(prefixes), nil
}

// deleteSome removes up to about deleteBatch rows of the cluster below the given prefixes, and returns how many.
func (b *Backend) deleteSome(ctx context.Context, cluster logicalcluster.Name, prefixes []string) (int64, error) {
	// A read finds out first, since most resources have no rows in most clusters, and a read costs no disk.
	finds := make([]clientv3.Op, len(prefixes))
	for i, p := range prefixes {
		key := join(b.prefix, ClusterKey(p, cluster, "")) + "/"
		finds[i] = clientv3.OpGet(key, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(deleteBatch))
	}
	found, err := b.client.Txn(ctx).Then(finds...).Commit()
	if err != nil {
		return 0, err
	}
	rows := make([][]string, len(prefixes))
	for i, r := range found.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			rows[i] = append(rows[i], string(kv.Key))
		}
	}
	var deleted atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleteParallel)
	for _, keys := range transactions(rows, deleteBatch) {
		group.Go(func() error {
			removes := make([]clientv3.Op, len(keys))
			for i, key := range keys {
				removes[i] = clientv3.OpDelete(key)
			}
			done, err := b.client.Txn(ctx).Then(removes...).Commit()
			if err != nil {
				return err
			}
			for _, r := range done.Responses {
				deleted.Add(r.GetResponseDeleteRange().Deleted)
			}
			return nil
		})
	}
	err = group.Wait()
	return deleted.Load(), err
}

// transactions deals out rows, the keys of each resource, into transactions with at most one key of each resource, up to
// about most keys. All that a transaction changes has one resourceVersion, and everybody who reads or watches a resource
// takes it that a resourceVersion is one change: a cache that has seen the first of several counts as up to date, and who
// lists it then and watches from there never hears of the others.
func transactions[T any](rows [][]T, most int) [][]T {
	var all [][]T
	for n, i := 0, 0; n < most; i++ {
		var keys []T
		for _, r := range rows {
			if i < len(r) {
				keys = append(keys, r[i])
			}
		}
		if len(keys) == 0 {
			break
		}
		all = append(all, keys)
		n += len(keys)
	}
	return all
}
