package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
)

// explainable is a Deployment whose pods run in east and wait in west, which refused one and is not heard of.
func explainable() []ctrlclient.Object {
	since := metav1.NewTime(time.Now().Add(-3 * time.Hour).Truncate(time.Second))
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "web",
			Annotations: map[string]string{placementv1alpha1.ClustersAnnotation: "east,west"},
		},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels}},
		Status: appsv1.DeploymentStatus{Replicas: 3, ReadyReplicas: 1, Conditions: []appsv1.DeploymentCondition{
			{Type: "Available", Status: corev1.ConditionTrue},
			{Type: "Synced", Status: corev1.ConditionFalse, LastTransitionTime: since, Reason: "Refused", Message: "west: pods are forbidden"},
		}},
	}
	revision := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "web-1", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(web, appsv1.SchemeGroupVersion.WithKind("Deployment"))}}}
	ofRevision := *metav1.NewControllerRef(revision, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	ofRoot := *metav1.NewControllerRef(web, appsv1.SchemeGroupVersion.WithKind("Deployment"))
	pod := func(name, node string, ready corev1.ConditionStatus, owner metav1.OwnerReference, waiting *corev1.ContainerStateWaiting) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: since}}},
		}
		if waiting != nil {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: waiting}}}
		}
		return p
	}
	node := func(name string, ready corev1.NodeCondition) *corev1.Node {
		ready.Type, ready.LastTransitionTime = corev1.NodeReady, since
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
	}
	stranger := ofRoot
	stranger.UID = "another"
	return []ctrlclient.Object{
		web, revision,
		pod("web-1-a", "east", corev1.ConditionTrue, ofRevision, nil),
		pod("web-1-b", "east", corev1.ConditionFalse, ofRoot, &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such\nimage"}),
		pod("web-1-c", "west", corev1.ConditionFalse, ofRevision, nil),
		pod("other", "east", corev1.ConditionTrue, stranger, nil),
		node("east", corev1.NodeCondition{Status: corev1.ConditionTrue}),
		node("west", corev1.NodeCondition{Status: corev1.ConditionUnknown, Reason: "HeartbeatMissed"}),
		&placementv1alpha1.Placement{
			ObjectMeta: metav1.ObjectMeta{Name: "default.deployments.web"},
			Spec: placementv1alpha1.PlacementSpec{
				Namespace: "default", Object: &placementv1alpha1.PlacedObject{Group: "apps", Resource: "deployments", Name: "web"},
				Split: placementv1alpha1.SplitEven, Clusters: []placementv1alpha1.PlacedCluster{{Name: "east"}, {Name: "west"}},
			},
			Status: placementv1alpha1.PlacementStatus{Clusters: []placementv1alpha1.PlacedClusterStatus{
				{Name: "east", Phase: placementv1alpha1.PhaseSynced, Replicas: 2, ReadyReplicas: 1},
				{Name: "west", Phase: placementv1alpha1.PhaseRefused, Replicas: 1},
			}},
		},
		&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Type: corev1.EventTypeWarning, Reason: "Refused", Message: "west would not take it",
			InvolvedObject: corev1.ObjectReference{UID: "web"}, LastTimestamp: since,
		},
	}
}

func TestExplain(t *testing.T) {
	f := newFakeAtoll(t)
	for _, obj := range explainable() {
		f.put(t, "root", obj)
	}
	out, _, err := f.call(t, explainCommand, "deploy/web")
	if err != nil {
		t.Fatal(err)
	}
	want := `Deployment default/web: 1 of 3 pods ready
Synced is False for 3h: Refused: west: pods are forbidden
Placement default.deployments.web, of it, divided Even. Wished by its own annotations.

CLUSTER   STEP      PLACEMENT   PODS   HEARD
east      Synced    1/2         1/2    yes
west      Refused   0/1         0/1    no, for 3h: HeartbeatMissed
Refused: the cluster would not take something.
Synced: the cluster has it; not all of it serves, or it is not its share yet.

NOT READY   CLUSTER   FOR   REASON             MESSAGE
web-1-b     east      3h    ImagePullBackOff   no such image
web-1-c     west      3h    <none>             
Warning Refused, 3h ago: west would not take it
`
	if normal(out) != normal(want) {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// TestExplainAReplicationController: its pods are found by its selector, which is a map.
func TestExplainAReplicationController(t *testing.T) {
	f := newFakeAtoll(t)
	hands := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hands", UID: "hands"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](2), Selector: map[string]string{"app": "hands"}},
		Status:     corev1.ReplicationControllerStatus{Replicas: 2, ReadyReplicas: 1},
	}
	f.put(t, "root", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	f.put(t, "root", hands)
	for name, labels := range map[string]map[string]string{"hands-a": hands.Spec.Selector, "hands-b": hands.Spec.Selector, "released": {"app": "other"}} {
		ready := corev1.ConditionFalse
		if name == "hands-a" {
			ready = corev1.ConditionTrue
		}
		f.put(t, "root", &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(hands, corev1.SchemeGroupVersion.WithKind("ReplicationController"))}},
			Spec:   corev1.PodSpec{NodeName: "east"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-3 * time.Hour))}}},
		})
	}
	out, _, err := f.call(t, explainCommand, "rc/hands")
	if err != nil || !strings.HasPrefix(out, "ReplicationController default/hands: 1 of 2 pods ready\n") || !strings.Contains(out, "1/2") || !strings.Contains(out, "hands-b") || strings.Contains(out, "released") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestExplainAsAnObject: a program reads what the text says, and each pod.
