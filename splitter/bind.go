package splitter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/order"
)

// A pod that somebody made in a workspace is bound to one cluster of its Placement, as a scheduler binds it to a Node: by one write,
// which succeeds once in the pod's life, so that it is never begun in two clusters. From then on it is what the mirror shows that cluster
// to run, as a leaf is, and ends as one: docs/design/0007-pods.md.

// Candidate is what a choice has to know of a cluster that a pod may be bound to.
type Candidate struct {
	// Name sorts and identifies the cluster.
	Name string
	// Weight is the Placement's.
	Weight int64
	// Barred says that the cluster's syncer runs no pods that are bound, Unheard that the cluster is not heard of, or only observed.
	Barred, Unheard bool
	// Peers says that pods of the same namespace run there: members of one thing have to reach each other's addresses.
	Peers bool
}

// PickCandidate returns where a pod is bound to, by its index; false if nowhere now.
func PickCandidate(candidates []Candidate) (picked int, ok bool) {
	for i, s := range candidates {
		if s.Barred || s.Unheard {
			continue
		}
		if !ok || compareCandidates(s, candidates[picked]) < 0 {
			picked, ok = i, true
		}
	}
	return picked, ok
}

// compareCandidates orders clusters by which a pod is bound to first.
func compareCandidates(a, b Candidate) int {
	return cmp.Or(order.First(a.Peers, b.Peers), cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Name, b.Name))
}

// reasonNotPlaced is that of the condition PodScheduled of a pod that is bound nowhere yet.
const reasonNotPlaced = "NotPlaced"

// mirrorOf returns where a pod is bound to; "" if nowhere.
func mirrorOf(pod ctrlclient.Object) logicalcluster.Name {
	if !kinds.IsBound(pod) {
		return ""
	}
	return logicalcluster.Name(pod.GetLabels()[workloadv1alpha1.MirrorLabel])
}

// onPod handles pods that were made in a workspace.
func (c *Controller) onPod(k kinds.Kind, e change) {
	pod := e.object()
	pk := client.KeyOf(pod)
	c.tallyPod(k, e)
	c.queue.Add(key{k.GVK.Kind, pk})
	if e.deleted || ends(k, e.old, e.new) || e.old == nil || mirrorOf(e.old) != mirrorOf(pod) {
		c.queueNeeds(pod)
	}
	mirror := mirrorOf(pod)
	if mirror == "" {
		return
	}
	below := pod.GetAnnotations()[workloadv1alpha1.MirrorNamespaceAnnotation]
	if e.deleted || ends(k, e.old, e.new) {
		c.companionsIn(mirror, below, true)
		if !slices.Contains(placed(c.placement(c.sources[k.GVK.Kind], pk)), mirror) {
			c.besideWorkloads(pk) // which may have been there for it alone
		}
	}
	if e.deleted {
		namespace := key{ofNamespace, client.Key{Cluster: mirror, Name: below}}
		c.pace.Wrote(namespace, "")
		c.queue.Add(namespace)
	}
}

// tallyPod counts a pod as what is asked for, and, where it is bound, as what is there of it.
func (c *Controller) tallyPod(k kinds.Kind, e change) {
	pod := e.object()
	root := key{k.GVK.Kind, client.KeyOf(pod)}
	news := false
	if e.deleted || pod.GetDeletionTimestamp() != nil {
		news = c.tally.forget(root)
	} else {
		news = c.tally.expect(root, rendition{pod.GetUID(), pod.GetGeneration()})
	}
	if was := e.old; was != nil && mirrorOf(was) != "" && (e.deleted || boundAt(was) != boundAt(pod)) {
		news = c.tally.leaf(root, boundAt(was), nil) || news
	}
	if !e.deleted && mirrorOf(pod) != "" {
		n := countBound(k, pod)
		news = c.tally.leaf(root, boundAt(pod), &n) || news
	}
	if news {
		c.askPlacement(root)
	}
}

// boundAt is where the mirror has a pod that is bound.
func boundAt(pod ctrlclient.Object) client.Key {
	return client.Key{Cluster: mirrorOf(pod), Namespace: pod.GetAnnotations()[workloadv1alpha1.MirrorNamespaceAnnotation], Name: pod.GetName()}
}

// countBound is what a pod that is bound adds: count, of a leaf.
func countBound(k kinds.Kind, pod ctrlclient.Object) counted {
	n := counted{of: rendition{pod.GetUID(), pod.GetGeneration()}, deleting: pod.GetDeletionTimestamp() != nil, ended: k.HasEnded(pod)}
	n.replicas, n.ready = k.Pods(pod)
	n.stays = !n.deleting && !n.ended && k.WhyStays(pod) != nil
	switch {
	case notRun(pod) != nil:
		n.phase = placementv1alpha1.PhaseRefused
	case pod.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] == "":
		n.phase = placementv1alpha1.PhaseApplying
	case n.ready < n.replicas:
		n.phase = placementv1alpha1.PhaseSynced
	default:
		n.phase = placementv1alpha1.PhaseReady
	}
	return n
}

