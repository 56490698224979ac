package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/atoll/test/framework"
)

// TestFleet does the main job, and what goes wrong with it, on one Atoll with two physical clusters. Each part has a
// workspace of its own; parts that stop something come first, alone.
func TestFleet(t *testing.T) {
	inModes(t, func(t *testing.T, pulled ...string) { newFleet(t, pulled...).run(t, mainJobAlone, mainJob...) })
}

// mainJob is the main job, from apply to delete, of many workspaces at a time.
var mainJob = []part{
	{"T1_ApplyRunsAndStatusComesBack", applyRuns},
	{"T1_ScaleAndRollout", scaleAndRollout},
	{"T1_KubeSystemOfAWorkspaceIsNotTheClusters", kubeSystem},
	{"T1_SecondApplyChangesNothing", secondApply},
	{"T1_PodRunsWhereItsNamespaceIs", barePodRuns},
	{"T1_PodsAreResizedInPlace", resizedInPlace},
	{"T1_DriftIsPutBackAndTold", driftIsPutBack},
	{"T1_ServicesLeadToPodsOfAllClusters", servicesLead},
	{"T4_EvictionsEndPodsBelowAsBudgetsAllow", evicts},
	{"T10_OperatorMakesPods", operatorMakesPods},
	{"T12_NoCredentialGoesDown", noCredential},
	{"T1_DaemonSetOnEveryNodeOfItsClusters", daemonSetEverywhere},
	{"T1_ReplicaSetIsDividedAndMoves", replicaSetRuns},
	{"T1_ReplicaSetBesideADeployment", replicaSetBeside},
	{"T1_ReplicationControllerIsDividedAndMoves", replicationControllerRuns},
	{"T2_IngressMovesWithItsCertificate", ingressMoves},
	{"T1_StatefulSetInOneCluster", statefulSetRuns},
	{"T1_NetworkPolicyGoesAlong", policyGoesAlong},
	{"T8_RolloutHistoryAndUndo", deploymentHistory},
	{"T8_RolloutHistoryAndUndoOfADaemonSet", daemonSetHistory},
	{"T8_RolloutHistoryAndUndoOfAStatefulSet", statefulSetHistory},
	{"T1_JobCompletes", jobCompletes},
	{"T1_JobIsNotBegunAgain", jobIsNotBegunAgain},
	{"T1_JobTakesItsPodsAlong", jobDeleted},
	{"T15_SplitAndResplit", split},
	{"T15_RolloutOverTwoClusters", rolloutOverTwo},
	{"T2_Move", move},
	{"T2_MoveWithSlowPods", moveSlow},
	{"T2_MoveWhosePodsNeverGetReady", moveNever},
	{"T2_DaemonSetServesBeforeItLeaves", daemonSetMoves},
	{"T2_StatefulSetIsNeverInTwoClusters", statefulSetMoves},
	{"T11_ExplainSaysWhereAndWhatIsRefused", explains},
	{"T11_MoveTurnedBackHalfWay", moveTurnedBack},
	{"T11_UnknownClusterMovesNothing", unknownCluster},
	{"T13_ObjectOverridesNamespaceOverridesWorkspace", levels},
	{"T1_DeleteLeavesNothing", deleteAll},
	{"T1_DeleteAndRecreateAtOnce", recreate},
	{"T1_RefusalReachesTheObject", refusal},
	{"P1_WorkspaceDeletionTakesLeavesFirst", deleteWorkspace},
}

// mainJobAlone is what the main job survives, and what brings volumes and classes that anybody's claims would take.
var mainJobAlone = []part{
	{"T1_PodsAreShownInTheWorkspace", podsAreShown},
	{"T1_ClaimIsBoundAndMounted", claimBound},
	{"T1_ClaimInUseIsNotTakenAway", claimInUse},
	{"T1_ClaimsOfAStatefulSet", podClaims},
	{"T2_StatefulSetStaysWithItsData", statefulSetStays},
	{"T2_WhatMountsAClaimStaysWithIt", mountedStays},
	{"T1_ClassesAreShownAndNamed", classesAreShown},
	{"T11_ReadyIsShownAtTheEndAlone", readyAtTheEnd},
	{"T4_EventsComeUp", eventsComeUp},
	{"T16_ClusterStoppedAndRestarted", clusterStopped},
	{"T16_ServerStoppedAndRestarted", serverStopped},
}

