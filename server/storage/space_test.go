package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"
)

// TestRewriteWaitsForRoom: while the store is nearly full no row is written anew; when there is room, the rest is.
func TestRewriteWaitsForRoom(t *testing.T) {
	prefix := prefixOf(t)
	old, both, transformers := keysOf(t, "o"), keysOf(t, "no"), &reloaded{}
	transformers.transformer.Store(&old)
	s := serve(t, prefix, func(c *Config) { c.Transformers = transformers })
	const n = 3 * maxPage
	for i := range n {
		key := fmt.Sprintf("%s/secrets/shop/default/s%03d", prefix, i)
		data, err := old.TransformToStorage(t.Context(), []byte("secret"), value.DefaultContext(key))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.Client.Put(t.Context(), key, string(data)); err != nil {
			t.Fatal(err)
		}
	}
	transformers.transformer.Store(&both)
	written := func() (is int) {
		t.Helper()
		all, err := etcd.Client.Get(t.Context(), prefix+"/secrets/shop/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range all.Kvs {
			if bytes.HasPrefix(kv.Value, []byte("k8s:enc:aesgcm:v1:n:")) {
				is++
			}
		}
		return is
	}

	// It is full for a while when some rows are written.
	s.roomEvery = time.Nanosecond
	looks, full, at := 0, 0, 0
	s.space = func(context.Context) (int64, int64, error) { // one at a time
		looks++
		is := written()
		if is == 0 || full == 20 {
			return 69_999, 100_000, nil
		}
		if full++; full == 1 {
			at = is
		}
		if is != at {
			t.Errorf("look %d: %d rows are written, want %d as when it was full first", looks, is, at)
		}
		return 70_000, 100_000, nil
	}
	got, err := s.RewriteStale(t.Context())
	if err != nil || got.Written != n || written() != n {
		t.Errorf("%+v, %v, and %d rows are written; want all %d", got, err, written(), n)
	}
	if full != 20 || at == n {
		t.Errorf("full at %d looks after %d rows, want 20 before all %d", full, at, n)
	}

	away := errors.New("away")
	s.space = func(context.Context) (int64, int64, error) { return 0, 0, away }
	if _, err := s.RewriteStale(t.Context()); !errors.Is(err, away) {
		t.Errorf("without an answer of etcd: %v, want its error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.space = func(context.Context) (int64, int64, error) { cancel(); return 1, 1, nil }
	if _, err := s.RewriteStale(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ended while it was full: %v, want that", err)
	}
}

// TestSpaceOfEtcd: etcd tells what is in use, and its quota.
func TestSpaceOfEtcd(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	inUse, quota, err := s.spaceOfEtcd(t.Context())
	if err != nil || inUse <= 0 || quota < 1<<30 || inUse > quota {
		t.Errorf("%d bytes of %d in use, %v", inUse, quota, err)
	}
}
