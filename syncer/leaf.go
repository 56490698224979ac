package syncer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// reconcile makes one object right on both sides.
func (s *Syncer) reconcile(ctx context.Context, k key) (time.Duration, error) {
	if k.resource == podsGVR {
		return s.reconcilePod(ctx, k)
	}
	if s.isDenied(k.resource) {
		return 0, nil // what is asked for is not known
	}
	leaf, down := get(s.mirror.informers[k.resource], k), get(s.physical.informers[k.resource], k)
	s.setOrphan(k, s.isOrphan(k, leaf, down))
	if leaf == nil {
		s.backoff.Forget(k)
		s.waiting.remove(k)
		s.writes.forget(k)
		s.unshown.forget(k)
		s.unbounded.remove(k)
		s.drifts.forget(k)
		return 0, nil // absence deletes nothing
	}

	var o outcome
	var err error
	if leaf.GetDeletionTimestamp() != nil {
		o, err = s.bury(ctx, k, leaf)
	} else if down, err = s.notBefore(ctx, k, down); err != nil {
		o.unknown = true
	} else if k.resource == namespacesGVR {
		o, err = s.applyNamespace(ctx, k, leaf, down)
	} else {
		o, err = s.applyLeaf(ctx, k, leaf, down)
	}
	if errors.Is(err, errLeafChanged) {
		return 0, nil // its event has put the key back
	}
	var ofMirror *mirrorError
	if errors.As(err, &ofMirror) || errors.Is(err, errHeldBack) {
		s.waiting.add(k)
		return 0, err
	}
	if err != nil {
		if o.refused = s.refusalIn(cmp.Or(k.namespace, k.name), err); o.refused == nil {
			return 0, err
		}
		o.unknown = o.unknown || o.refused.reason == refusedUnreachable || apierrors.IsUnexpectedServerError(err)
		if !o.unknown && o.down == nil {
			o.down = down
		}
	}

	var over time.Duration
	if o.unshown, over = s.unshown.why(k, toldUnshown(leaf), s.config.Clock.Now()); over > 0 && (o.again == 0 || over < o.again) {
		o.again = over
	}
	switch wait, err := s.tell(ctx, k, leaf, o); {
	case err != nil:
		s.waiting.add(k)
		return 0, err
	case wait > 0 && (o.again == 0 || wait < o.again):
		return wait, nil
	case o.refused == nil:
		s.backoff.Forget(k)
		s.waiting.remove(k)
		return o.again, nil
	case o.unknown:
		s.waiting.add(k)
	default:
		s.waiting.remove(k)
	}
	return s.backoff.When(k), nil
}

// isOrphan says whether down is ours and no leaf asks for it. The heartbeat's namespace is ours too, but nobody's leaf.
func (s *Syncer) isOrphan(k key, leaf, down *unstructured.Unstructured) bool {
	return leaf == nil && down != nil && down.GetLabels()[workloadv1alpha1.WorkspaceLabel] != "" && !s.isReserved(k)
}

// errLeafChanged says that what was decided is outdated, and will be decided again.
var errLeafChanged = errors.New("the leaf changed meanwhile")

// errUnchecked says that a write could not go down since the heartbeats could not be compared.
var errUnchecked = errors.New("the heartbeats are not compared yet")

