package splitter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// Annotations of Deployments and their ReplicaSets, as Kubernetes' Deployment controller writes them and kubectl reads them.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"

	// revisionHistoryLength is how many characters of numbers that it had before a revision remembers.
	revisionHistoryLength = 2000

	byOwner = "splitter-owner"
)

// ownerValue files a revision under the workload that controls it. A UID alone is whatever a user wrote.
func ownerValue(k client.Key, uid types.UID) string {
	return namespaceValue(k.Cluster, k.Namespace) + "|" + string(uid)
}

// watchHistories adds an index and a handler to the informers of revisions.
func (c *Controller) watchHistories() error {
	return errors.Join(watchRevisions(c, c.informers.ReplicaSets), watchRevisions(c, c.informers.ControllerRevisions))
}

// object is what an informer can hold.
type object interface {
	ctrlclient.Object
	comparable
}

func watchRevisions[T object](c *Controller, revisions *client.Informer[T]) error {
	revisions.OnEvent(func(e client.Event[T]) {
		// With the first list all workloads are looked at.
		if owner, ok := c.ownerOf(e.Object()); ok && !e.Initial {
			c.queue.Add(owner)
		}
	})
	if err := revisions.AddIndex(byOwner, func(o T) []string {
		if _, ok := c.ownerOf(o); ok {
			return []string{ownerValue(client.KeyOf(o), metav1.GetControllerOfNoCopy(o).UID)}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index revisions by their owners: %w", err)
	}
	return nil
}

// ownerOf returns the key of the workload that a revision names as its controller, if it is of a kind whose revisions are kept so.
func (c *Controller) ownerOf(revision ctrlclient.Object) (key, bool) {
	owner := metav1.GetControllerOfNoCopy(revision)
	if owner == nil {
		return key{}, false
	}
	_, isReplicaSet := revision.(*appsv1.ReplicaSet)
	s, ok := c.sources[owner.Kind]
	if !ok || s.History == nil || s.GVK.GroupVersion().String() != owner.APIVersion || isReplicaSet != (s.Goes == kinds.Divided) {
		return key{}, false
	}
	here := client.KeyOf(revision)
	return key{owner.Kind, client.Key{Cluster: here.Cluster, Namespace: here.Namespace, Name: owner.Name}}, true
}

// keptOf returns the revisions of a workload that an informer shows.
func keptOf[T object](revisions *client.Informer[T], workload ctrlclient.Object) (kept []ctrlclient.Object) {
	for _, r := range revisions.ByIndex(byOwner, ownerValue(client.KeyOf(workload), workload.GetUID())) {
		kept = append(kept, r)
	}
	return kept
}

// chronicle is how the history of one workload is written.
type chronicle struct {
	// kept are the revisions that the informer shows, template what tells that of the workload from others.
	kept     []ctrlclient.Object
	template string
	// runsEarlier as in PlanRevisions.
	runsEarlier bool
	// paused says that a template that is new gets no revision yet.
	paused bool
	// make returns a revision of the present template that is called so, without what revise does.
	make func(meta metav1.ObjectMeta) ctrlclient.Object
	// number is that of a revision, 0 for none.
	number func(revision ctrlclient.Object) int64
	// revise makes a revision in place what it is to be: the current one with this number, or an earlier one, 0. latest says of
	// an earlier one that nothing later is there.
	revise func(revision ctrlclient.Object, number int64, latest bool)
}

// history is what the workspace has of a workload's templates. What is held of a revision is without its content.
type history struct {
	// current is nil while there is none of the present template.
	current ctrlclient.Object
	// earlier ones, oldest first.
	earlier []ctrlclient.Object
	// written is the latest version that came of a write.
	written string
}

// keepHistory makes the workspace of a workload keep its revisions, and says whether it does by now: otherwise again is when to
// look again. now is the root whose status is about to be written; names that are taken are counted there. What somebody else made
// is never changed, not even an orphan that has the template: it has to name this very workload as its controller.
func (c *Controller) keepHistory(ctx context.Context, s *source, root, now ctrlclient.Object, w chronicle) (h history, again time.Duration, err error) {
	rk := key{s.GVK.Kind, client.KeyOf(root)}
	ctx = client.In(ctx, rk.Cluster)
	of := s.History(root)
	byName, seen, revisions := map[string]ctrlclient.Object{}, "", []Revision(nil)
	for _, r := range w.kept {
		byName[r.GetName()] = r
		revisions = append(revisions, Revision{r.GetName(), r.GetAnnotations()[kinds.DigestAnnotation], w.number(r)})
		seen = later(seen, r.GetResourceVersion())
	}
	if behind := c.recorded.Wait(rk, seen, 0); behind > 0 {
		return h, behind, nil // its event comes first
	}
	plan := PlanRevisions(revisions, w.template, of.Limit, of.Runs, w.runsEarlier)
	defer func() {
		if h.written != "" {
			c.recorded.Wrote(rk, h.written)
		}
	}()
	for _, name := range plan.Earlier {
		h.earlier = append(h.earlier, byName[name])
	}
	switch h.current = byName[plan.Current]; {
	case h.current != nil:
		if h.current, err = c.revise(ctx, &h, h.current, func(r ctrlclient.Object) { w.revise(r, plan.Number, false) }); err != nil {
			return h, 0, err
		}
	case !w.paused:
		if h.current, err = c.record(ctx, s, root, now, w, plan.Number); err != nil {
			// Those that are too many may be what takes its room.
			return h, 0, errors.Join(err, c.prune(ctx, s, root, plan.Delete, byName))
		}
		if h.current == nil {
			return h, lookAgain, nil
		}
		h.written = later(h.written, h.current.GetResourceVersion())
	}
	for i, r := range h.earlier {
		latest := h.current == nil && i == len(h.earlier)-1
		if h.earlier[i], err = c.revise(ctx, &h, r, func(r ctrlclient.Object) { w.revise(r, 0, latest) }); err != nil {
			return h, 0, err
		}
	}
	return h, 0, c.prune(ctx, s, root, plan.Delete, byName)
}

// prune deletes the revisions of a workload that are too many.
func (c *Controller) prune(ctx context.Context, s *source, root ctrlclient.Object, tooMany []string, byName map[string]ctrlclient.Object) error {
	for _, name := range tooMany {
		gone := byName[name]
		if gone.GetDeletionTimestamp() != nil {
			continue
		}
		err := c.clients.Objects.Delete(ctx, gone, ctrlclient.Preconditions{UID: ptr.To(gone.GetUID()), ResourceVersion: ptr.To(gone.GetResourceVersion())})
		if ctrlclient.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete revision %s of %s %s: %w", name, s.GVK.Kind, client.KeyOf(root), err)
		}
	}
	return nil
}

// record makes a revision of the present template. A name that somebody else has is counted, as Kubernetes does, and the next one taken;
// but for that of an earlier workload of this name, which goes with it, so that nil is returned until it has.
func (c *Controller) record(ctx context.Context, s *source, root, now ctrlclient.Object, w chronicle, number int64) (ctrlclient.Object, error) {
	of := s.History(now)
	for {
		hash := kinds.RevisionHash(w.template, *of.Collisions)
		labels := maps.Clone(s.Template(root).Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[of.HashLabel] = hash
		made := w.make(metav1.ObjectMeta{
			Name: kinds.RevisionName(root.GetName(), hash), Namespace: root.GetNamespace(), Labels: labels, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(root, s.GVK)},
		})
		w.revise(made, number, false)
		err := c.clients.Objects.Create(ctx, made)
		if err == nil {
			kinds.WithoutContent(made)
			return made, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create revision %s of %s %s: %w", made.GetName(), s.GVK.Kind, client.KeyOf(root), err)
		}
		there := made.DeepCopyObject().(ctrlclient.Object)
		if err := c.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(made), there); err != nil {
			return nil, fmt.Errorf("read revision %s of %s %s: %w", made.GetName(), s.GVK.Kind, client.KeyOf(root), err)
		}
		kinds.WithoutContent(there)
		if metav1.IsControlledBy(there, root) && there.GetAnnotations()[kinds.DigestAnnotation] == w.template {
			return there, nil // made a moment ago
		}
		if owner := metav1.GetControllerOfNoCopy(there); owner != nil && owner.Kind == s.GVK.Kind && owner.Name == root.GetName() && owner.UID != root.GetUID() {
			return nil, nil
		}
		*of.Collisions = ptr.To(ptr.Deref(*of.Collisions, 0) + 1)
	}
}

