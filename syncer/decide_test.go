package syncer

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

func TestCompareHeartbeats(t *testing.T) {
	tests := map[string]struct {
		counters counters
		want     verdict
		reason   string
	}{
		"first contact":               {counters{}, fine, "neither side knows the other"},
		"in step":                     {counters{hub: 7, written: 6, physical: 7}, fine, "the usual state after a beat"},
		"crash between the writes":    {counters{hub: 8, written: 6, physical: 7}, fine, "the hub is raised first"},
		"physical long away":          {counters{hub: 900, written: 7, physical: 7}, fine, "the hub goes on alone"},
		"hub restored":                {counters{hub: 5, written: 4, physical: 7}, hubRestored, "the hub forgot beats that it had stored"},
		"hub restored by one":         {counters{hub: 6, written: 5, physical: 7}, hubRestored, "one beat is enough: anything may have happened before it"},
		"hub empty":                   {counters{physical: 1}, hubRestored, "a mirror that lost its Lease lost more"},
		"physical restored":           {counters{hub: 7, written: 6, physical: 3}, physicalRestored, "it forgot what it had confirmed"},
		"physical empty":              {counters{hub: 7, written: 6}, physicalRestored, "another or a new cluster behind the same address"},
		"physical never confirmed":    {counters{hub: 3}, fine, "the hub beat while the physical cluster was not there yet"},
		"physical behind unconfirmed": {counters{hub: 9, written: 6, physical: 6}, fine, "a beat that got no answer may not have been stored"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := compare(tc.counters)
			if got != tc.want {
				t.Fatalf("%s: compare(%+v) = %v, want %v", tc.reason, tc.counters, got, tc.want)
			}
			// Whatever was found, once the next beat is stored on both sides they agree.
			counter, written := next(tc.counters, got)
			if after := compare(counters{hub: counter, written: written, physical: counter}); after != fine {
				t.Errorf("after the next beat: %v, want %v", after, fine)
			}
			if crashed := compare(counters{hub: counter, written: written, physical: tc.counters.physical}); crashed != fine {
				t.Errorf("after a crash between the writes of the next beat: %v, want %v", crashed, fine)
			}
		})
	}
}

func TestRefusalOf(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	terminating := apierrors.NewForbidden(deployments, "web", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	tests := map[string]struct {
		err    error
		want   string
		reason string
	}{
		"conflict":            {apierrors.NewConflict(deployments, "web", nil), "", "tried again"},
		"exists":              {apierrors.NewAlreadyExists(deployments, "web"), "", "looked at again"},
		"namespace leaves":    {terminating, "", "it is made again"},
		"namespace missing":   {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), "", "it is on its way"},
		"kind missing":        {apierrors.NewNotFound(deployments, "web"), refusedSchema, "the cluster does not serve the kind"},
		"quota":               {apierrors.NewForbidden(deployments, "web", errors.New("exceeded quota: small")), refusedQuota, "admission says it is a quota"},
		"forbidden":           {apierrors.NewForbidden(deployments, "web", errors.New("no")), refusedForbidden, "a policy or missing rights"},
		"credential":          {apierrors.NewUnauthorized("who?"), refusedForbidden, "the cluster does not know us"},
		"invalid":             {apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "web", field.ErrorList{}), refusedInvalid, ""},
		"unknown field apply": {apierrors.NewInternalError(errors.New(`failed to create typed patch object: .spec.foo: field not declared in schema`)), refusedSchema, "what an apply says"},
		"unknown field":       {apierrors.NewBadRequest(`strict decoding error: unknown field "spec.foo"`), refusedSchema, "what a create says"},
		"broken":              {apierrors.NewInternalError(errors.New("etcd is away")), refusedUnreachable, "it will pass"},
		"refused connection":  {&url.Error{Op: "Get", URL: "https://127.0.0.1:1", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}}, refusedUnreachable, ""},
		"ours":                {fmt.Errorf("apply: %w", nameConflict("it is there")), refusedNameConflict, "what we found ourselves"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if r := refusalOf(tc.err); r != nil {
				got = r.reason
			}
			if got != tc.want {
				t.Errorf("%s: refusalOf(%v) = %q, want %q", tc.reason, tc.err, got, tc.want)
			}
		})
	}
}

// TestUnreachableIsStable: the ports of our own side must not make a new message with every try.
func TestUnreachableIsStable(t *testing.T) {
	message := func(port int) string {
		return refusalOf(&url.Error{Op: "Get", URL: "https://east", Err: fmt.Errorf("read tcp 127.0.0.1:%d: %w", port, syscall.ECONNRESET)}).message
	}
	if a, b := message(4000), message(5000); a != b {
		t.Errorf("%q, then %q", a, b)
	}
}

func TestRefusalIsCut(t *testing.T) {
	long := &refusal{refusedSchema, strings.Repeat("ä", maxMessage)}
	if text := long.text(); len(text) > maxMessage+3 || !utf8.ValidString(text) || !strings.HasSuffix(text, "ä...") {
		t.Errorf("%d bytes, valid %v, ends with %q", len(text), utf8.ValidString(text), text[len(text)-6:])
	}
	if text := nameConflict("short").text(); text != "short" {
		t.Errorf("%q", text)
	}
}

