package operators

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// placed has both workspaces placed on one physical cluster, in which pods are simulated, and returns that.
func (w *world) placed(t *testing.T) *framework.Physical {
	t.Helper()
	below := framework.StartPhysical(t, "below", framework.PhysicalNodes(1))
	w.MustRun("cluster", "add", below.Name, "--kubeconfig", below.Kubeconfig)
	for _, ws := range w.workspaces {
		ws.kubectl(t, "annotate", "logicalcluster", "cluster", "placement.atoll.dev/clusters="+below.Name)
	}
	w.MustRun("kubectl", "--context=root", "wait", "--for=condition=Ready", "synctarget/"+below.Name, "--timeout=100s")
	return below
}

// holds waits until a physical cluster has so many Jobs and pods whose names begin so.
func holds(t *testing.T, below *framework.Physical, prefix string, jobs, pods int) {
	t.Helper()
	client := below.Clientset()
	framework.Eventually(t, patience, fmt.Sprintf("%d Jobs and %d pods of %s are in the physical cluster", jobs, pods, prefix), func() string {
		hasJobs, err := client.BatchV1().Jobs("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		hasPods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var names []string
		seenJobs, seenPods := 0, 0
		for _, o := range hasJobs.Items {
			if strings.HasPrefix(o.Name, prefix) {
				seenJobs++
				names = append(names, "job/"+o.Name)
			}
		}
		for _, o := range hasPods.Items {
			if strings.HasPrefix(o.Name, prefix) {
				seenPods++
				names = append(names, "pod/"+o.Name)
			}
		}
		if seenJobs != jobs || seenPods != pods {
			return fmt.Sprint(names)
		}
		return ""
	})
}

// TestJobSetPlaced: nobody plays the controllers of a physical cluster.
func TestJobSetPlaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	below := w.placed(t)
	for _, ws := range w.workspaces {
		p := newPorts(t)
		jobset.install(t, ws, p)
		jobset.start(t, w, ws, p)
	}
	w.both(t, "Jobs", func(t *testing.T, ws *workspace) {
		mine := ws.named("--selector=jobset.sigs.k8s.io/jobset-name=train-WORKSPACE")
		ws.apply(t, strings.Replace(trainer, "spec:\n", "spec:\n  suspend: true\n", 1))
		ws.shows(t, "True", "jobset/train-"+ws.name, "-o", `jsonpath={.status.conditions[?(@.type=="Suspended")].status}`)
		holds(t, below, "train-"+ws.name, 3, 0)
		ws.shows(t, "", "pods", mine, "-o", "name")
		ws.kubectl(t, "patch", "jobset", "train-"+ws.name, "--type=merge", "-p", `{"spec":{"suspend":false}}`)
		ws.shows(t, "True Completed", "jobset/train-"+ws.name, "-o", `jsonpath={.status.conditions[?(@.type=="Completed")].status} {.status.terminalState}`)
		// Two pods of each of three Jobs.
		ws.shows(t, strings.TrimSpace(strings.Repeat("Succeeded ", 6)), "pods", mine, "-o", "jsonpath={.items[*].status.phase}")
		ws.shows(t, "2 2 2", "jobs", mine, "-o", "jsonpath={.items[*].status.succeeded}")
		holds(t, below, "train-"+ws.name, 3, 6)
	})
	done(t, "a JobSet that is suspended has no pods; resumed, its Jobs run in a physical cluster beside those of the other workspace, and it completes as they do")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "jobset", "train-"+ws.name, "--wait", "--timeout=60s")
		ws.gone(t, "default", "jobs,pods,jobsets", "--selector=jobset.sigs.k8s.io/jobset-name")
		ws.shows(t, "", "service", "train-"+ws.name, "--ignore-not-found", "-o", "name")
		holds(t, below, "train-"+ws.name, 0, 0)
	})
	done(t, "its deletion takes Jobs, their pods and the Service along, in the physical cluster, too")
}

// TestSampleControllerPlaced: what it makes runs, and it tells of it.
func TestSampleControllerPlaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	below := w.placed(t)
	w.startSample(t)
	w.both(t, "Foos", func(t *testing.T, ws *workspace) {
		ws.apply(t, foo)
		available := func(want string) {
			t.Helper()
			ws.shows(t, want, "foo", "foo-"+ws.name, "-o", "jsonpath={.status.availableReplicas}")
			ws.shows(t, want, "deployment", "made-for-"+ws.name, "-o", "jsonpath={.status.availableReplicas}")
		}
		available("2")
		ws.kubectl(t, "patch", "foo", "foo-"+ws.name, "--type=merge", "-p", `{"spec":{"replicas":3}}`)
		available("3")
		ws.shows(t, "Running Running Running", "pods", "-l", "controller=foo-"+ws.name, "-o", "jsonpath={.items[*].status.phase}")
		holds(t, below, "made-for-"+ws.name, 0, 3)
	})
	done(t, "the pods of a Foo's Deployment run in a physical cluster; its status says how many are available")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "foo", "foo-"+ws.name, "--wait", "--timeout=60s")
		ws.gone(t, "default", "deployments,replicasets,pods")
		holds(t, below, "made-for-"+ws.name, 0, 0)
	})
	done(t, "its Deployment goes with it, and the pods, in the physical cluster, too")
}
