package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// change sets an image of a workload and says why.
func (w *workspace) change(workload, container, version string) {
	w.t.Helper()
	w.kubectl("set", "image", workload, container+"=registry.example/"+container+":"+version)
	w.kubectl("annotate", workload, "--overwrite", "kubernetes.io/change-cause=version "+version)
}

// history is what `kubectl rollout history` shows, once it is this: numbers and causes.
func (w *workspace) history(workload string, want ...string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "the history of "+workload, func() string {
		out := w.kubectl("rollout", "history", workload)
		var rows []string
		for _, line := range strings.Split(out, "\n") {
			if row := strings.Fields(line); len(row) > 1 && row[0] != "REVISION" && regexp.MustCompile(`^\d+$`).MatchString(row[0]) {
				rows = append(rows, strings.Join(row, " "))
			}
		}
		if !slices.Equal(rows, want) {
			return fmt.Sprintf("it is\n%s\nwant %q", out, want)
		}
		return ""
	})
}

// replicaSets waits until the ReplicaSets are these, each as "revision: desired current ready", in the order of their revisions.
func (w *workspace) replicaSets(want ...string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "what kubectl get rs shows", func() string {
		out := w.kubectl("get", "rs", "-o", `jsonpath={range .items[*]}`+
			`{.metadata.annotations.deployment\.kubernetes\.io/revision}: {.spec.replicas} {.status.replicas} {.status.readyReplicas}{"\n"}{end}`)
		rows := strings.Split(strings.TrimSpace(out), "\n")
		for i, row := range rows {
			rows[i] = strings.TrimSpace(row)
		}
		slices.Sort(rows)
		if !slices.Equal(rows, want) {
			return fmt.Sprintf("it is %q, want %q:\n%s", rows, want, w.kubectl("get", "rs", "-o", "wide"))
		}
		return ""
	})
}

// image waits until all pods in a cluster are of an image.
func (w *workspace) image(cluster, want string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "the pods are of "+want, func() string {
		pods, err := w.f.clusters[cluster].Clientset().CoreV1().Pods(w.namespaceIn(cluster)).List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, pod := range pods.Items {
			if image := pod.Spec.Containers[0].Image; pod.DeletionTimestamp == nil && !strings.HasSuffix(image, want) {
				return fmt.Sprintf("%s runs %s", pod.Name, image)
			}
		}
		return ""
	})
}

// deploymentHistory: history, undo and all that looks at ReplicaSets are as on one cluster, wherever the pods are.
func deploymentHistory(t *testing.T, f *fleet) {
	w := f.workspace(t, "undo")
	web := "deployment/" + w.app
	w.place("east,west")
	w.apply(4, "")
	w.kubectl("annotate", web, "kubernetes.io/change-cause=version 1")
	w.rolledOut()
	w.history(web, "1 version 1")
	w.replicaSets("1: 4 4 4")
	container := w.deployment().Spec.Template.Spec.Containers[0]
	first := container.Image[strings.LastIndex(container.Image, "/"):]
	for _, version := range []string{"2", "3"} {
		w.change(web, container.Name, version)
		w.rolledOut()
	}
	w.history(web, "1 version 1", "2 version 2", "3 version 3")
	w.replicaSets("1: 0 0", "2: 0 0", "3: 4 4 4")
	if out := w.kubectl("rollout", "history", web, "--revision=2"); !strings.Contains(out, container.Name+":2") {
		t.Errorf("the history of revision 2 does not show its image:\n%s", out)
	}

	w.kubectl("rollout", "undo", web)
	w.kubectl("rollout", "status", web, "--timeout=100s")
	w.history(web, "1 version 1", "3 version 3", "4 version 2")
	w.image("east", ":2")
	w.kubectl("rollout", "undo", web, "--to-revision=1")
	w.kubectl("rollout", "status", web, "--timeout=100s")
	w.history(web, "3 version 3", "4 version 2", "5 version 1")
	w.image("west", first)
	w.replicaSets("3: 0 0", "4: 0 0", "5: 4 4 4")
	out := w.kubectl("describe", web)
	if !regexp.MustCompile(`NewReplicaSet:\s+`+w.app+`-\w+ \(4/4 replicas created\)`).MatchString(out) ||
		!regexp.MustCompile(`OldReplicaSets:\s+`+w.app+`-\w+ \(0/0 replicas created\)`).MatchString(out) {
		t.Errorf("describe does not show the ReplicaSets:\n%s", out)
	}

	w.kubectl("scale", web, "--replicas=6")
	w.rolledOut()
	w.replicaSets("3: 0 0", "4: 0 0", "5: 6 6 6")

	// Where it runs is not undone with it.
	w.kubectl("annotate", web, "placement.atoll.dev/clusters=west")
	w.spread(map[string]int{"west": 6})
	w.replicaSets("3: 0 0", "4: 0 0", "5: 6 6 6")
	w.kubectl("rollout", "restart", web)
	w.rolledOut()
	w.history(web, "3 version 3", "4 version 2", "5 version 1", "6 version 1")
	w.kubectl("rollout", "undo", web)
	w.rolledOut()
	w.spread(map[string]int{"west": 6})
	if got := w.deployment().Annotations["placement.atoll.dev/clusters"]; got != "west" {
		t.Errorf("after undo it is placed on %q", got)
	}

	w.history(web, "3 version 3", "4 version 2", "6 version 1", "7 version 1")

	// It is a record: deleted, it is made again, and nothing below hears of it.
	current := w.kubectl("get", "rs", "-o", `jsonpath={.items[?(@.spec.replicas==6)].metadata.name}`)
	uid := w.kubectl("get", "rs", current, "-o", "jsonpath={.metadata.uid}")
	w.kubectl("delete", "rs", current)
	framework.Eventually(t, patience, "the ReplicaSet is there again", func() string {
		if now := w.kubectl("get", "rs", current, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"); now == "" || now == uid {
			return fmt.Sprintf("its UID is %q, it was %q", now, uid)
		}
		return ""
	})
	w.replicaSets("3: 0 0", "4: 0 0", "6: 0 0", "7: 6 6 6")
	w.spread(map[string]int{"west": 6})

	if out, err := f.Run("kubectl", "--server="+f.URL+"/clusters/root:"+w.app, "delete", web, "--cascade=orphan"); err == nil {
		t.Errorf("its pods are kept, it says: %s", out)
	}
	w.kubectl("delete", web, "--cascade=foreground", "--timeout=60s")
	if out := w.kubectl("get", "rs", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("after the Deployment are left:\n%s", out)
	}
	w.spread(map[string]int{})
}

