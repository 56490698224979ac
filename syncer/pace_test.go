package syncer

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// deploymentLeaf is a leaf of generation 2 for three replicas.
func deploymentLeaf(applied string, status map[string]any) *unstructured.Unstructured {
	annotations := map[string]any{workloadv1alpha1.RenderedAnnotation: "h2"}
	if applied != "" {
		annotations[workloadv1alpha1.AppliedAnnotation] = applied
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "shop-1", "name": "web", "resourceVersion": "7", "generation": int64(2), "annotations": annotations},
		"spec":     map[string]any{"replicas": int64(3)},
		"status":   status,
	}}
}

// counts is a status that has observed a generation.
func counts(observed, replicas, updated, ready, available, terminating int64) map[string]any {
	return map[string]any{
		"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready,
		"availableReplicas": available, "terminatingReplicas": terminating,
	}
}

// daemonSetLeaf is deploymentLeaf for one that three nodes are to run.
func daemonSetLeaf(applied, strategy string, observed, updated, ready int64) *unstructured.Unstructured {
	leaf := deploymentLeaf(applied, map[string]any{
		"observedGeneration": observed, "desiredNumberScheduled": int64(3), "currentNumberScheduled": int64(3), "numberMisscheduled": int64(0),
		"updatedNumberScheduled": updated, "numberReady": ready, "numberAvailable": ready,
	})
	leaf.SetKind("DaemonSet")
	leaf.Object["spec"] = map[string]any{"updateStrategy": map[string]any{"type": strategy}}
	return leaf
}

// setLeaf is deploymentLeaf for a ReplicaSet, or a ReplicationController.
func setLeaf(kind string, replicas, ready int64) *unstructured.Unstructured {
	leaf := deploymentLeaf("h2", map[string]any{
		"observedGeneration": int64(2), "replicas": replicas, "fullyLabeledReplicas": replicas, "readyReplicas": ready, "availableReplicas": ready,
	})
	leaf.SetKind(kind)
	return leaf
}