// revise changes a revision if it is not what it is to be, and if it is as it was seen.
func (c *Controller) revise(ctx context.Context, h *history, have ctrlclient.Object, change func(ctrlclient.Object)) (ctrlclient.Object, error) {
	want := have.DeepCopyObject().(ctrlclient.Object)
	change(want)
	if equality.Semantic.DeepEqual(have, want) {
		return have, nil
	}
	answer := want.DeepCopyObject().(ctrlclient.Object)
	patch := ctrlclient.MergeFromWithOptions(have, ctrlclient.MergeFromWithOptimisticLock{})
	if err := c.clients.Objects.Patch(ctx, answer, patch); err != nil {
		return nil, fmt.Errorf("change revision %s: %w", client.KeyOf(have), err)
	}
	want.SetResourceVersion(answer.GetResourceVersion())
	want.SetGeneration(answer.GetGeneration())
	h.written = later(h.written, answer.GetResourceVersion())
	return want, nil
}

// tellHistory tells of a history that the workspace does not let be written, by a quota for instance, and returns what is worth another
// try. In a namespace that goes, nothing is.
func (c *Controller) tellHistory(ctx context.Context, s *source, root ctrlclient.Object, err error) error {
	r := refusedByHub(err)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case r != nil:
		c.tellOnce(ctx, s, root, "history", corev1.EventTypeWarning, r.Reason, "Its revision is not kept for `kubectl rollout history` and `undo`: "+r.Message)
	case err == nil:
		c.untell(root, "history")
	}
	return err
}

