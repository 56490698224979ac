package embeddedetcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	// At first it is full of its history and of what is free in its file, too, which is given back.
	var since time.Time // when it was full of what is in use first, and ever since
	waitUntil(t, "the store is full of what is in use", func() (string, bool) {
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
	waitUntil(t, "writes go on", func() (string, bool) {
		err := write()
		return fmt.Sprint(err), err == nil
	})
	must(etcd.Stop())
}

// TestMostlyFreeStore: the file of a store that is mostly free becomes small, with nothing lost, and nobody waits meanwhile for who
// reads it whole.
func TestMostlyFreeStore(t *testing.T) {
	const values, value, small = 48, 1 << 20, 8 << 20
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // of all
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o := embeddedetcd.Options{Dir: t.TempDir()}
	etcd, err := embeddedetcd.Start(ctx, o)
	must(err)
	t.Cleanup(func() { _ = etcd.Stop() }) // again, unless the test was cut short
	write := func(key, value string) {
		t.Helper()
		in, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := etcd.Client.Put(in, key, value)
		must(err)
	}
	sizes := func() (file, inUse int64) {
		t.Helper()
		status, err := etcd.Client.Status(ctx, "")
		must(err)
		return status.DbSize, status.DbSizeInUse
	}
	becomeMostlyFree := func() {
		t.Helper()
		for i := range values {
			write(fmt.Sprint("goes-", i), strings.Repeat("x", value))
		}
		gone, err := etcd.Client.Delete(ctx, "goes-", clientv3.WithPrefix())
		must(err)
		_, err = etcd.Client.Compact(ctx, gone.Header.Revision, clientv3.WithCompactPhysical())
		must(err)
	}
	write("stays", "as it is")
	becomeMostlyFree()
	waitUntil(t, "the store is mostly free", func() (string, bool) {
		write("written", "") // what is free is known when something is written
		file, inUse := sizes()
		return fmt.Sprintf("%d bytes, %d in use", file, inUse), inUse < value && file > values*value
	})
	large := func(when string) {
		t.Helper()
		must(etcd.GiveBack(ctx))
		write("written", when)
		if file, inUse := sizes(); file < values*value {
			t.Fatalf("the file has %d bytes, of which %d are in use, %s", file, inUse, when)
		}
	}
	snapshot, err := embeddedetcd.TakeSnapshot(ctx, etcd.Client)
	must(err)
	large("while a snapshot begins")
	_, err = io.ReadFull(snapshot, make([]byte, 1))
	must(err)
	large("while a snapshot is read")
	must(snapshot.Close())
	must(etcd.Compare(ctx))
	etcd.FlipRow()
	large("of which a row is damaged")
	etcd.FlipRow()

	// Who writes meanwhile waits, and all that was acknowledged is there.
	var writing sync.WaitGroup
	written := make([]int, 4)
	enough := make(chan struct{})
	for w := range written {
		writing.Go(func() {
			for {
				if _, err := etcd.Client.Put(ctx, fmt.Sprintf("beside-%d-%d", w, written[w]), "here"); err != nil {
					t.Errorf("write beside: %v", err)
					return
				}
				written[w]++
				select {
				case <-enough:
					return
				default:
				}
			}
		})
	}
	waitUntil(t, "the file is small", func() (string, bool) {
		must(etcd.GiveBack(ctx))
		file, inUse := sizes()
		return fmt.Sprintf("%d bytes, %d in use", file, inUse), file < small
	})
	close(enough)
	writing.Wait()
	info, err := os.Stat(filepath.Join(o.Dir, "data", "member", "snap", "db"))
	must(err)
	if info.Size() > small+16<<20 { // when it is written to, it grows by as much
		t.Errorf("the file has %d bytes, whatever the store says", info.Size())
	}
	check := func(when string) {
		t.Helper()
		if got, err := etcd.Client.Get(ctx, "stays"); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "as it is" {
			t.Errorf("%s: what stays: %v, %v", when, got, err)
		}
		if got, err := etcd.Client.Get(ctx, "goes-", clientv3.WithPrefix()); err != nil || len(got.Kvs) != 0 {
			t.Errorf("%s: what went: %d of it is there, %v", when, len(got.Kvs), err)
		}
		for w, n := range written {
			if got, err := etcd.Client.Get(ctx, fmt.Sprintf("beside-%d-", w), clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != int64(n) {
				t.Errorf("%s: there are %d of %d that were written beside, %v", when, got.Count, n, err)
			}
		}
		if err := errors.Join(etcd.Compare(ctx), etcd.Damage()); err != nil {
			t.Errorf("%s: compared with the checksums: %v", when, err)
		}
	}
	check("written anew")
	must(etcd.Stop())

	o.GivesBackAfter(time.Second)
	etcd, err = embeddedetcd.Start(ctx, o)
	must(err)
	check("after a start")
	becomeMostlyFree()
	waitUntil(t, "the file is small by itself", func() (string, bool) {
		write("written", "")
		file, inUse := sizes()
		return fmt.Sprintf("%d bytes, %d in use", file, inUse), file < small
	})
	check("written anew by itself")
	must(etcd.Stop())

	// The name of the new file is not on the disk.
	o.Syncs(func(string) error { return errors.New("the disk is gone") })
	etcd, err = embeddedetcd.Start(ctx, o)
	must(err)
	becomeMostlyFree()
	for ended := false; !ended; {
		select {
		case err := <-etcd.Failed():
			if ended = true; !strings.Contains(err.Error(), "the disk is gone") || !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("it may not be used any more: %v", err)
			}
		case <-ctx.Done():
			t.Fatal("a store whose file may not be there after the machine ends is used")
		case <-time.After(50 * time.Millisecond):
			write("written", "")
		}
	}
	must(etcd.Stop())
}

func waitUntil(t *testing.T, what string, check func() (seen string, ok bool)) {
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
