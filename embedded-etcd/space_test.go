package embeddedetcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

// TestFullStore: a store that is full of what is in use stays full, over a start, too, which says what to do; with a larger quota
// it can be emptied, and goes on with the smaller one.
func TestFullStore(t *testing.T) {
	dir := t.TempDir()
	open := func(quota int64) (*embeddedetcd.Etcd, error) {
		return embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: dir, QuotaBytes: quota})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const quota, value = 24 << 20, 1 << 20
	etcd, err := open(quota)
	must(err)
	t.Cleanup(func() {
		if etcd != nil {
			_ = etcd.Stop() // again, unless the test was cut short
		}
	})
	n := 0
	write := func() error {
		_, err := etcd.Client.Put(t.Context(), fmt.Sprint("key-", n), strings.Repeat("x", value))
		if err == nil {
			n++
		}
		return err
	}
	waitUntil := func(what string, check func() (seen string, ok bool)) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			seen, ok := check()
			if ok {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s: last seen: %s", what, seen)
			case <-tick.C:
			}
		}
	}
	// At first it is full of its history and of what is free in its file, too, which is given back.
	var since time.Time // when it was full of what is in use first, and ever since
	waitUntil("the store is full of what is in use", func() (string, bool) {
		err := write()
		if err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("write: %v", err)
		}
		status, statusErr := etcd.Client.Status(t.Context(), "")
		must(statusErr)
		if err == nil || status.DbSizeInUse*100 < quota*embeddedetcd.Room {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		return fmt.Sprintf("%v with %d bytes in use", err, status.DbSizeInUse), !since.IsZero() && time.Since(since) > embeddedetcd.KeptHistory+2*time.Second
	})
	if got, err := etcd.Client.Get(t.Context(), "key-0"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("read from a full store: %v, %v", got, err)
	}
	must(etcd.Stop())
	if _, err := open(quota); err == nil || !strings.Contains(err.Error(), "the store is full") || !strings.Contains(err.Error(), dir) {
		t.Errorf("a full store is opened: %v, want words", err)
	}
	etcd, err = open(2 * quota)
	must(err)
	must(write())
	for i := range n {
		_, err := etcd.Client.Delete(t.Context(), fmt.Sprint("key-", i))
		must(err)
	}
	must(etcd.Stop())

	// With the smaller one again its file is too large, and what is in use is not: that is found at the first write, and mended.
	etcd, err = open(quota)
	must(err)
	waitUntil("writes go on", func() (string, bool) {
		err := write()
		return fmt.Sprint(err), err == nil
	})
	must(etcd.Stop())
}