// replicaSets keeps the history of a Deployment, of which kept is there, and gives now the number of its revision.
func (c *Controller) replicaSets(ctx context.Context, s *source, root, now *appsv1.Deployment, kept []ctrlclient.Object, view kinds.View) (h history, again time.Duration, err error) {
	_, earlier := countRevisions(view.Leaves, 0) // what is not sure may be of an earlier template
	h, again, err = c.keepHistory(ctx, s, root, now, chronicle{
		kept: kept, template: kinds.TemplateDigest(&root.Spec.Template), runsEarlier: earlier.pods > 0, paused: root.Spec.Paused, number: numberOf,
		make: func(meta metav1.ObjectMeta) ctrlclient.Object { return replicaSet(root, meta) },
		revise: func(r ctrlclient.Object, number int64, latest bool) {
			reviseReplicaSet(r.(*appsv1.ReplicaSet), root, view.Desired, number, latest)
		},
	})
	if err != nil || again > 0 {
		h = history{} // half of it tells nothing of where the pods belong
	}
	if h.current != nil {
		if now.Annotations == nil {
			now.Annotations = map[string]string{}
		}
		now.Annotations[revisionAnnotation] = h.current.GetAnnotations()[revisionAnnotation]
	}
	return h, again, c.tellHistory(ctx, s, root, err)
}

// hashOf is the pod-template-hash of the ReplicaSet with a Deployment's present template, of those that are kept or that will be made.
func (c *Controller) hashOf(root *appsv1.Deployment) string {
	template := kinds.TemplateDigest(&root.Spec.Template)
	for _, r := range keptOf(c.informers.ReplicaSets, root) {
		if r.GetAnnotations()[kinds.DigestAnnotation] == template {
			return r.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey]
		}
	}
	return kinds.RevisionHash(template, root.Status.CollisionCount)
}