// mayWrite waits until the heartbeats were compared, and then asks the hub whether leaf is what it was. It says no where
// one side was restored, and where the SyncTarget is not let in.
func (s *Syncer) mayWrite(ctx context.Context, k key, leaf *unstructured.Unstructured) (bool, error) {
	patience := gatePatience
	if s.trouble() != "" {
		patience = 0 // they cannot be
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, ok := s.gate.pass(wait)
	if !ok {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if trouble := s.trouble(); trouble != "" {
			return false, &refusal{refusedUnreachable, "the physical cluster does not answer: " + trouble}
		}
		return false, errUnchecked
	}
	now, err := s.leafNow(ctx, k)
	if err != nil {
		return false, err
	}
	if now == nil || now.GetUID() != leaf.GetUID() || now.GetResourceVersion() != leaf.GetResourceVersion() {
		return false, errLeafChanged
	}
	return v == fine, nil
}

// leafNow asks the hub for a leaf, nil if there is none. Our watch may be behind that of another syncer in whose place we
// believe to be, as after SIGSTOP: what looks as if it were missing below may have been deleted by it. It is a list, which
// every hub allows a syncer.
func (s *Syncer) leafNow(ctx context.Context, k key) (*unstructured.Unstructured, error) {
	list, err := s.mirror.dynamic.Resource(k.resource).Namespace(k.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String(),
	})
	if err != nil {
		return nil, &mirrorError{fmt.Errorf("read the leaf of %s: %w", k, err)}
	}
	for i := range list.Items {
		if list.Items[i].GetName() == k.name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// applyLeaf makes the physical cluster have what leaf says. The outcome's down is what it has then.
func (s *Syncer) applyLeaf(ctx context.Context, k key, leaf, down *unstructured.Unstructured) (outcome, error) {
	if !s.physical.informers[k.resource].HasSynced() {
		return s.unseen(k.resource), nil
	}
	if s.isReserved(k) {
		return outcome{down: nil}, nameConflict("%s is a name that is reserved there, for policies that keep tenants apart and for tokens of pods", k.name)
	}
	if wait, err := s.namespaceReady(leaf.GetNamespace(), leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel]); wait || err != nil {
		return outcome{down: down, undecided: wait}, err
	}
	if down != nil && down.GetLabels()[workloadv1alpha1.WorkspaceLabel] != leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel] {
		return outcome{}, nameConflict("%s belongs to another workspace", k)
	}
	if by := takenOver(k, down); by != nil {
		return outcome{down: down}, &refusal{"TakenOver", fmt.Sprintf("%s %s there has taken it over, whose selector selects what has no labels: give that one a selector that names a label of its pods", by.Kind, by.Name)}
	}
	want, err := s.rendered(k, leaf, down)
	if err != nil {
		return outcome{down: down}, err
	}
	switch gone, err := isGone(k, leaf, down); {
	case err != nil:
		return outcome{down: down, undecided: true}, err
	case gone:
		return s.confirmGone(ctx, k, leaf)
	case toApply(want, down) == leaveIt:
		s.drifts.asWanted(k, leaf.GetUID(), want, s.config.Clock.Now())
		return outcome{down: down}, nil
	}
	switch wait, leave := s.drifts.wait(k, leaf.GetUID(), want, down, s.config.Clock.Now()); {
	case leave:
		return outcome{down: down}, nil
	case wait > 0:
		return outcome{down: down, undecided: true, again: wait}, nil
	}
	if k.resource == networkPoliciesGVR {
		if err := s.roomFor(leaf); err != nil {
			return outcome{down: down}, err
		}
	}

	if s.resources[k.resource].MakesPods() && makesPods(want, down) {
		if wait, err := s.areBounded(ctx, k); wait > 0 || err != nil {
			return outcome{down: down, undecided: true, again: wait}, err
		}
	}

	// Before the first effect outside, what undoes it.
	if done, err := s.ensureFinalizer(ctx, k, leaf); !done {
		return outcome{down: down, undecided: true}, err
	}
	if err := s.ensureTokens(ctx, k.resource, leaf); errors.Is(err, errUnchecked) || errors.Is(err, errNoNamespaceYet) {
		return outcome{down: down, undecided: true, again: time.Second}, nil
	} else if err != nil {
		return outcome{down: down}, err
	}
	switch ok, err := s.mayWrite(ctx, k, leaf); {
	case errors.Is(err, errUnchecked):
		return outcome{down: down, undecided: true, again: time.Second}, nil
	case err != nil || !ok:
		return outcome{down: down, undecided: true}, err
	}

	s.writes.add(k, "")
	was, applied, err := s.put(ctx, k, down, want)
	if err != nil {
		return outcome{down: down}, err
	}
	s.writes.add(k, applied.GetResourceVersion())
	s.pace.Wrote(k, "") // its status follows
	if s.drifts.wrote(written{k, leaf, want, was, applied}, s.config.Name, s.config.Clock.Now()) {
		s.eventQueue.Add(k)
	}
	klog.FromContext(ctx).V(2).Info("Applied", "object", k.String())
	return outcome{down: applied}, nil
}

// takenOver returns what controls a ReplicaSet, or a ReplicationController, in the physical cluster, nil if nothing does. A Deployment there takes over
// those that it selects, although none of their labels go down, and scales them: to write our replicas again and again would be a fight.
func takenOver(k key, down *unstructured.Unstructured) *metav1.OwnerReference {
	if kind, _ := kinds.ByResource(k.resource.GroupResource()); !kind.Unlabelled || down == nil {
		return nil
	}
	return metav1.GetControllerOf(down)
}

