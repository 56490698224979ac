package syncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// reconcile makes one SyncTarget's mirror, twin, Syncer and status right.
func (m *Manager) reconcile(ctx context.Context, k client.Key) (time.Duration, error) {
	target, ok := m.config.Informers.SyncTargets.Get(k)
	if !ok || isTwin(target) {
		return 0, nil
	}
	target = target.DeepCopy()
	home := client.In(ctx, k.Cluster)
	if target.DeletionTimestamp != nil {
		return m.remove(ctx, home, target)
	}

	if !slices.Contains(target.Finalizers, ManagerFinalizer) {
		target.Finalizers = append(target.Finalizers, ManagerFinalizer)
		if err := m.config.Clients.Objects.Update(home, target); err != nil {
			return 0, fmt.Errorf("add a finalizer to SyncTarget %s: %w", k, err)
		}
	}
	if target.Status.Mirror == "" {
		// Before the mirror is made, so that one that was made is always found again.
		target.Status.Mirror = string(lcctx.NewName())
		if err := m.config.Clients.Objects.Status().Update(home, target); err != nil {
			return 0, fmt.Errorf("name the mirror of SyncTarget %s: %w", k, err)
		}
	}

	twin, p, err := m.ensure(ctx, target)
	if err != nil {
		return 0, err
	}
	return m.tell(home, target, twin, p)
}

// ensure makes the mirror, the twin and the Syncer. It returns the twin that it judged by, nil if there is none, and the
// problem that keeps the SyncTarget from being synced.
func (m *Manager) ensure(ctx context.Context, target *workloadv1alpha1.SyncTarget) (*workloadv1alpha1.SyncTarget, *problem, error) {
	var p *problem
	err := m.ensureMirror(ctx, target)
	if errors.As(err, &p) {
		m.stop(target.UID)
		return nil, p, nil // what is in another's logical cluster is told to nobody
	}
	if err != nil {
		return nil, nil, err
	}
	twin, _ := m.twin(target)
	duplicate := m.duplicate(target, twin)
	if err := m.ensureTwin(ctx, target, twin, letInTo(target, twin, duplicate)); err != nil {
		return nil, nil, err
	}
	if p := duplicate; p != nil {
		var invalid *problem
		if err := m.ensureIdentified(ctx, target); errors.As(err, &invalid) {
			// It stays a duplicate: with another reason it would count among those that hold the cluster.
			p.message += " " + invalid.message
		} else if err != nil {
			return nil, nil, err
		}
		return twin, p, nil
	}
	if err := m.ensureSyncer(ctx, target); err != nil {
		if errors.As(err, &p) {
			m.stop(target.UID)
			return twin, p, nil
		}
		return nil, nil, err
	}
	return twin, nil, nil
}

// duplicate returns the problem that another SyncTarget is the physical cluster that the twin reports, nil if none is.
func (m *Manager) duplicate(target, twin *workloadv1alpha1.SyncTarget) *problem {
	uid := clusterUID(target, twin)
	if uid == "" {
		return nil
	}
	return duplicateOf(target, uid, m.config.Informers.SyncTargets.ByIndex(byClusterUID, uid),
		func(t *workloadv1alpha1.SyncTarget) string { return string(client.KeyOf(t).Cluster) })
}

// mirrorOf returns the mirror of a SyncTarget, and whether it exists. It is a problem if it is another's: status is
// written by whoever may, and nothing may be written into, or removed from, a logical cluster on its word alone.
func (m *Manager) mirrorOf(ctx context.Context, target *workloadv1alpha1.SyncTarget) (logicalcluster.Name, bool, error) {
	mirror := logicalcluster.Name(target.Status.Mirror)
	if !lcctx.IsNewName(target.Status.Mirror) {
		return "", false, &problem{ReasonMirrorInvalid, fmt.Sprintf("status.mirror is %q, which is not the name of a mirror: those have %d letters and digits. "+
			"Remove it, and the SyncTarget gets a new mirror.", target.Status.Mirror, lcctx.NameLength)}
	}
	var lc corev1alpha1.LogicalCluster
	err := m.config.Clients.Objects.Get(client.In(ctx, mirror), ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, &lc)
	if apierrors.IsNotFound(err) {
		return mirror, false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read logical cluster %s: %w", mirror, err)
	}
	owner := lc.Spec.Owner
	if lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror || owner == nil || owner.UID != target.UID ||
		owner.Cluster != string(client.KeyOf(target).Cluster) {
		return "", false, &problem{ReasonMirrorTaken, "status.mirror names a logical cluster that is not this SyncTarget's."}
	}
	return mirror, true, nil
}

