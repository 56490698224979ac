package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

var (
	podsGVR         = corev1.SchemeGroupVersion.WithResource("pods")
	deploymentsGVR  = appsv1.SchemeGroupVersion.WithResource("deployments")
	replicaSetsGVR  = appsv1.SchemeGroupVersion.WithResource("replicasets")
	statefulSetsGVR = appsv1.SchemeGroupVersion.WithResource("statefulsets")
)

// Pods are shown: those of the physical cluster that were made of leaves are in the mirror, which the server makes the pods of
// workspaces (docs/design/0007-pods.md). It takes two writes for a new one, one for each status and two for its end. What a workspace
// asks of a pod is that it goes.

// leafOf returns which leaf a pod of the physical cluster was made of, by who controls it. It is for whoever asks next to find out
// whether there is one. A ReplicaSet is a leaf itself if we made it, and otherwise of the Deployment that it is named after.
func leafOf(pod *unstructured.Unstructured, made func(set key, uid types.UID) bool) (key, bool) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return key{}, false
	}
	if owner.Kind == "ReplicaSet" && owner.APIVersion == appsv1.SchemeGroupVersion.String() {
		set := key{replicaSetsGVR, pod.GetNamespace(), owner.Name}
		hash := pod.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey]
		name, named := strings.CutSuffix(owner.Name, "-"+hash)
		if hash == "" || !named || made(set, owner.UID) {
			return set, true
		}
		return key{deploymentsGVR, pod.GetNamespace(), name}, true
	}
	kind, ok := kinds.ByKind(owner.Kind)
	makes := ok && kind.MakesPods() && kind.HasLeaves() && kind.GVR != deploymentsGVR && kind.GVK.GroupVersion().String() == owner.APIVersion
	return key{kind.GVR, pod.GetNamespace(), owner.Name}, makes
}

// madeSet says that a ReplicaSet of the physical cluster is one that was made of a leaf, as far as it is seen, and that no Deployment there has taken it
// over.
func (s *Syncer) madeSet(set key, uid types.UID) bool {
	below := get(s.physical.informers[replicaSetsGVR], set)
	return below != nil && below.GetUID() == uid && metav1.GetControllerOfNoCopy(below) == nil
}

// statefulSetOf returns the leaf of which a pod that is shown is one with an ordinal, in the name that it has wherever it runs.
func statefulSetOf(shown *unstructured.Unstructured) (key, bool) {
	end := strings.LastIndex(shown.GetName(), "-")
	if end < 0 || shown.GetLabels()[appsv1.StatefulSetPodNameLabel] != shown.GetName() {
		return key{}, false
	}
	return key{statefulSetsGVR, shown.GetNamespace(), shown.GetName()[:end]}, true
}

// showsPodsOf says whether the mirror shows pods of a leaf that need their names elsewhere, and is about to show them no more: the
// leaf is gone below, and its pods are. One that it begins to show at this moment is taken back as soon.
func (s *Syncer) showsPodsOf(leaf key) bool {
	if leaf.resource != statefulSetsGVR || !s.shownPods.HasSynced() || !s.sees(podsGVR) {
		return false
	}
	pods, _ := s.shownPods.ByIndex(cache.NamespaceIndex, leaf.namespace) // fails only for an index that does not exist
	return slices.ContainsFunc(pods, func(o any) bool {
		of, ok := statefulSetOf(o.(*unstructured.Unstructured))
		return ok && of == leaf
	})
}

// leafless has the pods that ran in a namespace of ours before the leaf was there that they are of, by their keys and by its.
type leafless struct {
	mu     sync.Mutex // guards all below
	leafOf map[key]key
	pods   map[key]sets.Set[key]
}

func (l *leafless) add(pod, leaf key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(pod)
	if l.pods == nil {
		l.leafOf, l.pods = map[key]key{}, map[key]sets.Set[key]{}
	}
	if l.pods[leaf] == nil {
		l.pods[leaf] = sets.New[key]()
	}
	l.leafOf[pod] = leaf
	l.pods[leaf].Insert(pod)
}

