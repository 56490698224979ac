package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// sized is the spec of a pod whose container main asks for 100m of a CPU.
const sized = `{terminationGracePeriodSeconds: 2, containers: [{name: main, image: registry.example/app:1, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1"}}}]}`

// sizedDeployment has one such pod, and sizedPod is one that nothing makes but whoever applies it.
const (
	sizedDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: APP, labels: {app: APP}}
spec: {selector: {matchLabels: {app: APP}}, template: {metadata: {labels: {app: APP}}, spec: ` + sized + `}}
`
	sizedPod = `
apiVersion: v1
kind: Pod
metadata: {name: solo, labels: {app: solo}}
spec: ` + sized + `
`
)

// resizedInPlace: a pod that runs is resized in the workspace, whether a template made it below or somebody made it here, as on
// one cluster; what its cluster refuses, who asks is told.
func resizedInPlace(t *testing.T, f *fleet) {
	w := f.workspace(t, "resized")
	w.place("east")
	w.kubectlWithInput(strings.ReplaceAll(sizedDeployment, "APP", w.app), "apply", "-f", "-")
	w.rolledOut()
	w.shows()
	generation, made := w.deployment().Generation, anyOf(w.shownPods())
	w.kubectlWithInput(sizedPod, "apply", "-f", "-")
	for _, pod := range []string{made, "solo"} {
		_, before := w.runsIn("east", pod)
		w.kubectl("patch", "pod", pod, "--subresource=resize", "--patch="+cpuOf("250m", "1"))
		w.hasCPU(pod, before, "250m")
		w.kubectl("patch", "pod", pod, "--subresource=resize", "--patch="+cpuOf("300m", "2"))
		w.hasCPU(pod, before, "300m")

		// What the cluster refuses it is told at once: a node there has 32 CPUs.
		if out, err := w.try("patch", "pod", pod, "--subresource=resize", "--patch="+cpuOf("40", "64")); err == nil || !strings.Contains(out, `physical cluster "east"`) || !strings.Contains(out, "allocatable") {
			t.Errorf("%s: more than any node has: %s %v", pod, out, err)
		}
		// And what Kubernetes refuses by itself.
		if out, err := w.try("patch", "pod", pod, "--subresource=resize", "--patch="+`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"2"},"limits":{"memory":"64Mi"}}}]}}`); err == nil || !strings.Contains(out, "QOS") {
			t.Errorf("%s: of another class: %s %v", pod, out, err)
		}
		if out, err := w.try("patch", "pod", pod, "--patch="+cpuOf("250m", "2")); err == nil {
			t.Errorf("%s: by no subresource: %s", pod, out)
		}
		w.hasCPU(pod, before, "300m")
	}
	if now := w.deployment().Generation; now != generation {
		t.Errorf("the Deployment is of generation %d after its pod was resized, and was of %d", now, generation)
	}

	// A kubelet that has no room now says so, until it has.
	const decides = "simulate.atoll.dev/resize"
	w.kubectl("annotate", "pod", "solo", decides+"=Deferred")
	framework.Eventually(t, patience, "the annotation is below", func() string {
		if down, err := w.podIn("east", "solo"); err != nil || down.Annotations[decides] == "" {
			return fmt.Sprintf("%v %v", down, err)
		}
		return ""
	})
	_, before := w.runsIn("east", "solo")
	w.kubectl("patch", "pod", "solo", "--subresource=resize", "--patch="+cpuOf("400m", "2"))
	w.kubectl("wait", "--for=condition=PodResizePending", "pod/solo", "--timeout=60s")
	up, down := w.runsIn("east", "solo")
	pending := conditionOf(up, corev1.PodResizePending)
	if pending == nil || pending.Reason != corev1.PodReasonDeferred || up.Status.ContainerStatuses[0].Resources.Requests.Cpu().String() != "300m" || down.Spec.Containers[0].Resources.Requests.Cpu().String() != "400m" {
		t.Errorf("its resize is deferred, and it is shown as %+v; below it is %+v", up.Status, down.Spec.Containers[0].Resources)
	}
	w.kubectl("annotate", "pod", "solo", decides+"-")
	w.hasCPU("solo", before, "400m")
	if up, _ := w.runsIn("east", "solo"); conditionOf(up, corev1.PodResizePending) != nil {
		t.Errorf("its resize is done, and it is shown as %+v", up.Status)
	}
}

func cpuOf(request, limit string) string {
	return fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]}}`, request, limit)
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// hasCPU waits until a pod of the workspace asks for so much CPU in east, and is shown as having it there: the pod that it was
// before, and not started again.
func (w *workspace) hasCPU(pod string, before *corev1.Pod, want string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, pod+" has "+want, func() string {
		down, err := w.podIn("east", pod)
		if err != nil {
			return err.Error()
		}
		asks := func(p *corev1.Pod) string { return p.Spec.Containers[0].Resources.Requests.Cpu().String() }
		if got := asks(down); got != want {
			return fmt.Sprintf("it asks for %s below", got)
		}
		up, err := w.pod(pod)
		if err != nil {
			return err.Error()
		}
		has := up.Status.ContainerStatuses[0]
		switch {
		case asks(up) != want:
			return fmt.Sprintf("it asks for %s in the workspace", asks(up))
		case has.Resources == nil || has.Resources.Requests.Cpu().String() != want || has.AllocatedResources.Cpu().String() != want:
			return fmt.Sprintf("it is shown as having %+v, allocated %v", has.Resources, has.AllocatedResources)
		case has.RestartCount != 0 || down.UID != before.UID || up.Annotations[workloadv1alpha1.PodUIDAnnotation] != string(before.UID):
			return fmt.Sprintf("it is another pod, or was started again: %+v, %s below, and was %s", has, down.UID, before.UID)
		case up.Status.ObservedGeneration != up.Generation:
			return fmt.Sprintf("generation %d is observed of %d", up.Status.ObservedGeneration, up.Generation)
		}
		return ""
	}, func() string {
		list, err := w.f.Clients().Kube.CoreV1().Events("default").List(w.ctx(), metav1.ListOptions{})
		return fmt.Sprintf("%+v %v", list, err)
	})
}
