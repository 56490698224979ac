package splitter

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// asController is the ReplicationController that a ReplicaSet without a selector stands for.
func asController(r *appsv1.ReplicaSet) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: *r.ObjectMeta.DeepCopy(),
		Spec:       corev1.ReplicationControllerSpec{Replicas: r.Spec.Replicas, Template: r.Spec.Template.DeepCopy()},
		Status: corev1.ReplicationControllerStatus{
			Replicas: r.Status.Replicas, FullyLabeledReplicas: r.Status.FullyLabeledReplicas,
			ReadyReplicas: r.Status.ReadyReplicas, AvailableReplicas: r.Status.AvailableReplicas, ObservedGeneration: r.Status.ObservedGeneration,
		},
	}
	for _, c := range r.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message})
	}
	return rc
}

// TestReplicationControllerMoves: as a ReplicaSet it is divided, summed up, and left where it was for as long as it does not serve elsewhere; what its pods
// of an earlier template refer to stays.
func TestReplicationControllerMoves(t *testing.T) {
	t.Parallel()
	root := asController(crewOf(4, "web"))
	root.Labels = map[string]string{"app": "web"}
	k := key{"ReplicationController", client.KeyOf(root)}
	p := placementOf("", "Placed", mirrorEast, mirrorWest)
	p.Status.Conditions[0].Status = metav1.ConditionTrue
	m := newMirrored(t, root, p, targetOf("west", mirrorWest, "replicationcontrollers"), spaceIn(mirrorEast), spaceIn(mirrorWest))
	// leaves are what the mirrors have: how many pods of which image they ask for, and whether they are left.
	leaves := func() map[string]string {
		list, got := &corev1.ReplicationControllerList{}, map[string]string{}
		if err := m.objects.List(t.Context(), list, ctrlclient.HasLabels{workloadv1alpha1.WorkspaceLabel}); err != nil {
			t.Fatal(err)
		}
		for _, leaf := range list.Items {
			text := fmt.Sprintf("%d %s", *leaf.Spec.Replicas, leaf.Spec.Template.Spec.Containers[0].Image)
			for _, word := range []struct {
				is   bool
				text string
			}{
				{leaf.Labels["app"] != "", " labelled"}, {leaf.Annotations[workloadv1alpha1.EarlierTemplateAnnotation] != "", " earlier"},
				{leaf.Annotations[workloadv1alpha1.DrainingAnnotation] != "", " draining"}, {leaf.DeletionTimestamp != nil, " deleted"},
			} {
				if word.is {
					text += word.text
				}
			}
			got[leaf.Namespace] = text
		}
		return got
	}
	has := func(why string, want map[string]string) {
		t.Helper()
		var diff string
		defer func() {
			if diff != "" {
				t.Logf("-want, +got:\n%s", diff)
			}
		}()
		m.lookUntil(t, k, why, func() bool { diff = cmp.Diff(want, leaves()); return diff == "" })
	}
	// serves: the cluster has taken its leaf as it is by then, and so many of its pods serve.
	serves := func(mirror string, pods, serve int32) {
		t.Helper()
		leaf := &corev1.ReplicationController{}
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "front-" + mirror, Name: "web"}, leaf); err != nil {
			t.Fatal(err)
		}
		leaf.Annotations[lcctx.Annotation] = mirror // as the server does, and the fake does not
		leaf.Annotations[workloadv1alpha1.AppliedAnnotation] = leaf.Annotations[workloadv1alpha1.RenderedAnnotation]
		if err := m.objects.Update(t.Context(), leaf); err != nil {
			t.Fatal(err)
		}
		leaf.Status = corev1.ReplicationControllerStatus{ObservedGeneration: leaf.Generation, Replicas: pods, FullyLabeledReplicas: pods, ReadyReplicas: serve, AvailableReplicas: serve}
		if err := m.objects.Status().Update(t.Context(), leaf); err != nil {
			t.Fatal(err)
		}
	}
	inEast, inWest := "front-"+mirrorEast, "front-"+mirrorWest
	has("both have their share, and none of its labels", map[string]string{inEast: "2 web", inWest: "2 web"})
	serves(mirrorEast, 2, 2)
	serves(mirrorWest, 2, 1)
	sums := func(want string) {
		t.Helper()
		now := &corev1.ReplicationController{}
		m.lookUntil(t, k, "the root says "+want, func() bool {
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), now); err != nil {
				t.Fatal(err)
			}
			m.clock.Step(time.Second) // steps forward wait for the next
			return fmt.Sprintf("%d %d %d", now.Status.Replicas, now.Status.ReadyReplicas, now.Status.ObservedGeneration) == want && len(now.Status.Conditions) == 0
		})
	}
	sums("4 3 1")

	// Another template is for pods that are made later, and goes to both at once.
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), root); err != nil {
		t.Fatal(err)
	}
	root.Generation, root.Spec.Template.Spec.Containers[0].Image = 2, "next"
	if err := m.objects.Update(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	has("both have the next template", map[string]string{inEast: "2 next earlier", inWest: "2 next earlier"})
	serves(mirrorEast, 2, 2)
	serves(mirrorWest, 2, 2)
	sums("4 4 2")

	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Clusters = p.Spec.Clusters[1:]
	if err := m.objects.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	has("west is to have all, and east stays", map[string]string{inEast: "2 next earlier draining", inWest: "4 next earlier"})
	serves(mirrorWest, 4, 3)
	has("east has what west does not serve", map[string]string{inEast: "1 next earlier draining", inWest: "4 next earlier"})
	serves(mirrorWest, 4, 4)
	has("west serves all", map[string]string{inEast: "1 next earlier draining deleted", inWest: "4 next earlier"})
}
