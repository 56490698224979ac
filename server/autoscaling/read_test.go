package autoscaling

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/client/clienttest"
)

// answering is a controller whose server is the test.
func answering(t *testing.T, handler http.HandlerFunc) *Controller {
	t.Helper()
	clients, _ := clienttest.Serve(t, handler)
	return &Controller{clients: clients}
}

// TestTargetOf: what is scaled is found by its kind, in whatever version has it, in its own workspace and by no other path.
func TestTargetOf(t *testing.T) {
	const found = `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"rose"},"spec":{"replicas":3},"status":{"selector":"app=web"}}`
	served := map[string]string{
		"/apis/apps/v1/namespaces/team/deployments/rose/scale":      found,
		"/api/v1/namespaces/team/replicationcontrollers/rose/scale": found,
		"/apis/shop.example":    `{"preferredVersion":{"version":"v2"},"versions":[{"version":"v1"},{"version":"v2"}]}`,
		"/apis/shop.example/v2": `{"resources":[{"name":"widgets/scale","kind":"Widget","namespaced":true},{"name":"widgets","kind":"Widget","namespaced":true}]}`,
		"/apis/shop.example/v1": `{"resources":[{"name":"widgets","kind":"Widget","namespaced":true},{"name":"gardens","kind":"Garden"}]}`,
		"/apis/shop.example/v1/namespaces/team/widgets/rose/scale":  found,
		"/apis/shop.example/v1/namespaces/team/gardens/rose/scale":  found,
		"/apis/shop.example/v2/namespaces/team/widgets/tulip/scale": found,
		"/apis/shop.example/v1/namespaces/team/widgets/tulip/scale": found,
		"/apis/other.example": `{"preferredVersion":{"version":"v1"},"versions":[{"version":"v1"}]}`,
		"/apis/other.example/v1/namespaces/team/widgets/rose/scale":   found,
		"/apis/shop.example/v1/namespaces/team/widgets/absent/status": found,
	}
	var versions []string
	for i := range 1000 {
		versions = append(versions, fmt.Sprintf(`{"version":"v%d"}`, i+1))
		served[fmt.Sprintf("/apis/many.example/v%d", i+1)] = `{"resources":[{"name":"widgets","kind":"Widget","namespaced":true}]}`
	}
	served["/apis/many.example"] = `{"preferredVersion":{"version":"v1"},"versions":[` + strings.Join(versions, ",") + `]}`
	var asked []string
	c := answering(t, func(w http.ResponseWriter, req *http.Request) {
		path, ok := strings.CutPrefix(req.URL.Path, "/clusters/shop")
		if !ok {
			t.Errorf("%s is asked for", req.URL.Path)
		}
		asked = append(asked, path)
		if text, ok := served[path]; ok {
			clienttest.Answer(w, http.StatusOK, text)
			return
		}
		http.NotFound(w, req)
	})
	for name, tc := range map[string]struct {
		apiVersion, kind, name string
		at                     string // where its scale is
		err                    string
		asked                  int
	}{
		"built in":                   {"apps/v1", "Deployment", "rose", "/apis/apps/v1/namespaces/team/deployments/rose/scale", "", 1},
		"built in, of old":           {"apps/v1beta1", "Deployment", "rose", "/apis/apps/v1/namespaces/team/deployments/rose/scale", "", 1},
		"of the core":                {"v1", "ReplicationController", "rose", "/api/v1/namespaces/team/replicationcontrollers/rose/scale", "", 1},
		"absent":                     {"apps/v1", "Deployment", "absent", "", "could not find", 1},
		"custom":                     {"shop.example/v1", "Widget", "tulip", "/apis/shop.example/v2/namespaces/team/widgets/tulip/scale", "", 3},
		"custom, in another version": {"shop.example/v2", "Widget", "rose", "/apis/shop.example/v1/namespaces/team/widgets/rose/scale", "", 5},
		"custom, without a scale":    {"shop.example/v1", "Widget", "absent", "", "could not find", 5},
		"in no namespace":            {"shop.example/v1", "Garden", "rose", "", `no matches for kind "Garden" in group "shop.example"`, 3},
		"no such kind":               {"shop.example/v1", "Flower", "rose", "", `no matches for kind "Flower" in group "shop.example"`, 3},
		"a version that has gone":    {"other.example/v1", "Widget", "rose", "", `no matches for kind "Widget" in group "other.example"`, 2},
		"no such group":              {"absent.example/v1", "Widget", "rose", "", `no matches for kind "Widget" in group "absent.example"`, 1},
		"no group":                   {"..", "Widget", "rose", "", `no matches for kind "Widget"`, 0},
		"a path for a group":         {"../v1", "Widget", "rose", "", `no matches for kind "Widget" in group ".."`, 0},
		"a path for a name":          {"apps/v1", "Deployment", "../../rose", "", "../../rose", 0},
		"nothing that can be read":   {"a/b/c", "Widget", "rose", "", "a/b/c", 0},
		"a long name":                {"apps/v1", "Deployment", strings.Repeat("a", mostName+1), "", "a name of 254 bytes", 0},
		"a long kind":                {"apps/v1", strings.Repeat("a", mostName+1), "rose", "", "a name of 254 bytes", 0},
		"a long group and version":   {strings.Repeat("a", mostName) + "/" + strings.Repeat("v", 63), "Widget", "rose", "", "no matches for kind", 1},
		"a longer one":               {strings.Repeat("a", mostName) + "/" + strings.Repeat("v", 64), "Widget", "rose", "", "an apiVersion of 318 bytes", 0},
		"many versions":              {"many.example/v1", "Widget", "rose", "", "could not find", 1 + 2*mostVersions},
	} {
		asked = nil
		hpa := scaler()
		hpa.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: tc.apiVersion, Kind: tc.kind, Name: tc.name}
		to, err := c.targetOf(client.In(t.Context(), "shop"), hpa)
		if len(asked) != tc.asked {
			t.Errorf("%s: asked for %v, want %d", name, asked, tc.asked)
		}
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %q", name, err, tc.err)
			}
			continue
		}
		if err != nil || to.scale.Spec.Replicas != 3 || to.scale.Status.Selector != "app=web" || strings.Join(to.at, "/") != tc.at {
			t.Errorf("%s: %+v, %v, want what is at %s", name, to, err, tc.at)
		}
	}
}

