package fleet

import (
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ownerWorkspaces is the resource of the owner of a workspace's logical cluster.
const ownerWorkspaces = "workspaces"

// ParentOf returns the logical cluster above a workspace's; empty at the top of a tree and for mirrors.
func ParentOf(lc *corev1alpha1.LogicalCluster) logicalcluster.Name {
	if lc.Spec.Owner == nil || lc.Spec.Owner.Resource != ownerWorkspaces {
		return ""
	}
	return logicalcluster.Name(lc.Spec.Owner.Cluster)
}

// IsWorkspace says whether people work there: neither a mirror nor one of the server's own logical clusters.
func IsWorkspace(lc *corev1alpha1.LogicalCluster) bool {
	return lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror && !strings.HasPrefix(string(lcctx.NameFrom(lc)), "system:")
}

// Lineage returns a workspace's logical cluster and those above it, nearest first, and whether it reaches the top. An
// unknown ancestor may hold policies, so nothing may be decided without it.
func Lineage(lc *corev1alpha1.LogicalCluster, get func(logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool)) (chain []logicalcluster.Name, complete bool) {
	chain = []logicalcluster.Name{lcctx.NameFrom(lc)}
	for {
		parent := ParentOf(lc)
		if parent == "" {
			return chain, true
		}
		next, ok := get(parent)
		if !ok || slices.Contains(chain, parent) {
			return chain, false
		}
		chain, lc = append(chain, parent), next
	}
}

// Reachable returns those of the SyncTargets of a workspace and of every logical cluster above it, nearest first, that it could
// use, policies aside, and whether a nearer one of the same name shadows it. One dedicated to another workspace does not exist
// for this one.
func Reachable(lc *corev1alpha1.LogicalCluster, levels [][]*workloadv1alpha1.SyncTarget) iter.Seq2[*workloadv1alpha1.SyncTarget, bool] {
	path, name := lc.Annotations[lcctx.PathAnnotation], string(lcctx.NameFrom(lc))
	filled := 0
	for _, level := range levels {
		if len(level) > 0 {
			filled++
		}
	}
	return func(yield func(*workloadv1alpha1.SyncTarget, bool) bool) {
		nearer := map[string]bool{}
		for _, level := range levels {
			var here []string
			for _, t := range level {
				if to := t.Spec.DedicatedTo; to != "" && to != path && to != name {
					continue
				}
				if !yield(t, nearer[t.Name]) {
					return
				}
				if filled > 1 {
					here = append(here, t.Name)
				}
			}
			for _, name := range here {
				nearer[name] = true
			}
		}
	}
}

// Usable returns the SyncTargets that a workspace may use, given those and the PlacementPolicies of its lineage, nearest first. It is
// an error if an allow cannot be read: nobody knows then what it allows.
func Usable(lc *corev1alpha1.LogicalCluster, targets [][]*workloadv1alpha1.SyncTarget, policies [][]*placementv1alpha1.PlacementPolicy) ([]*workloadv1alpha1.SyncTarget, error) {
	var selections []placementv1alpha1.ClusterSelection
	for _, level := range policies {
		for _, p := range level {
			if p.Spec.Allow != nil {
				selections = append(selections, *p.Spec.Allow)
			}
		}
	}
	allow, err := CompileAllow(selections)
	if err != nil {
		return nil, err
	}
	var usable []*workloadv1alpha1.SyncTarget
	for t, shadowed := range Reachable(lc, targets) {
		if !shadowed && allow.Registered(t.Name, t.Labels) {
			usable = append(usable, t)
		}
	}
	return usable, nil
}

// Allowed is what policies allow; a cluster has to pass every one.
type Allowed []struct {
	names    []string
	selector labels.Selector
}

// CompileAllow reads the allow of policies. Its error is a sentence for the user.
func CompileAllow(policies []placementv1alpha1.ClusterSelection) (Allowed, error) {
	a := make(Allowed, len(policies))
	for i, p := range policies {
		a[i].names = p.Names
		if p.Selector == nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(p.Selector)
		if err != nil {
			//lint:ignore ST1005 a sentence for people: it becomes the message of a condition
			return nil, errors.New("Ask who holds the PlacementPolicies of this workspace and above: an allow among them cannot be read")
		}
		a[i].selector = selector
	}
	return a, nil
}

// Registered says whether a cluster with that name and those labels may be used.
func (a Allowed) Registered(name string, of map[string]string) bool {
	for _, p := range a {
		if !slices.Contains(p.names, name) && (p.selector == nil || !p.selector.Matches(labels.Set(of))) {
			return false
		}
	}
	return true
}

// Unregistered says whether a cluster of that name, of which nobody knows the labels, might be used.
func (a Allowed) Unregistered(name string) bool {
	for _, p := range a {
		if !slices.Contains(p.names, name) {
			return false
		}
	}
	return true
}