func TestReserved(t *testing.T) {
	for name, want := range map[string]bool{"default": true, "kube-system": true, "kube-anything": true, "atoll-system": true, "shop-1a": false, "kubernetes": false} {
		if got := reserved(name); got != want {
			t.Errorf("reserved(%q) = %v, want %v", name, got, want)
		}
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return u
}

const leafText = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop-1a
  uid: leaf
  resourceVersion: "5"
  generation: 4
  creationTimestamp: "2026-01-01T00:00:00Z"
  finalizers: [workload.atoll.dev/syncer]
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: x, uid: y}]
  labels:
    app: web
    workload.atoll.dev/workspace: c1
    workload.atoll.dev/root-uid: root1
  annotations:
    kcp.io/cluster: mirror1
    workload.atoll.dev/rendered: h2
    workload.atoll.dev/root: shop/web
    workload.atoll.dev/applied: h1
    workload.atoll.dev/draining: "true"
    workload.atoll.dev/refused: "{}"
    deployment.kubernetes.io/revision: "3"
    kubectl.kubernetes.io/last-applied-configuration: "{}"
    mine: kept
spec: {replicas: 3}
status: {observedGeneration: 3, replicas: 1}
`

func TestRender(t *testing.T) {
	want := object(t, `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop-1a
  labels:
    app: web
    workload.atoll.dev/workspace: c1
    workload.atoll.dev/root-uid: root1
    workload.atoll.dev/synctarget: east
  annotations:
    workload.atoll.dev/rendered: h2
    workload.atoll.dev/root: shop/web
    mine: kept
spec: {replicas: 3}
`)
	leaf := object(t, leafText)
	before := leaf.DeepCopy()
	if diff := cmp.Diff(want.Object, render(leaf, "east").Object); diff != "" {
		t.Errorf("render (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Object, leaf.Object); diff != "" {
		t.Errorf("render changed the leaf:\n%s", diff)
	}
}

func TestRenderService(t *testing.T) {
	service := func(ip string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: %q, clusterIPs: [%q], type: ClusterIP}}", ip, ip))
	}
	if got := render(service("10.0.0.7"), "east"); !cmp.Equal(got.Object["spec"], any(map[string]any{"type": "ClusterIP"})) {
		t.Errorf("an address of another cluster goes down: %v", got.Object["spec"])
	}
	if ip, _, _ := unstructured.NestedString(render(service("None"), "east").Object, "spec", "clusterIP"); ip != "None" {
		t.Errorf("a headless service lost its None: %q", ip)
	}
}

func TestRenderNamespace(t *testing.T) {
	leaf := object(t, `
apiVersion: v1
kind: Namespace
metadata:
  name: shop-1a
  labels:
    kubernetes.io/metadata.name: shop-1a
    workload.atoll.dev/workspace: c1
    workload.atoll.dev/synctarget: west
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/enforce-version: v1.10
    team: a
spec: {finalizers: [kubernetes]}
status: {phase: Active}
`)
	want := object(t, `
apiVersion: v1
kind: Namespace
metadata:
  name: shop-1a
  labels:
    workload.atoll.dev/workspace: c1
    workload.atoll.dev/synctarget: east
    pod-security.kubernetes.io/enforce: baseline
    pod-security.kubernetes.io/enforce-version: latest
    team: a
`)
	got, err := renderNamespace(leaf, "east", "")
	if err != nil {
		t.Fatal(err)
	}
	hash := got.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]
	want.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: hash})
	if diff := cmp.Diff(want.Object, got.Object); diff != "" || hash == "" {
		t.Errorf("renderNamespace (-want +got):\n%s", diff)
	}
	labels := leaf.GetLabels()
	delete(labels, "team")
	leaf.SetLabels(labels)
	if less, err := renderNamespace(leaf, "east", ""); err != nil || upToDate(less, got) {
		t.Errorf("a label taken away is not noticed (%v)", err)
	}
}

func TestUpToDate(t *testing.T) {
	const base = "{apiVersion: v1, kind: X, metadata: {name: a, labels: {l: '1'}, annotations: {r: h}}, spec: {n: 1, list: [{a: 1}], empty: {}}}"
	tests := map[string]struct {
		live   string
		want   bool
		reason string
	}{
		"equal":               {base, true, ""},
		"more below":          {"{metadata: {labels: {l: '1', m: '2'}, annotations: {r: h}}, spec: {n: 1, list: [{a: 1, b: 2}], extra: 5}, status: {}}", true, "defaults and allocations are the cluster's own, as is an empty map it leaves out"},
		"changed":             {"{metadata: {labels: {l: '1'}, annotations: {r: h}}, spec: {n: 2, list: [{a: 1}]}}", false, "drift"},
		"element added":       {"{metadata: {labels: {l: '1'}, annotations: {r: h}}, spec: {n: 1, list: [{a: 1}, {a: 2}]}}", false, "a list is compared as a whole"},
		"gone":                {"{metadata: {labels: {l: '1'}, annotations: {r: h}}, spec: {list: [{a: 1}]}}", false, "drift"},
		"label gone":          {"{metadata: {annotations: {r: h}}, spec: {n: 1, list: [{a: 1}]}}", false, "drift"},
		"rendered before":     {"{metadata: {labels: {l: '1'}, annotations: {r: g}}, spec: {n: 1, list: [{a: 1}]}}", false, "a field taken out of the leaf shows in the hash alone"},
		"another type":        {"{metadata: {labels: {l: '1'}, annotations: {r: h}}, spec: 7}", false, ""},
		"number for a string": {"{metadata: {labels: {l: '1'}, annotations: {r: h}}, spec: {n: '1', list: [{a: 1}]}}", false, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			live := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tc.live), &live.Object); err != nil {
				t.Fatal(err)
			}
			// Numbers as clients decode them.
			live.Object["kind"] = "X"
			live.Object["apiVersion"] = "v1"
			text, err := live.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if got := upToDate(object(t, base), object(t, string(text))); got != tc.want {
				t.Errorf("%s: upToDate = %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

const downText = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop-1a
  generation: 9
  labels:
    workload.atoll.dev/workspace: c1
    workload.atoll.dev/root-uid: root1
    workload.atoll.dev/synctarget: east
  annotations:
    workload.atoll.dev/rendered: h2
    deployment.kubernetes.io/revision: "7"
status: {observedGeneration: 9, replicas: 3}
`