func TestMayWait(t *testing.T) {
	condition := func(kind, status string) map[string]any {
		s := counts(2, 3, 1, 2, 2, 0)
		s["conditions"] = []any{map[string]any{"type": kind, "status": status, "reason": "Why"}}
		return s
	}
	rolling := deploymentLeaf("h2", counts(2, 3, 1, 2, 2, 0))
	done := deploymentLeaf("h2", counts(2, 3, 3, 3, 3, 0))
	failing := setLeaf("ReplicationController", 3, 1)
	failing.Object["status"].(map[string]any)["conditions"] = condition("ReplicaFailure", "True")["conditions"]
	refused := rolling.DeepCopy()
	refused.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: "h2", workloadv1alpha1.AppliedAnnotation: "h2", workloadv1alpha1.RefusedAnnotation: "{}"})
	for name, tc := range map[string]struct {
		leaf, want *unstructured.Unstructured
		may        time.Duration
		reason     string
	}{
		"Applied":        {deploymentLeaf("", nil), deploymentLeaf("h2", nil), client.WhileNothing, "nothing has come of it yet"},
		"AppliedAnew":    {deploymentLeaf("h1", counts(1, 3, 3, 3, 3, 0)), deploymentLeaf("h2", counts(1, 3, 3, 3, 3, 0)), client.WhileNothing, "nothing has come of it yet"},
		"Observed":       {deploymentLeaf("h2", nil), deploymentLeaf("h2", counts(2, 0, 0, 0, 0, 0)), client.WhileSettling, "rollout status waits for it"},
		"AppliedAndSeen": {deploymentLeaf("", nil), deploymentLeaf("h2", counts(2, 3, 3, 0, 0, 0)), client.WhileSettling, "both at once"},
		"SetStep":        {setLeaf("ReplicaSet", 3, 1), setLeaf("ReplicaSet", 3, 2), client.WhileProgressing, "another pod serves"},
		"SetThrough":     {setLeaf("ReplicaSet", 3, 2), setLeaf("ReplicaSet", 3, 3), 0, "a move waits for it"},
		"SetFewer":       {setLeaf("ReplicaSet", 3, 3), setLeaf("ReplicaSet", 3, 2), 0, "nothing may shrink elsewhere"},
		"CoreStep":       {setLeaf("ReplicationController", 3, 1), setLeaf("ReplicationController", 3, 2), client.WhileProgressing, "another pod serves"},
		"CoreThrough":    {setLeaf("ReplicationController", 3, 2), setLeaf("ReplicationController", 3, 3), 0, "a move waits for it"},
		"CoreFewer":      {setLeaf("ReplicationController", 3, 3), setLeaf("ReplicationController", 3, 2), 0, "as of a ReplicaSet"},
		"CoreFailure":    {setLeaf("ReplicationController", 3, 1), failing, 0, "bad news"},
		"Step":           {rolling, deploymentLeaf("h2", counts(2, 3, 2, 2, 2, 0)), client.WhileProgressing, "another pod is made"},
		"MoreReady":      {rolling, deploymentLeaf("h2", counts(2, 4, 2, 3, 3, 0)), client.WhileProgressing, "another pod serves"},
		"Through":        {rolling, done, 0, "rollout status waits for it"},
		"ThroughAtOnce":  {deploymentLeaf("", nil), done, 0, "rollout status waits for it"},
		"LastPodGone":    {deploymentLeaf("h2", counts(2, 3, 3, 3, 3, 1)), done, 0, "a Recreate elsewhere waits for it"},
		"FewerAvailable": {done, deploymentLeaf("h2", counts(2, 3, 3, 3, 2, 0)), 0, "nothing may shrink elsewhere"},
		"FewerOfMany":    {rolling, deploymentLeaf("h2", counts(2, 3, 1, 2, 1, 0)), 0, "nothing may shrink elsewhere"},
		"FewerReady":     {rolling, deploymentLeaf("h2", counts(2, 3, 1, 1, 2, 0)), 0, "a pod serves no more"},
		"Deadline":       {rolling, deploymentLeaf("h2", condition("Progressing", "False")), 0, "bad news"},
		"Failure":        {rolling, deploymentLeaf("h2", condition("ReplicaFailure", "True")), 0, "bad news"},
		"OtherCondition": {rolling, deploymentLeaf("h2", condition("Progressing", "True")), client.WhileNothing, "says what the numbers say"},
		"Refused":        {rolling, refused, 0, "bad news"},
		"TakenAfterAll":  {refused, rolling, 0, "somebody may wait for it"},
		"OnANode":        {daemonSetLeaf("h2", "RollingUpdate", 2, 1, 1), daemonSetLeaf("h2", "RollingUpdate", 2, 2, 2), client.WhileProgressing, "another pod serves"},
		"OnAllNodes":     {daemonSetLeaf("h2", "RollingUpdate", 2, 3, 2), daemonSetLeaf("h2", "RollingUpdate", 2, 3, 3), 0, "a move waits for it"},
		"OnFewerNodes":   {daemonSetLeaf("h2", "RollingUpdate", 2, 2, 3), daemonSetLeaf("h2", "RollingUpdate", 2, 2, 2), 0, "bad news"},
		"ByHand":         {daemonSetLeaf("h2", "OnDelete", 2, 1, 2), daemonSetLeaf("h2", "OnDelete", 2, 1, 3), 0, "a move waits for it"},
		"NodesObserved":  {daemonSetLeaf("h2", "RollingUpdate", 1, 0, 3), daemonSetLeaf("h2", "RollingUpdate", 2, 0, 3), client.WhileSettling, "rollout status waits for it"},
		"OtherKind":      {configMap("1", "x"), configMap("1", "x"), 0, "what has no status is written once"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mayWait(tc.leaf, tc.want)
			if err != nil || got != tc.may {
				t.Errorf("may wait %s (%v), want %s: %s", got, err, tc.may, tc.reason)
			}
		})
	}
}

// TestTellsOfStepsTogether: what a leaf is told goes up in few writes, and the last word always does.
func TestTellsOfStepsTogether(t *testing.T) {
	k := key{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "shop-1", "web"}
	leaf, version := deploymentLeaf("", nil), 7
	leaf.SetLabels(map[string]string{workloadv1alpha1.RootUIDLabel: "root1"})
	var told []string // available replicas of each write
	s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		written := &unstructured.Unstructured{}
		if err == nil {
			err = json.Unmarshal(body, written)
		}
		if err != nil {
			t.Error(err)
		}
		if written.GetResourceVersion() != strconv.Itoa(version) {
			answer(t, w, http.StatusConflict, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
			return
		}
		version++
		written.SetResourceVersion(strconv.Itoa(version))
		available, _, _ := unstructured.NestedInt64(written.Object, "status", "availableReplicas")
		told = append(told, strconv.FormatInt(available, 10))
		leaf = written
		answer(t, w, http.StatusOK, written.Object)
	}, func(http.ResponseWriter, *http.Request) { t.Error("a request went down") })
	clk := testclock.NewFakePassiveClock(time.Unix(1_000_000, 0))
	s.pace = client.NewPace[key](clk)

	stale := leaf
	tell := func(of *unstructured.Unstructured, status map[string]any) time.Duration {
		t.Helper()
		down := deploymentLeaf("", status)
		down.SetLabels(leaf.GetLabels())
		wait, err := s.tell(t.Context(), k, of, outcome{down: down})
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	expect := func(got, want time.Duration, reason string) {
		t.Helper()
		if got != want {
			t.Errorf("waits %s, want %s: %s", got, want, reason)
		}
	}
	s.pace.Wrote(k, "") // it was applied
	expect(tell(leaf, nil), client.WhileNothing, "the controllers below have not seen it")
	clk.SetTime(clk.Now().Add(20 * time.Millisecond))
	expect(tell(leaf, counts(2, 1, 1, 0, 0, 0)), client.WhileSettling-20*time.Millisecond, "they do more")
	clk.SetTime(clk.Now().Add(30 * time.Millisecond))
	expect(tell(leaf, counts(2, 3, 3, 1, 1, 0)), 0, "long enough")
	expect(tell(stale, counts(2, 3, 3, 3, 3, 0)), time.Second, "the informer does not show what was told")
	expect(tell(leaf, counts(2, 3, 3, 2, 2, 0)), client.WhileProgressing, "more will follow")
	expect(tell(leaf, counts(2, 3, 3, 3, 3, 0)), 0, "it is through")
	expect(tell(leaf, counts(2, 3, 3, 3, 3, 0)), 0, "there is nothing to tell")
	expect(tell(leaf, counts(2, 3, 3, 2, 2, 0)), 0, "bad news")
	expect(tell(leaf, counts(2, 3, 3, 2, 2, 1)), client.WhileProgressing, "a step")
	clk.SetTime(clk.Now().Add(client.WhileProgressing))
	expect(tell(leaf, counts(2, 3, 3, 2, 2, 1)), 0, "the last word")
	if want := []string{"1", "3", "2", "2"}; !slices.Equal(told, want) {
		t.Errorf("told of %v available, want %v", told, want)
	}
}