func TestExplainAsAnObject(t *testing.T) {
	f := newFakeAtoll(t)
	objects := explainable()
	for _, obj := range objects {
		f.put(t, "root", obj)
	}
	since := &objects[0].(*appsv1.Deployment).Status.Conditions[1].LastTransitionTime
	web := explained{
		Kind: "Deployment", Namespace: "default", Name: "web", Wanted: &podCount{Pods: 3, Ready: 1},
		Conditions: []metav1.Condition{{Type: "Synced", Status: metav1.ConditionFalse, LastTransitionTime: *since, Reason: "Refused", Message: "west: pods are forbidden"}},
		Placement:  &explainedPlacement{Name: "default.deployments.web", Of: "Object", Split: placementv1alpha1.SplitEven, WishedBy: "its own annotations"},
		Clusters: []explainedCluster{
			{Name: "east", Step: placementv1alpha1.PhaseSynced, Meaning: "the cluster has it; not all of it serves, or it is not its share yet", Replicas: 2, ReadyReplicas: 1,
				Shown: &podCount{Pods: 2, Ready: 1}, Heard: &hearing{Heard: true, Since: since}},
			{Name: "west", Step: placementv1alpha1.PhaseRefused, Meaning: "the cluster would not take something", Replicas: 1,
				Shown: &podCount{Pods: 1}, Heard: &hearing{Since: since, Reason: "HeartbeatMissed"}},
		},
		Pods: []explainedPod{
			{Name: "web-1-a", Cluster: "east", Ready: true, Since: since},
			{Name: "web-1-b", Cluster: "east", Since: since, Reason: "ImagePullBackOff", Message: "no such image"},
			{Name: "web-1-c", Cluster: "west", Since: since},
		},
		Warnings: []explainedWarning{{Reason: "Refused", Message: "west would not take it", LastSeen: *since}},
	}
	for format, start := range map[string]string{"json": "{\n    \"kind\": \"Deployment\",\n", "yaml": "clusters:\n- heard:\n"} {
		out, _, err := f.call(t, explainCommand, "deploy/web", "-o", format)
		if err != nil || !strings.HasPrefix(out, start) {
			t.Fatalf("%s: %v\n%s", format, err, out)
		}
		var got explained
		if err := yaml.UnmarshalStrict([]byte(out), &got); err != nil {
			t.Fatalf("%s: %v\n%s", format, err, out)
		}
		if diff := cmp.Diff(web, got, cmpopts.IgnoreUnexported(explained{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

// TestExplainByTheNamespace: the steps of a Placement that decides for more are not said to be the object's.
func TestExplainByTheNamespace(t *testing.T) {
	const words = "it may be something else in the namespace"
	for step, want := range map[placementv1alpha1.PlacedClusterPhase]bool{placementv1alpha1.PhasePending: true, placementv1alpha1.PhaseReady: false} {
		f := newFakeAtoll(t)
		for _, obj := range explainable() {
			if p, ok := obj.(*placementv1alpha1.Placement); ok {
				p.Name, p.Spec.Object = placementv1alpha1.NameFor("default", nil), nil
				p.Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: step}, {Name: "west", Phase: step}}
			}
			f.put(t, "root", obj)
		}
		out, _, err := f.call(t, explainCommand, "deploy/web")
		if err != nil || strings.Contains(out, words) != want {
			t.Errorf("%s: %v\n%s", step, err, out)
		}
	}
}

// normal leaves out what follows the end of a line's text.
func normal(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n")
}

// What somebody may not read is left out, and said; what is nowhere, or is no such kind, is told in words.
func TestExplainWhatIsNotThere(t *testing.T) {
	f := newFakeAtoll(t)
	f.put(t, "root", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	f.put(t, "root", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
	for _, tc := range []struct{ arg, out, err string }{
		{"svc/web", "Service default/web\nIt is not placed yet", ""},
		{"Service/web", "Service default/web\n", ""},
		{"deploy/none", "", `read Deployment default/none in root: deployments.apps "none" not found`},
		{"web", "", `"web": want TYPE/NAME, as deploy/web`},
		{"configmap/x", "", "a ConfigMap has no place of its own"},
		{"widget/x", "", `"widget": want one of`},
	} {
		out, _, err := f.call(t, explainCommand, tc.arg)
		if !strings.HasPrefix(out, tc.out) || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("explain %s: %q, %v, want %q, %q", tc.arg, out, err, tc.out, tc.err)
		}
	}
	for _, obj := range explainable() {
		if _, is := obj.(*corev1.Pod); !is {
			f.put(t, "root", obj)
		}
	}
	f.unreadable = func(list ctrlclient.ObjectList) bool {
		switch list.(type) {
		case *corev1.NodeList, *appsv1.ReplicaSetList:
			return true
		}
		return false
	}
	out, _, err := f.call(t, explainCommand, "deployments.apps/web")
	if err != nil || !strings.Contains(out, "west      Refused   0/1         -      -") || !strings.Contains(out, "Left out, since you may not read it: replicasets, nodes.") {
		t.Errorf("without nodes and ReplicaSets: %v\n%s", err, out)
	}
}

// TestParsePlaced: what kubectl takes, and prints with -o name, is taken.
func TestParsePlaced(t *testing.T) {
	for arg, want := range map[string]string{
		"deploy/web": "Deployment", "Deployments/web": "Deployment", "deployment.apps/web": "Deployment", "deployments.v1.apps/web": "Deployment",
		"job.batch/web": "Job", "jobs.v1.batch/web": "Job", "svc/web": "Service", "service/web": "Service", "rc/web": "ReplicationController",
		"deployment.batch/web": "", "jobs.v2.batch/web": "", "web": "", "secret/web": "",
	} {
		kind, name, err := parsePlaced(arg)
		if (err == nil) != (want != "") || err == nil && (kind.GVK.Kind != want || name != "web") {
			t.Errorf("%s: %s %q, %v, want %q", arg, kind.GVK.Kind, name, err, want)
		}
	}
}