// ensureMirror makes the mirror, and in it the namespace of the heartbeat.
func (m *Manager) ensureMirror(ctx context.Context, target *workloadv1alpha1.SyncTarget) error {
	mirror, exists, err := m.mirrorOf(ctx, target)
	if err != nil {
		return err
	}
	in := client.In(ctx, mirror)
	if !exists {
		err := m.config.Clients.Objects.Create(in, &corev1alpha1.LogicalCluster{
			ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName},
			Spec: corev1alpha1.LogicalClusterSpec{
				Use: corev1alpha1.LogicalClusterUseMirror,
				Owner: &corev1alpha1.LogicalClusterOwner{
					APIVersion: workloadv1alpha1.GroupVersion.String(), Resource: syncTargetsGVR.Resource,
					Name: target.Name, Cluster: string(client.KeyOf(target).Cluster), UID: target.UID,
				},
			},
		})
		if err != nil {
			return fmt.Errorf("create mirror %s: %w", mirror, err)
		}
		klog.FromContext(ctx).Info("Mirror created", "syncTarget", client.KeyOf(target).String(), "mirror", mirror)
	}
	if _, ok := m.config.Informers.Namespaces.Get(client.Key{Cluster: mirror, Name: workloadv1alpha1.HeartbeatNamespace}); ok {
		return nil
	}
	err = m.config.Clients.Objects.Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workloadv1alpha1.HeartbeatNamespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s in mirror %s: %w", workloadv1alpha1.HeartbeatNamespace, mirror, err)
	}
	return nil
}

func (m *Manager) twin(target *workloadv1alpha1.SyncTarget) (*workloadv1alpha1.SyncTarget, bool) {
	return m.config.Informers.SyncTargets.Get(client.Key{Cluster: logicalcluster.Name(target.Status.Mirror), Name: target.Name})
}

// ensureTwin makes the twin, nil if there is none, say what the SyncTarget says: spec, labels and what the administrator
// confirmed; and to which physical cluster it was let in, whose UID that is.
func (m *Manager) ensureTwin(ctx context.Context, target, twin *workloadv1alpha1.SyncTarget, uid string) error {
	in := client.In(ctx, logicalcluster.Name(target.Status.Mirror))
	labels := maps.Clone(target.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[workloadv1alpha1.SyncTargetLabel] = string(target.UID)
	confirm, confirmed := target.Annotations[workloadv1alpha1.ConfirmAnnotation]

	if twin == nil {
		twin := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: target.Name, Labels: labels}, Spec: target.Spec}
		metav1.SetMetaDataAnnotation(&twin.ObjectMeta, workloadv1alpha1.LetInAnnotation, uid)
		if err := m.config.Clients.Objects.Create(in, twin); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the twin of SyncTarget %s: %w", client.KeyOf(target), err)
		}
		return nil // its event brings us back
	}
	want := twin.DeepCopy()
	want.Spec, want.Labels = *target.Spec.DeepCopy(), labels
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, workloadv1alpha1.LetInAnnotation, uid)
	if confirmed {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, workloadv1alpha1.ConfirmAnnotation, confirm)
	} else {
		delete(want.Annotations, workloadv1alpha1.ConfirmAnnotation)
	}
	if apiequality.Semantic.DeepEqual(twin.Spec, want.Spec) && maps.Equal(twin.Labels, want.Labels) && maps.Equal(twin.Annotations, want.Annotations) {
		return nil
	}
	if err := m.config.Clients.Objects.Update(in, want); err != nil {
		return fmt.Errorf("update the twin of SyncTarget %s: %w", client.KeyOf(target), err)
	}
	return nil
}

