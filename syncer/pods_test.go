package syncer

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// testPod is a pod with a phase, Ready or not.
func testPod(uid, phase, ready string) *unstructured.Unstructured {
	pod := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"nodeName": "node-7"},
		"status": map[string]any{"phase": phase, "conditions": []any{map[string]any{"type": "Ready", "status": ready}}},
	}}
	pod.SetNamespace("shop-1a")
	pod.SetName("web-abc-1")
	pod.SetUID(types.UID(uid))
	return pod
}

// shownOf is what is shown of a pod with that UID.
func shownOf(uid, phase, ready string) *unstructured.Unstructured {
	pod := testPod("above", phase, ready)
	pod.SetAnnotations(map[string]string{workloadv1alpha1.PodUIDAnnotation: uid})
	return pod
}

func ending(pod *unstructured.Unstructured) *unstructured.Unstructured {
	pod.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	return pod
}

func within(seconds int64, pod *unstructured.Unstructured) *unstructured.Unstructured {
	pod.SetDeletionGracePeriodSeconds(&seconds)
	return pod
}

func TestToShow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		shown, below *unstructured.Unstructured
		want         showing
	}{
		"nothing":       {"an event of what is gone on both sides", nil, nil, showNothing},
		"new":           {"it runs", nil, testPod("a", "Pending", "False"), showIt},
		"new, and ends": {"its owner may be gone", nil, ending(testPod("a", "Running", "True")), showNothing},
		"same":          {"a second pass writes nothing", shownOf("a", "Running", "True"), testPod("a", "Running", "True"), showNothing},
		"changed":       {"its status is another one", shownOf("a", "Pending", "False"), testPod("a", "Running", "True"), tellStatus},
		"gone":          {"there is none below", shownOf("a", "Running", "True"), nil, tellItEnded},
		"another":       {"of one name, one after the other", shownOf("a", "Running", "True"), testPod("b", "Running", "True"), tellItEnded},
		"ends below":    {"its ReplicaSet shrinks", shownOf("a", "Running", "True"), ending(testPod("a", "Running", "False")), tellItEnds},
		"ends above":    {"a user deletes it", ending(shownOf("a", "Running", "True")), testPod("a", "Running", "True"), endIt},
		"ends":          {"it takes its time", ending(shownOf("a", "Running", "True")), ending(testPod("a", "Running", "True")), showNothing},
		"ends sooner":   {"he deletes it once more, without grace", within(1, ending(shownOf("a", "Running", "True"))), within(30, ending(testPod("a", "Running", "True"))), endIt},
		"ends as soon":  {"as he wants it", within(1, ending(shownOf("a", "Running", "True"))), within(1, ending(testPod("a", "Running", "True"))), showNothing},
		"ends earlier":  {"somebody below was quicker", within(30, ending(shownOf("a", "Running", "True"))), within(1, ending(testPod("a", "Running", "True"))), showNothing},
		"ends, changed": {"it does not serve any more", ending(shownOf("a", "Running", "True")), ending(testPod("a", "Running", "False")), tellStatus},
		"ended":         {"and is gone", ending(shownOf("a", "Running", "True")), nil, tellItEnded},
		"thin":          {"an earlier one of its name, in a namespace that was nobody's", shownOf("a", "Running", "True"), thinPod(testPod("b", "Running", "True")), tellItEnded},
	} {
		if got := toShow(tc.shown, tc.below); got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}