func TestReport(t *testing.T) {
	type change func(leaf, down *unstructured.Unstructured, o *outcome)
	set := func(u *unstructured.Unstructured, value any, path ...string) {
		if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
			panic(err)
		}
	}
	tests := map[string]struct {
		change                           change
		observed, replicas               int64
		applied, refused, unshown        string
		unchanged, withoutStatus, noDown bool
		reason                           string
	}{
		"observed": {observed: 4, replicas: 3, applied: "h2", reason: "what the leaf says is applied and seen by the controllers"},
		"applied, not observed": {
			change: func(_, down *unstructured.Unstructured, _ *outcome) {
				set(down, int64(8), "status", "observedGeneration")
			},
			observed: 3, replicas: 3, applied: "h2", reason: "numbers are new, the claim to be done is not made",
		},
		"older rendering": {
			change: func(_, down *unstructured.Unstructured, _ *outcome) {
				set(down, "h1", "metadata", "annotations", workloadv1alpha1.RenderedAnnotation)
			},
			observed: 3, replicas: 3, applied: "h1", reason: "what was observed is not what the leaf says",
		},
		"another root": {
			change: func(_, down *unstructured.Unstructured, _ *outcome) {
				set(down, "root0", "metadata", "labels", workloadv1alpha1.RootUIDLabel)
			},
			observed: 3, replicas: 1, applied: "h1", reason: "the status of an object that had this name before is no news of this one",
		},
		"not there": {noDown: true, observed: 3, replicas: 1, reason: "nothing is applied any more, and the last status stays"},
		"not seen": {
			change:   func(_, _ *unstructured.Unstructured, o *outcome) { o.down, o.unknown = nil, true },
			observed: 3, replicas: 1, applied: "h1", reason: "who cannot see says nothing",
		},
		"unshown": {
			change:   func(_, _ *unstructured.Unstructured, o *outcome) { o.unshown = &refusal{"Forbidden", "full"} },
			observed: 4, replicas: 3, applied: "h2", unshown: `{"reason":"Forbidden","message":"full","rendered":"h2"}`, reason: "of its pods",
		},
		"shown again": {
			change: func(leaf, _ *unstructured.Unstructured, _ *outcome) {
				set(leaf, `{}`, "metadata", "annotations", workloadv1alpha1.UnshownAnnotation)
			},
			observed: 4, replicas: 3, applied: "h2", reason: "all of them are",
		},
		"refused": {
			change:   func(_, _ *unstructured.Unstructured, o *outcome) { o.refused = &refusal{"Invalid", "no"} },
			observed: 4, replicas: 3, applied: "h2", refused: `{"reason":"Invalid","message":"no","rendered":"h2"}`, reason: "with the hash of what was refused",
		},
		"undecided": {
			change:   func(_, _ *unstructured.Unstructured, o *outcome) { o.undecided = true },
			observed: 4, replicas: 3, applied: "h2", refused: "{}", reason: "an earlier refusal stands while nothing is tried",
		},
		"nothing new": {
			change: func(leaf, _ *unstructured.Unstructured, o *outcome) {
				set(leaf, int64(4), "status", "observedGeneration")
				set(leaf, int64(3), "status", "replicas")
				set(leaf, "h2", "metadata", "annotations", workloadv1alpha1.AppliedAnnotation)
				o.undecided = true
			},
			observed: 4, replicas: 3, applied: "h2", refused: "{}", unchanged: true, reason: "no change, no write",
		},
		"kind without status": {withoutStatus: true, observed: 3, replicas: 1, applied: "h2", reason: "only annotations"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			leaf, down := object(t, leafText), object(t, downText)
			o := outcome{down: down}
			if tc.noDown {
				o.down = nil
			}
			if tc.change != nil {
				tc.change(leaf, down, &o)
			}
			before := leaf.DeepCopy()
			got, changed, err := report(leaf, o, !tc.withoutStatus)
			if err != nil {
				t.Fatal(err)
			}
			if changed == tc.unchanged {
				t.Errorf("%s: changed = %v", tc.reason, changed)
			}
			observed, _, _ := unstructured.NestedInt64(got.Object, "status", "observedGeneration")
			replicas, _, _ := unstructured.NestedInt64(got.Object, "status", "replicas")
			if observed != tc.observed || replicas != tc.replicas {
				t.Errorf("%s: observedGeneration %d replicas %d, want %d and %d", tc.reason, observed, replicas, tc.observed, tc.replicas)
			}
			a := got.GetAnnotations()
			if a[workloadv1alpha1.AppliedAnnotation] != tc.applied || a[workloadv1alpha1.RefusedAnnotation] != tc.refused {
				t.Errorf("%s: applied %q refused %q, want %q and %q", tc.reason,
					a[workloadv1alpha1.AppliedAnnotation], a[workloadv1alpha1.RefusedAnnotation], tc.applied, tc.refused)
			}
			if a[workloadv1alpha1.UnshownAnnotation] != tc.unshown {
				t.Errorf("%s: unshown %q, want %q", tc.reason, a[workloadv1alpha1.UnshownAnnotation], tc.unshown)
			}
			if diff := cmp.Diff(before.Object["spec"], got.Object["spec"]); diff != "" {
				t.Errorf("spec changed:\n%s", diff)
			}
			if diff := cmp.Diff(before.Object, leaf.Object); diff != "" {
				t.Errorf("report changed its input:\n%s", diff)
			}
		})
	}
}