// replicaSet is one of a Deployment's present template.
func replicaSet(root *appsv1.Deployment, meta metav1.ObjectMeta) *appsv1.ReplicaSet {
	r := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{
		Selector: root.Spec.Selector.DeepCopy(), Template: *root.Spec.Template.DeepCopy(),
	}}
	const label = appsv1.DefaultDeploymentUniqueLabelKey
	if r.Spec.Selector.MatchLabels == nil {
		r.Spec.Selector.MatchLabels = map[string]string{}
	}
	r.Spec.Selector.MatchLabels[label] = meta.Labels[label]
	r.Spec.Template.Labels = maps.Clone(meta.Labels)
	return r
}

// reviseReplicaSet: the current one, which has a number, is to have all pods, and what the Deployment is annotated with. Of an earlier one
// no pods are wanted any more, unless it is the latest that there is.
func reviseReplicaSet(r *appsv1.ReplicaSet, root *appsv1.Deployment, desired int32, number int64, latest bool) {
	annotations := maps.Clone(r.Annotations)
	// `kubectl rollout undo` gives a Deployment all annotations of the ReplicaSet. Where it runs is not what is undone.
	placement := placementv1alpha1.GroupVersion.Group + "/"
	maps.DeleteFunc(annotations, func(k, _ string) bool { return strings.HasPrefix(k, placement) })
	for k, v := range root.Annotations {
		if strings.HasPrefix(k, placement) {
			annotations[k] = v
		}
	}
	wanted := int32(0)
	if number > 0 || latest {
		wanted = desired
	}
	if number > 0 {
		maps.Copy(annotations, annotationsOf(root))
		setNumber(annotations, number)
		surge := int32(0)
		if root.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
			_, surge = kinds.Fenceposts(root.Spec.Strategy.RollingUpdate, replicasOf(root))
		}
		annotations[desiredReplicasAnnotation] = strconv.Itoa(int(replicasOf(root)))
		annotations[maxReplicasAnnotation] = strconv.Itoa(int(replicasOf(root) + surge))
		r.Spec.MinReadySeconds = root.Spec.MinReadySeconds
	}
	r.Annotations, r.Spec.Replicas = annotations, &wanted
}

// annotationsOf are those of a workload that its current revision has, too, such as the cause of the change.
func annotationsOf(root ctrlclient.Object) map[string]string {
	_, annotations := kinds.Metadata(root)
	for _, k := range []string{revisionHistoryAnnotation, desiredReplicasAnnotation, maxReplicasAnnotation, appsv1.DeprecatedRollbackTo} {
		delete(annotations, k)
	}
	return annotations
}

// setNumber gives a ReplicaSet's annotations a number. Those that it had before are remembered, the latest of them.
func setNumber(annotations map[string]string, number int64) {
	before, now := annotations[revisionAnnotation], strconv.FormatInt(number, 10)
	if before == now {
		return
	}
	if before != "" {
		numbers := before
		if had := annotations[revisionHistoryAnnotation]; had != "" {
			numbers = had + "," + before
		}
		for len(numbers) > revisionHistoryLength {
			_, rest, more := strings.Cut(numbers, ",")
			if !more {
				break
			}
			numbers = rest
		}
		annotations[revisionHistoryAnnotation] = numbers
	}
	annotations[revisionAnnotation] = now
}