// TestRescale: what somebody has scaled meanwhile stays so, also to nothing; what else of it changes is no matter.
func TestRescale(t *testing.T) {
	conflict, err := json.Marshal(apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "web", errors.New("it was changed")).Status())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		is        []string // spec, at each read
		conflicts int
		written   []int32
		err       error
	}{
		"as it was":                 {[]string{`{"replicas":3}`}, 0, []int32{5}, nil},
		"of a changing object":      {[]string{`{"replicas":3}`}, 2, []int32{5, 5, 5}, nil},
		"scaled meanwhile":          {[]string{`{"replicas":4}`}, 0, nil, errRescaled},
		"stopped meanwhile":         {[]string{`{}`}, 0, nil, errRescaled},
		"made anew meanwhile":       {[]string{`{"replicas":3}`}, 0, nil, errRescaled},
		"stopped after a first try": {[]string{`{"replicas":3}`, `{}`}, 1, []int32{5}, errRescaled},
	} {
		reads, conflicts, uid := 0, tc.conflicts, "first"
		if name == "made anew meanwhile" {
			uid = "another"
		}
		var written []int32
		c := answering(t, func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				reads++
				clienttest.Answer(w, http.StatusOK, fmt.Sprintf(`{"metadata":{"name":"web","uid":%q,"resourceVersion":"%d"},"spec":%s}`, uid, reads, tc.is[min(reads, len(tc.is))-1]))
				return
			}
			var scale autoscalingv1.Scale
			if err := json.NewDecoder(req.Body).Decode(&scale); err != nil || scale.ResourceVersion != fmt.Sprint(reads) {
				t.Errorf("%s: %v: written is %+v, want the version that was read", name, err, scale)
			}
			written = append(written, scale.Spec.Replicas)
			if conflicts > 0 {
				conflicts--
				clienttest.Answer(w, http.StatusConflict, string(conflict))
				return
			}
			clienttest.Answer(w, http.StatusOK, `{}`)
		})
		to := &target{at: []string{"/apis/apps/v1/namespaces/team/deployments/web/scale"}, scale: autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{UID: "first"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}}
		err := c.rescale(client.In(t.Context(), "shop"), to, 3, 5)
		if !errors.Is(err, tc.err) || !slices.Equal(written, tc.written) {
			t.Errorf("%s: %v, written are %v, want %v, %v", name, err, written, tc.err, tc.written)
		}
	}
}