func TestPropagation(t *testing.T) {
	for _, tc := range []struct {
		kind       string
		finalizers []string
		want       metav1.DeletionPropagation
		reason     string
	}{
		{"Deployment", nil, metav1.DeletePropagationForeground, "gone means that its pods are gone"},
		{"ReplicaSet", nil, metav1.DeletePropagationForeground, "as of a Deployment"},
		{"DaemonSet", nil, metav1.DeletePropagationForeground, "whatever makes them"},
		{"ConfigMap", nil, metav1.DeletePropagationBackground, "a ConfigMap has nothing to wait for"},
		{"ReplicationController", nil, metav1.DeletePropagationForeground, "it is said: Kubernetes would keep its pods"},
		{"Deployment", []string{metav1.FinalizerOrphanDependents}, metav1.DeletePropagationForeground, "its pods would run on, and be nobody's"},
		{"ReplicationController", []string{metav1.FinalizerOrphanDependents}, metav1.DeletePropagationForeground, "as of a Deployment"},
		{"Job", []string{metav1.FinalizerOrphanDependents}, metav1.DeletePropagationForeground, "as of a Deployment"},
		{"ConfigMap", []string{metav1.FinalizerOrphanDependents}, metav1.DeletePropagationOrphan, "--cascade=orphan travels"},
		{"ConfigMap", []string{metav1.FinalizerDeleteDependents}, metav1.DeletePropagationForeground, "--cascade=foreground travels"},
	} {
		leaf := &unstructured.Unstructured{}
		leaf.SetFinalizers(tc.finalizers)
		k, ok := kinds.ByKind(tc.kind)
		if got := propagation(key{resource: k.GVR}, leaf); !ok || got != tc.want {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}

func condition(conditions []metav1.Condition, kind string) string {
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

func TestTwinStatus(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ready := []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: ReasonConnected}}
	node := func(name string, ready corev1.ConditionStatus) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
	}
	tests := map[string]struct {
		old                        []metav1.Condition
		facts                      facts
		ready, observeOnly, orphan string
		nodes                      int32
		reason                     string
	}{
		"connected": {
			facts: facts{everAnswered: true, lastAnswer: now, verdict: fine, nodes: []corev1.Node{node("a", "True"), node("b", "True"), node("c", "Unknown")}},
			ready: "True/Connected", observeOnly: "False/InStep", nodes: 2, reason: "only Ready nodes count",
		},
		"first try fails":    {facts: facts{lastAnswer: now, trouble: "connection refused"}, ready: "False/Unreachable", reason: "who adds a cluster learns at once what is wrong"},
		"short trouble":      {old: ready, facts: facts{lastAnswer: now.Add(-39 * time.Second), everAnswered: true, trouble: "timeout"}, ready: "True/Connected", reason: "tolerated for 40 s, as a Node"},
		"long trouble":       {old: ready, facts: facts{lastAnswer: now.Add(-41 * time.Second), everAnswered: true, trouble: "timeout"}, ready: "False/Unreachable", reason: "then it is not ready"},
		"restart in trouble": {old: ready, facts: facts{lastAnswer: now.Add(-10 * time.Second), trouble: "timeout"}, ready: "True/Connected", reason: "a restart of ours is no reason either"},
		"restart while away": {old: ready, facts: facts{lastAnswer: now.Add(-41 * time.Second), trouble: "timeout"}, ready: "False/Unreachable", reason: "nor does it begin the 40 s anew"},
		"hub restored":       {facts: facts{everAnswered: true, lastAnswer: now, verdict: hubRestored}, ready: "True/Connected", observeOnly: "True/HubRestored", reason: "it answers, but is not written to"},
		"watch just broken":  {old: ready, facts: facts{lastAnswer: now, everAnswered: true, verdict: fine, blind: []blindSpot{{"secrets", now.Add(-39 * time.Second), "forbidden"}}}, ready: "True/Connected", observeOnly: "False/InStep", reason: "tolerated for as long as silence"},
		"watch stays broken": {old: ready, facts: facts{lastAnswer: now, everAnswered: true, verdict: fine, blind: []blindSpot{{"secrets", now.Add(-42 * time.Second), "forbidden"}}}, ready: "False/CannotWatch", observeOnly: "False/InStep", reason: "statuses are old"},
		"watch never worked": {facts: facts{lastAnswer: now, everAnswered: true, verdict: fine, blind: []blindSpot{{"secrets", now, "forbidden"}}}, ready: "False/CannotWatch", observeOnly: "False/InStep", reason: "who adds a cluster learns at once what is wrong"},
		"orphans":            {facts: facts{everAnswered: true, lastAnswer: now, verdict: fine, orphans: []string{"a", "b"}}, ready: "True/Connected", observeOnly: "False/InStep", orphan: "True/NoLeaf", reason: "reported"},
		"orphans gone": {
			old:   []metav1.Condition{{Type: ConditionOrphans, Status: metav1.ConditionTrue, Reason: ReasonNoLeaf}},
			facts: facts{everAnswered: true, lastAnswer: now, verdict: fine}, ready: "True/Connected", observeOnly: "False/InStep", orphan: "False/None", reason: "and taken back",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := twinStatus(workloadv1alpha1.SyncTargetStatus{Conditions: tc.old}, 1, tc.facts, now)
			if r := condition(got.Conditions, workloadv1alpha1.SyncTargetReady); r != tc.ready {
				t.Errorf("%s: Ready %q, want %q", tc.reason, r, tc.ready)
			}
			if r := condition(got.Conditions, workloadv1alpha1.SyncTargetObserveOnly); r != tc.observeOnly {
				t.Errorf("%s: ObserveOnly %q, want %q", tc.reason, r, tc.observeOnly)
			}
			if r := condition(got.Conditions, ConditionOrphans); r != tc.orphan {
				t.Errorf("%s: Orphans %q, want %q", tc.reason, r, tc.orphan)
			}
			if got.Nodes != tc.nodes {
				t.Errorf("%s: %d nodes, want %d", tc.reason, got.Nodes, tc.nodes)
			}
			if cpu := got.Capacity.Cpu().Value(); cpu != 4*int64(tc.nodes) {
				t.Errorf("%s: %d CPUs, want %d", tc.reason, cpu, 4*tc.nodes)
			}
			later := now.Add(time.Second)
			tc.facts.lastAnswer = tc.facts.lastAnswer.Add(time.Second)
			if again := twinStatus(got, 1, tc.facts, later); !cmp.Equal(got, again) {
				t.Errorf("the same facts write again:\n%s", cmp.Diff(got, again))
			}
		})
	}
}