// numberOf is that of a ReplicaSet; 0 if it says none.
func numberOf(r ctrlclient.Object) int64 {
	n, err := strconv.ParseInt(r.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// countReplicaSets writes into the statuses of a Deployment's ReplicaSets what the leaves say of their pods. All that have an earlier
// template count as those of the latest earlier revision; where there is none, they count nowhere.
func (c *Controller) countReplicaSets(ctx context.Context, s *source, root *appsv1.Deployment, h history, view kinds.View) error {
	latest, recorded := len(h.earlier)-1, int32(0)
	if r, ok := h.current.(*appsv1.ReplicaSet); ok {
		recorded = r.Status.Replicas
	}
	current, earlier := countRevisions(view.Leaves, recorded)
	placed := slices.ContainsFunc(view.Leaves, func(l kinds.Leaf) bool { return l.Object != nil })
	if h.current == nil {
		earlier.add(current.pods, current.ready, current.available)
	} else if err := c.countReplicaSet(ctx, &h, h.current, current, placed); err != nil {
		return err
	}
	for i, r := range h.earlier {
		count := podCount{}
		if i == latest {
			count = earlier
		}
		if err := c.countReplicaSet(ctx, &h, r, count, placed); err != nil {
			return err
		}
	}
	if h.written != "" {
		c.recorded.Wrote(key{s.GVK.Kind, client.KeyOf(root)}, h.written)
	}
	return nil
}

// countReplicaSet writes one status. While nothing is placed there is nothing to tell; and that it is known what is wanted is told with what
// comes of it.
func (c *Controller) countReplicaSet(ctx context.Context, h *history, revision ctrlclient.Object, count podCount, placed bool) error {
	have := revision.(*appsv1.ReplicaSet)
	want := have.DeepCopy()
	want.Status.Replicas, want.Status.FullyLabeledReplicas = count.pods, count.pods
	want.Status.ReadyReplicas, want.Status.AvailableReplicas = count.ready, count.available
	want.Status.TerminatingReplicas, want.Status.Conditions = nil, nil // of when it was no Deployment's
	told := !placed || have.Status.ObservedGeneration == have.Generation || count.pods != *have.Spec.Replicas
	if told && equality.Semantic.DeepEqual(have.Status, want.Status) {
		return nil
	}
	want.Status.ObservedGeneration = have.Generation
	ctx = client.In(ctx, client.KeyOf(have).Cluster)
	if err := c.clients.Objects.Status().Patch(ctx, want, ctrlclient.MergeFrom(have)); ctrlclient.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of ReplicaSet %s: %w", client.KeyOf(have), err)
	}
	h.written = later(h.written, want.ResourceVersion)
	return nil
}

// keepRevisions keeps the history of a workload that is not divided, if its kind has one, and names in now, the root whose status is about to be
// written, the revision that its template is.
func (c *Controller) keepRevisions(ctx context.Context, s *source, root, now ctrlclient.Object, view kinds.View) (again time.Duration, err error) {
	if s.History == nil {
		return 0, nil
	}
	runsEarlier := slices.ContainsFunc(view.Leaves, func(l kinds.Leaf) bool {
		return l.Assigned && (l.Lost || !l.Current || !l.Finished()) || !l.Assigned && l.Object != nil
	})
	kept := keptOf(c.informers.ControllerRevisions, root)
	current, again, err := c.controllerRevisions(ctx, s, root, now, kept, !runsEarlier)
	if s.NameRevision != nil {
		var name string
		if current != nil {
			name = current.GetName()
		}
		var names []string
		for _, r := range kept {
			names = append(names, r.GetName())
		}
		s.NameRevision(root, now, view, name, names)
	}
	return again, err
}

// controllerRevisions keeps the history of a workload that is no Deployment, of which kept is there, and returns the revision of its present
// template. now is the root whose status is about to be written, through says that nothing runs an earlier template.
func (c *Controller) controllerRevisions(ctx context.Context, s *source, root, now ctrlclient.Object, kept []ctrlclient.Object, through bool) (ctrlclient.Object, time.Duration, error) {
	patch := kinds.TemplatePatch(s.Template(root))
	h, again, err := c.keepHistory(ctx, s, root, now, chronicle{
		kept: kept, template: kinds.PatchDigest(patch), runsEarlier: !through,
		make: func(meta metav1.ObjectMeta) ctrlclient.Object {
			return &appsv1.ControllerRevision{ObjectMeta: meta, Data: runtime.RawExtension{Raw: patch}}
		},
		number: func(r ctrlclient.Object) int64 { return r.(*appsv1.ControllerRevision).Revision },
		revise: func(r ctrlclient.Object, number int64, _ bool) {
			if number == 0 {
				return
			}
			annotations := maps.Clone(r.GetAnnotations())
			maps.Copy(annotations, annotationsOf(root))
			r.SetAnnotations(annotations)
			r.(*appsv1.ControllerRevision).Revision = number
		},
	})
	return h.current, again, c.tellHistory(ctx, s, root, err)
}

// later is the later one of two resource versions, of which the first may be empty.
func later(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil && order > 0 {
		return a
	}
	return b
}
