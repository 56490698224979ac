package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// applyStatefulSet applies a StatefulSet, its headless Service, and the ConfigMap that its pods need.
func (w *workspace) applyStatefulSet(replicas int, version, volumes string) string {
	w.t.Helper()
	return w.kubectlWithInput(strings.NewReplacer("APP", w.app, "VERSION", version, "REPLICAS", fmt.Sprint(replicas), "VOLUMES", volumes).Replace(`
apiVersion: v1
kind: Service
metadata: {name: APP, labels: {app: APP}}
spec: {clusterIP: None, selector: {app: APP}, ports: [{port: 5432}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: APP, labels: {app: APP}}
data: {greeting: hello}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: APP, labels: {app: APP}}
spec:
  replicas: REPLICAS
  serviceName: APP
  selector: {matchLabels: {app: APP}}
  template:
    metadata: {labels: {app: APP}}
    spec:
      containers:
      - name: db
        image: registry.example/db:VERSION
        envFrom: [{configMapRef: {name: APP}}]
  volumeClaimTemplates: [VOLUMES]
`), "apply", "-f", "-")
}

func (w *workspace) statefulSetRolledOut() {
	w.t.Helper()
	w.kubectl("rollout", "status", "statefulset/"+w.app, "--timeout=100s")
}

// statefulSet reads the root.
func (w *workspace) statefulSet() *appsv1.StatefulSet {
	w.t.Helper()
	s, err := w.f.Clients().Kube.AppsV1().StatefulSets("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the StatefulSet: %v", err)
	}
	return s
}

// statefulSetRuns: whole in one cluster of its Placement, with one status.
func statefulSetRuns(t *testing.T, f *fleet) {
	w := f.workspace(t, "db")
	w.place("east,west")
	if out := w.applyStatefulSet(3, "1", ""); strings.Contains(out, "Warning") {
		t.Errorf("who applies it is warned: %s", out)
	}
	w.statefulSetRolledOut()
	in, shown := "east", "east 3/3,west 0/0"
	if w.ready("west") > 0 { // which was heard of first, in a fleet that has just begun
		in, shown = "west", "east 0/0,west 3/3"
	}
	w.spread(map[string]int{in: 3})
	served := func() {
		t.Helper()
		framework.Eventually(t, patience, "the status is that of the cluster", func() string {
			root := w.statefulSet()
			n, s := *root.Spec.Replicas, root.Status
			want := appsv1.StatefulSetStatus{
				ObservedGeneration: root.Generation, Replicas: n, ReadyReplicas: n, CurrentReplicas: n, UpdatedReplicas: n, AvailableReplicas: n,
				CurrentRevision: s.UpdateRevision, UpdateRevision: s.UpdateRevision, CollisionCount: s.CollisionCount,
			}
			if fmt.Sprint(s) != fmt.Sprint(want) || s.UpdateRevision == "" {
				return fmt.Sprintf("it is %+v, want %+v", s, want)
			}
			return ""
		})
	}
	served()
	w.show().ends(shown)

	version := w.statefulSet().ResourceVersion
	w.applyStatefulSet(3, "1", "")
	if now := w.statefulSet().ResourceVersion; now != version {
		t.Errorf("a second apply changed the StatefulSet from version %s to %s", version, now)
	}
	w.applyStatefulSet(4, "2", "")
	w.statefulSetRolledOut()
	served()
	pods, err := f.clusters[in].Clientset().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
		if image := pod.Spec.Containers[0].Image; !strings.HasSuffix(image, ":2") {
			t.Errorf("after the rollout pod %s runs %s", pod.Name, image)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"db-0", "db-1", "db-2", "db-3"}) {
		t.Errorf("pods are %v", names)
	}
	w.showsPodsOf(w.statefulSet())
	w.kubectl("delete", "pod", w.app+"-1") // waits until it is gone, and another one has its name
	w.statefulSetRolledOut()
	w.showsPodsOf(w.statefulSet())
	w.kubectl("delete", "statefulset,service,configmap", w.app)
	w.spread(map[string]int{})
}