// TestReportsOf: what each physical cluster reports is that of its leaves, however many, and no other's, and no more than each is to have.
func TestReportsOf(t *testing.T) {
	in := func(mirror string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "web", Annotations: map[string]string{logicalcluster.AnnotationKey: mirror}}
	}
	targets := map[logicalcluster.Name]*workloadv1alpha1.SyncTarget{"m1": synced("east", metav1.ConditionTrue, "pods"), "m2": synced("west", metav1.ConditionUnknown, "pods"), "m3": synced("east", metav1.ConditionTrue)}
	got := reportsOf([]ctrlclient.Object{
		&appsv1.Deployment{ObjectMeta: in("m1"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(5))}, Status: appsv1.DeploymentStatus{Replicas: 1}},
		&appsv1.ReplicaSet{ObjectMeta: in("m3"), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(2))}, Status: appsv1.ReplicaSetStatus{Replicas: math.MaxInt32}},
		&corev1.ReplicationController{ObjectMeta: in("m3"), Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To(int32(6))}, Status: corev1.ReplicationControllerStatus{Replicas: 7}},
		&appsv1.StatefulSet{ObjectMeta: in("m2"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(4))}, Status: appsv1.StatefulSetStatus{Replicas: 6}},
		&appsv1.StatefulSet{ObjectMeta: in("m2"), Status: appsv1.StatefulSetStatus{Replicas: -3}},
		&appsv1.Deployment{ObjectMeta: in("shop"), Status: appsv1.DeploymentStatus{Replicas: 8}},
	}, func(mirror logicalcluster.Name) *workloadv1alpha1.SyncTarget { return targets[mirror] })
	if want := (map[string]report{"east": {9, false}, "west": {4, true}}); !maps.Equal(got, want) {
		t.Errorf("reported are %v, want %v", got, want)
	}
}

// synced is a SyncTarget that is Ready or not, and whose syncer carries those resources.
func synced(name string, ready metav1.ConditionStatus, carries ...string) *workloadv1alpha1.SyncTarget {
	return &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: workloadv1alpha1.SyncTargetStatus{
		Conditions: []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: ready}}, CarriedResources: carries,
	}}
}

// TestIsLost: of a physical cluster that is away, or whose syncer sees no pods, nobody knows how its pods are; of one that is gone they say so.
func TestIsLost(t *testing.T) {
	blind := func(carries ...string) *workloadv1alpha1.SyncTarget {
		t := synced("east", metav1.ConditionFalse, carries...)
		t.Status.Conditions[0].Reason = workloadv1alpha1.ReasonCannotWatch
		return t
	}
	for name, tc := range map[string]struct {
		target     *workloadv1alpha1.SyncTarget
		away, lost bool
	}{
		"serves":                                {synced("east", metav1.ConditionTrue, "pods"), false, false},
		"not Ready":                             {synced("east", metav1.ConditionFalse, "pods"), true, true},
		"not heard of":                          {synced("east", metav1.ConditionUnknown, "pods"), true, true},
		"sees no pods":                          {synced("east", metav1.ConditionTrue), false, true},
		"sees pods, and not all that it has to": {blind("pods"), false, false},
		"sees neither":                          {blind(), false, true},
		"gone":                                  {nil, false, false},
	} {
		if away, lost := isAway(tc.target), isLost(tc.target); away != tc.away || lost != tc.lost {
			t.Errorf("%s: away %v, lost %v, want %v, %v", name, away, lost, tc.away, tc.lost)
		}
	}
}