func syncTarget(uid types.UID, cluster string, age time.Duration) *workloadv1alpha1.SyncTarget {
	return &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{
		Name: "name-" + string(uid), UID: uid, Annotations: map[string]string{"kcp.io/cluster": cluster},
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age)),
	}}
}

func TestTargetStatus(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	twin := func(conditions ...metav1.Condition) *workloadv1alpha1.SyncTarget {
		return &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{Version: "v1.36.3", ClusterUID: "x", Nodes: 3, Conditions: conditions}}
	}
	connected := metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: ReasonConnected}
	frozen := metav1.Condition{Type: workloadv1alpha1.SyncTargetFrozen, Status: metav1.ConditionTrue, Reason: "Brake"}
	tests := map[string]struct {
		twin   *workloadv1alpha1.SyncTarget
		heard  time.Time
		p      *problem
		ready  string
		again  time.Duration
		reason string
	}{
		"new":            {ready: "Unknown/NotConnected", reason: "nobody reported"},
		"never beat":     {twin: twin(), ready: "Unknown/NotConnected", reason: "a twin alone is no news"},
		"ready":          {twin: twin(connected), heard: now.Add(-5 * time.Second), ready: "True/Connected", again: 36 * time.Second, reason: "looked at again when it may have become silent"},
		"silent":         {twin: twin(connected), heard: now.Add(-41 * time.Second), ready: "Unknown/HeartbeatLost", reason: "what the twin said last counts no more"},
		"terminating":    {twin: twin(connected), heard: now.Add(-5 * time.Second), p: &problem{ReasonTerminating, "x"}, ready: "True/Terminating", again: 36 * time.Second, reason: "what it runs counts until it is gone"},
		"gone meanwhile": {twin: twin(connected), heard: now.Add(-41 * time.Second), p: &problem{ReasonTerminating, "x"}, ready: "Unknown/Terminating", reason: "or not heard of"},
		"problem first":  {twin: twin(connected), heard: now, p: &problem{ReasonDuplicate, "x"}, ready: "False/Duplicate", reason: "not synced, whatever is reported"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			target := syncTarget("a", "root", 0)
			target.Status.Mirror, target.Status.ClusterUID = "mirror1", "x"
			target.Status.Conditions = []metav1.Condition{frozen}
			got, again := targetStatus(target, tc.twin, tc.heard, tc.p, now)
			if r := condition(got.Conditions, workloadv1alpha1.SyncTargetReady); r != tc.ready || again != tc.again {
				t.Errorf("%s: Ready %q, again %s, want %q and %s", tc.reason, r, again, tc.ready, tc.again)
			}
			if got.Mirror != "mirror1" || condition(got.Conditions, workloadv1alpha1.SyncTargetFrozen) != "True/Brake" {
				t.Errorf("what others wrote is lost: %+v", got)
			}
		})
	}
}