// ensureSyncer runs a Syncer for a SyncTarget with a kubeconfig, and stops one that is not wanted any more or was
// started with another.
func (m *Manager) ensureSyncer(ctx context.Context, target *workloadv1alpha1.SyncTarget) error {
	return m.ensureRuns(ctx, target, "", func(physical *rest.Config) (func(context.Context) error, error) {
		s, err := m.newSyncer(target, physical)
		if err != nil {
			return nil, err
		}
		return s.Run, nil
	})
}

// newSyncer returns the Syncer of a SyncTarget.
func (m *Manager) newSyncer(target *workloadv1alpha1.SyncTarget, physical *rest.Config) (*Syncer, error) {
	mirror, err := m.config.MirrorConfig(logicalcluster.Name(target.Status.Mirror), target.UID)
	if err != nil {
		return nil, fmt.Errorf("make an identity for the syncer of %s: %w", client.KeyOf(target), err)
	}
	s, err := New(Config{
		Name: target.Name, UID: string(target.UID), Mirror: mirror, Physical: physical,
		Clock: m.config.Clock, MayWrite: m.config.MayWrite, MaxBytes: m.config.MaxBytes, API: m.config.API,
	})
	if err != nil {
		return nil, &problem{ReasonKubeconfigInvalid, err.Error()}
	}
	return s, nil
}

// ensureRuns runs for a SyncTarget with a kubeconfig what prepare returns, unless that runs already, started with the same
// kubeconfig and for the same purpose; what runs otherwise is stopped.
func (m *Manager) ensureRuns(ctx context.Context, target *workloadv1alpha1.SyncTarget, purpose string,
	prepare func(physical *rest.Config) (run func(context.Context) error, err error)) error {
	secretKey, wanted := secretOf(target)
	if !wanted {
		m.stop(target.UID)
		return nil
	}
	source := func(secret metav1.Object) string {
		return purpose + target.Status.Mirror + "/" + string(secret.GetUID()) + "/" + secret.GetResourceVersion()
	}
	if meta, ok := m.config.Informers.Of("Secret").Get(secretKey); ok {
		if m.runs(target, source(meta)) {
			return nil
		}
	}
	home := client.In(ctx, secretKey.Cluster)
	secret, err := m.config.Clients.Kube.CoreV1().Secrets(secretKey.Namespace).Get(home, secretKey.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &problem{ReasonKubeconfigInvalid, fmt.Sprintf("Secret %s/%s does not exist.", secretKey.Namespace, secretKey.Name)}
	}
	if err != nil {
		return fmt.Errorf("read the kubeconfig of SyncTarget %s: %w", client.KeyOf(target), err)
	}
	if m.runs(target, source(secret)) {
		return nil // the informer is behind
	}
	physical, err := physicalConfig(secret.Data["kubeconfig"])
	if err != nil {
		return &problem{ReasonKubeconfigInvalid, fmt.Sprintf("Key kubeconfig of Secret %s/%s: %v", secretKey.Namespace, secretKey.Name, err)}
	}
	run, err := prepare(physical)
	if err != nil {
		return err
	}
	m.stop(target.UID)
	m.start(ctx, target, source(secret), run)
	return nil
}

func (m *Manager) runs(target *workloadv1alpha1.SyncTarget, source string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.running[target.UID]
	return ok && p.source == source
}

func (m *Manager) start(ctx context.Context, target *workloadv1alpha1.SyncTarget, source string, run func(context.Context) error) {
	logger := klog.FromContext(ctx).WithValues("syncTarget", client.KeyOf(target).String())
	ctx, stop := context.WithCancel(klog.NewContext(ctx, logger))
	p := &push{source: source, stop: stop, done: make(chan struct{})}
	m.mu.Lock()
	m.running[target.UID] = p
	m.mu.Unlock()
	logger.Info("Syncer starts", "onlyIdentifies", strings.HasPrefix(source, identifies))
	go func() {
		defer close(p.done)
		if err := run(ctx); err != nil {
			logger.Error(err, "Syncer ended")
		}
	}()
}