// statefulSetMoves: no pod runs in the next cluster before the last one is gone in the one before.
func statefulSetMoves(t *testing.T, f *fleet) {
	w := f.workspace(t, "mover")
	w.place("east")
	w.applyStatefulSet(3, "1", "")
	w.statefulSetRolledOut()
	w.spread(map[string]int{"east": 3})
	w.showsPodsOf(w.statefulSet())
	ns := w.namespaceIn("east")
	w.place("west")
	w.spread(map[string]int{"west": 3})
	w.statefulSetRolledOut()
	w.gone("east")
	w.showsPodsOf(w.statefulSet()) // of the same names
	times := func(cluster, verb string) (times []time.Time) {
		for _, e := range f.clusters[cluster].AuditEvents(framework.AuditFilter{Verb: verb, Resource: "pods"}) {
			if e.Namespace == ns && e.Subresource == "" && e.Code < 300 {
				times = append(times, e.Time)
			}
		}
		slices.SortFunc(times, time.Time.Compare)
		return times
	}
	gone, made := times("east", "delete"), times("west", "create")
	if len(gone) < 3 || len(made) != 3 || gone[len(gone)-1].After(made[0]) {
		t.Errorf("pods were deleted in east at %v, and made in west at %v", gone, made)
	}
	if out := w.kubectl("get", "events", "--field-selector=reason=BreakBeforeMake", "-o", "jsonpath={.items[*].message}"); !strings.Contains(out, `Stops on "east" before it starts elsewhere`) {
		t.Errorf("of the move is told %q", out)
	}

	// Turned back at once, it is where it was, or comes back there.
	w.place("east")
	w.place("west")
	w.spread(map[string]int{"west": 3})
	w.statefulSetRolledOut()
	w.gone("east")
}