// TestReadyIsCompared: what reports for the first time is Ready only when the next look has found that no other SyncTarget is the
// same physical cluster, and of a cluster that is another's it tells nothing.
func TestReadyIsCompared(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	reports := func(uid string) *workloadv1alpha1.SyncTarget {
		return &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: uid, Nodes: 3, Conditions: []metav1.Condition{
			{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: ReasonConnected},
			{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: metav1.ConditionFalse, Reason: ReasonInStep},
		}}}
	}
	step := func(target, twin *workloadv1alpha1.SyncTarget, p *problem, want string, synced bool) {
		t.Helper()
		target.Status, _ = targetStatus(target, twin, now, p, now)
		if r := condition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady); r != want {
			t.Errorf("Ready %q, want %q", r, want)
		}
		told := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly) != nil
		if told != synced || (target.Status.Nodes == 3) != synced {
			t.Errorf("its status is that of what it runs on: %v (%d nodes), want %v", told, target.Status.Nodes, synced)
		}
	}
	duplicate := &problem{ReasonDuplicate, "x"}

	target := syncTarget("a", "root", 0)
	step(target, reports(""), nil, "Unknown/"+ReasonIdentified, false)
	step(target, reports("x"), nil, "Unknown/"+ReasonIdentified, false)
	step(target, reports("x"), nil, "True/"+ReasonConnected, true)
	if target.IsDuplicate() || target.RunsNothing() {
		t.Error("it is no duplicate")
	}
	step(target, reports("y"), nil, "Unknown/"+ReasonIdentified, true)
	step(target, reports("y"), duplicate, "False/"+ReasonDuplicate, true)
	if !target.IsDuplicate() || target.RunsNothing() {
		t.Error("what it was before runs on")
	}

	target = syncTarget("c", "root", 0)
	ends := &problem{ReasonTerminating, "Waits."}
	step(target, reports("x"), nil, "Unknown/"+ReasonIdentified, false)
	step(target, reports("x"), ends, "True/"+ReasonTerminating, true)
	step(target, reports("y"), ends, "Unknown/"+ReasonIdentified, true)
	step(target, reports("y"), ends, "True/"+ReasonTerminating, true)

	target = syncTarget("b", "root", 0)
	step(target, reports("x"), nil, "Unknown/"+ReasonIdentified, false)
	step(target, reports("x"), duplicate, "False/"+ReasonDuplicate, false)
	if !target.IsDuplicate() || !target.RunsNothing() {
		t.Error("it is a duplicate that never was anything else")
	}
}

