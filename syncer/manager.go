package syncer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

// ManagerFinalizer, on SyncTargets, is kept until nothing of what the physical cluster runs is left.
const ManagerFinalizer = "workload.atoll.dev/synctarget"

// managerWorkers is how many SyncTargets are worked on at once; each pass is a few requests to our own server.
const managerWorkers = 4

// Indexes that the Manager adds to shared informers.
const (
	byUID        = "syncer/uid"        // SyncTargets by their UID
	byMirror     = "syncer/mirror"     // SyncTargets by status.mirror
	byClusterUID = "syncer/clusterUID" // SyncTargets by status.clusterUID
	bySecret     = "syncer/secret"     // SyncTargets by the key of their kubeconfig Secret
	byTarget     = "syncer/target"     // Placements by the UIDs of their SyncTargets
)

// ManagerConfig is what a Manager needs. All fields but MaxBytes are required.
type ManagerConfig struct {
	Clients   *client.Clients
	Informers *client.Informers
	// MirrorConfig returns how a Syncer reaches its mirror: an identity that is valid there alone, for the SyncTarget
	// of that UID.
	MirrorConfig func(mirror logicalcluster.Name, target types.UID) (*rest.Config, error)
	// DeleteData removes everything that a logical cluster stores, finalizers or not. It may be called again.
	DeleteData func(ctx context.Context, mirror logicalcluster.Name) error
	// MayWrite returns why another Manager may run the Syncers by now; nil if none can. See Config.MayWrite.
	MayWrite func() error
	// MaxBytes and API are those of Config, of each Syncer.
	MaxBytes int64
	API      *API
	Clock    clock.WithTicker
}

// Manager gives every SyncTarget its mirror and, where it has a kubeconfig, a running Syncer; it tells the SyncTarget
// what the Syncer reports, or that it does not.
type Manager struct {
	config ManagerConfig
	leases *client.Informer[*coordinationv1.Lease]
	queue  *queue.Queue[client.Key]

	mu sync.Mutex // guards all below
	// heard is when a mirror's heartbeat last came, by our clock.
	heard map[logicalcluster.Name]time.Time
	// running has the push Syncers, or what identifies a duplicate, by the UID of their SyncTarget.
	running map[types.UID]*push
	// doubted is why it was last said of the pods of a mirror that they are not Ready.
	doubted map[logicalcluster.Name]doubt
}

// push is one running Syncer, or what runs for a duplicate in its place.
type push struct {
	// source identifies the credential and the mirror it was started with; it begins with identifies if it is no Syncer.
	source string
	stop   context.CancelFunc
	done   chan struct{}
}

// NewManager returns a Manager whose handlers are added to the shared informers, which must not run yet.
func NewManager(c ManagerConfig) (*Manager, error) {
	if c.Clients == nil || c.Informers == nil || c.MirrorConfig == nil || c.DeleteData == nil || c.MayWrite == nil || c.Clock == nil {
		return nil, errors.New("make the syncers' manager: every field of its configuration but MaxBytes is needed")
	}
	m := &Manager{config: c, heard: map[logicalcluster.Name]time.Time{}, running: map[types.UID]*push{}, doubted: map[logicalcluster.Name]doubt{}}
	m.queue = queue.New("synctargets", m.reconcile)

	targets, placements := c.Informers.SyncTargets, c.Informers.Placements
	index := func(of func(*workloadv1alpha1.SyncTarget) string) func(*workloadv1alpha1.SyncTarget) []string {
		return func(t *workloadv1alpha1.SyncTarget) []string {
			if value := of(t); value != "" && !isTwin(t) {
				return []string{value}
			}
			return nil
		}
	}
	for name, of := range map[string]func(*workloadv1alpha1.SyncTarget) string{
		byUID:        func(t *workloadv1alpha1.SyncTarget) string { return string(t.UID) },
		byMirror:     func(t *workloadv1alpha1.SyncTarget) string { return t.Status.Mirror },
		byClusterUID: func(t *workloadv1alpha1.SyncTarget) string { return t.Status.ClusterUID },
		bySecret: func(t *workloadv1alpha1.SyncTarget) string {
			if k, ok := secretOf(t); ok {
				return k.String()
			}
			return ""
		},
	} {
		if err := targets.AddIndex(name, index(of)); err != nil {
			return nil, fmt.Errorf("index SyncTargets by %s: %w", name, err)
		}
	}
	err := placements.AddIndex(byTarget, func(p *placementv1alpha1.Placement) []string {
		var uids []string
		for _, cluster := range p.Spec.Clusters {
			uids = append(uids, string(cluster.UID))
		}
		return uids
	})
	if err != nil {
		return nil, fmt.Errorf("index Placements by %s: %w", byTarget, err)
	}

	m.leases, err = client.NewInformer(c.Clients, &coordinationv1.Lease{}, client.InformerOptions[*coordinationv1.Lease]{
		FieldSelector: "metadata.name=" + workloadv1alpha1.HeartbeatName,
	})
	if err != nil {
		return nil, err
	}
	m.listen()
	return m, nil
}