func (l *leafless) remove(pod key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(pod)
}

func (l *leafless) removeLocked(pod key) {
	leaf, ok := l.leafOf[pod]
	if !ok {
		return
	}
	delete(l.leafOf, pod)
	if delete(l.pods[leaf], pod); len(l.pods[leaf]) == 0 {
		delete(l.pods, leaf)
	}
}

// of returns those of one leaf.
func (l *leafless) of(leaf key) []key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[leaf].UnsortedList()
}

// showing is what is to be done with a pod.
type showing string

const (
	showNothing showing = ""
	showIt      showing = "show"
	tellStatus  showing = "tell its status"
	// tellItEnds and tellItEnded say of a pod that is shown that it is on its way out below, and that it is not there any more.
	tellItEnds  showing = "tell that it ends"
	tellItEnded showing = "tell that it ended"
	// endIt ends the pod below, since somebody deleted it in the workspace.
	endIt showing = "end it"
	// runIt makes the pod below, which is bound and was not made yet, as far as is known.
	runIt showing = "run it"
	// adoptIt tells that the pod below is the one that is bound: somebody of us made it, and could not tell.
	adoptIt showing = "tell which it is"
	// giveUp is for what is bound and cannot be run: its name is somebody else's below.
	giveUp showing = "tell that its name is taken"
	// relabelIt gives the pod below what it lacks of labels and annotations, besides what addTo does.
	relabelIt showing = "change it"
	// addTo gives the pod below what it lacks of ephemeral containers, and of resources that were changed in the workspace.
	addTo showing = "add to it"
)

// toShow says what makes right what is shown of a pod, nil if nothing is, and the pod below, nil if there is none. What goes is not
// shown anew: its owner may be gone already.
func toShow(shown, below *unstructured.Unstructured) showing {
	switch {
	case shown == nil && (below == nil || below.GetDeletionTimestamp() != nil):
		return showNothing
	case shown == nil:
		return showIt
	case below == nil || shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] != string(below.GetUID()):
		return tellItEnded
	case shown.GetDeletionTimestamp() != nil && (below.GetDeletionTimestamp() == nil || isSooner(shown, below)):
		return endIt
	case shown.GetDeletionTimestamp() == nil && below.GetDeletionTimestamp() != nil:
		return tellItEnds
	case !apiequality.Semantic.DeepEqual(shown.Object["status"], statusOf(shown, below)):
		return tellStatus
	}
	return showNothing
}

// renderShown returns a pod of the physical cluster as it is shown, as one of a leaf, and of a revision unless that is "".
func renderShown(below, leaf *unstructured.Unstructured, revision string) *unstructured.Unstructured {
	pod := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSONValue(below.Object["spec"])}}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetNamespace(below.GetNamespace())
	pod.SetName(below.GetName())
	pod.SetLabels(below.GetLabels())
	annotations := below.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[workloadv1alpha1.PodUIDAnnotation] = string(below.GetUID())
	delete(annotations, workloadv1alpha1.RevisionAnnotation)
	if revision != "" {
		annotations[workloadv1alpha1.RevisionAnnotation] = revision
	}
	pod.SetAnnotations(annotations)
	pod.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: leaf.GetAPIVersion(), Kind: leaf.GetKind(), Name: leaf.GetName(), UID: leaf.GetUID(), Controller: ptr.To(true),
	}})
	return pod
}

// mayWaitOfPod is how long the status of a pod may wait to be told since the last: steps on the way may, not whether it serves.
func mayWaitOfPod(shown, below *unstructured.Unstructured) time.Duration {
	if isReady(shown) != isReady(below) || shown.Object["status"] == nil {
		return 0
	}
	before, _, _ := unstructured.NestedString(shown.Object, "status", "phase")
	if now, _, _ := unstructured.NestedString(below.Object, "status", "phase"); before != now {
		return 0
	}
	return client.WhileProgressing
}

