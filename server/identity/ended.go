package identity

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// syncTargets are what Nodes are of, those of a workspace and of all below it.
var syncTargets = workloadv1alpha1.GroupVersion.WithResource("synctargets").GroupResource()

// Ended counts what this server has deleted that tokens depend on: what was found out about a token before does not count after
// that. Several logical clusters share a count, which costs the others that their tokens are looked at once more. The zero value
// is not ready; see NewEnded.
type Ended struct {
	seed   maphash.Seed
	counts [256]atomic.Uint64
}

// NewEnded returns one that counts from nothing.
func NewEnded() *Ended { return &Ended{seed: maphash.MakeSeed()} }

func (e *Ended) count(cluster logicalcluster.Name) *atomic.Uint64 {
	return &e.counts[maphash.String(e.seed, cluster.String())%uint64(len(e.counts))]
}

// of is the count of a logical cluster. Who is about to read what a token depends on asks before.
func (e *Ended) of(cluster logicalcluster.Name) uint64 { return e.count(cluster).Load() }

// Deleted counts a deletion, once etcd has it and before its client is told.
func (e *Ended) Deleted(cluster logicalcluster.Name, resource schema.GroupResource) {
	switch resource {
	case schema.GroupResource{Resource: "serviceaccounts"}, schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "secrets"}:
		e.count(cluster).Add(1)
	case syncTargets:
		for i := range e.counts {
			e.counts[i].Add(1)
		}
	}
}

// AllDeleted counts that everything of a logical cluster is.
func (e *Ended) AllDeleted(cluster logicalcluster.Name) { e.count(cluster).Add(1) }