// notRun is why the cluster that a pod is bound to does not run it, nil if it does.
func notRun(pod ctrlclient.Object) *corev1.PodCondition {
	conditions := pod.(*corev1.Pod).Status.Conditions
	i := slices.IndexFunc(conditions, func(is corev1.PodCondition) bool {
		return is.Type == workloadv1alpha1.PodSynced && is.Status == corev1.ConditionFalse
	})
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// podShares is what the clusters of a Placement are to run of a pod: one of them all of it. What stays elsewhere all of them lack.
func (c *Controller) podShares(s *source, pod *corev1.Pod, p *placementv1alpha1.Placement) (shares []share) {
	mirror := mirrorOf(pod)
	switch {
	case s.HasEnded(pod), mirror == "" && pod.Spec.NodeName != "":
		return noShares(p)
	case mirror == "":
		mirror, _ = c.clusterFor(s, client.KeyOf(pod), p)
	}
	named := slices.Contains(placed(p), mirror)
	for _, m := range placed(p) {
		if !named || m == mirror {
			shares = append(shares, share{m, 1})
		} else {
			shares = append(shares, share{m, noLeaf})
		}
	}
	return shares
}

// queueNeeds asks for what a pod refers to.
func (c *Controller) queueNeeds(pod ctrlclient.Object) {
	k := client.KeyOf(pod)
	for _, r := range needsOf(pod) {
		c.queue.Add(key{r.Kind, client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: r.Name}})
	}
}

// pod takes the next step of a pod that was made in a workspace.
func (c *Controller) pod(ctx context.Context, s *source, k client.Key) (time.Duration, error) {
	o, ok := s.get(k)
	if !ok {
		return 0, nil
	}
	pod, p := o.(*corev1.Pod), c.placement(s, k)
	if pod.DeletionTimestamp == nil && c.tallyPlan(s, pod, p, c.podShares(s, pod, p)) {
		defer c.askPlacement(key{s.GVK.Kind, k})
	}
	switch {
	case pod.DeletionTimestamp != nil || s.HasEnded(pod):
		return 0, nil // what has ended stays where it was, and what is deleted ends there
	case kinds.IsBound(pod):
		return c.bound(ctx, s, pod, p)
	case p == nil:
		return 0, nil // its event brings us back
	case len(pod.Spec.SchedulingGates) > 0:
		return 0, nil // whoever set them takes them off, and the pod says so already
	case pod.Spec.NodeName != "":
		c.tellOnce(ctx, s, pod, "waits", corev1.EventTypeWarning, reasonNotPlaced,
			"It names its node itself, and is run nowhere: where a pod goes, its Placement says ("+placementv1alpha1.ClustersAnnotation+").")
		return 0, nil
	}
	p, again := c.seated(ctx, s, pod, p, nil)
	if again > 0 {
		return again, nil // its claims have no cluster yet, and their events bring us back before
	}
	return c.bind(ctx, s, pod, p)
}

// bind binds a pod to a cluster of its Placement, or says why to none.
func (c *Controller) bind(ctx context.Context, s *source, pod *corev1.Pod, p *placementv1alpha1.Placement) (time.Duration, error) {
	pk := client.KeyOf(pod)
	mirror, why := c.clusterFor(s, pk, p)
	if mirror == "" {
		return c.tellNotPlaced(ctx, s, pod, why)
	}
	if settled, err := c.isDecision(ctx, s, pk, p); err != nil || !settled {
		return lookAgain, err
	}
	if err := c.ensureCompanions(ctx, pod, mirror); err != nil {
		return 0, err
	}
	name := nameOf(c.target(mirror), mirror)
	ready, err := c.bindTo(ctx, pod, mirror, name)
	if errors.Is(err, errTooLarge) {
		return c.tellNotPlaced(ctx, s, pod, "It is too large to be run: with its annotations it may have 1 MiB.")
	}
	if err != nil || !ready {
		return lookAgain, err
	}
	c.untell(pod, "waits")
	c.tellOnce(ctx, s, pod, "shares", corev1.EventTypeNormal, placementv1alpha1.ReasonPlaced, fmt.Sprintf("Placed on %q", name))
	klog.FromContext(ctx).V(2).Info("Bound a pod", "pod", pk.String(), "cluster", name)
	return 0, nil
}

// errTooLarge says of a pod that there would be no room for its status.
var errTooLarge = errors.New("the pod is too large")

