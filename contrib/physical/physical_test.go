package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/test/framework"
)

const readyAfter = "simulate.atoll.dev/ready-after"

// TestWorkloads runs what Atoll's own tests rely on against one cluster.
func TestWorkloads(t *testing.T) {
	begin := time.Now()
	cluster := framework.StartPhysical(t, "east")
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	client := cluster.Clientset()

	t.Run("version and nodes", func(t *testing.T) {
		version, err := client.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := version.GitVersion+" "+version.Major+"."+version.Minor, "v1.36.3 1.36"; got != want {
			t.Errorf("the apiserver reports %s, want %s", got, want)
		}
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		zones := map[string]bool{}
		for _, node := range nodes.Items {
			zones[node.Labels[corev1.LabelTopologyZone]] = true
			if got := fmt.Sprint(node.Status.Allocatable.Cpu(), node.Status.Allocatable.Memory(), node.Status.Allocatable.Pods()); got != "32 256Gi 110" {
				t.Errorf("node %q has %s, want 32 256Gi 110", node.Name, got)
			}
		}
		if len(nodes.Items) != 3 || len(zones) != 3 {
			t.Errorf("%d nodes in %d zones, want 3 in 3", len(nodes.Items), len(zones))
		}
	})

	t.Run("deployment", func(t *testing.T) {
		begin := time.Now()
		create(t, client, deployment("web", 3, nil))
		waitAvailable(t, client, "web", 3)
		t.Logf("3 replicas available after %s", time.Since(begin).Round(time.Millisecond))

		pods := pods(t, client, "web")
		ips := map[string]bool{}
		for _, pod := range pods {
			ips[pod.Status.PodIP] = true
			if pod.Spec.ServiceAccountName != "default" || len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].Projected == nil {
				t.Errorf("pod %q has service account %q and %d volumes, want default and its token", pod.Name, pod.Spec.ServiceAccountName, len(pod.Spec.Volumes))
			}
		}
		if len(ips) != 3 || ips[""] {
			t.Errorf("pod addresses are %v, want 3", ips)
		}

		if err := client.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pods of a deleted deployment to go", func(ctx context.Context) (bool, string) {
			left := podNames(t, client, "web")
			return len(left) == 0, fmt.Sprint(left)
		})
		deletes := cluster.AuditEvents(framework.AuditFilter{User: "admin", Verb: "delete", Resource: "deployments", Namespace: "default", Name: "web"})
		if len(deletes) != 1 || deletes[0].Code != 200 || deletes[0].Group != "apps" {
			t.Errorf("the audit log has %+v, want the one delete", deletes)
		}
		if got := cluster.AuditEvents(framework.AuditFilter{User: "nobody"}); len(got) != 0 {
			t.Errorf("the audit log has writes of a user who made none: %+v", got)
		}
	})

	t.Run("ready after", func(t *testing.T) {
		running := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && !isReady(pod) }
		const delay = 3 * time.Second
		begin := time.Now()
		create(t, client, deployment("never", 1, map[string]string{readyAfter: "never"}))
		create(t, client, deployment("sooner", 1, map[string]string{readyAfter: "2s"}))
		waitPod(t, client, "sooner", "Ready", isReady)
		if took := time.Since(begin); took < 2*time.Second {
			t.Errorf("Ready after %s, want at least 2s", took)
		}
		begin = time.Now()
		create(t, client, deployment("later", 1, map[string]string{readyAfter: delay.String()}))
		// If a change of a pod began its delay anew, one that changes all the time would never be Ready.
		changes := 0
		waitPod(t, client, "later", "Ready though it changes all the time", func(pod *corev1.Pod) bool {
			if isReady(pod) {
				return true
			}
			changes++
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"changed":"%d"}}}`, changes)
			if _, err := client.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			return false
		})
		if took := time.Since(begin); took < delay {
			t.Errorf("Ready after %s, want at least %s", took, delay)
		}
		waitPod(t, client, "never", "Running and not Ready", running)
		waitAvailable(t, client, "later", 1)
	})

	t.Run("ready after, as a label", func(t *testing.T) {
		d := deployment("label", 1, nil)
		d.Spec.Template.Labels[readyAfter] = "1500ms"
		begin := time.Now()
		create(t, client, d)
		waitPod(t, client, "label", "Ready", isReady)
		if took := time.Since(begin); took < 1500*time.Millisecond {
			t.Errorf("Ready after %s, want at least 1.5s", took)
		}
	})

	t.Run("resize", func(t *testing.T) {
		d := deployment("sized", 1, nil)
		spec := &d.Spec.Template.Spec
		spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "registry.example/log:1", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		for _, c := range []*corev1.Container{&spec.Containers[0], &spec.InitContainers[0]} {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		}
		create(t, client, d)
		waitAvailable(t, client, "sized", 1)
		pod := pods(t, client, "sized")[0]
		resize := func(cpu string) error {
			patch := fmt.Appendf(nil, `{"spec":{"containers":[{"name":%q,"resources":{"requests":{"cpu":%q}}}],"initContainers":[{"name":"sidecar","resources":{"requests":{"cpu":%q}}}]}}`, pod.Spec.Containers[0].Name, cpu, cpu)
			_, err := client.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize")
			return err
		}
		has := func(cpu string, pending corev1.PodConditionType) func(*corev1.Pod) bool {
			return func(p *corev1.Pod) bool {
				for _, all := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
					if len(all) != 1 || all[0].Resources == nil || all[0].Resources.Requests.Cpu().String() != cpu || all[0].AllocatedResources.Cpu().String() != cpu || all[0].State.Running == nil || all[0].RestartCount != 0 {
						return false
					}
				}
				isPending := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
				return isReady(p) && p.Status.ObservedGeneration == p.Generation && isPending == (pending != "")
			}
		}
		waitPod(t, client, "sized", "100m", has("100m", ""))
		if err := resize("200m"); err != nil {
			t.Fatal(err)
		}
		waitPod(t, client, "sized", "200m", has("200m", ""))
		if err := resize("64"); !apierrors.IsForbidden(err) {
			t.Errorf("more than a node has: %v, want it forbidden", err)
		}
		annotate := func(value string) {
			if _, err := client.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"simulate.atoll.dev/resize":%s}}}`, value), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		annotate(`"Deferred"`)
		if err := resize("300m"); err != nil {
			t.Fatal(err)
		}
		waitPod(t, client, "sized", "200m, and its resize is pending", has("200m", corev1.PodResizePending))
		annotate("null")
		waitPod(t, client, "sized", "300m", has("300m", ""))
	})

	t.Run("pod deletion", func(t *testing.T) {
		create(t, client, deployment("graceful", 1, nil))
		waitAvailable(t, client, "graceful", 1)
		old := pods(t, client, "graceful")[0]
		if err := client.CoreV1().Pods("default").Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a pod with a grace period of 30s to go", func(ctx context.Context) (bool, string) {
			_, err := client.CoreV1().Pods("default").Get(ctx, old.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
		waitAvailable(t, client, "graceful", 1)
	})

	t.Run("job", func(t *testing.T) {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: template("once", nil)}}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if _, err := client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the job to complete", func(ctx context.Context) (bool, string) {
			got, err := client.BatchV1().Jobs("default").Get(ctx, "once", metav1.GetOptions{})
			return err == nil && got.Status.Succeeded == 1 && got.Status.CompletionTime != nil, fmt.Sprintf("%+v %v", got.Status, err)
		})
	})

	t.Run("service account and namespace", func(t *testing.T) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the root certificate in a new namespace", func(ctx context.Context) (bool, string) {
			_, err := client.CoreV1().ConfigMaps("team").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		})
		var token *authenticationv1.TokenRequest
		eventually(t, "a token of the default service account", func(ctx context.Context) (bool, string) {
			var err error
			token, err = client.CoreV1().ServiceAccounts("team").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err == nil, fmt.Sprint(err)
		})
		review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
		if err != nil || review.Status.User.Username != "system:serviceaccount:team:default" {
			t.Errorf("the token is of %q, %v", review.Status.User.Username, err)
		}
		if err := client.CoreV1().Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace to go", func(ctx context.Context) (bool, string) {
			_, err := client.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	})
}