func isReady(pod *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == string(corev1.PodReady) {
			return c["status"] == string(metav1.ConditionTrue)
		}
	}
	return false
}

// thinPod is what is kept of a pod in somebody else's namespace, which may turn out to be ours when the informer of namespaces shows it.
func thinPod(pod *unstructured.Unstructured) *unstructured.Unstructured {
	thin := &unstructured.Unstructured{Object: map[string]any{}}
	thin.SetAPIVersion(pod.GetAPIVersion())
	thin.SetKind(pod.GetKind())
	thin.SetNamespace(pod.GetNamespace())
	thin.SetName(pod.GetName())
	thin.SetUID(pod.GetUID())
	thin.SetResourceVersion(pod.GetResourceVersion())
	return thin
}

func isThin(pod *unstructured.Unstructured) bool { return pod.Object["spec"] == nil }

// hasNamespace says whether a namespace of a physical cluster is known to be ours.
func (sd side) hasNamespace(name string) bool {
	namespaces, ok := sd.informers[namespacesGVR]
	if !ok {
		return false
	}
	_, known, _ := namespaces.GetByKey(name) // a cache.Indexer never fails here
	return known
}

// watchPods makes the informers of pods and their handlers.
func (s *Syncer) watchPods() {
	s.shownPods = newInformer(s.mirror, podsGVR, nil, nil, nil)
	s.pods = newInformer(s.physical, podsGVR, nil, s.heardUnlessRefused(podsGVR), s.room)
	s.shownPods.handle = func(old, now *unstructured.Unstructured) {
		s.queue.Add(keyOfPod(newest(old, now)))
		s.tokensSoon(podsGVR, old, now)
		if leaf, ok := statefulSetOf(newest(old, now)); ok && now == nil {
			s.queue.Add(leaf) // which may wait to leave
		}
	}
	s.pods.handle = func(old, now *unstructured.Unstructured) {
		k := keyOfPod(newest(old, now))
		if now == nil {
			s.leafless.remove(k)
		}
		// Its namespace may be gone before it is told that the pod is.
		if s.physical.hasNamespace(k.namespace) || s.shows(k) {
			s.queue.Add(k)
		}
	}
}

// shows says whether the mirror shows a pod of that name.
func (s *Syncer) shows(k key) bool {
	_, shown, _ := s.shownPods.GetByKey(k.cacheKey()) // a cache.Indexer never fails here
	return shown
}

// runPods runs the informer of the physical cluster's pods, when it is known which namespaces are ours.
func (s *Syncer) runPods(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.physical.informers[namespacesGVR].HasSynced) {
		return
	}
	s.pods.run(ctx)
}

func keyOfPod(pod *unstructured.Unstructured) key {
	return key{podsGVR, pod.GetNamespace(), pod.GetName()}
}

// enqueuePods adds the pods in a namespace of ours, or in all of them if that is "", that either side shows.
func (s *Syncer) enqueuePods(namespace string) {
	for _, i := range []*informer{s.shownPods, s.pods} {
		names := i.ListKeys()
		if namespace != "" {
			names, _ = i.IndexKeys(cache.NamespaceIndex, namespace) // fails only for an index that does not exist
		}
		for _, n := range names {
			if in, name, _ := cache.SplitMetaNamespaceKey(n); i == s.shownPods || s.physical.hasNamespace(in) {
				s.queue.Add(key{podsGVR, in, name})
			}
		}
	}
}

