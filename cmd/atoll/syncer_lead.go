package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// lead waits for the lock and works while it holds it. It returns when ctx ended, the lock was lost, or the work failed;
// the lock is given back only after the work has ended. mayWrite is to be asked before each effect of the work: whoever was
// stopped for long finds out only a while later that another is in its place.
func lead(ctx context.Context, lock resourcelock.Interface, work func(ctx context.Context, mayWrite func() error) error) error {
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	won := make(chan context.Context, 1)
	var leads atomic.Bool
	held := &right{trust: leaseDuration - lockTimeout, now: readClocks}
	// Whoever was stopped for long finds another in its place. Upstream tells so at its deadline only.
	waitsFor := ""
	lock = renewals{electionLock{lock, func(holder string) {
		switch {
		case holder == "" || holder == lock.Identity():
		case leads.Load():
			held.renewed.Store(nil)
			stop()
		case holder != waitsFor:
			// It may be one that was killed, whom nobody can ask: nothing is done until then.
			waitsFor = holder
			klog.FromContext(ctx).Info("Waiting for another syncer of this cluster, which holds the lock", "holder", holder, "lock", lock.Describe(),
				"until", "it gives it back, or has not renewed it before "+time.Now().Add(leaseDuration).UTC().Format(time.TimeOnly))
		}
	}}, held}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: "syncer", LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		// It would release a lock that could not be renewed before it tells the work to end.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				leads.Store(true)
				won <- leading
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	select {
	case leading := <-won:
		leading, cancel := context.WithCancel(leading)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err = work(leading, held.holds)
	case <-over:
	case <-ctx.Done():
	}
	stop()
	<-over
	release(context.WithoutCancel(ctx), lock)
	return err
}

// release lets another replica take a lock at once, if it is still ours. Otherwise, or if it cannot be reached, it runs out.
func release(ctx context.Context, lock resourcelock.Interface) {
	held, _, err := lock.Get(ctx)
	if err == nil && held.HolderIdentity == lock.Identity() {
		now := metav1.Now()
		// The update is of what was read: should another take the lock in between, it fails.
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		klog.FromContext(ctx).Info("The lock of the leader election could not be given back, it runs out", "lock", lock.Describe(), "err", err)
	}
}

// electionLock gives up requests that are not answered, since upstream waits for ever for one that is to acquire the
// lock, and tells who holds it whenever it was read.
type electionLock struct {
	resourcelock.Interface
	heldBy func(identity string)
}

func (l electionLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.heldBy(record.HolderIdentity)
	}
	return record, raw, err
}

func (l electionLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return l.Interface.Create(ctx, record)
}

func (l electionLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return l.Interface.Update(ctx, record)
}