// listen adds the handlers.
func (m *Manager) listen() {
	in := m.config.Informers
	in.SyncTargets.OnEvent(func(e client.Event[*workloadv1alpha1.SyncTarget]) {
		t := e.Object()
		if isTwin(t) {
			m.enqueue(byUID, t.Labels[workloadv1alpha1.SyncTargetLabel])
			return
		}
		m.queue.Add(client.KeyOf(t))
		// Whoever is the same physical cluster may have become, or ceased to be, the duplicate.
		if e.Old != nil && (e.Deleted() || e.Old.Status.ClusterUID != e.New.Status.ClusterUID) {
			m.enqueue(byClusterUID, e.Old.Status.ClusterUID)
		}
		if !e.Deleted() && (e.Old == nil || e.Old.Status.ClusterUID != e.New.Status.ClusterUID) {
			m.enqueue(byClusterUID, e.New.Status.ClusterUID)
		}
	})
	in.Placements.OnEvent(func(e client.Event[*placementv1alpha1.Placement]) {
		if e.Old == nil {
			return
		}
		for _, cluster := range e.Old.Spec.Clusters {
			m.enqueueTerminating(byUID, string(cluster.UID))
		}
	})
	in.Namespaces.OnEvent(func(e client.Event[*corev1.Namespace]) { m.left(e.Object(), e.Deleted()) })
	in.Of("Secret").OnEvent(func(e client.Event[ctrlclient.Object]) { m.enqueue(bySecret, client.KeyOf(e.Object()).String()) })
	for _, kind := range in.Kinds {
		kind.OnEvent(func(e client.Event[ctrlclient.Object]) { m.left(e.Object(), e.Deleted()) })
	}

	m.leases.OnEvent(func(e client.Event[*coordinationv1.Lease]) {
		if l := e.Object(); l.Namespace == workloadv1alpha1.HeartbeatNamespace {
			m.beat(client.KeyOf(l).Cluster, l, e)
		}
	})
}

// beat records a heartbeat. Only one that ends a silence is news, or that finds a confirmation which answers nothing.
func (m *Manager) beat(mirror logicalcluster.Name, l *coordinationv1.Lease, e client.Event[*coordinationv1.Lease]) {
	now := m.config.Clock.Now()
	m.mu.Lock()
	before := m.heard[mirror]
	switch {
	case e.Deleted():
		delete(m.heard, mirror)
	case e.Initial && l.Spec.RenewTime != nil && l.Spec.RenewTime.Before(&metav1.MicroTime{Time: now}):
		// Found, not received: it is as old as it says. Later ones are timed by our clock, since the syncer's may be wrong.
		m.heard[mirror] = l.Spec.RenewTime.Time
	default:
		m.heard[mirror] = now
	}
	m.mu.Unlock()
	if e.Deleted() || now.Sub(before) > silence || asksNothing(l) && !asksNothing(e.Old) {
		m.enqueue(byMirror, string(mirror))
	}
}

// left wakes a deleted SyncTarget when an object of its mirror is gone, or is not waited for any more.
func (m *Manager) left(obj metav1.Object, gone bool) {
	if gone && obj.GetLabels()[workloadv1alpha1.WorkspaceLabel] != "" {
		m.enqueueTerminating(byMirror, string(client.KeyOf(obj).Cluster))
	}
}

func (m *Manager) enqueue(index, value string) {
	if value == "" {
		return
	}
	for _, t := range m.config.Informers.SyncTargets.ByIndex(index, value) {
		m.queue.Add(client.KeyOf(t))
	}
}

func (m *Manager) enqueueTerminating(index, value string) {
	for _, t := range m.config.Informers.SyncTargets.ByIndex(index, value) {
		if t.DeletionTimestamp != nil {
			m.queue.Add(client.KeyOf(t))
		}
	}
}

// isTwin says whether a SyncTarget is the copy in a mirror. The label is the Manager's: the server refuses it anywhere else.
func isTwin(t *workloadv1alpha1.SyncTarget) bool {
	return t.Labels[workloadv1alpha1.SyncTargetLabel] != ""
}

// secretOf returns the key of the kubeconfig Secret, and whether there is one.
func secretOf(t *workloadv1alpha1.SyncTarget) (client.Key, bool) {
	ref := t.Spec.KubeconfigSecretRef
	if ref == nil || ref.Name == "" {
		return client.Key{}, false
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return client.Key{Cluster: client.KeyOf(t).Cluster, Namespace: namespace, Name: ref.Name}, true
}

// Run manages SyncTargets until ctx ends, and returns when every Syncer it started has stopped.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.queue.Stop()
	wg.Go(func() { m.leases.Run(ctx) })
	for _, wait := range []func(context.Context) error{
		m.config.Informers.WaitSynced, m.leases.WaitSynced,
	} {
		if err := wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("manage SyncTargets: %w", err)
		}
	}
	m.queue.Run(ctx, managerWorkers)

	m.mu.Lock()
	running := m.running
	m.running = map[types.UID]*push{}
	m.mu.Unlock()
	for _, p := range running {
		p.stop()
		<-p.done
	}
	return nil
}