// TestCreateIsTheRead: where nothing seems to be, one request makes it; whatever else the physical cluster answers, what is
// there is looked at before anything is said or written.
func TestCreateIsTheRead(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	want := render(configMap("", "b"), "east-uid")
	foreign := configMap("7", "theirs")
	foreign.SetLabels(nil)
	failure := func(code int, reason metav1.StatusReason) *metav1.Status {
		return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "no"}
	}
	for name, tc := range map[string]struct {
		create   *metav1.Status // nil: it is made
		seen, is *unstructured.Unstructured
		refused  string
		want     []string
		reason   string
	}{
		"Free":           {nil, nil, nil, "", []string{"POST"}, "one request is enough"},
		"Gone":           {nil, configMap("6", "a"), nil, "", []string{"GET", "POST"}, "the informer is behind"},
		"GoneAndTaken":   {failure(409, metav1.StatusReasonAlreadyExists), configMap("6", "a"), nil, "", []string{"GET", "POST"}, "seen with the next try"},
		"Seen":           {nil, configMap("6", "a"), configMap("7", "a"), "", []string{"GET", "PATCH"}, "it is applied to what is there"},
		"Foreign":        {failure(409, metav1.StatusReasonAlreadyExists), nil, foreign, refusedNameConflict, []string{"POST", "GET"}, "never written to"},
		"Ours":           {failure(409, metav1.StatusReasonAlreadyExists), nil, configMap("7", "a"), "", []string{"POST", "GET", "PATCH"}, "the informer is behind"},
		"QuotaOfForeign": {failure(403, metav1.StatusReasonForbidden), nil, foreign, refusedNameConflict, []string{"POST", "GET"}, "that the name is taken matters more"},
		"QuotaOfOurs":    {failure(403, metav1.StatusReasonForbidden), nil, configMap("7", "a"), "", []string{"POST", "GET", "PATCH"}, "it counts itself"},
		"Forbidden":      {failure(403, metav1.StatusReasonForbidden), nil, nil, refusedForbidden, []string{"POST", "GET"}, "in the words of the refusal"},
		"Down":           {failure(500, metav1.StatusReasonInternalError), nil, nil, refusedUnreachable, []string{"POST"}, "no answer says what is there"},
	} {
		t.Run(name, func(t *testing.T) {
			var requests []string
			s := newIdle(t, func(http.ResponseWriter, *http.Request) { t.Error("a request went up") }, func(w http.ResponseWriter, req *http.Request) {
				requests = append(requests, req.Method)
				switch {
				case req.Method == http.MethodPost && tc.create != nil:
					answer(t, w, int(tc.create.Code), tc.create)
				case req.Method == http.MethodGet && tc.is == nil:
					notFound(t, w)
				case req.Method == http.MethodGet:
					answer(t, w, http.StatusOK, tc.is.Object)
				default:
					answer(t, w, http.StatusOK, configMap("8", "b").Object)
				}
			})
			_, err := s.apply(t.Context(), k, tc.seen, want)
			refused := ""
			if err != nil {
				if r := refusalOf(err); r != nil {
					refused = r.reason
				}
			}
			if refused != tc.refused || !slices.Equal(requests, tc.want) {
				t.Errorf("%s: refused %q (%v) after %v, want %q after %v", tc.reason, refused, err, requests, tc.refused, tc.want)
			}
		})
	}
}