// stop ends a SyncTarget's Syncer, if one runs, and returns when it has.
func (m *Manager) stop(target types.UID) {
	m.mu.Lock()
	p := m.running[target]
	delete(m.running, target)
	m.mu.Unlock()
	if p != nil {
		p.stop()
		<-p.done
	}
}

// tell writes the SyncTarget's status, from the twin that was judged by, if it changed; takes a confirmation away that has been used; and
// says of what a cluster shows that is not Ready that it is not either.
func (m *Manager) tell(home context.Context, target, twin *workloadv1alpha1.SyncTarget, p *problem) (time.Duration, error) {
	m.mu.Lock()
	heard := m.heard[logicalcluster.Name(target.Status.Mirror)]
	m.mu.Unlock()
	if twin == nil {
		heard = time.Time{}
	}
	now := m.config.Clock.Now()
	status, again := targetStatus(target, twin, heard, p, now)
	pods := doubtIn(target, twin, heard, p, now)
	if !apiequality.Semantic.DeepEqual(target.Status, status) {
		target.Status = status
		if err := m.config.Clients.Objects.Status().Update(home, target); err != nil {
			return 0, fmt.Errorf("write the status of SyncTarget %s: %w", client.KeyOf(target), err)
		}
	}
	if twin == nil { // then it is not known either that the mirror is its own
		return again, nil
	}
	if err := m.forgetConfirmation(home, target, twin); err != nil {
		return 0, err
	}
	// After the status, which no pod may hold up.
	return again, m.doubtPods(home, logicalcluster.Name(target.Status.Mirror), pods)
}

// forgetConfirmation takes a confirmation of a restore away that has been used, so that it does not confirm the next too, or that came
// with a restored state.
func (m *Manager) forgetConfirmation(home context.Context, target, twin *workloadv1alpha1.SyncTarget) error {
	if target.Annotations[workloadv1alpha1.ConfirmAnnotation] != confirmRestored {
		return nil
	}
	hub, err := m.config.Clients.Kube.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).
		Get(client.In(home, logicalcluster.Name(target.Status.Mirror)), workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the heartbeat of SyncTarget %s: %w", client.KeyOf(target), err)
	}
	if meta.IsStatusConditionFalse(twin.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly) || err == nil && asksNothing(hub) {
		delete(target.Annotations, workloadv1alpha1.ConfirmAnnotation)
		if err := m.config.Clients.Objects.Update(home, target); err != nil {
			return fmt.Errorf("take the confirmation off SyncTarget %s: %w", client.KeyOf(target), err)
		}
	}
	return nil
}

// remove lets a deleted SyncTarget go once nothing is placed there and nothing of it runs there any more.
func (m *Manager) remove(ctx, home context.Context, target *workloadv1alpha1.SyncTarget) (time.Duration, error) {
	if !slices.Contains(target.Finalizers, ManagerFinalizer) {
		m.stop(target.UID)
		return 0, nil
	}
	k := client.KeyOf(target)
	var p *problem
	mirror, exists, err := m.mirrorOf(ctx, target)
	if errors.As(err, &p) {
		exists = false // nothing of ours is in another's logical cluster, and nothing there is ours to remove
	} else if err != nil {
		return 0, err
	}
	if exists {
		wait, err := m.drain(ctx, target, mirror)
		if err != nil {
			return 0, err
		}
		if wait != nil {
			twin, _ := m.twin(target)
			other := m.duplicate(target, twin)
			if err := m.ensureTwin(ctx, target, twin, letInTo(target, twin, other)); err != nil {
				return 0, err
			}
			run := m.ensureSyncer // until then it is synced as ever
			if other != nil {
				// So is a duplicate: not at all. With another reason it would count among those that hold the cluster.
				run, wait = m.ensureIdentified, &problem{ReasonDuplicate, other.message + " " + wait.message}
			}
			if err := run(ctx, target); err != nil && !errors.As(err, &p) {
				return 0, err
			}
			return m.tell(home, target, twin, wait)
		}
	}
	m.stop(target.UID)
	if exists {
		if err := m.forgetPods(ctx, mirror); err != nil {
			return 0, err
		}
		if err := m.config.DeleteData(ctx, mirror); err != nil {
			return 0, fmt.Errorf("remove mirror %s: %w", mirror, err)
		}
	}
	target.Finalizers = slices.DeleteFunc(target.Finalizers, func(f string) bool { return f == ManagerFinalizer })
	if err := m.config.Clients.Objects.Update(home, target); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("release SyncTarget %s: %w", k, err)
	}
	klog.FromContext(ctx).Info("SyncTarget removed", "syncTarget", k.String(), "mirror", mirror)
	return 0, nil
}