// isGone says that a leaf has begun below what is done once, and that it is not there any more.
func isGone(k key, leaf, down *unstructured.Unstructured) (bool, error) {
	kind, ok := kinds.ByResource(k.resource.GroupResource())
	if !ok || kind.Begun == nil || down != nil {
		return false, nil
	}
	typed := kind.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(leaf.Object, typed); err != nil {
		return false, fmt.Errorf("read leaf %s: %w", k, err)
	}
	return kind.Begun(typed), nil
}

// confirmGone reads once more whether something is gone that is not made again. It is not certain where one side was restored.
func (s *Syncer) confirmGone(ctx context.Context, k key, leaf *unstructured.Unstructured) (outcome, error) {
	switch ok, err := s.mayWrite(ctx, k, leaf); {
	case errors.Is(err, errUnchecked):
		return outcome{undecided: true, unknown: true, again: time.Second}, nil
	case err != nil || !ok:
		return outcome{undecided: true, unknown: true}, err
	}
	switch live, err := s.physical.dynamic.Resource(k.resource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{}); {
	case err == nil && s.isPodClaim(k, live):
		return outcome{unknown: true}, &refusal{workloadv1alpha1.RefusedGone, "it was deleted there after it had got a volume. The claim of its name that is there now is another one, with another volume"}
	case err == nil:
		return outcome{undecided: true, unknown: true, again: time.Second}, nil
	case !gone(err):
		return outcome{undecided: true, unknown: true}, fmt.Errorf("read %s: %w", k, err)
	}
	if k.resource == claimsGVR {
		return outcome{unknown: true}, &refusal{workloadv1alpha1.RefusedGone, "it was deleted there after it had got a volume, and is not made again, empty. Delete it, and apply it again, if that is wanted"}
	}
	return outcome{unknown: true}, &refusal{workloadv1alpha1.RefusedGone, "it was deleted there after it had begun, and is not begun again"}
}

// unseen is the outcome while the physical cluster's objects of a resource are not known: it is not reached, does not
// serve the resource or does not let us list it, or the first list is on its way.
func (s *Syncer) unseen(gvr schema.GroupVersionResource) outcome {
	o := outcome{unknown: true, undecided: true, again: time.Second}
	if trouble := s.trouble(); trouble != "" {
		o.refused = &refusal{refusedUnreachable, "the physical cluster does not answer: " + trouble}
	} else if err := s.unlisted(gvr); err != nil {
		o.refused = refusalOf(err)
	}
	o.undecided = o.refused == nil
	return o
}

// namespaceReady says whether what is for a workspace may be written into a namespace: it has to be ours, for that workspace,
// and closed to other tenants. While it merely is not there yet, wait is true: its event brings leaves back.
func (s *Syncer) namespaceReady(namespace, workspace string) (wait bool, err error) {
	k := key{resource: namespacesGVR, name: namespace}
	if parent := get(s.mirror.informers[namespacesGVR], k); parent != nil {
		if r := workloadv1alpha1.RefusalIn(parent, workloadv1alpha1.RefusedAnnotation); r != nil {
			return false, &refusal{r.Reason, "namespace " + k.name + ": " + r.Message}
		}
	}
	ns := get(s.physical.informers[namespacesGVR], k)
	policy := get(s.physical.informers[networkPoliciesGVR], key{networkPoliciesGVR, k.name, isolationPolicy})
	if ns == nil || ns.GetDeletionTimestamp() != nil || policy == nil {
		return true, nil
	}
	if ns.GetLabels()[workloadv1alpha1.WorkspaceLabel] != workspace {
		return false, nameConflict("namespace %s belongs to another workspace", k.name)
	}
	return false, nil
}

// apply writes want downstream, if the name is free or a fresh read shows that it is ours. A new object is created, and only
// one that is ours is applied to: an apply would merge into what somebody else makes at the same moment. seen is what
// there seems to be; where that is nothing, the attempt to create it is the read.
func (s *Syncer) apply(ctx context.Context, k key, seen, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	_, applied, err := s.put(ctx, k, seen, want)
	return applied, err
}

