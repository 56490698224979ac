package e2e

import (
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/test/framework"
)

// applyJob applies a Job of three pods, two at a time, which end when they are ready.
func (w *workspace) applyJob(readyAfter string) string {
	w.t.Helper()
	return w.kubectlWithInput(strings.NewReplacer("APP", w.app, "AFTER", readyAfter).Replace(`
apiVersion: batch/v1
kind: Job
metadata: {name: APP, labels: {app: APP}}
spec:
  completions: 3
  parallelism: 2
  template:
    metadata:
      labels: {app: APP}
      annotations: {simulate.atoll.dev/ready-after: AFTER}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: registry.example/once:1}]
`), "apply", "-f", "-")
}

// job reads the root.
func (w *workspace) job() *batchv1.Job {
	w.t.Helper()
	j, err := w.f.Clients().Kube.BatchV1().Jobs("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the Job: %v", err)
	}
	return j
}

// jobsIn are those of the app in a cluster.
func (w *workspace) jobsIn(cluster string) []batchv1.Job {
	w.t.Helper()
	list, err := w.f.clusters[cluster].Clientset().BatchV1().Jobs("").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
	if err != nil {
		w.t.Fatalf("list the Jobs of %s: %v", cluster, err)
	}
	return list.Items
}

// begins waits until two pods of the Job run in a cluster, and the workspace knows.
func (w *workspace) begins(cluster string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "it has begun in "+cluster, func() string {
		if s := w.job().Status; s.Active != 2 || s.StartTime == nil || len(w.jobsIn(cluster)) != 1 {
			return fmt.Sprintf("its status is %+v, and in %s are %d", s, cluster, len(w.jobsIn(cluster)))
		}
		return ""
	})
}

// jobCompletes: in one cluster, its end comes up, and moves nothing when it is placed elsewhere.
func jobCompletes(t *testing.T, f *fleet) {
	w := f.workspace(t, "once")
	w.place("east")
	if out := w.applyJob("100ms"); strings.Contains(out, "Warning") {
		t.Errorf("who applies it is warned: %s", out)
	}
	w.kubectl("wait", "--for=condition=complete", "job/"+w.app, "--timeout=100s")
	root := w.job()
	if s := root.Status; s.Succeeded != 3 || s.Active != 0 || s.CompletionTime == nil {
		t.Errorf("its status is %+v, want 3 succeeded", s)
	}
	// `kubectl logs job/once` selects by these.
	selector := batchv1.ControllerUidLabel + "=" + string(root.UID)
	pods, err := f.clusters["east"].Clientset().CoreV1().Pods(w.namespaceIn("east")).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil || len(pods.Items) != 3 {
		t.Errorf("%d pods have the label %s, want 3: %v", len(pods.Items), selector, err)
	}
	w.showsPodsOf(root) // also when they have ended
	w.place("west")
	w.show().shows("west 0/0 True .*")
	w.applyJob("100ms")
	if in := w.jobsIn("west"); len(in) > 0 {
		t.Errorf("a Job that has ended is begun again in west: %+v", in)
	}
	w.kubectl("delete", "job", w.app)
	w.spread(map[string]int{})
}

// jobIsNotBegunAgain: neither elsewhere, when it is placed there, nor where somebody deleted it.
func jobIsNotBegunAgain(t *testing.T, f *fleet) {
	w := f.workspace(t, "job-again")
	w.place("east")
	w.applyJob("never")
	w.begins("east")
	w.place("west")
	says := func(what, want string) {
		t.Helper()
		framework.Eventually(t, patience, what, func() string {
			said := ""
			for _, c := range w.job().Status.Conditions {
				said += fmt.Sprintf("%s %s %s: %s; ", c.Type, c.Status, c.Reason, c.Message)
			}
			if !strings.Contains(said, want) {
				return fmt.Sprintf("conditions are %q, want %q", said, want)
			}
			return ""
		})
	}
	says("it stays where it has begun", `Placed False Begun: It stays on "east"`)
	down := w.jobsIn("east")[0]
	err := f.clusters["east"].Clientset().BatchV1().Jobs(down.Namespace).Delete(t.Context(), down.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
	if err != nil {
		t.Fatal(err)
	}
	says("it has failed", `Failed True Gone: cluster "east": it was deleted there`)
	if east, west := w.jobsIn("east"), w.jobsIn("west"); len(east)+len(west) > 0 {
		t.Errorf("it is begun again: %+v %+v", east, west)
	}
	w.kubectl("delete", "job", w.app)
	w.gone("east")
}

// jobDeleted takes its pods along, whatever the deletion says of them.
func jobDeleted(t *testing.T, f *fleet) {
	w := f.workspace(t, "ended")
	w.place("east")
	for _, how := range []*metav1.DeletionPropagation{nil, ptr.To(metav1.DeletePropagationBackground), ptr.To(metav1.DeletePropagationForeground)} {
		w.applyJob("never")
		w.begins("east")
		if err := f.Clients().Kube.BatchV1().Jobs("default").Delete(w.ctx(), w.app, metav1.DeleteOptions{PropagationPolicy: how}); err != nil {
			t.Fatalf("delete the Job, %q: %v", ptr.Deref(how, "by default"), err)
		}
		w.spread(map[string]int{})
	}
}
