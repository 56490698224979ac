package storage

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

// mostLost is how many rows that could not be decrypted are remembered. Who has more of them than that starts the server again when their
// key is back.
const mostLost = 10_000

// lostRows are those that could not be decrypted when they were last read for a watch cache, with what would decrypt them. A key
// management that is away does that to rows that other servers write meanwhile: nothing tells a cache when it is back.
type lostRows struct {
	some atomic.Bool // without it nobody looks for more

	mu   sync.Mutex
	keys map[string]value.Transformer
}

func (l *lostRows) add(key string, decrypts value.Transformer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[string]value.Transformer{}
	}
	if len(l.keys) < mostLost {
		l.keys[key] = decrypts
		l.some.Store(true)
	}
}

// found says that a row was decrypted.
func (l *lostRows) found(key string) {
	if !l.some.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, key)
	l.some.Store(len(l.keys) > 0)
}

func (l *lostRows) all() map[string]value.Transformer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}

// HasLost says whether there are rows for Mend.
func (b *Backend) HasLost() bool { return b.lost.some.Load() }

// Mend writes rows again, as they are, that could not be decrypted when a watch cache read them, and can be now: so that caches and
// watchers of all servers see them. It returns how many those were, and leaves others for the next call.
func (b *Backend) Mend(ctx context.Context) (mended int, _ error) {
	for key, decrypts := range b.lost.all() {
		got, err := b.client.Get(ctx, key)
		if err != nil {
			return mended, fmt.Errorf("read %s: %w", key, err)
		}
		if len(got.Kvs) == 0 {
			b.lost.found(key)
			continue
		}
		row := got.Kvs[0]
		if _, _, err := decrypts.TransformFromStorage(ctx, row.Value, value.DefaultContext(key)); err != nil {
			continue
		}
		// Of who wrote it meanwhile the caches hear.
		done, err := b.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", row.ModRevision)).
			Then(clientv3.OpPut(key, string(row.Value), clientv3.WithIgnoreLease())).
			Commit()
		if err != nil {
			return mended, fmt.Errorf("write %s again: %w", key, err)
		}
		b.lost.found(key)
		if done.Succeeded {
			mended++
		}
	}
	if mended > 0 {
		klog.FromContext(ctx).Info("Rows that could not be decrypted are read again", "rows", mended)
	}
	return mended, nil
}