func TestDuplicateOf(t *testing.T) {
	type claim struct {
		name, workspace string
		age             time.Duration
		ready           string // status and reason of the condition, "" for none; + what else is so
		uid             string // in its status
	}
	const (
		works  = "True/Connected"
		lost   = "Unknown/HeartbeatLost"
		broken = "False/Unreachable"
		known  = "Unknown/" + ReasonIdentified
		other  = "False/" + ReasonDuplicate
		going  = "True/" + ReasonTerminating + "+synced+deleted"
		silent = "Unknown/" + ReasonTerminating + "+synced+deleted"
		never  = "Unknown/" + ReasonTerminating + "+deleted"
	)
	h := time.Hour
	for _, tc := range []struct {
		reason string
		claims []claim
		want   []string // for each claim, the problem
	}{
		{"alone", []claim{{"east", "root", h, works, "x"}}, []string{""}},
		{"the older of one workspace, which is named", []claim{{"east", "root", 2 * h, "", "x"}, {"again", "root", h, "", "x"}}, []string{"", `"east"`}},
		{"of the same second, the smaller UID", []claim{{"a", "root", h, "", "x"}, {"aa", "root", h, "", "x"}}, []string{"", `"a"`}},
		{"one that never worked is mended while a younger one runs everything",
			[]claim{{"mended", "root", 2 * h, broken, "x"}, {"runs", "root", h, works, "x"}}, []string{`"runs"`, ""}},
		{"the two do not change places when the cluster is away",
			[]claim{{"mended", "root", 2 * h, other, "x"}, {"runs", "root", h, lost, "x"}}, []string{`"runs"`, ""}},
		{"a cluster that is registered anew in its workspace while the old registration does not work",
			[]claim{{"east", "root", 2 * h, lost, "x"}, {"new", "root", h, works, ""}}, []string{"", ""}},
		{"and then, it is not compared with one that works", []claim{{"east", "root", 2 * h, lost, "x"}, {"new", "root", h, known, "x"}}, []string{`"new"`, ""}},
		{"one that was another cluster until now, or none, comes after one that works",
			[]claim{{"moved", "root", 2 * h, known, "x"}, {"runs", "root", h, works, "x"}}, []string{`"runs"`, ""}},
		{"another workspace reports the UID of one that works",
			[]claim{{"east", "root", 2 * h, works, "x"}, {"fake", "shop", h, works, ""}}, []string{"", "another workspace"}},
		{"another workspace reports the UID of one that is away",
			[]claim{{"east", "root", 2 * h, lost, "x"}, {"fake", "shop", h, works, ""}}, []string{"", "another workspace"}},
		{"an older registration elsewhere reports another UID than it did before",
			[]claim{{"east", "root", h, lost, "x"}, {"fake", "shop", 2 * h, works, "y"}}, []string{"", "another workspace"}},
		{"one that was found out stays so",
			[]claim{{"east", "root", h, lost, "x"}, {"fake", "shop", 2 * h, other, "x"}}, []string{"", "another workspace"}},
		{"one that was found out is another cluster now: not before its status says so, and after those that hold that, works or not",
			[]claim{{"east", "root", h, lost, "x"}, {"again", "root", 2 * h, other, "y"}}, []string{"", "another physical cluster now"}},
		{"then it is judged as a duplicate",
			[]claim{{"east", "root", h, lost, "x"}, {"again", "root", 2 * h, other, "x"}}, []string{"", `"east"`}},
		{"and let in where nobody holds the cluster", []claim{{"again", "root", 2 * h, other, "x"}}, []string{""}},
		{"what drains is synced until it is gone: nobody else can take away what it runs",
			[]claim{{"east", "root", 2 * h, going, "x"}, {"new", "root", h, known, "x"}}, []string{"", `"east" is the same physical cluster. It is being removed`}},
		{"also before one that works, however old that is", []claim{{"east", "root", h, going, "x"}, {"old", "root", 2 * h, works, "x"}}, []string{"", `"east"`}},
		{"and while it is not heard of", []claim{{"east", "root", 2 * h, silent, "x"}, {"new", "root", h, known, "x"}}, []string{"", `"east"`}},
		{"from the moment of its deletion", []claim{{"east", "root", 2 * h, lost + "+synced+deleted", "x"}, {"new", "root", h, known, "x"}}, []string{"", `"east"`}},
		{"one that was never synced has nothing to take away", []claim{{"east", "root", 2 * h, never, "x"}, {"new", "root", h, known, "x"}}, []string{`"new"`, ""}},
		{"nor has one here that was another cluster until now",
			[]claim{{"moved", "root", 2 * h, known + "+synced+deleted", "x"}, {"away", "root", h, lost, "x"}}, []string{`"away"`, ""}},
		{"it is let in where nobody else is that cluster", []claim{{"moved", "root", 2 * h, known + "+synced+deleted", "x"}}, []string{""}},
		{"while the original drains, it is not taken over",
			[]claim{{"east", "root", h, going, "x"}, {"fake", "shop", 2 * h, works, ""}}, []string{"", "another workspace"}},
		{"when the original is gone, the next is the older",
			[]claim{{"second", "shop", 2 * h, other, "x"}, {"third", "bank", h, other, "x"}}, []string{"", "another workspace"}},
		{"both said it before either was heard: the older, whichever works",
			[]claim{{"east", "root", 2 * h, lost, "x"}, {"fake", "shop", h, works, "x"}}, []string{"", "another workspace"}},
		{"readiness within the workspace that comes first, and no circle over the border",
			[]claim{{"old", "root", 3 * h, broken, "x"}, {"fake", "shop", 2 * h, works, "x"}, {"runs", "root", h, works, "x"}},
			[]string{`"runs"`, "another workspace", ""}},
	} {
		var same, all []*workloadv1alpha1.SyncTarget
		for _, c := range tc.claims {
			target := syncTarget(types.UID(c.name), c.workspace, c.age)
			target.Name = c.name
			target.Status.ClusterUID = c.uid
			words := strings.Split(c.ready, "+")
			if status, reason, ok := strings.Cut(words[0], "/"); ok {
				target.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionStatus(status), Reason: reason}}
			}
			if slices.Contains(words, "synced") {
				target.Status.Conditions = append(target.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: metav1.ConditionFalse})
			}
			if slices.Contains(words, "deleted") {
				target.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			}
			if all = append(all, target); c.uid == "x" {
				same = append(same, target)
			}
		}
		for i, target := range all {
			got := ""
			if p := duplicateOf(target, "x", same, func(t *workloadv1alpha1.SyncTarget) string { return t.Annotations["kcp.io/cluster"] }); p != nil {
				got = p.message
			}
			if (got == "") != (tc.want[i] == "") || !strings.Contains(got, tc.want[i]) {
				t.Errorf("%s: %s: %q, want %q", tc.reason, target.Name, got, tc.want[i])
			}
		}
	}
}

func TestClusterUIDIsKept(t *testing.T) {
	target, twin := &workloadv1alpha1.SyncTarget{}, &workloadv1alpha1.SyncTarget{}
	target.Status.ClusterUID = "x"
	for _, tc := range []struct{ reported, want string }{{"", "x"}, {"x", "x"}, {"y", "y"}} {
		twin.Status.ClusterUID = tc.reported
		if got, _ := targetStatus(target, twin, time.Time{}, nil, time.Time{}); got.ClusterUID != tc.want {
			t.Errorf("the twin reports %q: %q, want %q", tc.reported, got.ClusterUID, tc.want)
		}
	}
}

func TestWaitingFor(t *testing.T) {
	for _, tc := range []struct {
		placements, held []string
		abandoned, waits bool
		reason           string
	}{
		{nil, nil, false, false, "nothing there"},
		{[]string{"c|shop"}, nil, false, true, "placed there"},
		{[]string{"c|shop"}, nil, true, true, "abandoning says nothing about placements: they have to choose another"},
		{nil, []string{"namespace shop"}, false, true, "still running there"},
		{nil, []string{"namespace shop"}, true, false, "an unreachable cluster does not block for ever"},
	} {
		if got := waitingFor(tc.placements, tc.held, tc.abandoned); (got != nil) != tc.waits {
			t.Errorf("%s: %v, want waiting %v", tc.reason, got, tc.waits)
		}
	}
}