func TestLeafOf(t *testing.T) {
	of := func(apiVersion, kind, name, hash string, controls bool) *unstructured.Unstructured {
		pod := testPod("a", "Running", "True")
		pod.SetLabels(map[string]string{"pod-template-hash": hash})
		pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "o", Controller: ptr.To(controls)}})
		return pod
	}
	made := func(set key, uid types.UID) bool { return set.name == "web-made" && uid == "o" }
	for reason, tc := range map[string]struct {
		pod  *unstructured.Unstructured
		want key
		ok   bool
	}{
		"a ReplicaSet is its Deployment's":  {of("apps/v1", "ReplicaSet", "web-abc", "abc", true), key{deploymentsGVR, "shop-1a", "web"}, true},
		"a hash is the end of its name":     {of("apps/v1", "ReplicaSet", "web-abc", "bc", true), key{replicaSetsGVR, "shop-1a", "web-abc"}, true},
		"a ReplicaSet of its own":           {of("apps/v1", "ReplicaSet", "web", "", true), key{replicaSetsGVR, "shop-1a", "web"}, true},
		"made of a leaf, whatever its name": {of("apps/v1", "ReplicaSet", "web-made", "made", true), key{replicaSetsGVR, "shop-1a", "web-made"}, true},
		"a DaemonSet makes its pods":        {of("apps/v1", "DaemonSet", "agent", "", true), key{appsv1.SchemeGroupVersion.WithResource("daemonsets"), "shop-1a", "agent"}, true},
		"a StatefulSet does":                {of("apps/v1", "StatefulSet", "db", "", true), key{statefulSetsGVR, "shop-1a", "db"}, true},
		"a Job does":                        {of("batch/v1", "Job", "once", "", true), key{batchv1.SchemeGroupVersion.WithResource("jobs"), "shop-1a", "once"}, true},
		"a ReplicationController does":      {of("v1", "ReplicationController", "web", "", true), key{corev1.SchemeGroupVersion.WithResource("replicationcontrollers"), "shop-1a", "web"}, true},
		"a Deployment makes ReplicaSets":    {of("apps/v1", "Deployment", "web", "", true), key{}, false},
		"a Service makes none":              {of("v1", "Service", "web", "", true), key{}, false},
		"an owner does not":                 {of("apps/v1", "DaemonSet", "agent", "", false), key{}, false},
		"of another group":                  {of("example.dev/v1", "DaemonSet", "agent", "", true), key{}, false},
		"a bare pod":                        {testPod("a", "Running", "True"), key{}, false},
	} {
		got, ok := leafOf(tc.pod, made)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(key{})); ok != tc.ok || ok && diff != "" {
			t.Errorf("%s: %v, %v, want %v, %v", reason, got, ok, tc.want, tc.ok)
		}
	}
}

// TestTakenOver: a ReplicaSet that a Deployment of the physical cluster has taken over is left to that.
func TestTakenOver(t *testing.T) {
	owned := &unstructured.Unstructured{Object: map[string]any{}}
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}})
	for reason, tc := range map[string]struct {
		resource schema.GroupVersionResource
		down     *unstructured.Unstructured
		want     string
	}{
		"it is not there yet":              {replicaSetsGVR, nil, ""},
		"it is nobody's":                   {replicaSetsGVR, &unstructured.Unstructured{Object: map[string]any{}}, ""},
		"it is a Deployment's":             {replicaSetsGVR, owned, "web"},
		"so is another":                    {corev1.SchemeGroupVersion.WithResource("replicationcontrollers"), owned, "web"},
		"a claim is as its volume is used": {claimsGVR, owned, ""},
	} {
		got := takenOver(key{resource: tc.resource}, tc.down)
		if (got == nil) != (tc.want == "") || got != nil && got.Name != tc.want {
			t.Errorf("%s: %v, want %q", reason, got, tc.want)
		}
	}
}

// takenSet is a leaf of a ReplicaSet that asks for other replicas than what was made of it has, which a Deployment controls if taken, and a syncer
// that may write it. It counts the writes to the physical cluster.
func takenSet(t *testing.T, taken bool) (s *Syncer, k key, leaf, down *unstructured.Unstructured, writes *int) {
	t.Helper()
	return setBeside(t, taken, nil)
}

