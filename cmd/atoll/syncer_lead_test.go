package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// memoryLock is the lock of a replica on a record in memory, and what befalls its requests.
type memoryLock struct {
	resourcelock.Interface // nothing else is called
	identity               string

	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int // of the record, and the one that this replica has seen
	seen    int
	renewed time.Time
	swallow int           // requests that get no answer; -1 is all
	slow    time.Duration // from a write to its answer
}

func (l *memoryLock) Identity() string   { return l.identity }
func (l *memoryLock) Describe() string   { return "memory" }
func (l *memoryLock) RecordEvent(string) {}

// ask waits for as long as a request is not answered.
func (l *memoryLock) ask(ctx context.Context) error {
	l.mu.Lock()
	lost := l.swallow != 0
	if l.swallow > 0 {
		l.swallow--
	}
	l.mu.Unlock()
	if lost {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *memoryLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.ask(ctx); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "memory")
	}
	record := *l.record
	l.seen = l.version
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (l *memoryLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

func (l *memoryLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.ask(ctx); err != nil {
		return err
	}
	slow, err := l.write(&record)
	time.Sleep(slow)
	return err
}

func (l *memoryLock) write(record *resourcelock.LeaderElectionRecord) (slow time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != l.version {
		return 0, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "memory", errors.New("it was changed"))
	}
	l.version++
	l.seen, l.record, l.renewed = l.version, record, time.Now()
	return l.slow, nil
}

func (l *memoryLock) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return ""
	}
	return l.record.HolderIdentity
}

func (l *memoryLock) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// A request for the lock that nobody answers is given up, also while it is somebody else's.
func TestCandidateOutlivesSwallowedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		lock := &memoryLock{identity: "a", swallow: 2}
		began := time.Now()
		worked := false
		err := lead(ctx, lock, func(context.Context, func() error) error { worked = true; return nil })
		if took := time.Since(began); err != nil || !worked || took > time.Minute {
			t.Errorf("after two lost requests: worked %v, %v, after %s; want work within a minute", worked, err, took)
		}
	})
}

// Who waits for the lock of a syncer that was killed says so, once, and until when.
func TestCandidateSaysForWhomItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Hour)
		defer cancel()
		now := metav1.Now()
		lock := &memoryLock{identity: "a", record: &resourcelock.LeaderElectionRecord{
			HolderIdentity: "killed", LeaseDurationSeconds: int(leaseDuration / time.Second), AcquireTime: now, RenewTime: now,
		}}
		worked := false
		if err := lead(ctx, lock, func(context.Context, func() error) error { worked = true; return nil }); err != nil || !worked {
			t.Fatalf("worked %v, %v", worked, err)
		}
		until := now.Add(leaseDuration).UTC().Format(time.TimeOnly)
		said := log.String()
		if strings.Count(said, "Waiting for another syncer") != 1 || !strings.Contains(said, `"killed"`) || !strings.Contains(said, until) {
			t.Errorf("said %q, want once that it waits for killed until %s", said, until)
		}
	})
}

// The lock is given back when the work has returned, and not before, however the work came to its end.
func TestLockIsGivenBackAfterTheWork(t *testing.T) {
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		reason string
		work   func(ctx context.Context, end func(), lock *memoryLock) error
		holder string // in the end
		want   error
	}{
		"stopped": {reason: "a process that stops hands over at once", work: func(ctx context.Context, end func(), _ *memoryLock) error { end(); <-ctx.Done(); return nil }},
		"failed":  {reason: "so does one whose work failed", work: func(context.Context, func(), *memoryLock) error { return failed }, want: failed},
		"answered": {reason: "and one that could not renew, if it can again", work: func(ctx context.Context, _ func(), lock *memoryLock) error {
			lock.set(func() { lock.swallow = -1 })
			<-ctx.Done()
			lock.set(func() { lock.swallow = 0 })
			return nil
		}},
		"slow": {reason: "nobody waits for a release that is not answered", holder: "a", work: func(ctx context.Context, _ func(), lock *memoryLock) error {
			lock.set(func() { lock.slow = lockTimeout - time.Millisecond })
			time.Sleep(12 * time.Second) // it is renewed, slowly
			lock.set(func() { lock.swallow = -1 })
			<-ctx.Done()
			return nil
		}},
		"taken": {reason: "what another holds is left alone", holder: "b", work: func(ctx context.Context, _ func(), lock *memoryLock) error {
			lock.set(func() {
				lock.version++
				lock.record = &resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 60}
			})
			taken := time.Now()
			<-ctx.Done()
			if late := time.Since(taken); late > retryPeriod+2*lockTimeout {
				return fmt.Errorf("two were at work for %s", late)
			}
			return nil
		}},
		"unanswered": {reason: "nobody waits for a release that is not answered", holder: "a", work: func(ctx context.Context, _ func(), lock *memoryLock) error {
			lock.set(func() { lock.swallow = -1 })
			<-ctx.Done()
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				lock := &memoryLock{identity: "a"}
				var atEnd string
				var returned time.Time
				err := lead(ctx, lock, func(ctx context.Context, mayWrite func() error) error {
					before := lock.holder()
					if err := mayWrite(); err != nil {
						t.Errorf("with the lock in hand it may not write: %v", err)
					}
					err := tc.work(ctx, cancel, lock)
					since := time.Since(lock.renewed)
					if lock.holder() != "a" && mayWrite() == nil {
						t.Error("it may write when it has found another at work")
					}
					time.AfterFunc(leaseDuration-lockTimeout-since, func() {
						if mayWrite() == nil {
							t.Error("it may write when others take the lock in a moment")
						}
					})
					time.Sleep(time.Second) // what was under way
					if atEnd, returned = lock.holder(), time.Now(); before != "a" {
						t.Errorf("the work began while the lock was held by %q", before)
					}
					if since > leaseDuration-time.Second {
						t.Errorf("the work went on for %s after the last renewal; others take the lock after %s", since, leaseDuration)
					}
					return err
				})
				if !errors.Is(err, tc.want) {
					t.Errorf("lead: %v, want %v", err, tc.want)
				}
				if atEnd == "" {
					t.Error("the lock was given back under the running work")
				}
				if got := lock.holder(); got != tc.holder {
					t.Errorf("%s: the lock is held by %q, want %q", tc.reason, got, tc.holder)
				}
				if late := time.Since(returned); late > 15*time.Second {
					t.Errorf("%s: it took %s to give the lock back", tc.reason, late)
				}
			})
		})
	}
}