// reconcilePod makes right what is shown of one pod. A pod of the mirror says nothing about what should run, so its absence means
// nothing, and it goes by what a fresh read shows; nothing of it is decided while the heartbeats are not compared.
func (s *Syncer) reconcilePod(ctx context.Context, k key) (time.Duration, error) {
	if !s.shownPods.HasSynced() || !s.pods.HasSynced() {
		return 0, nil // all are added when they are known
	}
	s.waiting.add(k) // before it asks: who finds meanwhile that pods are seen takes what waits
	if !s.sees(podsGVR) {
		return 0, nil // what was seen last is no news
	}
	shown, below := get(s.shownPods, k), get(s.pods, k)
	if below != nil && isThin(below) {
		var err error
		if below, err = s.podBelow(ctx, k); err != nil {
			return s.later(k, err)
		}
	}
	s.setOrphan(k, s.isOrphanPod(shown, below))
	deed := s.deedFor(shown, below)
	if deed != showIt {
		s.leafless.remove(k)
	}
	if deed != runIt {
		s.unbounded.remove(k)
	}
	if deed == showNothing {
		return s.isShown(k)
	}
	if wait, err := s.mayShow(ctx); wait > 0 || err != nil {
		s.waiting.add(k)
		return wait, err
	}
	version := ""
	if shown != nil {
		version = shown.GetResourceVersion()
	}
	patience := time.Duration(0)
	if deed == tellStatus {
		patience = mayWaitOfPod(shown, below)
	}
	if shown != nil {
		if wait := s.pace.Wait(k, version, patience); wait > 0 {
			return wait, nil
		}
	}
	var unbounded *notBounded
	if err := s.show(ctx, k, deed, shown, below); errors.As(err, &unbounded) {
		return unbounded.wait, nil
	} else if errors.Is(err, errNoNamespaceYet) {
		s.waiting.add(k)
		return time.Second, nil // its event, of whatever it waits for, brings us back before
	} else if err != nil {
		if deed == runIt || deed == giveUp || deed == adoptIt {
			s.tellNotRun(ctx, k, shown, err)
		}
		if deed == showIt || deed == tellStatus {
			s.tellUnshown(k, below, err)
		}
		return s.later(k, err)
	}
	return s.isShown(k)
}

// isShown forgets what was with a pod before it was shown as it is.
func (s *Syncer) isShown(k key) (time.Duration, error) {
	s.waiting.remove(k)
	s.backoff.Forget(k)
	if leaf, news := s.unshown.remove(k); news {
		s.queue.Add(leaf)
	}
	return 0, nil
}

// later is when a pod is tried again.
func (s *Syncer) later(k key, err error) (time.Duration, error) {
	s.waiting.add(k)
	again := s.backoff.When(k)
	klog.V(2).InfoS("A pod is not shown as it is", "pod", k.String(), "again", again, "err", err)
	return again, nil
}

// mayShow waits until the heartbeats were compared. What is shown while one side is a restored one would be of another history, and
// while the physical cluster does not answer the last that was seen of it is no news.
func (s *Syncer) mayShow(ctx context.Context) (wait time.Duration, err error) {
	patience := gatePatience
	if s.trouble() != "" {
		patience = 0
	}
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch v, ok := s.gate.pass(short); {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case !ok || v != fine:
		return beatEvery, nil // what opens the gate brings us back before
	}
	return 0, nil
}

// podBelow reads a pod of the physical cluster; nil if there is none.
func (s *Syncer) podBelow(ctx context.Context, k key) (*unstructured.Unstructured, error) {
	pod, err := s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k, err)
	}
	return pod, nil
}

