package nodes

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// uidKey is where a context has the UID of the Node that a Get is of.
type uidKey struct{}

// WithUID returns a context in which a Get of a Node is of the physical cluster with that UID, of the workspace or of one above it, whether
// the workspace may use it now or not. Tokens are bound to it: what stays in a cluster that a policy has withdrawn, or runs in one that is
// being emptied, keeps its API until the cluster is removed. A name alone may mean another, nearer one by then.
func WithUID(ctx context.Context, uid types.UID) context.Context {
	return context.WithValue(ctx, uidKey{}, uid)
}

// withUID returns the Node of the SyncTarget with that name and UID, nil if there is none. Without a resourceVersion it reads the
// SyncTarget from etcd: a watch cache would let in for a moment what runs in a cluster that was just removed. The cache says
// where that is, or it is looked for on each level.
func (n *Nodes) withUID(ctx context.Context, workspace logicalcluster.Name, name string, uid types.UID, resourceVersion string) (*shown, error) {
	targets, err := n.store(syncTargets)
	if err != nil {
		return nil, err
	}
	// What is above a workspace does not change. One that is new the cache may not know yet.
	s := &sight{}
	lc, err := n.lineage(ctx, s, workspace, 0)
	if lc == nil {
		var now uint64
		if now, err = targets.Storage.GetCurrentResourceVersion(ctx); err != nil {
			return nil, err
		}
		lc, err = n.lineage(ctx, s, workspace, now)
	}
	if lc == nil {
		return nil, err
	}
	on := func(level logicalcluster.Name, resourceVersion string) (*workloadv1alpha1.SyncTarget, error) {
		target := &workloadv1alpha1.SyncTarget{}
		in := lcctx.WithCluster(ctx, lcctx.Cluster{Name: level})
		err := targets.Storage.Get(in, targets.Key("", name), kubestorage.GetOptions{IgnoreNotFound: true, ResourceVersion: resourceVersion}, target)
		if err != nil || target.UID != uid {
			return nil, err
		}
		return target, nil
	}
	levels := s.chain
	for i, level := range s.chain {
		known, err := on(level, "0")
		if err != nil {
			return nil, err
		}
		if known != nil {
			levels = s.chain[i : i+1] // a UID is nowhere else
			break
		}
	}
	for _, level := range levels {
		target, err := on(level, resourceVersion)
		if err != nil {
			return nil, err
		}
		if target != nil {
			return &shown{object: nodeOf(target, workspace)}, nil
		}
	}
	return nil, nil
}