// statefulSetStays: what has its data in a cluster does not leave it, and says so.
func statefulSetStays(t *testing.T, f *fleet) {
	w := f.workspace(t, "data")
	claims := `{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
	w.place("east")
	w.applyStatefulSet(2, "1", claims)
	down := func(cluster string) *appsv1.StatefulSet {
		t.Helper()
		list, err := f.clusters[cluster].Clientset().AppsV1().StatefulSets("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 0 {
			return nil
		}
		return &list.Items[0]
	}
	framework.Eventually(t, patience, "it is in east", func() string {
		if s := w.statefulSet(); s.Status.Replicas == 0 {
			return fmt.Sprintf("its status is %+v", s.Status)
		}
		return ""
	})
	ns := w.namespaceIn("east")
	w.place("west")
	framework.Eventually(t, patience, "the user is told that it stays", func() string {
		said := ""
		for _, c := range w.statefulSet().Status.Conditions {
			said += fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
		if !strings.Contains(said, `Placed False VolumesStay: It stays on "east"`) {
			return fmt.Sprintf("conditions are %q", said)
		}
		if out := w.kubectl("get", "placement", "default"); !strings.Contains(out, "east 0/2 Staying") {
			return out
		}
		return ""
	})
	w.applyStatefulSet(3, "1", claims)
	framework.Eventually(t, patience, "what changes goes down to where it stays", func() string {
		if s := down("east"); s == nil || *s.Spec.Replicas != 3 || s.DeletionTimestamp != nil {
			return fmt.Sprintf("there is %+v", s)
		}
		return ""
	})
	if down("west") != nil {
		t.Errorf("it is in west, too")
	}
	w.place("east")
	framework.Eventually(t, patience, "it is where it is placed", func() string {
		if s := w.statefulSet(); len(s.Status.Conditions) > 0 {
			return fmt.Sprintf("conditions are %+v", s.Status.Conditions)
		}
		return ""
	})
	w.kubectl("delete", "statefulset,service,configmap", w.app)
	framework.Eventually(t, patience, "it is gone, and its claims are there", func() string {
		claims, err := f.clusters["east"].Clientset().CoreV1().PersistentVolumeClaims(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(claims.Items) == 0 || down("east") != nil {
			return fmt.Sprintf("%d claims, %v, and %v", len(claims.Items), err, down("east"))
		}
		return ""
	})
}

// podClaims: the claims of a StatefulSet's pods are its workspace's. They are shown, are bound, stay when it is scaled down or deleted unless it says
// otherwise, and go with their namespace and their workspace, here and below.
func podClaims(t *testing.T, f *fleet) {
	w := f.workspace(t, "ordinals")
	for i := range 6 {
		w.volume("east", fmt.Sprint(i))
	}
	claims := `{metadata: {name: data}, spec: {storageClassName: ordinals, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
	// below returns the volumes of the claims in east, by the claims' names.
	below := func() map[string]string {
		t.Helper()
		list, err := f.clusters["east"].Clientset().CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
		if err != nil {
			t.Fatal(err)
		}
		volumes := map[string]string{}
		for _, claim := range list.Items {
			volumes[claim.Name] = claim.Spec.VolumeName
		}
		return volumes
	}
	shows := func(namespace string, want ...string) {
		t.Helper()
		framework.Eventually(t, patience, fmt.Sprintf("the workspace and its cluster have the claims %v", want), func() string {
			out := w.kubectl("get", "pvc", "--namespace="+namespace, "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.phase} {end}")
			var all []string
			for _, name := range want {
				all = append(all, name, "Bound")
			}
			if got := strings.Join(strings.Fields(out), " "); got != strings.Join(all, " ") {
				return got
			}
			if got := slices.Sorted(maps.Keys(below())); !slices.Equal(got, want) {
				return fmt.Sprintf("in east there are %v", got)
			}
			return ""
		})
	}
	w.place("east")
	w.applyStatefulSet(2, "1", claims)
	w.statefulSetRolledOut()
	shows("default", "data-ordinals-0", "data-ordinals-1")
	first := below()
	if out := w.kubectl("get", "pvc", "data-ordinals-0", "-o", "jsonpath={.spec.volumeName} {.metadata.labels.app}"); out != first["data-ordinals-0"]+" ordinals" {
		t.Errorf("the first claim has %q, below %v", out, first)
	}
	if out := w.kubectl("describe", "pvc", "data-ordinals-0"); !strings.Contains(out, "Used By:       ordinals-0") {
		t.Errorf("who uses it is not said:\n%s", out)
	}
	w.applyStatefulSet(3, "1", claims)
	w.statefulSetRolledOut()
	w.applyStatefulSet(1, "1", claims)
	w.spread(map[string]int{"east": 1})
	shows("default", "data-ordinals-0", "data-ordinals-1", "data-ordinals-2")

	// One that is deleted while its pod has it goes with that, and the next one is another. The cluster's controller may be the one that makes it.
	w.applyStatefulSet(3, "1", claims)
	w.statefulSetRolledOut()
	second := below()
	w.kubectl("delete", "pvc", "data-ordinals-2")
	w.kubectl("delete", "pod", "ordinals-2")
	framework.Eventually(t, patience, "its next one has another volume", func() string {
		if now := below(); now["data-ordinals-2"] == second["data-ordinals-2"] || now["data-ordinals-2"] == "" || now["data-ordinals-1"] != first["data-ordinals-1"] {
			return fmt.Sprintf("they are %v, and were %v", now, second)
		}
		return ""
	})
	shows("default", "data-ordinals-0", "data-ordinals-1", "data-ordinals-2")
	w.statefulSetRolledOut()

	// As in one cluster it leaves them, and has them when it is made again; unless it says otherwise.
	w.kubectl("delete", "statefulset", w.app)
	w.spread(map[string]int{})
	shows("default", "data-ordinals-0", "data-ordinals-1", "data-ordinals-2")
	w.applyStatefulSet(2, "1", claims)
	w.statefulSetRolledOut()
	if now := below(); now["data-ordinals-0"] != first["data-ordinals-0"] {
		t.Errorf("made again it has %v, and had %v", now, first)
	}
	w.kubectl("patch", "statefulset", w.app, "--type=merge", "-p", `{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Delete","whenScaled":"Delete"}}}`)
	w.kubectl("scale", "statefulset", w.app, "--replicas=1")
	shows("default", "data-ordinals-0", "data-ordinals-2") // its second pod's went with that, the third one's was left before
	w.kubectl("delete", "statefulset", w.app)
	shows("default", "data-ordinals-2")
	w.kubectl("delete", "pvc", "data-ordinals-2")
	shows("default")

	// With their namespace they are gone: one of that name has others.
	inNamespace := func() {
		t.Helper()
		w.kubectl("create", "namespace", "again")
		w.kubectl("annotate", "namespace", "again", "placement.atoll.dev/clusters=east")
		in := *w
		in.namespace = "again"
		in.applyStatefulSet(1, "1", claims)
		in.statefulSetRolledOut()
		shows("again", "data-ordinals-0")
	}
	inNamespace()
	before := below()["data-ordinals-0"]
	w.kubectl("delete", "namespace", "again")
	framework.Eventually(t, patience, "they are gone", func() string {
		if now := below(); len(now) > 0 {
			return fmt.Sprint(now)
		}
		return ""
	})
	w.volume("east", "last")
	inNamespace()
	if now := below()["data-ordinals-0"]; now == before {
		t.Errorf("the claim of the next namespace has the volume of the one before, %s", now)
	}
	f.MustRun("kubectl", "--context=root", "delete", "workspace", w.app, "--timeout=100s")
	w.gone("east")
	if left := below(); len(left) > 0 {
		t.Errorf("of the workspace %v are left", left)
	}
}
