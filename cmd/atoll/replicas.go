package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/quota"
)

// All servers on one etcd serve the API; one of them, the leader, runs the controllers. It holds a Lease in the logical
// cluster of the installation. Times are kube-controller-manager's.
const (
	replicasLease         = "atoll-controllers"
	replicasLeaseDuration = 15 * time.Second
	replicasRenewDeadline = 10 * time.Second
	replicasRetryPeriod   = 2 * time.Second

	// replicasTrust is how long a Lease is believed to be ours after it was renewed: less than until others may take it, since
	// what is decided by then takes a moment to be done.
	replicasTrust = replicasLeaseDuration - replicasRetryPeriod
)

var errNotLeading = errors.New("the Lease was not renewed in time: another may be at work")

// right is that of whoever holds a Lease: to be believed in for a while after each renewal, since others take the Lease only after
// they have seen it unchanged for its duration.
type right struct {
	// renewed is when the request began that last wrote the Lease; nil: none of this term did.
	renewed atomic.Pointer[reading]
	trust   time.Duration
	now     func() reading // readClocks, but for tests
}

// holds returns nil while nobody else can hold the Lease.
func (r *right) holds() error {
	if at := r.renewed.Load(); at == nil || r.now().since(*at) >= r.trust {
		return errNotLeading
	}
	return nil
}

// leadership is the right to run the controllers. This server may have it for several terms.
//
// A term lasts for as long as nobody else takes the right, so that an etcd that is away for a while ends none. Whoever could
// not renew it for the duration of the Lease, since etcd did not answer or the process was stopped, changes nothing until it
// has renewed it: another may lead by then. If another does, the term ends, and what worked in it; the server serves on and
// waits for its next.
//
// It is for servers of the installation's level alone: who leads raises that to its own before anything works, and who is below it
// never leads again.
type leadership struct {
	lock  resourcelock.Interface // nil: there are no other servers
	alone bool
	level func(context.Context) error // (*server.Server).RaiseLevel
	right
}

// reading is a moment by two clocks. steady is never set, but stands still on some systems while the machine sleeps or its
// virtual machine is paused; wall goes on then, but is set now and then.
type reading struct{ steady, wall time.Time }

func readClocks() reading {
	now := time.Now()
	return reading{steady: now, wall: now.Round(0)}
}

// since is the longer of what the clocks say.
func (r reading) since(before reading) time.Duration {
	return max(r.steady.Sub(before.steady), r.wall.Sub(before.wall))
}

// newLeadership returns the leadership that servers on one etcd compete for. kube is a client of this server, and name what
// people know it by.
func newLeadership(kube kubernetes.Interface, name string, level func(context.Context) error) *leadership {
	return &leadership{level: level, right: right{trust: replicasTrust, now: readClocks}, lock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: replicasLease},
		Client:     kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: name + "_" + string(uuid.NewUUID())},
	}}
}

// aloneLeads is the leadership of the one server on an etcd in its process.
func aloneLeads(level func(context.Context) error) *leadership {
	return &leadership{alone: true, level: level}
}

// holds returns nil while nobody else can lead.
func (l *leadership) holds() error {
	if l.alone {
		return nil
	}
	return l.right.holds()
}

// fence returns a configuration whose requests change something only while this server leads.
func (l *leadership) fence(config *rest.Config) *rest.Config {
	if l.alone {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return fence{l, next} })
	return config
}

type fence struct {
	*leadership
	next http.RoundTripper
}

func (f fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		if err := f.holds(); err != nil {
			return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
		}
	}
	return f.next.RoundTrip(req)
}

// deletes, whileLeading, writes and counts are functions that change the store without a request, and do it only while this server
// leads.
func (l *leadership) deletes(data func(context.Context, logicalcluster.Name) error) func(context.Context, logicalcluster.Name) error {
	do := whileLeading(l, func(ctx context.Context, cluster logicalcluster.Name) (struct{}, error) {
		return struct{}{}, data(ctx, cluster)
	})
	return func(ctx context.Context, cluster logicalcluster.Name) error {
		_, err := do(ctx, cluster)
		return err
	}
}

func whileLeading[T any](l *leadership, data func(context.Context, logicalcluster.Name) (T, error)) func(context.Context, logicalcluster.Name) (T, error) {
	return func(ctx context.Context, cluster logicalcluster.Name) (T, error) {
		if err := l.holds(); err != nil {
			var nothing T
			return nothing, fmt.Errorf("delete the data of logical cluster %q: %w", cluster, err)
		}
		return data(ctx, cluster)
	}
}

type writeTogether func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error)

func (l *leadership) writes(together writeTogether) writeTogether {
	return func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error) {
		if err := l.holds(); err != nil {
			return false, fmt.Errorf("write %d objects together: %w", len(objects), err)
		}
		return together(ctx, while, objects...)
	}
}

// counts are stores in which ResourceQuotas are counted only while this server leads.
func (l *leadership) counts(stores quota.Stores) quota.Stores { return fencedCounts{stores, l} }

type fencedCounts struct {
	quota.Stores
	leader *leadership
}

func (f fencedCounts) BeginCount(ctx context.Context, read *corev1.ResourceQuota, newLimits, hold bool) (int64, error) {
	if err := f.leader.holds(); err != nil {
		return 0, fmt.Errorf("begin to count for ResourceQuota %s/%s: %w", read.Namespace, read.Name, err)
	}
	return f.Stores.BeginCount(ctx, read, newLimits, hold)
}