// setBeside is takenSet, in a mirror that answers what LimitRanges it has; nil for none.
func setBeside(t *testing.T, taken bool, limits http.HandlerFunc) (s *Syncer, k key, leaf, down *unstructured.Unstructured, writes *int) {
	t.Helper()
	k, writes = key{replicaSetsGVR, "shop-1a", "crew"}, new(int)
	in := func(kind, apiVersion, name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetName(name)
		o.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.SyncTargetLabel: "east-uid", workloadv1alpha1.RootUIDLabel: "root", "app": "web"})
		return o
	}
	leaf = in("ReplicaSet", "apps/v1", k.name)
	leaf.SetNamespace(k.namespace)
	leaf.SetUID("leaf")
	leaf.SetResourceVersion("3")
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	leaf.Object["spec"] = map[string]any{"replicas": int64(3)}
	down = render(leaf, "east-uid")
	down.SetUID("below")
	down.SetResourceVersion("7")
	down.Object["spec"] = map[string]any{"replicas": int64(0)}
	if taken {
		down.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}})
	}
	s = newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		switch resource := path.Base(req.URL.Path); {
		case resource == "limitranges" && limits != nil:
			limits(w, req)
			return
		case resource == "limitranges", resource == "networkpolicies":
			answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": []any{}})
			return
		}
		answer(t, w, http.StatusOK, map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSetList", "metadata": map[string]any{}, "items": []any{leaf.Object}})
	}, func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			*writes++
		}
		answer(t, w, http.StatusOK, down.Object)
	})
	s.gate.open(s.gate.begin(), fine)
	if err := s.physical.informers[replicaSetsGVR].queue.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	policy := in("NetworkPolicy", "networking.k8s.io/v1", isolationPolicy)
	policy.SetNamespace(k.namespace)
	for gvr, o := range map[schema.GroupVersionResource]*unstructured.Unstructured{
		namespacesGVR: in("Namespace", "v1", k.namespace), networkPoliciesGVR: policy, replicaSetsGVR: down,
	} {
		if err := s.physical.informers[gvr].Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return s, k, leaf, down, writes
}