// TestPace catches a rate limit come back: 20 a second would need 10 s for 200 pods.
func TestPace(t *testing.T) {
	client := framework.StartPhysical(t, "pace").Clientset()
	begin := time.Now()
	create(t, client, deployment("many", 200, nil))
	waitAvailable(t, client, "many", 200)
	t.Logf("200 replicas available after %s", time.Since(begin).Round(time.Millisecond))
}

func TestRestart(t *testing.T) {
	cluster := framework.StartPhysical(t, "east", framework.PhysicalNodes(1))
	url := cluster.URL
	client := cluster.Clientset()
	create(t, client, deployment("web", 3, nil))
	waitAvailable(t, client, "web", 3)
	before := podNames(t, client, "web")

	for _, stop := range []struct {
		name string
		stop func()
	}{{"SIGTERM", cluster.Stop}, {"SIGKILL", cluster.Kill}} {
		// An open watch must not hold the stop up.
		if _, err := client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		stop.stop()
		stopped := time.Since(begin)
		if stopped > 50*time.Second { // it takes 1 s, and requests have a minute; Stop itself fails if a component does not stop
			t.Errorf("%s: stopped after %s", stop.name, stopped)
		}
		begin = time.Now()
		cluster.Restart()
		t.Logf("%s: stopped after %s, ready again after %s", stop.name, stopped.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
		if cluster.URL != url {
			t.Errorf("%s: the cluster moved from %s to %s", stop.name, url, cluster.URL)
		}
		// The client from before the stop still works, and the pods are the same.
		waitAvailable(t, client, "web", 3)
		if after := podNames(t, client, "web"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: pods were %v, are %v", stop.name, before, after)
		}
		// New pods run at once, so the new kwok took the nodes over.
		begin = time.Now()
		name := "after-" + map[string]string{"SIGTERM": "term", "SIGKILL": "kill"}[stop.name]
		create(t, client, deployment(name, 1, nil))
		waitAvailable(t, client, name, 1)
		if took := time.Since(begin); took > 35*time.Second { // the old one's leases last 40 s
			t.Errorf("%s: a new pod was Ready after %s only", stop.name, took)
		}
	}
}

func TestTwoClusters(t *testing.T) {
	east, west := framework.StartPhysical(t, "east"), framework.StartPhysical(t, "west")
	create(t, east.Clientset(), deployment("web", 3, nil))
	waitAvailable(t, east.Clientset(), "web", 3)
	create(t, west.Clientset(), deployment("web", 2, nil))
	waitAvailable(t, west.Clientset(), "web", 2)

	// The keys of one cluster open that cluster only.
	config := east.RESTConfig()
	config.Host = west.URL
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("west accepts the administrator of east")
	}
}

