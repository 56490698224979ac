package embeddedetcd

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestConfigKeepsWhatWasAcknowledged(t *testing.T) {
	cfg, err := config(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.UnsafeNoFsync {
		t.Error("fsync is off")
	}
	if n := len(cfg.ListenClientUrls) + len(cfg.ListenPeerUrls) + len(cfg.ListenClientHttpUrls) + len(cfg.ListenMetricsUrls); n != 0 {
		t.Errorf("%d listeners by default, want none", n)
	}
	if cfg.SnapshotCatchUpEntries > 1000 {
		t.Errorf("raft keeps %d entries in memory", cfg.SnapshotCatchUpEntries)
	}
	if err := cfg.Validate(); err != nil {
		t.Errorf("etcd refuses the configuration: %v", err)
	}
}

func TestConfigRefusesOpenPort(t *testing.T) {
	if _, err := config(Options{Dir: t.TempDir(), ClientPort: 2379}); err == nil {
		t.Error("a client port without certificates was accepted")
	}
	if _, err := config(Options{Dir: t.TempDir(), PeerPort: 2380, CertFile: "c", KeyFile: "k"}); err == nil {
		t.Error("a peer port without a CA was accepted")
	}
	cfg, err := config(Options{Dir: t.TempDir(), ClientPort: 2379, CertFile: "c", KeyFile: "k", CAFile: "ca"})
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.ClientTLSInfo.ClientCertAuth || cfg.ListenClientUrls[0].Scheme != "https" {
		t.Error("the client port does not demand client certificates")
	}
	if host, _, _ := net.SplitHostPort(cfg.ListenClientUrls[0].Host); host != "127.0.0.1" {
		t.Errorf("the client port listens on %s", host)
	}
}

func TestStartWriteStopStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	first, err := Start(ctx, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	put, err := first.Client.Put(ctx, "/registry/things/a", "1")
	if err != nil {
		t.Fatal(err)
	}

	// A second process on the same directory: flock is per open file, so another Start in this process sees the same.
	begin := time.Now()
	if _, err := Start(ctx, Options{Dir: dir}); err == nil {
		t.Fatal("two on one directory")
	} else if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--root-directory") {
		t.Errorf("the refusal names neither the directory nor the way out: %v", err)
	}
	if d := time.Since(begin); d > 30*time.Second { // it takes a tenth of one; flock would wait for ever
		t.Errorf("the refusal took %v", d)
	}

	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal("second Stop:", err)
	}
	second, err := Start(ctx, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Stop()
	got, err := second.Client.Get(ctx, "/registry/things/a")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
		t.Errorf("after restart: %v", got.Kvs)
	}
	if got.Header.Revision < put.Header.Revision {
		t.Errorf("the revision went back from %d to %d", put.Header.Revision, got.Header.Revision)
	}
}

func TestStopWithOpenWatchers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	etcd, err := Start(ctx, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	watches := make([]clientv3.WatchChan, 20)
	for i := range watches {
		watches[i] = etcd.Client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-watches[i]
	}
	begin := time.Now()
	if err := etcd.Stop(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 30*time.Second { // of the minute that the watches have
		t.Errorf("Stop took %v", d)
	}
}

func TestStartRefusesOtherFormats(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tests := map[string]struct {
		prepare map[string]string
		want    []string
		reason  string
	}{
		"newer": {
			prepare: map[string]string{formatKey: `{"version":7}`},
			want:    []string{"version 7", "up to 1", "newer binary"},
			reason:  "an old binary must not touch what a newer one wrote",
		},
		"foreign rows": {
			prepare: map[string]string{formatKey: "", "/registry/pods/default/a": "{}"},
			want:    []string{"/registry/", "not written by Atoll", "empty store"},
			reason:  "rows without a format are another system's",
		},
		"garbage": {
			prepare: map[string]string{formatKey: "hello"},
			want:    []string{formatKey, "hello"},
			reason:  "unreadable is refused, not overwritten",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			etcd, err := Start(ctx, Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tc.prepare {
				if v == "" {
					_, err = etcd.Client.Delete(ctx, k)
				} else {
					_, err = etcd.Client.Put(ctx, k, v)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := etcd.Stop(); err != nil {
				t.Fatal(err)
			}
			again, err := Start(ctx, Options{Dir: dir})
			if err == nil {
				again.Stop()
				t.Fatal(tc.reason)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			// The refusal gave the directory back.
			unlock, err := lockDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			unlock()
		})
	}
}

func TestPlan(t *testing.T) {
	some := map[int]migration{2: func(context.Context, *clientv3.Client) error { return nil }}
	tests := map[string]struct {
		stored  *format
		hasRows bool
		write   bool
		steps   int
		wantErr bool
		reason  string
	}{
		"empty":            {write: true, reason: "a new store is marked"},
		"same":             {stored: &format{3}, hasRows: true, reason: "nothing to do"},
		"older, known":     {stored: &format{2}, hasRows: true, write: true, steps: 1, reason: "one migration"},
		"older, unknown":   {stored: &format{1}, hasRows: true, wantErr: true, reason: "no way from 1 to 2"},
		"newer":            {stored: &format{4}, wantErr: true, reason: "never downgrade"},
		"rows, no version": {hasRows: true, wantErr: true, reason: "not ours"},
		"version, no rows": {stored: &format{3}, reason: "a store emptied by its users is still ours"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			write, steps, err := plan(tc.stored, tc.hasRows, 3, some)
			if (err != nil) != tc.wantErr || write != tc.write || len(steps) != tc.steps {
				t.Errorf("%s: plan = %v, %v, %v", tc.reason, write, steps, err)
			}
		})
	}
}