// put is apply that also returns what was there before, nil if nothing was.
func (s *Syncer) put(ctx context.Context, k key, seen, want *unstructured.Unstructured) (was, applied *unstructured.Unstructured, err error) {
	target := s.physical.dynamic.Resource(k.resource).Namespace(k.namespace)
	create := func() (*unstructured.Unstructured, error) {
		return target.Create(ctx, want, metav1.CreateOptions{
			FieldManager: workloadv1alpha1.FieldManager, FieldValidation: metav1.FieldValidationStrict,
		})
	}
	var refused error
	if seen == nil {
		created, err := create()
		var status apierrors.APIStatus
		if err == nil || !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError {
			return nil, created, err
		}
		refused = err // perhaps since it is there, whatever the reason is: admission is asked before
	}
	live, err := target.Get(ctx, k.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && refused != nil:
		return nil, nil, refused
	case apierrors.IsNotFound(err):
		// If somebody was faster, the next try sees what he made.
		created, err := create()
		return nil, created, err
	case err != nil:
		return nil, nil, fmt.Errorf("read %s: %w", k, err)
	case s.isPodClaim(k, live):
		// The controller of StatefulSets has made it for what is ours: it was faster, or an earlier version left the claims to it.
	case !owned(live, types.UID(s.config.UID)):
		return nil, nil, nameConflict("%s exists and %s", k, ownerOf(live))
	case live.GetLabels()[workloadv1alpha1.WorkspaceLabel] != want.GetLabels()[workloadv1alpha1.WorkspaceLabel]:
		return nil, nil, nameConflict("%s belongs to another workspace", k)
	}
	// What the create owned becomes what the apply owns, so that a field taken away upstream goes downstream too.
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(workloadv1alpha1.FieldManager), workloadv1alpha1.FieldManager)
	if err != nil {
		return nil, nil, fmt.Errorf("take over the fields of %s: %w", k, err)
	}
	if len(patch) > 0 {
		if _, err := target.Patch(ctx, k.name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, nil, fmt.Errorf("take over the fields of %s: %w", k, err)
		}
	}
	// An object that takes its place meanwhile has another UID, and is not ours.
	want = want.DeepCopy()
	want.SetUID(live.GetUID())
	if k.resource == claimsGVR {
		if err := keepClaim(want, live); err != nil {
			return nil, nil, err
		}
	}
	data, err := json.Marshal(want)
	if err != nil {
		return nil, nil, fmt.Errorf("write %s as JSON: %w", k, err)
	}
	applied, err = target.Patch(ctx, k.name, types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager: workloadv1alpha1.FieldManager,
		Force:        ptr.To(true),
		// Fields that the physical cluster does not know are errors, not dropped.
		FieldValidation: metav1.FieldValidationStrict,
	})
	return live, applied, err
}

// bury carries out a tombstone: it deletes what is downstream of the leaf, and lets the leaf go once that is gone.
func (s *Syncer) bury(ctx context.Context, k key, leaf *unstructured.Unstructured) (outcome, error) {
	if !slices.Contains(leaf.GetFinalizers(), workloadv1alpha1.SyncerFinalizer) {
		return outcome{unknown: true, undecided: true}, nil
	}
	if k.resource == namespacesGVR && s.hasLeaves(k.name) {
		return outcome{unknown: true, undecided: true}, nil // the last of them to go brings us back
	}
	target := s.physical.dynamic.Resource(k.resource).Namespace(k.namespace)
	live, err := target.Get(ctx, k.name, metav1.GetOptions{})
	if err != nil && !gone(err) {
		return outcome{unknown: true}, fmt.Errorf("read %s: %w", k, err)
	}
	if err != nil {
		live = nil
	}
	kept := ""
	// Its event brings us back when it is gone; the time is for an event that was missed.
	pending := outcome{down: live, again: silence}
	done := toBury(leaf, live, types.UID(s.config.UID)) == leaveIt
	if !done {
		if told, err := s.ensureTold(ctx, k, leaf, live); !told {
			return outcome{down: live, undecided: true}, err
		}
	}
	if live == nil && runsOnce(k) {
		switch left, err := s.podsLeft(ctx, k); {
		case err != nil:
			return outcome{unknown: true}, fmt.Errorf("look for pods that %s left: %w", k, err)
		case left:
			return outcome{unknown: true, undecided: true, again: time.Second}, nil
		case s.showsPodsOf(k):
			return outcome{unknown: true, undecided: true, again: silence}, nil // as pending: the last of them to go brings us back
		}
	}
	switch {
	case done:
		pending = outcome{unknown: true, undecided: true}
	case live.GetDeletionTimestamp() != nil:
		return pending, nil
	case k.resource == namespacesGVR:
		// A namespace takes with it what is in it.
		contents, err := s.inside(ctx, k.name)
		if err != nil {
			return outcome{down: live}, fmt.Errorf("look into namespace %s before it is deleted: %w", k.name, err)
		}
		// The mirror's does not wait for people who may never come: it could not be asked for again meanwhile.
		if len(contents) > 0 {
			kept, done = some(contents), true
			pending = outcome{unknown: true, undecided: true}
		}
	}
	// To let a leaf go counts as a write: in a physical cluster that was restored, or is another one, nothing is gone for sure.
	switch ok, err := s.mayWrite(ctx, k, leaf); {
	case errors.Is(err, errUnchecked):
		pending.again = time.Second
		return pending, nil
	case err != nil || !ok:
		return pending, err
	}
	if done {
		if k.resource == namespacesGVR {
			s.keep(k.name, kept)
		}
		if kept != "" {
			klog.FromContext(ctx).Info("Namespace is left in the physical cluster, objects that nothing asks for are in it", "namespace", k.name, "objects", kept)
		}
		return pending, s.release(ctx, k, leaf)
	}
	if k.resource == networkPoliciesGVR { // first of all, who it let in alone is let in by default again
		write, remove, err := s.floorOf(k.namespace, leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel])
		if err == nil {
			err = s.layFloor(ctx, write, remove)
		}
		if err != nil {
			return outcome{down: live}, err
		}
	}
	err = target.Delete(ctx, k.name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: ptr.To(live.GetUID())},
		PropagationPolicy: ptr.To(propagation(k, leaf)),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return outcome{down: live}, fmt.Errorf("delete %s: %w", k, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted for a tombstone", "object", k.String())
	pending.again = beatEvery
	return pending, nil
}

