package splitter

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// TestTally: whatever comes and goes, the sums are those of the leaves that there are, and a change is told exactly when there is one.
func TestTally(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tally := newTally()
	leaves := map[leafID]counted{}
	sum := func(namespace string, less []leafID) map[logicalcluster.Name]sumOf {
		sums := map[logicalcluster.Name]sumOf{}
		for id, n := range leaves {
			out := false
			for _, l := range less {
				out = out || l == id
			}
			if n.namespace == namespace && !out {
				sums[id.Cluster] = sums[id.Cluster].plus(n, 1)
			}
		}
		return sums
	}
	for step := range 5000 {
		id := leafID{"Deployment", client.Key{Cluster: logicalcluster.Name(fmt.Sprintf("m%d", rnd.IntN(3))), Namespace: "ns", Name: fmt.Sprintf("d%d", rnd.IntN(6))}}
		namespace := fmt.Sprintf("shop|%d", rnd.IntN(2))
		var now *counted
		if rnd.IntN(3) > 0 {
			now = &counted{namespace: namespace, phase: phaseOrder[rnd.IntN(len(phaseOrder))], deleting: rnd.IntN(4) == 0, replicas: rnd.Int32N(3), ready: rnd.Int32N(3)}
		}
		was, known := leaves[id]
		differs := known != (now != nil) || known && was != *now
		if got := tally.set(id, now); got != differs {
			t.Fatalf("step %d: set(%v, %+v) over %+v says %v", step, id, now, was, got)
		}
		delete(leaves, id)
		if now != nil {
			leaves[id] = *now
		}
		less := []leafID{id, {"Service", id.Key}}
		for _, ns := range []string{"shop|0", "shop|1"} {
			for _, less := range [][]leafID{nil, less} {
				if diff := cmp.Diff(sum(ns, less), tally.of(ns, less), cmp.AllowUnexported(sumOf{})); diff != "" {
					t.Fatalf("step %d: sums of %s without %v (-want +got):\n%s", step, ns, less, diff)
				}
			}
		}
	}
	for id := range leaves {
		tally.set(id, nil)
	}
	if len(tally.sums) > 0 || len(tally.counted) > 0 {
		t.Errorf("without leaves there are %v of %v", tally.sums, tally.counted)
	}
}

// TestPhases: what a Placement says of each cluster.
func TestPhases(t *testing.T) {
	now := metav1.Now()
	leaf := func(applied string, ready int32, deleted bool) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: applied}}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
		d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: ready, AvailableReplicas: ready}
		if deleted {
			d.DeletionTimestamp = &now
		}
		return d
	}
	applying, synced, ready, going := leaf("", 0, false), leaf("h", 1, false), leaf("h", 2, false), leaf("h", 2, true)
	for name, tc := range map[string]struct {
		east, gone []*appsv1.Deployment // in a cluster that the Placement names, and in one it does not
		want       []placementv1alpha1.PlacedClusterStatus
		reason     string
	}{
		"Nothing":     {nil, nil, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Pending"}}, "it is asked for"},
		"Applying":    {[]*appsv1.Deployment{ready, applying, synced}, nil, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Applying", Replicas: 6, ReadyReplicas: 3}}, "the one that has come least far"},
		"Synced":      {[]*appsv1.Deployment{ready, synced}, nil, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Synced", Replicas: 4, ReadyReplicas: 3}}, "a pod is not ready"},
		"Ready":       {[]*appsv1.Deployment{ready}, nil, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Ready", Replicas: 2, ReadyReplicas: 2}}, "all is"},
		"EarlierRoot": {[]*appsv1.Deployment{ready, going}, nil, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Pending", Replicas: 4, ReadyReplicas: 4}}, "it goes first"},
		"Draining": {[]*appsv1.Deployment{ready}, []*appsv1.Deployment{going, ready}, []placementv1alpha1.PlacedClusterStatus{
			{Name: "east", Phase: "Ready", Replicas: 2, ReadyReplicas: 2}, {Name: "mirror-gone", Phase: "Draining", Replicas: 4, ReadyReplicas: 4}}, "something stays until its replacement is there"},
		"Deleting": {nil, []*appsv1.Deployment{going}, []placementv1alpha1.PlacedClusterStatus{
			{Name: "east", Phase: "Pending"}, {Name: "mirror-gone", Phase: "Deleting", Replicas: 2, ReadyReplicas: 2}}, "all is a tombstone"},
	} {
		t.Run(name, func(t *testing.T) {
			sums := map[logicalcluster.Name]sumOf{}
			for mirror, leaves := range map[logicalcluster.Name][]*appsv1.Deployment{"mirror-east": tc.east, "mirror-gone": tc.gone} {
				for _, d := range leaves {
					sums[mirror] = sums[mirror].plus(count(d, ""), 1)
				}
			}
			p := &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Clusters: []placementv1alpha1.PlacedCluster{{Name: "east", Mirror: "mirror-east"}}}}
			got := phases(p, sums, func(m logicalcluster.Name) string { return string(m) })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
