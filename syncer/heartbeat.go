package syncer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// beatEvery is the time between heartbeats.
	beatEvery = 10 * time.Second
	// leastBetween is the time between two heartbeats that closings of the gate ask for: what closes it may come often.
	leastBetween = 200 * time.Millisecond
	// beatTimeout bounds one heartbeat, both sides together.
	beatTimeout = 8 * time.Second
	// silence is how long a heartbeat or a physical cluster may be missing before it counts as lost: what Kubernetes
	// allows a Node.
	silence = 40 * time.Second

	// confirmRestored is ConfirmAnnotation's value that ends ObserveOnly.
	confirmRestored = "restored"
)

// verdict is what comparing the heartbeats of both sides says.
type verdict int

const (
	// unknown: neither side lost anything, and there is no twin yet that would say whether the SyncTarget was let in; or nobody looked.
	unknown verdict = iota
	// fine: neither side lost anything.
	fine
	// hubRestored: the mirror shows less than the physical cluster, so it is an older state.
	hubRestored
	// physicalRestored: the physical cluster shows less than it once confirmed, so it is an older state or another cluster.
	physicalRestored
	// notLetIn: neither side lost anything, but the SyncTarget was not let in to the physical cluster that answers (isLetIn).
	notLetIn
)

func (v verdict) String() string {
	switch v {
	case fine:
		return "Fine"
	case hubRestored:
		return "HubRestored"
	case physicalRestored:
		return "PhysicalRestored"
	case notLetIn:
		return "NotLetIn"
	}
	return "Unknown"
}

// counters are the heartbeats as both sides show them; 0 where there is none.
type counters struct {
	// hub is the mirror's counter. It is raised before physical, so it is never the smaller one.
	hub int64
	// written is what the mirror recorded of physical after writing it.
	written int64
	// physical is the physical cluster's counter.
	physical int64
}

// compare judges counters that were read physical first, then hub.
func compare(c counters) verdict {
	switch {
	case c.hub < c.physical:
		return hubRestored
	case c.physical < c.written:
		return physicalRestored
	}
	return fine
}

// next returns the mirror's record for the coming beat. A confirmed restore starts above both sides.
func next(c counters, v verdict) (counter, written int64) {
	if v != fine {
		return max(c.hub, c.physical) + 1, 0
	}
	return c.hub + 1, c.physical
}

func count(lease *coordinationv1.Lease, annotation string) (int64, error) {
	text, ok := lease.Annotations[annotation]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s of lease %s/%s is %q, want a count", annotation, lease.Namespace, lease.Name, text)
	}
	return n, nil
}

// errPhysical marks errors of the physical cluster's side of a heartbeat.
var errPhysical = errors.New("physical cluster")

// beat renews the mirror's Lease, compares the counters, and raises them unless the SyncTarget is not let in, or one side turns
// out to be restored and nobody confirmed that yet. The Lease is renewed in any case: it says that the syncer lives.
func (s *Syncer) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	begun := s.gate.begin()

	v, c, hub, physical, physicalErr, err := s.look(ctx)
	if err == nil && physicalErr == nil && v != fine && s.known.contradicts(hub, physical, true) == "" {
		// Another syncer of the same target, the one we replace, may have raised a counter between our two reads.
		v, c, hub, physical, physicalErr, err = s.look(ctx)
	}
	if err != nil {
		return err
	}
	if other := s.known.contradicts(hub, physical, physicalErr == nil); other != "" {
		// The gate stays closed: nobody may act on what the informers show. What the restart would forget is written down.
		if err := s.renew(ctx, hub, c.hub, c.written, physicalErr == nil); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", errOtherHistory, other)
	}
	if physicalErr != nil {
		// Alive, but nothing to compare with. Raised now, the counter of a hub that was restored would catch up.
		s.gate.close()
		return errors.Join(s.renew(ctx, hub, c.hub, c.written, false), physicalErr)
	}

	twin := s.twinObject()
	welcome := isLetIn(twin, s.clusterUID())
	switch {
	case v == fine && twin == nil:
		v = unknown
	case v == fine && !welcome:
		v = notLetIn
	}
	confirmed := v != fine && welcome && confirms(twin, v) && asks(hub, c)
	if v != fine && !confirmed {
		if v != notLetIn {
			ask(hub, twin, c)
		}
		switch changed := s.gate.open(begun, v); {
		case !changed || v == unknown:
		case v == notLetIn:
			klog.FromContext(ctx).Info("Not let in to this physical cluster yet, nothing is written down")
		default:
			klog.FromContext(ctx).Info("One side was restored from an older state, nothing is written down until an administrator confirms",
				"verdict", v.String(), "hub", c.hub, "written", c.written, "physical", c.physical)
		}
		s.answered()
		s.known.setPhysical(physical)
		return s.renew(ctx, hub, c.hub, c.written, true)
	}

	delete(hub.Annotations, workloadv1alpha1.HeartbeatAskedAnnotation)
	counter, written := next(c, v)
	if err := s.renew(ctx, hub, counter, written, true); err != nil {
		return err
	}
	if err := s.raise(ctx, physical, counter); err != nil {
		s.gate.close()
		return fmt.Errorf("%w: %w", errPhysical, err)
	}
	s.answered()
	if s.gate.open(begun, fine) {
		klog.FromContext(ctx).Info("Heartbeats agree, writing to the physical cluster", "counter", counter, "confirmed", confirmed)
		s.enqueueAll()
	}
	return nil
}