// TestSecondProcess: two processes on one directory would corrupt it.
func TestSecondProcess(t *testing.T) {
	cluster := framework.StartPhysical(t, "east", framework.PhysicalNodes(0))
	out, err := exec.CommandContext(t.Context(), executable(t, cluster), "start", "--name=east", "--root-directory="+cluster.Dir).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("another process runs the cluster")) {
		t.Errorf("a second start says %v: %s", err, out)
	}
}

// TestParentDeath: a test that dies, however it dies, leaves nothing running.
func TestParentDeath(t *testing.T) {
	cluster := framework.StartPhysical(t, "east")
	bin := executable(t, cluster)
	cluster.Stop()

	for _, tt := range []struct {
		reason string
		end    func(process *os.Process, stdin io.Closer) error
		clean  bool // the process exits 0
	}{
		{"the parent died, so the kernel closed our stdin", func(_ *os.Process, stdin io.Closer) error { return stdin.Close() }, true},
		{"we were killed", func(process *os.Process, _ io.Closer) error { return process.Kill() }, false},
	} {
		cmd := exec.Command(bin, "start", "--name=east", "--root-directory="+cluster.Dir, "--log-file", "--exit-with-parent")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // for a failure below; else it ended long ago

		pid := cmd.Process.Pid
		eventually(t, "ready", func(context.Context) (bool, string) {
			ready := Ready{}
			data, err := os.ReadFile(filepath.Join(cluster.Dir, "ready"))
			if err == nil {
				err = json.Unmarshal(data, &ready)
			}
			return ready.PID == pid, fmt.Sprint(err)
		})
		kwok := children(t, pid)
		if len(kwok) != 1 {
			t.Fatalf("%s: the process has children %v, want kwok", tt.reason, kwok)
		}
		if err := tt.end(cmd.Process, stdin); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if tt.clean != (err == nil) {
				t.Errorf("%s: the process ended with %v", tt.reason, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the process did not end", tt.reason)
		}
		eventually(t, tt.reason+": kwok to end", func(context.Context) (bool, string) {
			return !alive(kwok[0]), "pid " + kwok[0] + " lives"
		})
	}
}

func executable(t *testing.T, cluster *framework.Physical) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cluster.Dir, "ready"))
	if err != nil {
		t.Fatal(err)
	}
	var ready Ready
	if err := json.Unmarshal(data, &ready); err != nil {
		t.Fatal(err)
	}
	bin, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", ready.PID))
	if err != nil {
		t.Skipf("the test needs /proc: %v", err)
	}
	return bin
}