// drain returns what a deleted SyncTarget waits for, nil if for nothing. Where no placement names it and no leaf is
// left, it deletes the mirror's namespaces, which take those of the physical cluster with them.
func (m *Manager) drain(ctx context.Context, target *workloadv1alpha1.SyncTarget, mirror logicalcluster.Name) (*problem, error) {
	abandoned := target.Annotations[workloadv1alpha1.ConfirmAnnotation] == confirmAbandon
	var placements []string
	for _, p := range m.config.Informers.Placements.ByIndex(byTarget, string(target.UID)) {
		placements = append(placements, client.KeyOf(p).String())
	}
	leaves, namespaces := m.held(mirror, target.RunsNothing())
	if wait := waitingFor(placements, append(leaves, names(namespaces)...), abandoned); wait == nil || len(placements) > 0 || len(leaves) > 0 {
		return wait, nil
	}

	// A cache that lags must not cost anybody a namespace.
	var all placementv1alpha1.PlacementList
	if err := m.config.Clients.Objects.List(client.Everywhere(ctx), &all); err != nil {
		return nil, fmt.Errorf("list placements: %w", err)
	}
	for i := range all.Items {
		for _, cluster := range all.Items[i].Spec.Clusters {
			if cluster.UID == target.UID {
				placements = append(placements, client.KeyOf(&all.Items[i]).String())
			}
		}
	}
	if len(placements) == 0 {
		for _, ns := range namespaces {
			if ns.DeletionTimestamp != nil {
				continue
			}
			err := m.config.Clients.Objects.Delete(client.In(ctx, mirror), ns.DeepCopy(), ctrlclient.Preconditions{UID: &ns.UID})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("delete namespace %s of mirror %s: %w", ns.Name, mirror, err)
			}
		}
	}
	return waitingFor(placements, names(namespaces), abandoned), nil
}

// held returns what a mirror holds for workspaces; with onlyApplied, no more of that than was applied.
func (m *Manager) held(mirror logicalcluster.Name, onlyApplied bool) (leaves []string, namespaces []*corev1.Namespace) {
	in := m.config.Informers
	counts := func(obj metav1.Object) bool {
		return obj.GetLabels()[workloadv1alpha1.WorkspaceLabel] != "" && (!onlyApplied || obj.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != "")
	}
	for _, ns := range in.Namespaces.List(mirror, "") {
		if counts(ns) {
			namespaces = append(namespaces, ns)
		}
	}
	for _, kind := range in.Kinds {
		if !kind.HasLeaves() { // a pod that runs there is a row of its workspace
			for _, o := range kind.All() {
				if runs := !onlyApplied || o.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] != ""; runs && kinds.IsBound(o) && !kind.HasEnded(o) && o.GetLabels()[workloadv1alpha1.MirrorLabel] == string(mirror) {
					leaves = append(leaves, fmt.Sprintf("%s %s", strings.ToLower(kind.GVK.Kind), client.KeyOf(o)))
				}
			}
			continue
		}
		for _, o := range kind.List(mirror, "") {
			if counts(o) {
				leaves = append(leaves, fmt.Sprintf("%s %s/%s", strings.ToLower(kind.GVK.Kind), o.GetNamespace(), o.GetName()))
			}
		}
	}
	return leaves, namespaces
}

func names(namespaces []*corev1.Namespace) []string {
	var out []string
	for _, ns := range namespaces {
		out = append(out, "namespace "+ns.Name)
	}
	return out
}