// TestTakenOverIsLeftAlone: nothing is written to what a Deployment of the physical cluster has taken over, and the leaf is told; what nobody has taken
// is made right.
func TestTakenOverIsLeftAlone(t *testing.T) {
	for name, taken := range map[string]bool{"Taken": true, "Nobody's": false} {
		t.Run(name, func(t *testing.T) {
			s, k, leaf, down, writes := takenSet(t, taken)
			o, err := s.applyLeaf(t.Context(), k, leaf, down)
			if (*writes == 0) != taken {
				t.Errorf("there were %d writes", *writes)
			}
			if !taken {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if r := refusalOf(err); r == nil || r.reason != "TakenOver" || !strings.Contains(r.message, "Deployment web") || o.down != down {
				t.Errorf("the leaf is told %v, of %v", err, o.down)
			}
		})
	}
}

// TestPodsOfAStatefulSetFreeTheirNames: a StatefulSet whose pods are gone in a cluster leaves it when they are not shown any more,
// since they have the same names in the next; and it is looked at when the last of them is not.
func TestPodsOfAStatefulSetFreeTheirNames(t *testing.T) {
	row := func(name, label string) *unstructured.Unstructured {
		pod := shownOf("a", "Running", "True")
		pod.SetName(name)
		pod.SetLabels(map[string]string{appsv1.StatefulSetPodNameLabel: label})
		return pod
	}
	db := key{statefulSetsGVR, "shop-1a", "db"}
	for reason, tc := range map[string]struct {
		shown *unstructured.Unstructured
		heard error
		want  bool
	}{
		"nothing is shown":          {},
		"it is":                     {shown: row("db-0", "db-0"), want: true},
		"of another one":            {shown: row("db-2-0", "db-2-0")},
		"of a Deployment":           {shown: row("db-0", "")},
		"nobody sees what is below": {shown: row("db-0", "db-0"), heard: apierrors.NewForbidden(podsGVR.GroupResource(), "", errors.New("no role"))},
	} {
		s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		s.heardUnlessRefused(podsGVR)(tc.heard)
		if tc.shown != nil {
			if err := errors.Join(s.shownPods.queue.Replace(nil, "1"), s.shownPods.Add(tc.shown)); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.showsPodsOf(db); got != tc.want {
			t.Errorf("%s: %v", reason, got)
		}
		if tc.shown == nil {
			continue
		}
		s.shownPods.handle(tc.shown, nil)
		if want := len(tc.shown.GetLabels()[appsv1.StatefulSetPodNameLabel]); (s.queue.Len() == 2) != (want > 0) {
			t.Errorf("%s: %d keys wait", reason, s.queue.Len())
		}
	}
}

// TestStatefulSetLeavesItsNames: its leaf goes after what is shown of its pods.
func TestStatefulSetLeavesItsNames(t *testing.T) {
	leaf := &unstructured.Unstructured{}
	leaf.SetAPIVersion("apps/v1")
	leaf.SetKind("StatefulSet")
	leaf.SetNamespace("shop-1a")
	leaf.SetName("db")
	leaf.SetUID("leaf")
	leaf.SetResourceVersion("7")
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	ending(leaf)
	for _, shown := range []bool{true, false} {
		released := false
		answering := func(get any) *rest.Config {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer := get
				switch {
				case req.Method == http.MethodPatch:
					released, answer = true, leaf
				case strings.HasSuffix(req.URL.Path, "/db"):
					w.WriteHeader(http.StatusNotFound)
					answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
				}
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			return &rest.Config{Host: server.URL}
		}
		list := func(apiVersion, kind string, items ...any) map[string]any {
			return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"resourceVersion": "7"}, "items": append([]any{}, items...)}
		}
		s, err := New(Config{
			Name: "east", UID: "u", Clock: clock.RealClock{},
			Mirror:   answering(list("apps/v1", "StatefulSetList", leaf.Object)),
			Physical: answering(list("meta.k8s.io/v1", "PartialObjectMetadataList")),
		})
		if err != nil {
			t.Fatal(err)
		}
		s.gate.open(s.gate.begin(), fine)
		s.heardUnlessRefused(podsGVR)(nil)
		if err := s.shownPods.queue.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
		if shown {
			row := shownOf("a", "Running", "True")
			row.SetName("db-0")
			row.SetLabels(map[string]string{appsv1.StatefulSetPodNameLabel: "db-0"})
			if err := s.shownPods.Add(row); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.bury(t.Context(), key{statefulSetsGVR, "shop-1a", "db"}, leaf); err != nil {
			t.Fatal(err)
		}
		if released == shown {
			t.Errorf("with a pod shown, %v, its leaf goes: %v", shown, released)
		}
	}
}

// TestRevisionOf: the ReplicaSet below says what it was made of, and is asked once.
func TestRevisionOf(t *testing.T) {
	set := func(uid, revision string) *unstructured.Unstructured {
		r := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet"}}
		r.SetName("web-abc")
		r.SetUID(types.UID(uid))
		if revision != "" {
			r.SetAnnotations(map[string]string{workloadv1alpha1.RevisionAnnotation: revision})
		}
		r.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}})
		return r
	}
	orphan, leaf := set("o", "5d8c"), set("o", "")
	orphan.SetOwnerReferences(nil)
	leaf.SetOwnerReferences(nil)
	for reason, tc := range map[string]struct {
		kind   string
		set    *unstructured.Unstructured
		code   int
		want   string
		reads  int // by two calls
		failed bool
	}{
		"it says so":                    {"ReplicaSet", set("o", "5d8c"), http.StatusOK, "5d8c", 1, false},
		"a Deployment may adopt it":     {"ReplicaSet", orphan, http.StatusOK, "5d8c", 2, false},
		"it was made of a leaf itself":  {"ReplicaSet", leaf, http.StatusOK, "", 2, true},
		"it was made before that":       {"ReplicaSet", set("o", ""), http.StatusOK, "", 2, false},
		"another one has its name":      {"ReplicaSet", set("other", "5d8c"), http.StatusOK, "", 2, false},
		"it may not be read":            {"ReplicaSet", set("o", "5d8c"), http.StatusForbidden, "", 2, false},
		"the cluster does not answer":   {"ReplicaSet", set("o", "5d8c"), http.StatusServiceUnavailable, "", 2, true},
		"only Deployments' are of such": {"DaemonSet", set("o", "5d8c"), http.StatusOK, "", 0, false},
	} {
		reads := 0
		physical := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			reads++
			w.Header().Set("Content-Type", "application/json")
			var answer any = map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSetList", "metadata": map[string]any{"resourceVersion": "7"}, "items": []any{tc.set.Object}}
			if tc.code != http.StatusOK {
				w.WriteHeader(tc.code)
				answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(tc.code), Reason: map[int]metav1.StatusReason{
					http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
				}[tc.code]}
			}
			if got := req.URL.Query().Get("fieldSelector"); got != "metadata.name=web-abc" {
				t.Errorf("%s: lists %q", reason, got)
			}
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Error(err)
			}
		}))
		s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{Host: physical.URL}, Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		pod := testPod("a", "Pending", "False")
		pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: tc.kind, Name: "web-abc", UID: "o", Controller: ptr.To(true)}})
		for range 2 {
			if got, err := s.revisionOf(t.Context(), pod); got != tc.want || (err != nil) != tc.failed {
				t.Errorf("%s: %q, %v, want %q", reason, got, err, tc.want)
			}
		}
		if reads != tc.reads {
			t.Errorf("%s: %d reads, want %d", reason, reads, tc.reads)
		}
		physical.Close()
	}
}

