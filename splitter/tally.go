package splitter

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
)

// tally counts, for each namespace of a workspace and each mirror, what the status of a Placement sums up, so that a change of
// one leaf does not cost a look at all the others.
type tally struct {
	mu sync.Mutex // guards both
	// counted is what is in sums for each leaf, sums without zeroes.
	counted map[leafID]counted
	sums    map[string]map[logicalcluster.Name]sumOf // by namespaceValue of the roots' namespace
}

// leafID is a leaf of any kind.
type leafID struct {
	kind string
	client.Key
}

// counted is what one leaf adds to a sum.
type counted struct {
	namespace string // namespaceValue of its root's
	phase     placementv1alpha1.PlacedClusterPhase
	deleting  bool
	replicas  int32
	ready     int32
}

// sumOf is what leaves in one mirror come to.
type sumOf struct {
	leaves, deleting int
	replicas, ready  int32
	phases           [5]int // by the index in phaseOrder
}

func newTally() *tally {
	return &tally{counted: map[leafID]counted{}, sums: map[string]map[logicalcluster.Name]sumOf{}}
}

// count is what a leaf adds.
func count(leaf ctrlclient.Object, namespace string) counted {
	n := counted{namespace: namespace, phase: phaseOf(leaf), deleting: leaf.GetDeletionTimestamp() != nil}
	if d, ok := leaf.(*appsv1.Deployment); ok {
		n.replicas, n.ready = replicasOf(d), d.Status.ReadyReplicas
	}
	return n
}

// plus adds what is counted times times, which is 1 or -1.
func (s sumOf) plus(n counted, times int) sumOf {
	s.leaves += times
	if n.deleting {
		s.deleting += times
	}
	s.replicas += n.replicas * int32(times)
	s.ready += n.ready * int32(times)
	for i, phase := range phaseOrder {
		if phase == n.phase {
			s.phases[i] += times
		}
	}
	return s
}

// phase is that of the leaf that has come least far; Pending if there is none.
func (s sumOf) phase() placementv1alpha1.PlacedClusterPhase {
	for i, n := range s.phases {
		if n > 0 {
			return phaseOrder[i]
		}
	}
	return placementv1alpha1.PhasePending
}

// set replaces what is counted of a leaf, by nil if it is gone. It returns whether that changes a sum.
func (t *tally) set(id leafID, now *counted) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.counted[id]
	if known == (now != nil) && (!known || before == *now) {
		return false
	}
	if known {
		t.add(id.Cluster, before, -1)
		delete(t.counted, id)
	}
	if now != nil {
		t.add(id.Cluster, *now, 1)
		t.counted[id] = *now
	}
	return true
}

func (t *tally) add(mirror logicalcluster.Name, n counted, times int) {
	mirrors := t.sums[n.namespace]
	if mirrors == nil {
		mirrors = map[logicalcluster.Name]sumOf{}
		t.sums[n.namespace] = mirrors
	}
	if s := mirrors[mirror].plus(n, times); s.leaves > 0 {
		mirrors[mirror] = s
		return
	}
	if delete(mirrors, mirror); len(mirrors) == 0 {
		delete(t.sums, n.namespace)
	}
}

// of returns the sums of a namespace by mirror, less what is counted of some leaves.
func (t *tally) of(namespace string, less []leafID) map[logicalcluster.Name]sumOf {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := make(map[logicalcluster.Name]sumOf, len(t.sums[namespace]))
	for mirror, s := range t.sums[namespace] {
		sums[mirror] = s
	}
	for _, id := range less {
		if n, ok := t.counted[id]; ok && n.namespace == namespace {
			sums[id.Cluster] = sums[id.Cluster].plus(n, -1)
		}
	}
	for mirror, s := range sums {
		if s.leaves == 0 {
			delete(sums, mirror)
		}
	}
	return sums
}