// runsOnce says whether objects of a kind run in one cluster at a time, so that another waits until nothing of them is left here.
func runsOnce(k key) bool {
	kind, ok := kinds.ByResource(k.resource.GroupResource())
	return ok && kind.Goes == kinds.Single
}

// podsLeft says whether pods run of what is not there any more: somebody in the physical cluster deleted it without waiting for them.
func (s *Syncer) podsLeft(ctx context.Context, k key) (left bool, err error) {
	kind, _ := kinds.ByResource(k.resource.GroupResource())
	c := &claim{room: s.room}
	defer c.free()
	err = s.listMetadata(ctx, c, corev1.SchemeGroupVersion.WithResource("pods"), k.namespace, func(pod *unstructured.Unstructured) error {
		owner := metav1.GetControllerOfNoCopy(pod)
		left = left || owner != nil && owner.Kind == kind.GVK.Kind && owner.APIVersion == kind.GVK.GroupVersion().String() && owner.Name == k.name
		return nil
	})
	return left, err
}

// gone says whether an API server said that an object does not exist. Somebody before it may answer 404 too, for instance
// a proxy that has lost its way: that is no proof of anything.
func gone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// propagation is said for each leaf: of some kinds Kubernetes would keep the pods else. What makes pods goes after them, whatever the leaf was deleted
// with, so that a leaf that is gone means that nothing of it runs. Of all else it is what that was.
func propagation(k key, leaf *unstructured.Unstructured) metav1.DeletionPropagation {
	finalizers := leaf.GetFinalizers()
	switch {
	case kinds.MakesPods(k.resource.GroupResource()), slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	}
	return metav1.DeletePropagationBackground
}

func (s *Syncer) hasLeaves(namespace string) bool {
	for gvr := range s.resources {
		names, _ := s.mirror.informers[gvr].IndexKeys(cache.NamespaceIndex, namespace)
		if len(names) > 0 {
			return true
		}
	}
	return false
}