func applyRuns(t *testing.T, f *fleet) {
	w := f.workspace(t, "apply")
	w.apply(6, "")
	w.rolledOut()
	east, west := w.ready("east"), w.ready("west")
	if east+west != 6 || east != 0 && west != 0 {
		t.Errorf("%d pods run in east and %d in west, want 6 in one", east, west)
	}
	d := w.deployment()
	if d.Status.ReadyReplicas != 6 || d.Status.AvailableReplicas != 6 || d.Status.UpdatedReplicas != 6 || d.Status.ObservedGeneration != d.Generation {
		t.Errorf("status of the Deployment is %+v at generation %d, want 6 ready, available and updated", d.Status, d.Generation)
	}
	cluster := "east"
	if west > 0 {
		cluster = "west"
	}
	ns := w.namespaceIn(cluster)
	down := f.clusters[cluster].Clientset().CoreV1()
	if cm, err := down.ConfigMaps(ns).Get(t.Context(), w.app, metav1.GetOptions{}); err != nil || cm.Data["greeting"] != "hello" {
		t.Errorf("ConfigMap downstream: %v, %v", cm, err)
	}
	if s, err := down.Secrets(ns).Get(t.Context(), w.app, metav1.GetOptions{}); err != nil || string(s.Data["key"]) != "opensesame" {
		t.Errorf("Secret downstream: %v", err)
	}
	if s, err := down.Services(ns).Get(t.Context(), w.app, metav1.GetOptions{}); err != nil || s.Spec.ClusterIP == "" {
		t.Errorf("Service downstream: %v, %v", s, err)
	}
	if out := w.kubectl("get", "service", w.app, "-o", "jsonpath={.spec.clusterIP}"); !strings.HasPrefix(out, "10.255.") {
		t.Errorf("the Service's cluster IP in the workspace is %q, want one of 10.255.0.0/16", out)
	}
}

func scaleAndRollout(t *testing.T, f *fleet) {
	w := f.workspace(t, "rollout")
	w.apply(6, "")
	w.rolledOut()
	o := w.observe()
	w.kubectl("scale", "deployment/"+w.app, "--replicas=9")
	w.rolledOut()
	o.neverBelow(t, 6)
	w.kubectl("scale", "deployment/"+w.app, "--replicas=4")
	framework.Eventually(t, patience, "4 pods are left", func() string {
		if n := w.ready("east") + w.ready("west"); n != 4 {
			return fmt.Sprintf("%d pods", n)
		}
		return ""
	})
	w.rolledOut()
	o.mark()
	w.kubectl("set", "env", "deployment/"+w.app, "COLOUR=blue")
	w.rolledOut()
	o.neverBelow(t, 3) // 25 % of 4 may be unavailable
}

func kubeSystem(t *testing.T, f *fleet) {
	w := f.workspace(t, "ksystem")
	before := map[string]string{}
	for name := range f.clusters {
		before[name] = dump(t, f, name, "kube-system", w.app)
	}
	w.kubectlWithInput(w.manifest(2, ""), "apply", "-n", "kube-system", "-f", "-")
	w.kubectl("rollout", "status", "-n", "kube-system", "deployment/"+w.app, "--timeout=100s")
	for name := range f.clusters {
		if after := dump(t, f, name, "kube-system", w.app); after != before[name] {
			t.Errorf("kube-system of %s changed:\nbefore %s\nafter  %s", name, before[name], after)
		}
	}
}