// TestPodStatusWaits: that a pod serves, or does not, is told at once.
func TestPodStatusWaits(t *testing.T) {
	for reason, tc := range map[string]struct {
		shown, below *unstructured.Unstructured
		want         time.Duration
	}{
		"it serves":        {shownOf("a", "Running", "False"), testPod("a", "Running", "True"), 0},
		"it does not":      {shownOf("a", "Running", "True"), testPod("a", "Running", "False"), 0},
		"it is scheduled":  {shownOf("a", "Pending", "False"), testPod("a", "Pending", "False"), client.WhileProgressing},
		"it has ended":     {shownOf("a", "Running", "False"), testPod("a", "Succeeded", "False"), 0},
		"nothing was told": {&unstructured.Unstructured{Object: map[string]any{}}, testPod("a", "Pending", "False"), 0},
	} {
		if got := mayWaitOfPod(tc.shown, tc.below); got != tc.want {
			t.Errorf("%s: %s, want %s", reason, got, tc.want)
		}
	}
}

// TestUnheard: a pod of which nothing is heard is not Ready, and is written once.
func TestUnheard(t *testing.T) {
	now := metav1.NewTime(time.Unix(7, 0))
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
	}}
	why := doubt{reason: "Why", message: "why"}
	if !unheard(&status, why, now) || status.Phase != corev1.PodRunning || status.Conditions[0].Status != corev1.ConditionTrue ||
		status.Conditions[1].Status != corev1.ConditionFalse || status.Conditions[1].LastTransitionTime != now || status.Conditions[1].Reason != "Why" {
		t.Errorf("%+v; want it not Ready, and all else as it was", status)
	}
	if unheard(&status, why, now) {
		t.Error("it is written again")
	}
}

// TestThinPod: of pods in other namespaces, their content is not kept.
func TestThinPod(t *testing.T) {
	pod := testPod("a", "Running", "True")
	pod.SetAnnotations(map[string]string{"secret": "theirs"})
	thin := thinPod(pod)
	if !isThin(thin) || isThin(pod) || len(thin.GetAnnotations()) > 0 || thin.Object["status"] != nil || thin.GetUID() != "a" {
		t.Errorf("%+v", thin.Object)
	}
	if most := int64(1500); perObject+size(thin.Object) > most {
		t.Errorf("a pod of nobody takes %d bytes, want no more than %d", perObject+size(thin.Object), most)
	}
}

