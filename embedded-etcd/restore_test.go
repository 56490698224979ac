package embeddedetcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

func start(t *testing.T, dir string) *embeddedetcd.Etcd {
	t.Helper()
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

func put(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	got, err := client.Put(t.Context(), key, "value of "+key)
	if err != nil {
		t.Fatal(err)
	}
	return got.Header.Revision
}

func snapshotOf(t *testing.T, client *clientv3.Client) (content []byte, revision int64) {
	t.Helper()
	s, err := embeddedetcd.TakeSnapshot(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	content, err = io.ReadAll(s)
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	if s.Format != 1 {
		t.Errorf("a snapshot of format %d, want 1", s.Format)
	}
	return content, s.Revision
}

func beginRestore(t *testing.T, dir string, content []byte) *embeddedetcd.Restoration {
	t.Helper()
	r, err := embeddedetcd.BeginRestore(dir)
	if err != nil {
		t.Fatal(err)
	}
	for len(content) > 0 {
		piece := content[:min(len(content), 100_000)]
		content = content[len(piece):]
		if err := r.Add(bytes.NewReader(piece)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestRestore: a store of a snapshot has what was acknowledged before it, and goes on above everything that anybody saw.
func TestRestore(t *testing.T) {
	inside := start(t, t.TempDir())
	tls, options := etcdtest.StartTLS(t)
	outside := etcdtest.Connect(t, options)
	for name, c := range map[string]struct{ client, writer *clientv3.Client }{
		"embedded": {inside.Client, inside.Client}, "external": {outside.Client, tls.Client},
	} {
		t.Run(name, func(t *testing.T) {
			const before = 200
			for i := range before {
				put(t, c.writer, fmt.Sprintf("/registry/things/before-%d", i))
			}
			// Somebody writes all the time.
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan int64)
			go func() {
				var last int64
				for i := 0; ctx.Err() == nil; i++ {
					got, err := c.writer.Put(ctx, fmt.Sprintf("/registry/things/during-%d", i), "x")
					if err == nil {
						last = got.Header.Revision
					}
				}
				stopped <- last
			}()
			acknowledged := put(t, c.writer, "/registry/things/last")
			content, revision := snapshotOf(t, c.client)
			lost := put(t, c.writer, "/registry/things/lost") // whatever the other wrote until here
			cancel()
			last := max(lost, <-stopped)
			if revision < acknowledged {
				t.Errorf("the snapshot is of revision %d, and %d was acknowledged before", revision, acknowledged)
			}

			dir := filepath.Join(t.TempDir(), "new", "etcd")
			r := beginRestore(t, dir, content)
			if _, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: dir}); !errors.Is(err, embeddedetcd.ErrInUse) {
				t.Errorf("opened while it is restored: %v", err)
			}
			const bump = 1_000_000
			restored, err := r.Build(t.Context(), bump)
			if err != nil {
				t.Fatal(err)
			}
			if restored < revision+bump {
				t.Errorf("the restored store is at revision %d, want at least %d", restored, revision+bump)
			}
			if err := r.Commit(); err != nil {
				t.Fatal(err)
			}
			etcd := start(t, dir)
			got, err := etcd.Client.Get(t.Context(), "/registry/things/before-", clientv3.WithPrefix())
			if err != nil || len(got.Kvs) != before {
				t.Errorf("%d of %d rows are there: %v", len(got.Kvs), before, err)
			}
			if got, err := etcd.Client.Get(t.Context(), "/registry/things/last"); err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != acknowledged {
				t.Errorf("the last row that was acknowledged before the snapshot: %v, %v", got, err)
			}
			if now := put(t, etcd.Client, "/registry/things/new"); now <= last || now <= restored {
				t.Errorf("a new write has revision %d; before, %d was seen, and %d when the store was restored", now, last, restored)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, position := range []int64{acknowledged, last, revision + bump/2} {
				response, ok := <-etcd.Client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(position))
				if !ok || response.CompactRevision == 0 {
					t.Errorf("a watch from %d, before the restore, is not refused: %+v", position, response)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "restoring")); !os.IsNotExist(err) {
				t.Errorf("something of the restore is left: %v", err)
			}
		})
	}
}

// TestRestoreIsWholeOrNotAtAll: a restore that ends before Commit, whichever way, leaves nothing that can be opened.
func TestRestoreIsWholeOrNotAtAll(t *testing.T) {
	origin := start(t, t.TempDir())
	put(t, origin.Client, "/registry/things/a")
	content, _ := snapshotOf(t, origin.Client)

	dir := filepath.Join(t.TempDir(), "etcd")
	for reason, wrong := range map[string][]byte{
		"cut off": content[:len(content)/2], "without its checksum": content[:len(content)-32], "empty": nil, "no store": []byte("hello"),
		"flipped": append(append(bytes.Clone(content[:20000]), content[20000]^8), content[20001:]...),
	} {
		r := beginRestore(t, dir, wrong)
		if _, err := r.Build(t.Context(), 1); err == nil {
			t.Errorf("%s: a store was made of it", reason)
		}
		if err := r.Abort(); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left, %v", reason, left, err)
		}
	}
	// What a process that is killed leaves: everything, but for Commit and the lock.
	for reason, build := range map[string]bool{"before the store was made": false, "after it": true} {
		dir := filepath.Join(t.TempDir(), "etcd")
		r := beginRestore(t, dir, content)
		if build {
			if _, err := r.Build(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		r.Forget()
		_, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: dir})
		for what, err := range map[string]error{"Start": err, "BeginRestore": second(embeddedetcd.BeginRestore(dir))} {
			if err == nil || !strings.Contains(err.Error(), "did not come to its end") || !strings.Contains(err.Error(), filepath.Dir(dir)) {
				t.Errorf("killed %s: %s returns %v", reason, what, err)
			}
		}
	}

	if err := second(embeddedetcd.BeginRestore(filepath.Dir(dir))); err == nil || !strings.Contains(err.Error(), "holds") {
		t.Errorf("into a directory that is not empty: %v", err)
	}
}

// TestCommitThatFails: a store that was named already, but perhaps not on the disk, is no store, and Abort takes it back.
func TestCommitThatFails(t *testing.T) {
	origin := start(t, t.TempDir())
	content, _ := snapshotOf(t, origin.Client)
	errDisk := errors.New("the disk is broken")
	for failing, reason := range map[int]string{1: "when the store is named", 2: "when nothing else is left of the restore"} {
		for _, then := range []string{"Abort", "the disk is broken when it aborts, too", "killed"} {
			t.Run(reason+", "+then, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "etcd")
				r := beginRestore(t, dir, content)
				if _, err := r.Build(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				syncs := 0
				r.Syncs(func(string) error {
					if syncs++; syncs >= failing {
						return errDisk
					}
					return nil
				})
				if err := r.Commit(); !errors.Is(err, errDisk) {
					t.Fatalf("Commit returns %v", err)
				}
				if found, err := embeddedetcd.Holds(dir); err != nil || !found {
					t.Fatalf("the store is not named when Commit fails: %v; this shows nothing", err)
				}
				if err := second(embeddedetcd.BeginRestore(dir)); !errors.Is(err, embeddedetcd.ErrInUse) {
					t.Errorf("given back before what belongs to it is undone: %v", err)
				}
				switch then {
				case "Abort":
					r.Syncs(func(string) error {
						if found, err := embeddedetcd.Holds(dir); err != nil || found {
							t.Errorf("the store is still there: %v", err)
						}
						if _, err := os.Stat(filepath.Join(dir, "restoring")); err != nil {
							t.Errorf("before the store is surely gone: %v", err)
						}
						return nil
					})
					if err := r.Abort(); err != nil {
						t.Fatal(err)
					}
					if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
						t.Errorf("%v is left, %v", left, err)
					}
					if err := beginRestore(t, dir, nil).Abort(); err != nil {
						t.Error(err)
					}
					return
				case "killed":
					r.Forget()
				default:
					if err := r.Abort(); !errors.Is(err, errDisk) {
						t.Errorf("Abort returns %v", err)
					}
				}
				_, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: dir})
				if err == nil || !strings.Contains(err.Error(), "did not come to its end") {
					t.Errorf("Start returns %v", err)
				}
			})
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestRevisionBump: who is restored later is above who was restored before, for as fast as it can write.
func TestRevisionBump(t *testing.T) {
	taken := time.Unix(1_700_000_000, 0)
	const then = 170_000_000_000_000
	for _, tc := range []struct {
		revision int64
		after    time.Duration
		want     uint64
		reason   string
	}{
		{0, 0, then, "a hundred thousand for each second of the clock"},
		{5, 0, then - 5, "whatever the backup has"},
		{5, time.Second, then + 100_000 - 5, "a hundred thousand writes later"},
		{5, 10 * time.Microsecond, then + 1 - 5, "one write later"},
		{5, -time.Hour, then - 5, "the clock went back since the backup, which says how late it was"},
		{then - 1, 0, 1, "restored a moment before the backup"},
		{then, 0, 1_000_000_000, "the clock went back before the backup"},
		{2 * then, time.Hour, 1_000_000_000, "far"},
	} {
		if got := embeddedetcd.RevisionBump(tc.revision, taken, taken.Add(tc.after)); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.reason, got, tc.want)
		}
	}
}

// TestRevisionBumpInChains: no chain of restores leads back, however soon they follow one another and whichever backup is
// taken; the stores in between write as fast as they can.
func TestRevisionBumpInChains(t *testing.T) {
	type backup struct {
		revision int64
		taken    time.Time
	}
	for _, pause := range []time.Duration{time.Second, time.Minute, 24 * time.Hour, 365 * 24 * time.Hour} {
		now := time.Unix(1_700_000_000, 0)
		seen := int64(1000)
		backups := []backup{{seen, now}}
		for step, from := range []int{0, 1, 0, 2, 1, 0, 5, 0, 0} {
			now = now.Add(pause)
			b := backups[from]
			restored := b.revision + int64(embeddedetcd.RevisionBump(b.revision, b.taken, now))
			if restored <= seen {
				t.Fatalf("every %s: restore %d, of backup %d, begins at %d; clients saw %d", pause, step, from, restored, seen)
			}
			now = now.Add(pause)
			seen = restored + 20_000*int64(pause/time.Second)
			backups = append(backups, backup{seen, now})
		}
	}
}