// dump lists what people make in a namespace of a physical cluster: names and UIDs, without what its own control
// plane renews all the time.
func dump(t *testing.T, f *fleet, cluster, namespace, _ string) string {
	t.Helper()
	client, err := dynamic.NewForConfig(f.clusters[cluster].RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "serviceaccounts"},
		{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	} {
		list, err := client.Resource(gvr).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list %s of %s: %v", gvr.Resource, cluster, err)
		}
		for _, o := range list.Items {
			all = append(all, gvr.Resource+"/"+o.GetName()+"/"+string(o.GetUID())+"/"+o.GetResourceVersion())
		}
	}
	ns, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("read namespace %s of %s: %v", namespace, cluster, err)
	}
	slices.Sort(all)
	return ns.GetResourceVersion() + " " + strings.Join(all, " ")
}

func secondApply(t *testing.T, f *fleet) {
	w := f.workspace(t, "again")
	w.kubectlWithInput(w.manifest(4, ""), "apply", "--server-side", "-f", "-")
	w.rolledOut()
	w.place("*")
	w.spread(map[string]int{"east": 2, "west": 2})
	w.rolledOut()
	quiet(t, w) // whatever was still on its way
	before := versions(t, w)
	w.kubectlWithInput(w.manifest(4, ""), "apply", "--server-side", "-f", "-")
	time.Sleep(30 * time.Second) // the test is that nothing happens in this time
	if after := versions(t, w); after != before {
		t.Errorf("a second apply of the same manifests changed something:\nbefore %s\nafter  %s", before, after)
	}
}

// quiet waits until nothing has changed for three seconds.
func quiet(t *testing.T, w *workspace) {
	t.Helper()
	last, since := versions(t, w), time.Now()
	framework.Eventually(t, patience, "nothing changes any more", func() string {
		if now := versions(t, w); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return "last change " + time.Since(since).String() + " ago"
		}
		return ""
	})
}

