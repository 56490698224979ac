package kinds

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// cpuAndMemory are resources, "" for none.
func cpuAndMemory(requestCPU, requestMemory, limitCPU string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, q := range []struct {
		of   corev1.ResourceList
		name corev1.ResourceName
		text string
	}{{r.Requests, corev1.ResourceCPU, requestCPU}, {r.Requests, corev1.ResourceMemory, requestMemory}, {r.Limits, corev1.ResourceCPU, limitCPU}} {
		if q.text != "" {
			q.of[q.name] = resource.MustParse(q.text)
		}
	}
	return r
}

// sized is a spec with an init container and two others.
func sized(init, web, log corev1.ResourceRequirements) *corev1.PodSpec {
	return &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", Resources: init}},
		Containers:     []corev1.Container{{Name: "web", Resources: web}, {Name: "log", Resources: log}},
	}
}

// TestResizedBy: what somebody in the workspace has changed of a pod's resources is resized, from then on; what nobody has is
// not, whatever it is below.
func TestResizedBy(t *testing.T) {
	none, small := corev1.ResourceRequirements{}, cpuAndMemory("100m", "1Gi", "1")
	for name, tc := range map[string]struct {
		reason   string
		before   string
		old, now *corev1.PodSpec
		want     string
	}{
		"nothing":        {"the same in other words is the same", "", sized(none, small, none), sized(none, cpuAndMemory("0.1", "1024Mi", "1000m"), none), "null"},
		"a request":      {"of one container, and nothing else of it", "", sized(none, small, none), sized(none, cpuAndMemory("200m", "1Gi", "1"), none), `{"containers":[{"name":"web","resources":{"requests":{"cpu":"200m"}}}]}`},
		"a limit":        {"of another", "", sized(none, small, small), sized(none, small, cpuAndMemory("100m", "1Gi", "2")), `{"containers":[{"name":"log","resources":{"limits":{"cpu":"2"}}}]}`},
		"the first":      {"it had none", "", sized(none, small, none), sized(none, small, cpuAndMemory("1", "", "")), `{"containers":[{"name":"log","resources":{"requests":{"cpu":"1"}}}]}`},
		"beside another": {"what was resized before stays so", `{"containers":[{"name":"web","resources":{"requests":{"cpu":"100m"}}}]}`, sized(none, small, none), sized(none, cpuAndMemory("100m", "2Gi", "1"), none), `{"containers":[{"name":"web","resources":{"requests":{"cpu":"100m","memory":"2Gi"}}}]}`},
		"set back":       {"the pod below was resized, and is to be set back", `{"containers":[{"name":"web","resources":{"requests":{"cpu":"200m"}}}]}`, sized(none, cpuAndMemory("200m", "1Gi", "1"), none), sized(none, small, none), `{"containers":[{"name":"web","resources":{"requests":{"cpu":"100m"}}}]}`},
		"a sidecar":      {"it is an init container", "", sized(small, small, none), sized(cpuAndMemory("300m", "1Gi", "1"), small, none), `{"initContainers":[{"name":"init","resources":{"requests":{"cpu":"300m"}}}]}`},
	} {
		var before *Resized
		if tc.before != "" {
			before = &Resized{}
			if err := json.Unmarshal([]byte(tc.before), before); err != nil {
				t.Fatal(err)
			}
		}
		got, err := json.Marshal(ResizedBy(before, tc.old, tc.now))
		if diff := cmp.Diff(tc.want, string(got)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s%s", name, err, diff, tc.reason)
		}
	}

	// The pod's own.
	old, now := sized(none, none, none), sized(none, none, none)
	own := cpuAndMemory("2", "", "")
	now.Resources = &own
	got, err := json.Marshal(ResizedBy(nil, old, now))
	if want := `{"resources":{"requests":{"cpu":"2"}}}`; err != nil || string(got) != want {
		t.Errorf("of the pod itself: %s (%v), want %s", got, err, want)
	}
}

// TestResizedIsIn: a pod below lacks what it has otherwise of what was resized, and of nothing else.
func TestResizedIsIn(t *testing.T) {
	none, small := corev1.ResourceRequirements{}, cpuAndMemory("100m", "1Gi", "1")
	const web = `{"containers":[{"name":"web","resources":{"requests":{"cpu":"100m"}}}]}`
	own := sized(none, small, none)
	own.Resources = &small
	for name, tc := range map[string]struct {
		resized string
		below   *corev1.PodSpec
		want    bool
	}{
		"as it is":                      {web, sized(none, small, none), true},
		"in other words":                {web, sized(none, cpuAndMemory("0.1", "1Gi", "1"), none), true},
		"more":                          {web, sized(none, cpuAndMemory("200m", "1Gi", "1"), none), false},
		"none":                          {web, sized(none, none, none), false},
		"what nobody has resized":       {web, sized(none, cpuAndMemory("100m", "7Gi", "7"), small), true},
		"no such container":             {`{"containers":[{"name":"gone","resources":{"requests":{"cpu":"1"}}}]}`, sized(none, small, none), false},
		"an init container":             {`{"initContainers":[{"name":"init","resources":{"limits":{"cpu":"1"}}}]}`, sized(none, small, none), false},
		"an init container, as it is":   {`{"initContainers":[{"name":"init","resources":{"limits":{"cpu":"1"}}}]}`, sized(small, small, none), true},
		"the pod's own":                 {`{"resources":{"requests":{"cpu":"2"}}}`, own, false},
		"the pod's own, as it is":       {`{"resources":{"requests":{"cpu":"100m"}}}`, own, true},
		"the pod's own, where none are": {`{"resources":{"requests":{"cpu":"100m"}}}`, sized(none, small, none), false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.ResizedAnnotation: tc.resized}}}
		resized, err := ResizedOf(pod)
		if err != nil {
			t.Fatal(err)
		}
		if got := resized.IsIn(tc.below); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if resized, err := ResizedOf(&corev1.Pod{}); err != nil || resized != nil {
		t.Errorf("of a pod that nobody has resized: %+v, %v", resized, err)
	}
	if _, err := ResizedOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.ResizedAnnotation: "{"}}}); err == nil {
		t.Error("what is no JSON is read")
	}
}
