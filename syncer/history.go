package syncer

import (
	"errors"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// errOtherHistory says that one side was restored since we began to watch it: resource versions start to repeat, and
// what the informers show is of what was and of what is, mixed.
var errOtherHistory = errors.New("restored from an older state")

// memory is how a running Syncer last left the two heartbeats. A restart forgets it, along with what the informers show.
type memory struct {
	mu            sync.Mutex // guards hub and physical
	hub, physical *record
}

// record is a heartbeat's Lease as it was last seen.
type record struct {
	uid     types.UID
	version string // resource version
	counter int64
}

// recordOf returns nil for a Lease that does not exist.
func recordOf(l *coordinationv1.Lease) *record {
	if l.UID == "" {
		return nil
	}
	// A counter that cannot be read is refused where it is compared.
	counter, _ := count(l, workloadv1alpha1.HeartbeatCounterAnnotation)
	return &record{l.UID, l.ResourceVersion, counter}
}

// contradicts returns in words how a Lease found now contradicts what was seen of it before; "" if it goes on from there.
// An update of ours whose answer was lost, or of the syncer whose place we take, goes on.
func (r *record) contradicts(l *coordinationv1.Lease) string {
	if r == nil {
		return ""
	}
	now := recordOf(l)
	switch {
	case now == nil:
		return "its heartbeat is gone"
	case now.uid != r.uid:
		return "its heartbeat is another one"
	case now.counter < r.counter:
		return fmt.Sprintf("its heartbeat went back from %d to %d", r.counter, now.counter)
	}
	if order, err := resourceversion.CompareResourceVersion(now.version, r.version); err == nil && order < 0 {
		return fmt.Sprintf("its heartbeat went back from resource version %s to %s", r.version, now.version)
	}
	return ""
}

// contradicts is record.contradicts for both sides; the physical cluster's is left out unless it answered.
func (m *memory) contradicts(hub, physical *coordinationv1.Lease, answered bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why := m.hub.contradicts(hub); why != "" {
		return "the hub: " + why
	}
	if !answered {
		return ""
	}
	if why := m.physical.contradicts(physical); why != "" {
		return "the physical cluster: " + why
	}
	return ""
}

func (m *memory) setHub(l *coordinationv1.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hub = recordOf(l)
}

func (m *memory) setPhysical(l *coordinationv1.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.physical = recordOf(l)
}

func (m *memory) hasHub() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hub != nil
}

// raised is the counter that the physical cluster was last seen to have. The hub's record of it is one beat behind.
func (m *memory) raised() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.physical == nil {
		return 0
	}
	return m.physical.counter
}