// show does what is to be done with a pod.
func (s *Syncer) show(ctx context.Context, k key, deed showing, shown, below *unstructured.Unstructured) error {
	mirror := s.mirror.dynamic.Resource(podsGVR).Namespace(k.namespace)
	forShown := func(grace int64) metav1.DeleteOptions {
		return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(shown.GetUID())), GracePeriodSeconds: &grace}
	}
	switch deed {
	case showIt:
		of, ok := leafOf(below, s.madeSet)
		if !ok {
			return nil
		}
		s.leafless.add(k, of) // before it is looked at: who adds it takes what waits
		leaf := get(s.mirror.informers[of.resource], of)
		if leaf == nil || leaf.GetDeletionTimestamp() != nil {
			return nil // nobody asks for it, or not any more, or not yet: it may be taken over
		}
		s.leafless.remove(k)
		revision := ""
		if of.resource == deploymentsGVR {
			var err error
			if revision, err = s.revisionOf(ctx, below); err != nil {
				return err
			}
		}
		made, err := mirror.Create(ctx, renderShown(below, leaf, revision), metav1.CreateOptions{FieldManager: workloadv1alpha1.FieldManager})
		if err != nil {
			return &mirrorError{fmt.Errorf("show %s: %w", k, err)}
		}
		return s.tellPod(ctx, k, made, below)
	case runIt, giveUp, adoptIt:
		return s.runPod(ctx, k, deed, shown, below)
	case relabelIt, addTo:
		return s.change(ctx, k, shown, below)
	case tellStatus:
		return s.tellPod(ctx, k, shown, below)
	case tellItEnds:
		grace := max(1, ptr.Deref(below.GetDeletionGracePeriodSeconds(), 1)) // 0 would be its end
		return notFoundIsFine(mirror.Delete(ctx, k.name, forShown(grace)))
	case tellItEnded:
		// Seen gone, or not seen: that our watch lacks it is no proof.
		now, err := s.podBelow(ctx, k)
		if err != nil || now != nil && (string(now.GetUID()) == shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] || s.isBoundPod(shown, now)) {
			return err
		}
		return notFoundIsFine(mirror.Delete(ctx, k.name, forShown(0)))
	case endIt:
		// No write goes down without a fresh read of what asks for it.
		now, err := mirror.Get(ctx, k.name, metav1.GetOptions{})
		if err != nil || now.GetUID() != shown.GetUID() || now.GetDeletionTimestamp() == nil {
			return notFoundIsFine(err)
		}
		return notFoundIsFine(s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace).Delete(ctx, k.name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(below.GetUID())), GracePeriodSeconds: now.GetDeletionGracePeriodSeconds(),
		}))
	}
	return nil
}

// revisionOf returns of which revision of its Deployment a pod is, "" if that is not known: what the ReplicaSet that made it was made
// of the leaf with. Kubernetes gives a ReplicaSet the annotations of its Deployment, for as long as its template is the Deployment's. It is an error
// if nothing says that the ReplicaSet is, or was, a Deployment's: it was made of a leaf itself, as will be seen.
func (s *Syncer) revisionOf(ctx context.Context, below *unstructured.Unstructured) (string, error) {
	owner := metav1.GetControllerOfNoCopy(below)
	if owner.Kind != "ReplicaSet" {
		return "", nil
	}
	set, err := s.setBelow(ctx, below.GetNamespace(), owner.Name, owner.UID)
	if err != nil || set == nil {
		return "", err // it is the root's where nobody says, as one whose ReplicaSet is not there
	}
	if set.owner == nil && set.revision == "" {
		return "", fmt.Errorf("ReplicaSet %s is of no Deployment", owner.Name)
	}
	return set.revision, nil
}

// tellPod gives what is shown of a pod its status. A conflict is no error: what was written instead brings us back.
func (s *Syncer) tellPod(ctx context.Context, k key, shown, below *unstructured.Unstructured) error {
	if below.Object["status"] == nil {
		return nil
	}
	want := shown.DeepCopy()
	want.Object["status"] = runtime.DeepCopyJSONValue(statusOf(shown, below))
	told, err := s.mirror.dynamic.Resource(podsGVR).Namespace(k.namespace).UpdateStatus(ctx, want, metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		// A workspace may have no room for it; what it asks for goes down all the same.
		return errors.Join(&mirrorError{fmt.Errorf("tell the status of %s: %w", k, err)}, s.change(ctx, k, shown, below))
	}
	s.pace.Wrote(k, told.GetResourceVersion())
	if told.GetResourceVersion() == shown.GetResourceVersion() {
		// What differs the server does not keep, such as a field of a later Kubernetes: it would be told for ever, and what is asked
		// for of the pod would never go down.
		return s.change(ctx, k, shown, below)
	}
	return nil
}

func notFoundIsFine(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