// versions lists the resourceVersions of all the app's objects in the workspace and in both clusters.
func versions(t *testing.T, w *workspace) string {
	t.Helper()
	var all []string
	add := func(where string, items []unstructured.Unstructured) {
		for _, o := range items {
			all = append(all, fmt.Sprintf("%s/%s/%s=%s", where, o.GetKind(), o.GetName(), o.GetResourceVersion()))
		}
	}
	gvrs := []schema.GroupVersionResource{
		{Group: "apps", Version: "v1", Resource: "deployments"}, {Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "serviceaccounts"},
	}
	for _, gvr := range gvrs {
		list, err := w.f.Clients().Dynamic.Resource(gvr).Namespace("default").List(w.ctx(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list %s: %v", gvr.Resource, err)
		}
		add("workspace", list.Items)
		for name, c := range w.f.clusters {
			client, err := dynamic.NewForConfig(c.RESTConfig())
			if err != nil {
				t.Fatal(err)
			}
			list, err := client.Resource(gvr).Namespace(w.namespaceIn(name)).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
			if err != nil {
				t.Fatalf("list %s of %s: %v", gvr.Resource, name, err)
			}
			add(name, list.Items)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func noCredential(t *testing.T, f *fleet) {
	w := f.workspace(t, "creds")
	w.apply(1, "")
	w.kubectl("create", "rolebinding", "reads", "--clusterrole=view", "--serviceaccount=default:"+w.app)
	w.rolledOut()
	for name, c := range f.clusters {
		ns := w.namespaceIn(name)
		if ns == "" {
			continue
		}
		bindings, err := c.Clientset().RbacV1().RoleBindings(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(bindings.Items) > 0 {
			t.Errorf("RoleBindings reached %s: %v", name, bindings.Items)
		}
		pods, err := c.Clientset().CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods.Items {
			for _, volume := range pod.Spec.Volumes {
				if volume.Projected != nil && slices.ContainsFunc(volume.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
					t.Errorf("pod %s in %s has a token of that cluster: volume %s", pod.Name, name, volume.Name)
				}
			}
		}
	}
}

func split(t *testing.T, f *fleet) {
	w := f.workspace(t, "split")
	w.place("*")
	w.apply(6, "")
	w.spread(map[string]int{"east": 3, "west": 3})
	w.rolledOut()
	o := w.observe()
	w.kubectl("annotate", "namespace", "default", "placement.atoll.dev/split=Weighted:east=2,west=1")
	w.spread(map[string]int{"east": 4, "west": 2})
	o.neverBelow(t, 6)
	w.kubectl("scale", "deployment/"+w.app, "--replicas=7")
	framework.Eventually(t, patience, "7 pods run", func() string {
		if e, s := w.ready("east"), w.ready("west"); e+s != 7 || e < 4 || s < 2 {
			return fmt.Sprintf("east %d, west %d", e, s)
		}
		return ""
	})
	o.mark()
	w.kubectl("annotate", "namespace", "default", "--overwrite", "placement.atoll.dev/split=Duplicate")
	w.spread(map[string]int{"east": 7, "west": 7})
	o.neverBelow(t, 7)
}

func rolloutOverTwo(t *testing.T, f *fleet) {
	w := f.workspace(t, "rolltwo")
	w.place("*")
	w.apply(6, "2s")
	w.spread(map[string]int{"east": 3, "west": 3})
	w.rolledOut()
	o := w.observe()
	w.kubectl("patch", "deployment", w.app, "--patch", `{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}}}`)
	w.kubectl("set", "env", "deployment/"+w.app, "COLOUR=green")
	w.rolledOut()
	o.neverBelow(t, 5)
	w.spread(map[string]int{"east": 3, "west": 3})
}

// placed applies 6 replicas that run in east alone.
func placed(t *testing.T, f *fleet, name, readyAfter string) *workspace {
	t.Helper()
	w := f.workspace(t, name)
	w.place("east")
	w.apply(6, readyAfter)
	w.spread(map[string]int{"east": 6})
	w.rolledOut()
	return w
}

func move(t *testing.T, f *fleet) {
	w := placed(t, f, "move", "")
	o := w.observe()
	ns := w.namespaceIn("east")
	w.place("east,west")
	w.spread(map[string]int{"east": 3, "west": 3})
	w.rolledOut()
	if deletes := w.syncerDeletes("east", ns); len(deletes) > 0 {
		t.Errorf("the syncer deleted %v in east, where everything stays", deletes)
	}
	w.place("west")
	w.spread(map[string]int{"west": 6})
	w.gone("east")
	w.rolledOut()
	want := []string{"configmaps/move", "deployments/move", "namespaces/" + ns, "secrets/move", "serviceaccounts/move", "services/move"}
	if deletes := w.syncerDeletes("east", ns); !slices.Equal(deletes, want) {
		t.Errorf("the syncer deleted %v in east, want %v and nothing else", deletes, want)
	}
	if deletes := w.syncerDeletes("west", ns); len(deletes) > 0 {
		t.Errorf("the syncer deleted %v in west, where everything stays", deletes)
	}
	w.place("east")
	w.spread(map[string]int{"east": 6})
	w.gone("west")
	o.neverBelow(t, 6)
	d := w.deployment()
	if d.Status.Replicas != 6 || d.Status.ReadyReplicas != 6 {
		t.Errorf("status after the moves is %+v, want 6 replicas, all ready", d.Status)
	}
}

func moveSlow(t *testing.T, f *fleet) {
	w := placed(t, f, "slow", "10s")
	o := w.observe()
	w.place("west")
	w.spread(map[string]int{"west": 6})
	w.gone("east")
	o.neverBelow(t, 6)
}

func moveNever(t *testing.T, f *fleet) {
	w := placed(t, f, "never", "")
	// From now on new pods never get Ready, and those that run stay until new ones do.
	w.kubectl("patch", "deployment", w.app, "--patch", `{"spec":{
		"strategy":{"rollingUpdate":{"maxUnavailable":0}},
		"template":{"metadata":{"annotations":{"simulate.atoll.dev/ready-after":"never"}}}}}`)
	o := w.observe()
	w.place("west")
	framework.Eventually(t, patience, "new pods run in west", func() string {
		pods, err := f.clusters["west"].Clientset().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app, FieldSelector: "status.phase=Running"})
		if err != nil {
			return err.Error()
		}
		if len(pods.Items) == 0 {
			return "no pods"
		}
		return ""
	}, w.state)
	time.Sleep(5 * time.Second) // time in which the old ones must not go
	o.neverBelow(t, 6)
	if n := w.ready("east"); n != 6 {
		t.Errorf("%d pods are Ready in east, want all 6 while none in west is", n)
	}
	w.place("east")
	w.gone("west")
	o.neverBelow(t, 6)
}

func moveTurnedBack(t *testing.T, f *fleet) {
	w := placed(t, f, "back", "3s")
	o := w.observe()
	w.place("west")
	framework.Eventually(t, patience, "the move has begun", func() string {
		if w.namespaceIn("west") == "" {
			return "no namespace in west"
		}
		return ""
	})
	w.place("east")
	w.gone("west")
	w.spread(map[string]int{"east": 6})
	w.rolledOut()
	o.neverBelow(t, 6)
}

func unknownCluster(t *testing.T, f *fleet) {
	w := placed(t, f, "unknown", "")
	o := w.observe()
	for _, wrong := range []string{"placement.atoll.dev/clusters=north", "placement.atoll.dev/split=Weighted:east=minus", "placement.atoll.dev/selector=a b c"} {
		out := w.kubectl("annotate", "namespace", "default", wrong, "--overwrite")
		_, value, _ := strings.Cut(wrong, "=")
		if !strings.Contains(out, "Warning: ") || !strings.Contains(out, value) || !strings.Contains(out, `stays on "east"`) {
			t.Errorf("who wrote %s was told %q, want a warning that it stays on east", wrong, out)
		}
		framework.Eventually(t, patience, "the Placement names the fault of "+wrong, func() string {
			out := w.kubectl("get", "placement", "default", "-o", `jsonpath={.status.conditions[?(@.type=="Placed")]}`)
			if !strings.Contains(out, "False") || !strings.Contains(out, value) {
				return out
			}
			return ""
		})
		key, _, _ := strings.Cut(wrong, "=")
		w.kubectl("annotate", "namespace", "default", key+"-")
		w.place("east")
	}
	if out := w.kubectl("annotate", "service", w.app, "placement.atoll.dev/clusters=north"); !strings.Contains(out, "Warning: ") || !strings.Contains(out, `stays on "east"`) {
		t.Errorf("who wrote it on a Service was told %q, want a warning that it stays on east", out)
	}
	framework.Eventually(t, patience, "an Event on the Service names the fault", func() string {
		out := w.kubectl("get", "events", "--field-selector=involvedObject.kind=Service", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, `"north"`) {
			return out
		}
		return ""
	})
	w.spread(map[string]int{"east": 6})
	o.neverBelow(t, 6)
}

func levels(t *testing.T, f *fleet) {
	w := f.workspace(t, "levels")
	if out := w.kubectl("annotate", "logicalcluster", "cluster", "placement.atoll.dev/clusters=wset"); !strings.Contains(out, "Warning: ") || !strings.Contains(out, "wset") {
		t.Errorf("who misspelt a cluster for the workspace was told %q, want a warning", out)
	}
	w.kubectl("annotate", "logicalcluster", "cluster", "placement.atoll.dev/clusters=west", "--overwrite")
	w.apply(2, "")
	w.spread(map[string]int{"west": 2})
	w.place("east")
	w.spread(map[string]int{"east": 2})
	w.kubectl("annotate", "deployment", w.app, "placement.atoll.dev/clusters=*")
	w.spread(map[string]int{"east": 1, "west": 1})
	w.kubectl("annotate", "deployment", w.app, "placement.atoll.dev/clusters-")
	w.spread(map[string]int{"east": 2})
	ownWishes(t, w)
	w.place("")
	w.gone("east")
	w.gone("west")
}

// ownWishes: what is made with a wish of its own begins where that says, and never where its namespace goes, in east.
func ownWishes(t *testing.T, w *workspace) {
	t.Helper()
	const template = "{metadata: {labels: {app: levels, own: KIND}}, spec: {containers: [{name: one, image: registry.example/one:1}]}}"
	const west = "metadata: {name: levels-own, labels: {app: levels}, annotations: {placement.atoll.dev/clusters: west}}"
	manifests := map[string]string{
		"deployments":  "{apiVersion: apps/v1, kind: Deployment, " + west + ", spec: {selector: {matchLabels: {own: KIND}}, template: " + template + "}}",
		"statefulsets": "{apiVersion: apps/v1, kind: StatefulSet, " + west + ", spec: {serviceName: levels-own, selector: {matchLabels: {own: KIND}}, template: " + template + "}}",
		"jobs":         "{apiVersion: batch/v1, kind: Job, " + west + ", spec: {suspend: false, template: {metadata: {labels: {app: levels}}, spec: {restartPolicy: Never, containers: [{name: one, image: registry.example/one:1}]}}}}",
		"services":     "{apiVersion: v1, kind: Service, " + west + ", spec: {selector: {app: levels}, ports: [{port: 80}]}}",
		"pods":         "{apiVersion: v1, kind: Pod, " + west + ", spec: {containers: [{name: one, image: registry.example/one:1}]}}",
	}
	made := func(cluster, resource string) bool {
		return slices.ContainsFunc(w.f.clusters[cluster].AuditEvents(framework.AuditFilter{Verb: "create", Resource: resource}), func(e framework.AuditEvent) bool {
			return e.Name == "levels-own" && e.Subresource == "" && e.Code < 300
		})
	}
	for _, resource := range slices.Sorted(maps.Keys(manifests)) {
		w.applies(strings.ReplaceAll(manifests[resource], "KIND", resource))
		framework.Eventually(t, patience, resource+" with a wish of their own are in west", func() string {
			if !made("west", resource) {
				return w.kubectl("get", "placements")
			}
			return ""
		})
		if made("east", resource) {
			t.Errorf("of %s that are to be in west one was made in east", resource)
		}
	}
	w.kubectl("delete", "deployment,statefulset,job,service,pod", "levels-own")
}

func deleteAll(t *testing.T, f *fleet) {
	w := placed(t, f, "delete", "")
	w.kubectl("delete", "deployment,service,configmap,secret,serviceaccount", "-l", "app="+w.app)
	w.gone("east")
	if out := w.kubectl("get", "deployments,services", "-o", "name"); out != "" && !strings.Contains(out, "No resources") {
		t.Errorf("left in the workspace: %s", out)
	}
}

func recreate(t *testing.T, f *fleet) {
	w := placed(t, f, "recreate", "")
	old := w.deployment().UID
	w.kubectlWithInput(w.manifest(6, ""), "replace", "--force", "-f", "-")
	framework.Eventually(t, patience, "the new Deployment is rolled out", func() string {
		d := w.deployment()
		if d.UID == old {
			return "still the old one"
		}
		if d.Status.ReadyReplicas != 6 || d.Status.ObservedGeneration != d.Generation {
			return fmt.Sprintf("status %+v", d.Status)
		}
		return ""
	})
	w.spread(map[string]int{"east": 6})
	ns := w.namespaceIn("east")
	down, err := f.clusters["east"].Clientset().AppsV1().Deployments(ns).Get(t.Context(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := down.Labels["workload.atoll.dev/root-uid"]; got != string(w.deployment().UID) {
		t.Errorf("the Deployment in east belongs to root %s, want the new one %s", got, w.deployment().UID)
	}
}

func refusal(t *testing.T, f *fleet) {
	w := placed(t, f, "refused", "")
	ns := w.namespaceIn("east")
	// The physical cluster's administrator allows no more Services there.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
	if err := json.Unmarshal([]byte(`{"spec":{"hard":{"services":"1"}}}`), quota); err != nil {
		t.Fatal(err)
	}
	if _, err := f.clusters["east"].Clientset().CoreV1().ResourceQuotas(ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the quota is in force", func() string {
		q, err := f.clusters["east"].Clientset().CoreV1().ResourceQuotas(ns).Get(t.Context(), "none", metav1.GetOptions{})
		if err != nil || len(q.Status.Used) == 0 {
			return fmt.Sprintf("%v %v", q, err)
		}
		return ""
	})
	w.kubectl("create", "service", "clusterip", "second", "--tcp=80")
	framework.Eventually(t, patience, "an Event on the Service carries east's words", func() string {
		out := w.kubectl("get", "events", "--field-selector=involvedObject.name=second", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "east") || !strings.Contains(out, "exceeded quota") {
			return out
		}
		return ""
	})
	// It takes the Deployment, and none of its further pods.
	patch := []byte(`{"spec":{"hard":{"pods":"6"}}}`)
	if _, err := f.clusters["east"].Clientset().CoreV1().ResourceQuotas(ns).Patch(t.Context(), "none", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the quota of pods is in force", func() string {
		q, err := f.clusters["east"].Clientset().CoreV1().ResourceQuotas(ns).Get(t.Context(), "none", metav1.GetOptions{})
		if err != nil || q.Status.Hard.Pods().Value() != 6 {
			return fmt.Sprintf("%v %v", q, err)
		}
		return ""
	})
	w.kubectl("scale", "deployment/"+w.app, "--replicas=7")
	framework.Eventually(t, patience, "an Event and a condition on the Deployment carry east's words", func() string {
		out := w.kubectl("get", "events", "--field-selector=involvedObject.kind=Deployment", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "exceeded quota") {
			return out
		}
		for _, c := range w.deployment().Status.Conditions {
			if c.Type == "ReplicaFailure" && strings.Contains(c.Message, "east") && strings.Contains(c.Message, "exceeded quota") {
				return ""
			}
		}
		return fmt.Sprintf("%+v", w.deployment().Status.Conditions)
	})
}

func deleteWorkspace(t *testing.T, f *fleet) {
	w := placed(t, f, "goes", "")
	w.applyJob("100ms") // which stays where it has ended
	w.kubectl("wait", "--for=condition=complete", "job/"+w.app, "--timeout=100s")
	f.MustRun("kubectl", "--context=root", "delete", "workspace", w.app, "--timeout=100s")
	w.gone("east")
	if out, err := f.Run("kubectl", "--server="+f.URL+"/clusters/root:"+w.app, "get", "--raw", "/api/v1/namespaces"); err == nil {
		t.Errorf("the deleted workspace answers: %s", out)
	}
}

func clusterStopped(t *testing.T, f *fleet) {
	w := placed(t, f, "stopped", "")
	deletesBefore := len(f.clusters["east"].AuditEvents(framework.AuditFilter{Verb: "delete", Resource: "deployments"}))
	s := w.show()
	s.shows("east 6/6 True Placed")
	f.clusters["east"].Stop()
	framework.Eventually(t, patience, "the Deployment says that east is away", func() string {
		d := w.deployment()
		if d.Status.ReadyReplicas != 0 {
			return fmt.Sprintf("status %+v", d.Status)
		}
		for _, c := range d.Status.Conditions {
			if strings.Contains(c.Message, "east") {
				return ""
			}
		}
		return fmt.Sprintf("no condition names east: %+v", d.Status.Conditions)
	})
	s.shows("east 6/6 False Applying")
	w.explainsThatItIsAway("east")
	w.kubectl("scale", "deployment/"+w.app, "--replicas=7")
	f.clusters["east"].Restart()
	w.spread(map[string]int{"east": 7})
	w.rolledOut()
	s.shows("east 7/7 True Placed")
	if n := len(f.clusters["east"].AuditEvents(framework.AuditFilter{Verb: "delete", Resource: "deployments"})); n != deletesBefore {
		t.Errorf("%d Deployments were deleted in east after its restart, want none", n-deletesBefore)
	}
}

func serverStopped(t *testing.T, f *fleet) {
	w := placed(t, f, "hub", "")
	o := w.observe()
	f.Restart()
	w.kubectl("scale", "deployment/"+w.app, "--replicas=7")
	w.spread(map[string]int{"east": 7})
	o.neverBelow(t, 6)
	f.Kill()
	f.Restart()
	w.place("west")
	w.spread(map[string]int{"west": 7})
	w.gone("east")
	o.neverBelow(t, 6)
}