// asks says whether an administrator was asked to confirm at these counters. The physical cluster's does not change until he has,
// and is past that ever after: a snapshot of the hub that was taken meanwhile, with his answer, does not confirm its own restore.
func asks(hub *coordinationv1.Lease, c counters) bool {
	return hub.Annotations[workloadv1alpha1.HeartbeatAskedAnnotation] == strconv.FormatInt(c.physical, 10)
}

// ask writes into the mirror's Lease that an administrator is asked, once no answer to an earlier question is in the way. The
// Manager takes that away.
func ask(hub *coordinationv1.Lease, twin *workloadv1alpha1.SyncTarget, c counters) {
	if twin == nil || asks(hub, c) {
		return
	}
	asked := strconv.FormatInt(c.physical, 10)
	if twin.Annotations[workloadv1alpha1.ConfirmAnnotation] == confirmRestored {
		asked = workloadv1alpha1.HeartbeatAskedNothing
	}
	metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatAskedAnnotation, asked)
}

// asksNothing says whether a mirror's Lease, nil for none, says that a confirmation which is there answers nothing.
func asksNothing(hub *coordinationv1.Lease) bool {
	return hub != nil && hub.Annotations[workloadv1alpha1.HeartbeatAskedAnnotation] == workloadv1alpha1.HeartbeatAskedNothing
}

// look reads both Leases, the physical cluster's first, and who that is. A Lease that does not exist is returned without UID.
func (s *Syncer) look(ctx context.Context) (v verdict, c counters, hub, physical *coordinationv1.Lease, physicalErr, err error) {
	// A physical cluster that swallows packets must not keep the mirror's Lease from being renewed.
	half, cancel := context.WithTimeout(ctx, beatTimeout/2)
	defer cancel()
	physical, physicalErr = lease(half, s.physical.kube, heartbeatBelow(s.config.UID))
	if physicalErr == nil {
		c.physical, physicalErr = count(physical, workloadv1alpha1.HeartbeatCounterAnnotation)
	}
	if physicalErr == nil {
		physicalErr = s.identify(half)
	}
	if physicalErr != nil {
		physicalErr = fmt.Errorf("%w: %w", errPhysical, physicalErr)
	}
	if hub, err = lease(ctx, s.mirror.kube, workloadv1alpha1.HeartbeatName); err != nil {
		return v, c, nil, nil, nil, fmt.Errorf("read the heartbeat in the mirror: %w", err)
	}
	if err := s.recall(hub); err != nil {
		klog.FromContext(ctx).Info("Cannot tell when the physical cluster answered before our start", "err", err)
	}
	if c.hub, err = count(hub, workloadv1alpha1.HeartbeatCounterAnnotation); err != nil {
		return v, c, nil, nil, nil, err
	}
	if c.written, err = count(hub, workloadv1alpha1.HeartbeatWrittenAnnotation); err != nil {
		return v, c, nil, nil, nil, err
	}
	c.written = max(c.written, s.known.raised())
	return compare(c), c, hub, physical, physicalErr, nil
}

// heartbeatBelow is the name of the Lease in the physical cluster: several Atolls may sync it.
func heartbeatBelow(syncTarget string) string { return "heartbeat-" + syncTarget }

func lease(ctx context.Context, kube kube, name string) (*coordinationv1.Lease, error) {
	l, err := kube.Leases(workloadv1alpha1.HeartbeatNamespace).Get(ctx, name, metav1.GetOptions{})
	if gone(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: workloadv1alpha1.HeartbeatNamespace, Name: name}}, nil
	}
	return l, err
}