// daemonSetHistory: as of a Deployment, by ControllerRevisions.
func daemonSetHistory(t *testing.T, f *fleet) {
	w := f.workspace(t, "dsundo")
	agent := "daemonset/" + w.app
	w.place("east")
	w.applyDaemonSet("1", "0s")
	w.kubectl("annotate", agent, "kubernetes.io/change-cause=version 1")
	w.daemonSetRolledOut()
	w.history(agent, "1 version 1")
	for _, version := range []string{"2", "3"} {
		w.change(agent, "agent", version)
		w.daemonSetRolledOut()
	}
	w.history(agent, "1 version 1", "2 version 2", "3 version 3")
	w.kubectl("rollout", "undo", agent)
	w.daemonSetRolledOut()
	w.image("east", "agent:2")
	if out := w.kubectl("rollout", "history", agent, "--revision=4"); !strings.Contains(out, "agent:2") {
		t.Errorf("the history of revision 4 does not show its image:\n%s", out)
	}
	if out := w.kubectl("rollout", "undo", agent, "--to-revision=4"); !strings.Contains(out, "skipped rollback") {
		t.Errorf("what is the present revision is gone back to: %s", out)
	}
	w.kubectl("rollout", "undo", agent, "--to-revision=1")
	w.daemonSetRolledOut()
	w.image("east", "agent:1")
	w.kubectl("delete", agent, "--cascade=foreground", "--timeout=60s")
	framework.Eventually(t, patience, "its revisions go with it", func() string {
		return strings.TrimSpace(w.kubectl("get", "controllerrevisions", "-o", "name"))
	})
}

// statefulSetHistory: as of a DaemonSet, and its status names revisions that are there.
func statefulSetHistory(t *testing.T, f *fleet) {
	w := f.workspace(t, "stsundo")
	db := "statefulset/" + w.app
	w.place("east")
	w.applyStatefulSet(2, "1", "")
	w.kubectl("annotate", db, "kubernetes.io/change-cause=version 1")
	w.statefulSetRolledOut()
	w.history(db, "1 version 1")
	w.change(db, "db", "2")
	w.statefulSetRolledOut()
	w.history(db, "1 version 1", "2 version 2")
	named := func() *appsv1.ControllerRevision {
		t.Helper()
		var s *appsv1.StatefulSet
		framework.Eventually(t, patience, "the status says that the update has ended", func() string {
			if s = w.statefulSet(); s.Status.CurrentRevision != s.Status.UpdateRevision {
				return fmt.Sprintf("%+v", s.Status)
			}
			return ""
		})
		r, err := w.f.Clients().Kube.AppsV1().ControllerRevisions("default").Get(w.ctx(), s.Status.UpdateRevision, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the revision that the status names: %v", err)
		}
		return r
	}
	if r := named(); r.Revision != 2 {
		t.Errorf("the status names revision %d, want 2", r.Revision)
	}
	w.kubectl("rollout", "undo", db)
	w.statefulSetRolledOut()
	w.image("east", "db:1")
	if out := w.kubectl("rollout", "history", db, "--revision=3"); !strings.Contains(out, "db:1") {
		t.Errorf("the history of revision 3 does not show its image:\n%s", out)
	}
	if r := named(); r.Revision != 3 {
		t.Errorf("the status names revision %d, want 3", r.Revision)
	}
	if out := w.kubectl("rollout", "undo", db, "--to-revision=3"); !strings.Contains(out, "skipped rollback") {
		t.Errorf("what is the present revision is gone back to: %s", out)
	}
	w.kubectl("delete", db, "--cascade=foreground", "--timeout=60s")
	framework.Eventually(t, patience, "its revisions go with it", func() string {
		return strings.TrimSpace(w.kubectl("get", "controllerrevisions", "-o", "name"))
	})
}