func TestPhysicalConfig(t *testing.T) {
	kubeconfig := func(cluster, user string) []byte {
		return []byte(fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://east", %s}}], users: [{name: u, user: {%s}}]}`, cluster, user))
	}
	for _, tc := range []struct{ cluster, user, err, reason string }{
		{"insecure-skip-tls-verify: true", "token: t", "", "carries its own credential"},
		{"", "exec: {apiVersion: client.authentication.k8s.io/v1, command: id, interactiveMode: Never}", "exec", "would run a command on the server"},
		{"", "tokenFile: /etc/shadow", "tokenFile", "would send a file of the server away"},
		{"", "client-certificate: /x, client-key: /y", "client-certificate", "would read files of the server"},
		{"", "auth-provider: {name: x}", "auth-provider", ""},
		{"certificate-authority: /etc/passwd", "token: t", "certificate-authority", ""},
		{"proxy-url: \"http://169.254.169.254\"", "token: t", "proxy-url", "would be dialled by the server"},
	} {
		_, err := physicalConfig(kubeconfig(tc.cluster, tc.user))
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want an error with %q", tc.reason, err, tc.err)
		}
	}
	if _, err := physicalConfig([]byte("nonsense: [")); err == nil {
		t.Error("nonsense is taken")
	}
}

func TestCannotWatch(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	spots := []blindSpot{{"deployments.apps", now.Add(-time.Second), "late"}, {"secrets", now.Add(-time.Minute), "no rights"}, {"services", now.Add(-time.Hour), "none"}}
	if got, want := cannotWatch(spots, true, now), "Cannot list and watch secrets, services: no rights"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := cannotWatch(spots[:1], false, now), "Cannot list and watch deployments.apps: late"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := cannotWatch(spots[:1], true, now); got != "" {
		t.Errorf("%q within the time that is tolerated", got)
	}
}

// TestMirrorOfWantsAName: whoever writes status.mirror must not point the Manager anywhere. No client is there to ask with.
func TestMirrorOfWantsAName(t *testing.T) {
	for _, name := range []string{"root", "system:admin", "*", "a/b", "mirror1"} {
		target := syncTarget("a", "root", 0)
		target.Status.Mirror = name
		_, _, err := (&Manager{}).mirrorOf(t.Context(), target)
		var p *problem
		if !errors.As(err, &p) || p.reason != ReasonMirrorInvalid || !strings.Contains(p.message, name) {
			t.Errorf("mirror %q: %v, want %s", name, err, ReasonMirrorInvalid)
		}
	}
}

func TestGoesByItself(t *testing.T) {
	namespaced := sets.New(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"})
	owner := func(version, kind string) map[string]any {
		return map[string]any{"ownerReferences": []any{map[string]any{"apiVersion": version, "kind": kind}}}
	}
	for _, tc := range []struct {
		meta   map[string]any
		want   bool
		reason string
	}{
		{map[string]any{}, false, "somebody made it"},
		{map[string]any{"deletionTimestamp": "2026-01-02T03:04:05Z"}, true, "it is going"},
		{owner("apps/v1", "ReplicaSet"), true, "its owner is in the namespace"},
		{owner("v1", "Node"), false, "its owner is elsewhere, and nothing else speaks for it"},
	} {
		if got := goesByItself(&unstructured.Unstructured{Object: map[string]any{"metadata": tc.meta}}, namespaced); got != tc.want {
			t.Errorf("%s: %v", tc.reason, got)
		}
	}
}

func TestConfirms(t *testing.T) {
	told := func(status metav1.ConditionStatus, reason, word string) *workloadv1alpha1.SyncTarget {
		return &workloadv1alpha1.SyncTarget{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.ConfirmAnnotation: word}},
			Status: workloadv1alpha1.SyncTargetStatus{Conditions: []metav1.Condition{
				{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: status, Reason: reason},
			}},
		}
	}
	for name, tc := range map[string]struct {
		twin    *workloadv1alpha1.SyncTarget
		verdict verdict
		want    bool
		reason  string
	}{
		"This":      {told(metav1.ConditionTrue, ReasonHubRestored, confirmRestored), hubRestored, true, "it was told, and confirmed"},
		"TheOther":  {told(metav1.ConditionTrue, ReasonHubRestored, confirmRestored), physicalRestored, false, "nobody has seen what the physical cluster lost"},
		"NotToldOf": {told(metav1.ConditionFalse, ReasonInStep, confirmRestored), hubRestored, false, "a word that was left from before"},
		"NoWord":    {told(metav1.ConditionTrue, ReasonHubRestored, ""), hubRestored, false, "nobody has confirmed it"},
		"OtherWord": {told(metav1.ConditionTrue, ReasonHubRestored, confirmAbandon), hubRestored, false, "that is about something else"},
		"NoTwin":    {nil, hubRestored, false, "nobody was told"},
	} {
		if got := confirms(tc.twin, tc.verdict); got != tc.want {
			t.Errorf("%s: %t, want %t: %s", name, got, tc.want, tc.reason)
		}
	}
}
