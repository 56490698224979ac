package nodes

import (
	"context"
	"slices"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/fleet"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// What the Nodes and the classes of a workspace are made of, but for its own classes.
var (
	logicalClusters = schema.GroupResource{Group: corev1alpha1.GroupVersion.Group, Resource: "logicalclusters"}
	syncTargets     = schema.GroupResource{Group: workloadv1alpha1.GroupVersion.Group, Resource: "synctargets"}
	policies        = schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placementpolicies"}

	sources = []schema.GroupResource{logicalClusters, syncTargets, policies}
)

// object is a Node or a class, of the registry's type.
type object interface {
	runtime.Object
	metav1.Object
}

// shown is an object that a workspace is shown. row says that it is one of its own, which it may write: its resourceVersion is what is
// stored, in events too.
type shown struct {
	object
	row bool
}

// sight is the Nodes of a workspace, or its classes of one kind, and as of when.
type sight struct {
	// shown sorted by name.
	shown []shown
	// chain is the workspace's logical cluster and those above it: a change elsewhere changes nothing here.
	chain []logicalcluster.Name
	// since is the revision up to which no change is missing, until the last of which there may be some; newest is that of the
	// latest object, which is not after since.
	since, until, newest uint64
}

// look reads what a workspace is shown from the watch caches, as it was at revision atLeast or later; 0 is whenever.
func (of *store) look(ctx context.Context, workspace logicalcluster.Name, atLeast uint64) (*sight, error) {
	for {
		s, err := of.lookOnce(ctx, workspace, atLeast)
		if err != nil || s.newest <= s.since {
			return s, err
		}
		// One cache is ahead: until the others are as far, nobody can say what this is a state of.
		atLeast = s.newest
	}
}

func (of *store) lookOnce(ctx context.Context, workspace logicalcluster.Name, atLeast uint64) (*sight, error) {
	n, s := of.nodes, &sight{}
	rows, err := of.rows(ctx, s, workspace, atLeast)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		s.shown = append(s.shown, shown{row, true})
	}
	lc, err := n.lineage(ctx, s, workspace, atLeast)
	if err != nil || lc == nil {
		return s, err
	}
	targets := make([][]*workloadv1alpha1.SyncTarget, len(s.chain))
	allowing := make([][]*placementv1alpha1.PlacementPolicy, len(s.chain))
	for i, level := range s.chain {
		here := &workloadv1alpha1.SyncTargetList{}
		if err := n.list(ctx, s, level, syncTargets, atLeast, here); err != nil {
			return nil, err
		}
		there := &placementv1alpha1.PlacementPolicyList{}
		if err := n.list(ctx, s, level, policies, atLeast, there); err != nil {
			return nil, err
		}
		targets[i], allowing[i] = pointers(here.Items), pointers(there.Items)
	}
	usable, err := fleet.Usable(lc, targets, allowing)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	usable = slices.DeleteFunc(usable, func(t *workloadv1alpha1.SyncTarget) bool { return t.RunsNothing() }) // that is another one's cluster, twice
	if of.class != nil {
		of.addClasses(s, usable, workspace)
	} else {
		for _, t := range usable {
			s.shown = append(s.shown, shown{object: nodeOf(t, workspace)})
		}
	}
	slices.SortFunc(s.shown, byName)
	return s, nil
}

// lineage reads a workspace's LogicalCluster, nil if nobody works there, and makes the chain of s.
func (n *Nodes) lineage(ctx context.Context, s *sight, workspace logicalcluster.Name, atLeast uint64) (*corev1alpha1.LogicalCluster, error) {
	s.chain = []logicalcluster.Name{workspace}
	lc, err := n.logicalCluster(ctx, s, workspace, atLeast)
	if err != nil || lc == nil || !fleet.IsWorkspace(lc) {
		return nil, err
	}
	var complete bool
	s.chain, complete = fleet.Lineage(lc, func(above logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
		var found *corev1alpha1.LogicalCluster
		found, err = n.logicalCluster(ctx, s, above, atLeast)
		return found, found != nil
	})
	switch {
	case err != nil:
		return nil, err
	case !complete:
		// To show none would say that they are gone.
		return nil, apierrors.NewServiceUnavailable("which physical clusters this workspace may use is not known before the workspaces above it are")
	}
	return lc, nil
}

// logicalCluster reads a LogicalCluster; nil if there is none.
func (n *Nodes) logicalCluster(ctx context.Context, s *sight, name logicalcluster.Name, atLeast uint64) (*corev1alpha1.LogicalCluster, error) {
	list := &corev1alpha1.LogicalClusterList{}
	if err := n.list(ctx, s, name, logicalClusters, atLeast, list); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

// list reads a resource of one logical cluster, and counts it among what s is made of. What it reads refers to what the watch cache
// holds.
func (n *Nodes) list(ctx context.Context, s *sight, of logicalcluster.Name, resource schema.GroupResource, atLeast uint64, into runtime.Object) error {
	store, err := n.store(resource)
	if err != nil {
		return err
	}
	options := kubestorage.ListOptions{
		ResourceVersion: strconv.FormatUint(atLeast, 10), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		Recursive: true, Predicate: kubestorage.Everything,
	}
	// Its error says which resource, and is what a client is answered.
	if err := store.Storage.GetList(lcctx.WithCluster(ctx, lcctx.Cluster{Name: of}), store.Key("", ""), options, into); err != nil {
		return err
	}
	return s.takeIn(into)
}

// takeIn counts a list among what s is made of.
func (s *sight) takeIn(list runtime.Object) error {
	of, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	at, err := versioner.ParseResourceVersion(of.GetResourceVersion())
	if err != nil {
		return err
	}
	if s.since == 0 || at < s.since {
		s.since = at
	}
	s.until = max(s.until, at)
	return meta.EachListItem(list, func(obj runtime.Object) error {
		version, err := versioner.ObjectResourceVersion(obj)
		s.newest = max(s.newest, version)
		return err
	})
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