// release removes our finalizer, and those of the garbage collector, which a mirror does not run: the one of the
// physical cluster did its work.
func (s *Syncer) release(ctx context.Context, k key, leaf *unstructured.Unstructured) error {
	kept := slices.DeleteFunc(leaf.GetFinalizers(), func(f string) bool {
		return f == workloadv1alpha1.SyncerFinalizer || f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if _, err := s.patchMeta(ctx, k, leaf, map[string]any{"finalizers": kept}); err != nil {
		return &mirrorError{fmt.Errorf("release %s: %w", k, err)}
	}
	return nil
}

// ensureFinalizer says whether leaf has our finalizer; if not, it adds it, and the leaf's event brings us back.
func (s *Syncer) ensureFinalizer(ctx context.Context, k key, leaf *unstructured.Unstructured) (bool, error) {
	if slices.Contains(leaf.GetFinalizers(), workloadv1alpha1.SyncerFinalizer) {
		return true, nil
	}
	_, err := s.patchMeta(ctx, k, leaf, map[string]any{"finalizers": append(leaf.GetFinalizers(), workloadv1alpha1.SyncerFinalizer)})
	if err != nil {
		return false, &mirrorError{fmt.Errorf("add a finalizer to %s: %w", k, err)}
	}
	return false, errLeafChanged
}

// ensureTold says whether the tombstone of what is done once says that it was applied: when it is gone here, nothing else tells that it may have
// begun. If not, the tombstone says so now, and its event brings us back. It is the annotation alone: a status that the hub does not take
// would keep the tombstone for ever.
func (s *Syncer) ensureTold(ctx context.Context, k key, leaf, live *unstructured.Unstructured) (bool, error) {
	kind, _ := kinds.ByResource(k.resource.GroupResource())
	applied := live.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]
	if kind.Begun == nil || applied == "" || leaf.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != "" {
		return true, nil
	}
	_, err := s.patchMeta(ctx, k, leaf, map[string]any{"annotations": map[string]string{workloadv1alpha1.AppliedAnnotation: applied}})
	if err != nil {
		return false, &mirrorError{fmt.Errorf("say of tombstone %s that it was applied: %w", k, err)}
	}
	return false, errLeafChanged
}

// mirrorError is an error of the mirror: no refusal of the physical cluster.
type mirrorError struct{ error }

func (e *mirrorError) Unwrap() error { return e.error }

// patchMeta merges meta into a leaf's metadata, if it still is the one that was read. A leaf that is gone is no error.
func (s *Syncer) patchMeta(ctx context.Context, k key, leaf *unstructured.Unstructured, meta map[string]any) (*unstructured.Unstructured, error) {
	meta["resourceVersion"] = leaf.GetResourceVersion()
	data, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, err
	}
	now, err := s.mirror.dynamic.Resource(k.resource).Namespace(k.namespace).Patch(ctx, k.name, types.MergePatchType, data,
		metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager})
	if apierrors.IsNotFound(err) {
		return leaf, nil
	}
	return now, err
}

// tell writes the outcome to the leaf, in one request, if it differs from what the leaf says, or returns how long that waits
// for more to tell.
func (s *Syncer) tell(ctx context.Context, k key, leaf *unstructured.Unstructured, o outcome) (wait time.Duration, err error) {
	hasStatus := s.resources[k.resource].HasStatus
	want, changed, err := report(leaf, o, hasStatus)
	if err != nil || !changed {
		return 0, err
	}
	most, err := mayWait(leaf, want)
	if err != nil {
		return 0, err
	}
	if wait := s.pace.Wait(k, leaf.GetResourceVersion(), most); wait > 0 {
		return wait, nil
	}
	if hasStatus {
		// Through /status annotations too: on the object itself they would raise a Deployment's generation.
		update := func() (*unstructured.Unstructured, error) {
			return s.mirror.dynamic.Resource(k.resource).Namespace(k.namespace).UpdateStatus(ctx, want,
				metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
		}
		told, err := update()
		if apierrors.IsForbidden(err) && keepUnshown(want, leaf) {
			// A hub of an earlier version does not know the annotation, and takes nothing that changes it: the status goes without.
			told, err = update()
		}
		leaf = told
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("write the status of %s: %w", k, err)
		}
		s.pace.Wrote(k, leaf.GetResourceVersion())
		if apiequality.Semantic.DeepEqual(leaf.GetAnnotations(), want.GetAnnotations()) {
			return 0, nil
		}
	}
	// Kinds without status, and those whose /status takes no metadata.
	annotations := map[string]any{}
	for _, a := range workloadv1alpha1.SyncerAnnotations {
		annotations[a] = nil
		if value, ok := want.GetAnnotations()[a]; ok {
			annotations[a] = value
		}
	}
	leaf, err = s.patchMeta(ctx, k, leaf, map[string]any{"annotations": annotations})
	if err != nil {
		return 0, fmt.Errorf("annotate %s: %w", k, err)
	}
	s.pace.Wrote(k, leaf.GetResourceVersion())
	return 0, nil
}