// TestPodsBeforeTheirLeaf: pods that ran before the leaf was there that they are of, as of what is taken over, are shown when it comes.
func TestPodsBeforeTheirLeaf(t *testing.T) {
	for reason, tc := range map[string]struct {
		leaf string
		goes bool
		want int
	}{
		"theirs":           {leaf: "web", want: 2},
		"another":          {leaf: "db", want: 1},
		"theirs, too late": {leaf: "web", goes: true, want: 1},
	} {
		s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		s.gate.open(s.gate.begin(), fine)
		s.heardUnlessRefused(podsGVR)(nil)
		pod := testPod("a", "Running", "True")
		pod.SetLabels(map[string]string{"pod-template-hash": "abc"})
		pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "o", Controller: ptr.To(true)}})
		if err := errors.Join(s.pods.queue.Replace(nil, "1"), s.shownPods.queue.Replace(nil, "1"), s.pods.Add(pod)); err != nil {
			t.Fatal(err)
		}
		look := func() {
			if _, err := s.reconcilePod(t.Context(), keyOfPod(pod)); err != nil {
				t.Fatal(err)
			}
		}
		look()
		if tc.goes {
			if err := s.pods.Delete(pod); err != nil {
				t.Fatal(err)
			}
			look()
		}
		leaf := &unstructured.Unstructured{}
		leaf.SetNamespace(pod.GetNamespace())
		leaf.SetName(tc.leaf)
		leaf.SetUID("leaf")
		s.mirror.informers[deploymentsGVR].handle(nil, leaf)
		if n := s.queue.Len(); n != tc.want {
			t.Errorf("%s: %d keys wait, want %d", reason, n, tc.want)
		}
	}
}

// TestPodOfANamespaceThatWent: what is shown of a pod is looked at when the pod goes, though its namespace was gone before.
func TestPodOfANamespaceThatWent(t *testing.T) {
	s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	pod := testPod("a", "Running", "True")
	s.pods.handle(pod, nil)
	if n := s.queue.Len(); n != 0 {
		t.Errorf("%d keys wait for a pod of nobody", n)
	}
	if err := s.shownPods.Add(shownOf("a", "Running", "True")); err != nil {
		t.Fatal(err)
	}
	s.pods.handle(pod, nil)
	if n := s.queue.Len(); n != 1 {
		t.Errorf("%d keys wait, want that of the pod that is shown", n)
	}
}

// TestPodsGoByAFreshRead: what a watch does not show is no ground to delete a pod, on either side.
func TestPodsGoByAFreshRead(t *testing.T) {
	const path = "/api/v1/namespaces/shop-1a/pods/web-abc-1"
	for reason, tc := range map[string]struct {
		deed         showing
		above, below *unstructured.Unstructured // as each side answers
		want         []string
	}{
		"it is gone below":                    {tellItEnded, shownOf("a", "Running", "True"), nil, []string{"above"}},
		"it is another one below":             {tellItEnded, shownOf("a", "Running", "True"), testPod("b", "Running", "True"), []string{"above"}},
		"our watch lacks it":                  {tellItEnded, shownOf("a", "Running", "True"), testPod("a", "Running", "True"), nil},
		"somebody deletes it":                 {endIt, ending(shownOf("a", "Running", "True")), testPod("a", "Running", "True"), []string{"below"}},
		"nobody does any more":                {endIt, shownOf("a", "Running", "True"), testPod("a", "Running", "True"), nil},
		"it is gone above, whoever wanted it": {endIt, nil, testPod("a", "Running", "True"), nil},
		"it is another one above": {endIt, func() *unstructured.Unstructured {
			another := ending(shownOf("a", "Running", "True"))
			another.SetUID("another")
			return another
		}(), testPod("a", "Running", "True"), nil},
	} {
		var deleted []string
		answering := func(side string, pod *unstructured.Unstructured) *rest.Config {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer := any(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
				switch {
				case req.URL.Path != path || pod == nil:
					w.WriteHeader(http.StatusNotFound)
				case req.Method == http.MethodDelete:
					deleted = append(deleted, side)
					fallthrough
				default:
					pod.SetAPIVersion("v1")
					pod.SetKind("Pod")
					answer = pod
				}
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			return &rest.Config{Host: server.URL}
		}
		s, err := New(Config{Name: "east", UID: "u", Mirror: answering("above", tc.above), Physical: answering("below", tc.below), Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.show(t.Context(), key{podsGVR, "shop-1a", "web-abc-1"}, tc.deed, shownOf("a", "Running", "True"), testPod("a", "Running", "True")); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		if diff := cmp.Diff(tc.want, deleted); diff != "" {
			t.Errorf("%s: deleted (-want +got):\n%s", reason, diff)
		}
	}
}