func (f fencedCounts) UpdateQuotaStatus(ctx context.Context, read *corev1.ResourceQuota, begun int64) error {
	if err := f.leader.holds(); err != nil {
		return fmt.Errorf("write the status of ResourceQuota %s/%s: %w", read.Namespace, read.Name, err)
	}
	return f.Stores.UpdateQuotaStatus(ctx, read, begun)
}

// run works whenever this server leads, until ctx ends or the work fails: what worked in one term has ended before this server
// competes for the next.
func (l *leadership) run(ctx context.Context, work func(context.Context) error) error {
	if l.alone {
		if err := l.level(ctx); err != nil {
			return err
		}
		return work(ctx)
	}
	for ctx.Err() == nil {
		switch err := l.term(ctx, work); {
		case errors.Is(err, server.ErrLaterLevel):
			// An update goes on: its requests are answered until it is replaced, too.
			klog.FromContext(ctx).Error(err, "Runs no controllers any more, and serves on")
			<-ctx.Done()
		case err != nil:
			return err
		}
	}
	return nil
}

// term waits for the leadership and works with it until ctx ends, the work fails, or another server leads. The leadership is
// given back only after the work has ended.
func (l *leadership) term(ctx context.Context, work func(context.Context) error) error {
	logger := klog.FromContext(ctx).WithValues("lock", l.lock.Describe(), "identity", l.lock.Identity())
	locking := client.In(context.WithoutCancel(ctx), server.SystemAdminCluster)
	electing, stop := context.WithCancelCause(locking)
	defer stop(nil)
	working, end := context.WithCancel(ctx)
	defer end()
	var ours, taken atomic.Bool
	var lost time.Time // when taken; elected tells of it
	// It does not compete while its work ends: the right of a new term is not for what was decided in the old one.
	lose := func(why error) {
		lost = time.Now()
		l.renewed.Store(nil)
		stop(why)
		end()
	}
	lock := renewals{levelLock{electionLock{l.lock, func(holder string) {
		if holder != "" && holder != l.lock.Identity() && ours.Load() && !taken.Swap(true) {
			logger.Info("Another server runs the controllers, since this one could not renew its Lease in time: it stops its own, serves on, and waits for its turn", "holder", holder)
			lose(nil)
		}
	}}, func(ctx context.Context) error {
		err := l.level(ctx)
		if errors.Is(err, server.ErrLaterLevel) && !taken.Swap(true) {
			lose(err)
		}
		return err
	}}, &l.right}
	won := make(chan struct{}, 1)
	elected := make(chan error, 1)
	go func() {
		defer close(elected)
		elected <- elect(electing, lock, func() {
			if !ours.Swap(true) {
				won <- struct{}{}
			}
		})
	}()
	var err error
	select {
	case <-won:
		logger.Info("Runs the controllers")
		err = work(working)
	case err = <-elected: // it could not begin, or must not
	case <-ctx.Done():
	}
	stop(nil)
	if electErr := <-elected; err == nil {
		err = electErr
	}
	if taken.Load() && ours.Load() {
		logger.Info("Stopped the controllers", "took", time.Since(lost).Round(time.Millisecond))
	}
	l.renewed.Store(nil)
	release(locking, lock)
	return err
}

// elect competes until ctx ends, and says so whenever this server leads. It returns why, if ctx ended since this server must not. Upstream
// gives up when the Lease could not be renewed for a while; then it begins again: the Lease is still ours if nobody has taken it.
func elect(ctx context.Context, lock resourcelock.Interface, leads func()) error {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, Name: "controllers",
			LeaseDuration: replicasLeaseDuration, RenewDeadline: replicasRenewDeadline, RetryPeriod: replicasRetryPeriod,
			ReleaseOnCancel: false, // not before the work has ended
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads() },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("set up the election of who runs the controllers: %w", err)
		}
		elector.Run(ctx)
	}
	if why := context.Cause(ctx); errors.Is(why, server.ErrLaterLevel) {
		return why
	}
	return nil
}

// levelLock is a lock that is taken, or renewed, only once the installation is of the holder's level. That is looked at after the Lease was
// written: it is raised by who holds it, and what a later server raised it to when it held it is seen.
type levelLock struct {
	resourcelock.Interface
	level func(context.Context) error
}

func (l levelLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.Interface.Create(ctx, record); err != nil {
		return err
	}
	return l.look(ctx, record)
}

func (l levelLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.Interface.Update(ctx, record); err != nil {
		return err
	}
	return l.look(ctx, record)
}

func (l levelLock) look(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity != l.Identity() {
		return nil // given back
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return l.level(ctx)
}

// renewals is a lock, with what is written of it noted.
type renewals struct {
	resourcelock.Interface
	of *right
}

func (r renewals) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Create(ctx, record) })
}

func (r renewals) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Update(ctx, record) })
}

func (r renewals) note(record resourcelock.LeaderElectionRecord, write func() error) error {
	began := r.of.now()
	if err := write(); err != nil {
		return err
	}
	if record.HolderIdentity == r.Identity() {
		r.of.renewed.Store(&began)
	} else {
		r.of.renewed.Store(nil) // given back
	}
	return nil
}
