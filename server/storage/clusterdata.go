package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// maxOps is etcd's limit on the operations of one transaction, less some.
	maxOps = 120
	// deleteBatch is how many rows go in one transaction at most: a larger one would hold up other writers.
	deleteBatch = 1000

	prefixTimeout = 10 * time.Second
)

// loadPrefixes reads which resource prefixes have had rows in earlier runs: stores of custom resources open when they
// are first used, which may be long after their logical cluster is deleted.
func (b *Backend) loadPrefixes() error {
	ctx, cancel := context.WithTimeout(context.Background(), prefixTimeout)
	defer cancel()
	got, err := b.client.Get(ctx, prefixesKey, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("read the resource prefixes: %w", err)
	}
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
	if _, err := b.client.Put(ctx, prefixesKey+strings.TrimPrefix(prefix, "/"), ""); err != nil {
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
	prefixes := b.knownPrefixes()
	for _, gr := range keep {
		r, ok := b.Resource(gr)
		if !ok {
			return fmt.Errorf("delete the data of logical cluster %q but for its %s: these are not served", cluster, gr)
		}
		prefixes = slices.DeleteFunc(prefixes, func(p string) bool { return p == r.Prefix })
	}
	var deleted int64
	for {
		before := deleted
		for ranges := range slices.Chunk(prefixes, maxOps) {
			n, err := b.deleteRanges(ctx, cluster, ranges)
			deleted += n
			if err != nil {
				return fmt.Errorf("delete the data of logical cluster %q after %d rows: %w", cluster, deleted, err)
			}
			if n > 0 && progress != nil {
				progress(deleted)
			}
		}
		if deleted == before {
			return nil
		}
	}
}

// deleteRanges removes up to about deleteBatch rows of the cluster below the given prefixes, and returns how many.
func (b *Backend) deleteRanges(ctx context.Context, cluster logicalcluster.Name, prefixes []string) (int64, error) {
	// A read finds out first, since most resources have no rows in most clusters, and a read costs no disk.
	keys := make([]string, len(prefixes))
	finds := make([]clientv3.Op, len(prefixes))
	for i, p := range prefixes {
		keys[i] = join(b.prefix, ClusterKey(p, cluster, "")) + "/"
		finds[i] = clientv3.OpGet(keys[i], clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(deleteBatch))
	}
	found, err := b.client.Txn(ctx).Then(finds...).Commit()
	if err != nil {
		return 0, err
	}
	var removes []clientv3.Op
	var n int64
	for i, r := range found.Responses {
		kvs := r.GetResponseRange().Kvs
		if len(kvs) == 0 {
			continue
		}
		removes = append(removes, clientv3.OpDelete(keys[i], clientv3.WithRange(string(kvs[len(kvs)-1].Key)+"\x00")))
		if n += int64(len(kvs)); n >= deleteBatch {
			break
		}
	}
	if len(removes) == 0 {
		return 0, nil
	}
	done, err := b.client.Txn(ctx).Then(removes...).Commit()
	if err != nil {
		return 0, err
	}
	n = 0
	for _, r := range done.Responses {
		n += r.GetResponseDeleteRange().Deleted
	}
	return n, nil
}