// bindTo makes the mirror's namespace for a pod, if need be, and binds the pod. It is not ready while an earlier namespace has to go
// first, or where the pod has changed.
func (c *Controller) bindTo(ctx context.Context, pod *corev1.Pod, mirror logicalcluster.Name, name string) (ready bool, err error) {
	pk := client.KeyOf(pod)
	below := kinds.DownstreamNamespace(pk.Cluster, pk.Namespace, c.dedicated(pk.Cluster, mirror))
	if n := c.mirrorNamespace(pk.Cluster, pk.Namespace, mirror); n != nil {
		below = n.Name
	}
	lock := c.space(mirror, below)
	lock.Lock()
	defer lock.Unlock()
	below, ready, err = c.ensureNamespace(ctx, pk.Cluster, pk.Namespace, mirror)
	if err != nil || !ready {
		return false, err
	}
	// It may have been deleted while we waited for the lock. Nothing in the mirror refuses what is bound in a workspace.
	if ready, err = c.takesObjects(ctx, mirror, below); err != nil || !ready {
		return false, err
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pk.Namespace, Name: pk.Name, UID: pod.UID,
			Labels:      map[string]string{workloadv1alpha1.MirrorLabel: string(mirror)},
			Annotations: map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: below},
		},
		Target: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name},
	}
	kinds.SetAPIAccess(binding, kinds.ProjectedAPIAccess) // it was admitted, with the volume of its token
	kinds.SetToldNamespace(binding, c.dnsKnows(mirror, &pod.Spec))
	err = c.clients.Objects.SubResource("binding").Create(client.In(ctx, pk.Cluster), pod, binding)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil // its event brings us back
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil // it goes as well
	case apierrors.IsRequestEntityTooLargeError(err):
		return false, errTooLarge
	case err != nil:
		return false, fmt.Errorf("bind pod %s to physical cluster %q: %w", pk, name, err)
	}
	return true, nil
}

// takesObjects says, from an uncached read, that a mirror has a namespace, and does not delete it.
func (c *Controller) takesObjects(ctx context.Context, mirror logicalcluster.Name, namespace string) (bool, error) {
	n := &corev1.Namespace{}
	err := c.clients.Objects.Get(client.In(ctx, mirror), types.NamespacedName{Name: namespace}, n)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read namespace %s of mirror %s: %w", namespace, mirror, err)
	}
	return n.DeletionTimestamp == nil, nil
}

// clusterFor returns the mirror that a pod is to be bound to; "", and why, if there is none now.
func (c *Controller) clusterFor(s *source, pk client.Key, p *placementv1alpha1.Placement) (mirror logicalcluster.Name, why string) {
	if p == nil {
		return "", "It has no Placement yet."
	}
	peers := map[logicalcluster.Name]bool{}
	for _, other := range s.list(pk.Cluster, pk.Namespace) {
		if other.GetDeletionTimestamp() == nil && !s.HasEnded(other) {
			peers[mirrorOf(other)] = true
		}
	}
	var mirrors []logicalcluster.Name
	var candidates []Candidate
	for _, cluster := range p.Spec.Clusters {
		if cluster.Mirror == "" {
			continue
		}
		m := logicalcluster.Name(cluster.Mirror)
		t := c.target(m)
		mirrors = append(mirrors, m)
		candidates = append(candidates, Candidate{
			Name: cluster.Name, Weight: cluster.Weight, Barred: !c.carries(m, s), Unheard: lost(t) || observed(t), Peers: peers[m],
		})
	}
	if picked, ok := PickCandidate(candidates); ok {
		return mirrors[picked], ""
	}
	return "", whyNowhere(s, p, candidates)
}

// whyNowhere says why a pod is bound to none of the clusters of its Placement, in sentences.
func whyNowhere(s *source, p *placementv1alpha1.Placement, candidates []Candidate) string {
	if len(candidates) == 0 {
		if is := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced); is != nil && is.Status != metav1.ConditionTrue {
			return is.Message
		}
		return "It is placed on no physical cluster."
	}
	var barred, unheard []string
	for _, on := range candidates {
		if on.Barred {
			barred = append(barred, on.Name)
		} else {
			unheard = append(unheard, fmt.Sprintf("%q", on.Name))
		}
	}
	var why []string
	if len(unheard) > 0 {
		why = append(why, fmt.Sprintf("Not on %s: not heard of, or only observed.", strings.Join(unheard, ", ")))
	}
	if r := notCarried(s, barred); r != nil {
		why = append(why, r.Message)
	}
	return strings.Join(why, " ")
}

