package storage

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// countShare counts in etcd what a logical cluster has of a share, all at one revision, which it returns. It takes as long as
// reading all of it: etcd tells no sizes without the values.
func (b *Backend) countShare(ctx context.Context, s share) (amount, int64, error) {
	prefixes := []string{s.apart}
	if s.apart == "" {
		var err error
		if prefixes, err = b.prefixesOf(ctx, s.cluster, nil); err != nil {
			return amount{}, 0, err
		}
		prefixes = slices.DeleteFunc(prefixes, func(p string) bool { return shareIn(s.cluster, p) != s })
	}
	var total amount
	var revision int64
	for some := range slices.Chunk(prefixes, maxOps) {
		counts := make([]clientv3.Op, len(some))
		for i, p := range some {
			counts[i] = clientv3.OpGet(b.rangeOf(p, s), clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(revision))
		}
		got, err := b.client.Txn(ctx).Then(counts...).Commit()
		if err != nil {
			return amount{}, 0, err
		}
		if revision == 0 {
			revision = got.Header.Revision
		}
		for i, p := range some {
			n := got.Responses[i].GetResponseRange().Count
			if n == 0 {
				continue
			}
			bytes, err := b.bytesBelow(ctx, b.rangeOf(p, s), revision)
			if err != nil {
				return amount{}, 0, err
			}
			total = total.plus(amount{n, bytes})
		}
	}
	return total, revision, nil
}

func (b *Backend) rangeOf(prefix string, s share) string {
	return join(b.prefix, ClusterKey(prefix, s.cluster, "")) + "/"
}

// bytesBelow is the size of the keys and values of a range at a revision.
func (b *Backend) bytesBelow(ctx context.Context, prefix string, revision int64) (int64, error) {
	var bytes int64
	for p := b.pagesOf(prefix, "", clientv3.WithRev(revision)); !p.done; {
		got, err := p.next(ctx)
		if err != nil {
			return 0, err
		}
		for _, kv := range got.Kvs {
			bytes += sizeOf(string(kv.Key), kv.Value)
		}
	}
	return bytes, nil
}

// sizeOf is what a row counts for.
func sizeOf[T []byte | string](key string, value T) int64 {
	return int64(len(key) + plainSize([]byte(value)))
}
