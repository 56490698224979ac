package syncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// leases answers requests for the heartbeat's Lease, and with leaf whatever else is asked for, but nothing while away is set.
type leases struct {
	t    *testing.T
	leaf *unstructured.Unstructured
	away atomic.Bool
	// missed counts the heartbeats that got no answer.
	missed atomic.Int64

	mu    sync.Mutex // guards lease
	lease *coordinationv1.Lease
}

func (l *leases) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	isLease := strings.Contains(req.URL.Path, "/leases")
	if l.away.Load() {
		if isLease {
			l.missed.Add(1)
		}
		answer(l.t, w, http.StatusServiceUnavailable, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable})
		return
	}
	if !isLease {
		answer(l.t, w, http.StatusOK, l.leaf.Object)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if req.Method == http.MethodGet {
		if l.lease == nil {
			notFound(l.t, w)
			return
		}
		answer(l.t, w, http.StatusOK, l.lease)
		return
	}
	data, err := io.ReadAll(req.Body)
	if err != nil {
		l.t.Error(err)
	}
	written := &coordinationv1.Lease{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, written); err != nil {
		l.t.Error(err)
	}
	written.Name, written.UID, l.lease = "heartbeat", "lease-uid", written
	answer(l.t, w, http.StatusOK, written)
}

// TestWhatWaitsIsTriedWhenTheSideIsBack: not after the rest of a back-off of up to a minute.
func TestWhatWaitsIsTriedWhenTheSideIsBack(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	leaf := configMap("3", "a")
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	tombstone := leaf.DeepCopy()
	now := metav1.Now()
	tombstone.SetDeletionTimestamp(&now)
	for name, tc := range map[string]struct {
		leaf   *unstructured.Unstructured
		mirror bool // is the side that is away
	}{
		"Leaf, physical cluster":      {leaf: leaf},
		"Tombstone, physical cluster": {leaf: tombstone},
		"Leaf, mirror":                {leaf: leaf, mirror: true},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, physical := &leases{t: t, leaf: tc.leaf}, &leases{t: t, leaf: tc.leaf}
			s := newIdle(t, mirror.ServeHTTP, physical.ServeHTTP)
			s.gate.open(s.gate.begin(), fine) // or all keys would be tried after the first heartbeat
			away := physical
			if tc.mirror {
				away = mirror
			}
			away.away.Store(true)
			if err := s.mirror.informers[k.resource].Add(tc.leaf); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var beating sync.WaitGroup
			defer beating.Wait()
			defer cancel()
			beating.Go(func() {
				if err := s.heartbeat(ctx, func() {}); err != nil {
					t.Error(err)
				}
			})
			eventually(t, "a heartbeat fails", func() string {
				return fmt.Sprint(away.missed.Load() > 0 && (tc.mirror || s.trouble() != ""))
			}, "true")
			if tc.mirror {
				s.heard(k.resource)(errors.New("not allowed")) // which the leaf is to be told
			}
			for range 5 {
				if _, err := s.reconcile(ctx, k); (err != nil) != tc.mirror {
					t.Fatalf("reconcile: %v", err)
				}
			}
			if n := s.queue.Len(); n > 0 {
				t.Fatalf("%d keys are tried while the side is away", n)
			}
			away.away.Store(false)
			eventually(t, "the leaf is tried again", func() string { return fmt.Sprint(s.queue.Len(), s.backoff.NumRequeues(k)) }, "1 0")
		})
	}
}

// TestWhatWaitsIsTriedWhenItsResourceIsBack, as after rights that were taken away are given back.
func TestWhatWaitsIsTriedWhenItsResourceIsBack(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	side := &leases{t: t, leaf: configMap("3", "a")}
	s := newIdle(t, side.ServeHTTP, side.ServeHTTP)
	if err := s.mirror.informers[k.resource].Add(side.leaf); err != nil {
		t.Fatal(err)
	}
	heard := s.heard(k.resource)
	heard(errors.New("not allowed"))
	for range 5 {
		if _, err := s.reconcile(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.queue.Len(); n > 0 {
		t.Fatalf("%d keys are tried while the resource cannot be listed", n)
	}
	heard(nil)
	eventually(t, "the leaf is tried again", func() string { return fmt.Sprint(s.queue.Len(), s.backoff.NumRequeues(k)) }, "1 0")
	if left := len(s.waiting.take()); left > 0 {
		t.Errorf("%d keys wait on", left)
	}
}

// eventually waits until state is want.
func eventually(t *testing.T, what string, state func() string, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if got = state(); got == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not within 20 s: %s, want %s", what, got, want)
}