// tellNotPlaced says of a pod that it is bound nowhere, as a scheduler does.
func (c *Controller) tellNotPlaced(ctx context.Context, s *source, pod *corev1.Pod, why string) (time.Duration, error) {
	c.tellOnce(ctx, s, pod, "waits", corev1.EventTypeWarning, reasonNotPlaced, why)
	now := pod.DeepCopy()
	want := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reasonNotPlaced, Message: why, LastTransitionTime: metav1.NewTime(c.clock.Now())}
	i := slices.IndexFunc(now.Status.Conditions, func(is corev1.PodCondition) bool { return is.Type == corev1.PodScheduled })
	switch {
	case i < 0:
		now.Status.Conditions = append(now.Status.Conditions, want)
	default:
		if is := now.Status.Conditions[i]; is.Status == want.Status {
			want.LastTransitionTime = is.LastTransitionTime
		}
		want.ObservedGeneration = now.Status.Conditions[i].ObservedGeneration
		now.Status.Conditions[i] = want
	}
	return c.writeStatus(ctx, s, pod, now, 0)
}

// bound ends a pod whose Placement has left its cluster, if somebody makes another one elsewhere; else it stays.
func (c *Controller) bound(ctx context.Context, s *source, pod *corev1.Pod, p *placementv1alpha1.Placement) (time.Duration, error) {
	pk, mirror := client.KeyOf(pod), mirrorOf(pod)
	if why := notRun(pod); why != nil {
		c.tellOnce(ctx, s, pod, "refused", corev1.EventTypeWarning, reasonOf(why.Reason), fmt.Sprintf("Cluster %q: %s", nameOf(c.target(mirror), mirror), why.Message))
	} else {
		c.untell(pod, "refused")
	}
	f, id := fateOf(p), brakeID(s, pod)
	if f != braked {
		c.brake.Forget(string(mirror), id)
	}
	switch {
	case p == nil, slices.Contains(placed(p), mirror), f == stays:
		c.untell(pod, "waits")
		return 0, nil
	case f == unknown:
		return lookAgain, nil
	}
	name := nameOf(c.target(mirror), mirror)
	if why := s.WhyStays(pod); why != nil {
		c.tellOnce(ctx, s, pod, "waits", corev1.EventTypeWarning, why.Reason, fmt.Sprintf("It stays on %q: %s.", name, why.Message))
		return 0, nil
	}
	if f == braked {
		if ok, wait := c.brake.Missing(string(mirror), id, func() int { return c.leavesIn(mirror) }); !ok {
			return wait, c.tellFrozen(ctx, mirror)
		}
	}
	if frozen, _ := c.brake.Frozen(string(mirror)); frozen {
		c.tellOnce(ctx, s, pod, "waits", corev1.EventTypeWarning, "Frozen", fmt.Sprintf("It stays on %q, where nothing is deleted until an administrator confirms it.", name))
		return 0, nil // the confirmation brings us back
	}
	if left, err := c.hasLeft(ctx, s, pk, p, mirror); err != nil || !left {
		return lookAgain, err
	}
	// Not because of an owner that it had a moment ago.
	now := &corev1.Pod{}
	err := c.clients.Objects.Get(client.In(ctx, pk.Cluster), types.NamespacedName{Namespace: pk.Namespace, Name: pk.Name}, now)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pod %s before it is deleted: %w", pk, err)
	}
	if now.UID != pod.UID || s.WhyStays(now) != nil || mirrorOf(now) != mirror {
		return lookAgain, nil
	}
	c.tellOnce(ctx, s, pod, "single", corev1.EventTypeNormal, "BreakBeforeMake",
		fmt.Sprintf("Stops on %q, which its Placement has left: its controller makes another one", name))
	err = c.clients.Objects.Delete(client.In(ctx, pk.Cluster), now, ctrlclient.GracePeriodSeconds(ptr.Deref(now.Spec.TerminationGracePeriodSeconds, 30)),
		ctrlclient.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return lookAgain, nil
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("delete pod %s, which its Placement has left: %w", pk, err)
	}
	return 0, nil
}

// mirrorsOf returns where a root goes, or is: see goesTo.
func (c *Controller) mirrorsOf(root ctrlclient.Object, k client.Key, staying []logicalcluster.Name) []logicalcluster.Name {
	s := c.sourceOf(root)
	p := c.placement(s, k)
	if s.HasLeaves() {
		return c.goesTo(s, k, p, staying)
	}
	if s.HasEnded(root) {
		return nil
	}
	mirror := mirrorOf(root)
	if mirror == "" {
		mirror, _ = c.clusterFor(s, k, p)
	}
	if mirror == "" {
		return nil
	}
	return []logicalcluster.Name{mirror}
}

// podsStaying returns the mirrors where pods of a namespace are that its Placements have left, perhaps more than once.
func (c *Controller) podsStaying(s *source, in client.Key) (mirrors []logicalcluster.Name) {
	for _, pod := range s.list(in.Cluster, in.Namespace) {
		mirror := mirrorOf(pod)
		if mirror != "" && !s.HasEnded(pod) && !slices.Contains(placed(c.placement(s, client.KeyOf(pod))), mirror) {
			mirrors = append(mirrors, mirror)
		}
	}
	return mirrors
}