func (s *Syncer) renew(ctx context.Context, hub *coordinationv1.Lease, counter, written int64, answered bool) error {
	metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatCounterAnnotation, strconv.FormatInt(counter, 10))
	metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatWrittenAnnotation, strconv.FormatInt(written, 10))
	if at, ever := s.lastAnswer(); ever {
		metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatAnsweredAnnotation, at.UTC().Format(time.RFC3339))
		metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatAddressAnnotation, s.config.Physical.Host)
	}
	delete(hub.Annotations, workloadv1alpha1.HeartbeatUnansweredAnnotation)
	if !answered {
		metav1.SetMetaDataAnnotation(&hub.ObjectMeta, workloadv1alpha1.HeartbeatUnansweredAnnotation, "true")
	}
	hub.Spec.HolderIdentity = ptr.To(s.config.Name)
	hub.Spec.LeaseDurationSeconds = ptr.To(int32(silence / time.Second))
	hub.Spec.RenewTime = &metav1.MicroTime{Time: s.config.Clock.Now()}
	stored, err := store(ctx, s.mirror.kube, hub, nil)
	if err != nil {
		return fmt.Errorf("renew the heartbeat in the mirror: %w", err)
	}
	s.known.setHub(stored)
	return nil
}

func (s *Syncer) raise(ctx context.Context, physical *coordinationv1.Lease, counter int64) error {
	ours := map[string]string{workloadv1alpha1.SyncTargetLabel: s.config.UID}
	metav1.SetMetaDataAnnotation(&physical.ObjectMeta, workloadv1alpha1.HeartbeatCounterAnnotation, strconv.FormatInt(counter, 10))
	metav1.SetMetaDataLabel(&physical.ObjectMeta, workloadv1alpha1.SyncTargetLabel, s.config.UID)
	physical.Spec.HolderIdentity = ptr.To(s.config.Name)
	physical.Spec.RenewTime = &metav1.MicroTime{Time: s.config.Clock.Now()}
	stored, err := store(ctx, s.physical.kube, physical, ours)
	if err != nil {
		return fmt.Errorf("raise the heartbeat: %w", err)
	}
	s.known.setPhysical(stored)
	return nil
}

// store creates or updates a Lease, and its namespace if that is missing. An update carries the resource version that
// was read, so that of two syncers of one target the late one gets a conflict.
func store(ctx context.Context, kube kube, l *coordinationv1.Lease, namespaceLabels map[string]string) (*coordinationv1.Lease, error) {
	leases := kube.Leases(l.Namespace)
	if l.UID != "" {
		return leases.Update(ctx, l, metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
	}
	create := metav1.CreateOptions{FieldManager: workloadv1alpha1.FieldManager}
	stored, err := leases.Create(ctx, l, create)
	if !apierrors.IsNotFound(err) {
		return stored, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.Namespace, Labels: namespaceLabels}}
	if _, err := kube.Namespaces().Create(ctx, namespace, create); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", l.Namespace, err)
	}
	return leases.Create(ctx, l, create)
}

// heartbeat beats every beatEvery, at once when the gate closes, and publishes what the beats found. It calls looked after
// the first beat that reached the hub, and returns errOtherHistory, or nil when ctx ends.
func (s *Syncer) heartbeat(ctx context.Context, looked func()) error {
	logger := klog.FromContext(ctx)
	ticker := s.config.Clock.NewTicker(beatEvery)
	defer ticker.Stop()
	var last string
	for {
		rested := time.After(leastBetween)
		err := s.beat(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errOtherHistory) {
			return err
		}
		if s.known.hasHub() {
			looked()
		}
		var now string
		if err != nil && !apierrors.IsConflict(err) {
			now = rootCause(err)
			s.failed(err)
		}
		if now != last {
			if last = now; now != "" {
				logger.Error(err, "Heartbeat failed, will try again")
			} else {
				logger.Info("Heartbeat is back")
				s.retry()
			}
		}
		if err := s.publish(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
			logger.V(2).Info("Could not publish the state of the physical cluster, will try again", "err", err)
		}

		// After a failure the closed gate waits for a short while only: both sides may be back any moment.
		stale := s.gate.stale
		var soon <-chan time.Time
		if err != nil {
			stale, soon = nil, s.config.Clock.After(time.Second)
		}
		select {
		case <-ticker.C():
		case <-soon:
		case <-stale:
		case <-s.kick:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-rested:
		case <-ctx.Done():
			return nil
		}
	}
}