// children returns the process ids of the direct children of a process.
func children(t *testing.T, pid int) []string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range bytes.Fields(data) {
			all = append(all, string(child))
		}
	}
	return all
}

func alive(pid string) bool {
	var id int
	if _, err := fmt.Sscan(pid, &id); err != nil {
		return false
	}
	return syscall.Kill(id, 0) == nil && !zombie(pid)
}

// zombie reports whether a process has ended and nobody has asked for its exit status.
func zombie(pid string) bool {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := bytes.Cut(data, []byte(") "))
	return bytes.HasPrefix(state, []byte("Z"))
}

func template(app string, annotations map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}},
	}
}

func deployment(name string, replicas int32, annotations map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: template(name, annotations),
		},
	}
}

func create(t *testing.T, client kubernetes.Interface, d *appsv1.Deployment) {
	t.Helper()
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitAvailable(t *testing.T, client kubernetes.Interface, name string, replicas int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("deployment %q to have %d available replicas", name, replicas), func(ctx context.Context) (bool, string) {
		d, err := client.AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return d.Status.AvailableReplicas == replicas, fmt.Sprintf("%+v", d.Status)
	})
}

// waitPod waits for the only pod of a deployment.
func waitPod(t *testing.T, client kubernetes.Interface, app, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, fmt.Sprintf("the pod of %q to be %s", app, what), func(context.Context) (bool, string) {
		all := pods(t, client, app)
		if len(all) != 1 {
			return false, fmt.Sprintf("%d pods", len(all))
		}
		pod = &all[0]
		return ok(pod), fmt.Sprintf("%s %+v", pod.Status.Phase, pod.Status.Conditions)
	})
	return pod
}

func pods(t *testing.T, client kubernetes.Interface, app string) []corev1.Pod {
	t.Helper()
	list, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func podNames(t *testing.T, client kubernetes.Interface, app string) []string {
	t.Helper()
	var names []string
	for _, pod := range pods(t, client, app) {
		names = append(names, pod.Name)
	}
	return names
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// eventually waits up to a minute for a condition, and fails with the state it saw last.
func eventually(t *testing.T, what string, check func(context.Context) (ok bool, state string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		ok, state := check(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited for %s in vain; last: %s", what, state)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
