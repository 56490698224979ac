package realnodes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// patience is for what takes seconds on a machine that does nothing else.
const patience = 3 * time.Minute

// kubectl runs against a physical cluster as its administrator.
func kubectl(t *testing.T, p *framework.Physical, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), framework.Binary(t), append([]string{"kubectl", "--kubeconfig", p.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func mustKubectl(t *testing.T, p *framework.Physical, input string, args ...string) string {
	t.Helper()
	out, err := kubectl(t, p, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// plain is a Deployment of one pod of app, and its Service.
const plain = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: ` + appImage + `
        args: [serve]
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// TestNode: a real node does what nodes do, before anything of ours is in it.
func TestNode(t *testing.T) {
	needsRealNodes(t)
	begin := time.Now()
	east := framework.StartPhysical(t, "east", framework.PhysicalRealNode([]string{imageOfApp(t)}))
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	mustKubectl(t, east, plain, "apply", "-f", "-")
	mustKubectl(t, east, "", "rollout", "status", "deployment/web", "--timeout=3m")
	t.Logf("a pod Available after %s", time.Since(begin).Round(time.Millisecond))

	if got := mustKubectl(t, east, "", "logs", "deployment/web"); !strings.HasPrefix(got, "serving web-") {
		t.Errorf("logs: %q", got)
	}
	if got := mustKubectl(t, east, "", "exec", "deployment/web", "--", "app", "echo", "hello"); got != "hello\n" {
		t.Errorf("exec: %q", got)
	}
	if got := mustKubectl(t, east, "", "exec", "deployment/web", "--", "app", "resolve", "web.default.svc.cluster.local"); !strings.HasPrefix(got, "10.96.") {
		t.Errorf("the Service's name is %q", got)
	}
	// By its short name, too; from the pod to itself is the way that needs most of the rules, which kube-proxy makes within a second or two of a pod's being ready.
	framework.Eventually(t, patience, "the Service answers its pod", func() string {
		if got, err := kubectl(t, east, "", "exec", "deployment/web", "--", "app", "get", "http://web/x"); err != nil || !strings.HasPrefix(got, "/x from web-") {
			return fmt.Sprint(got, err)
		}
		return ""
	})
	node, err := east.Clientset().CoreV1().Nodes().Get(t.Context(), "east-node-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version := fmt.Sprintf(`"gitVersion": %q`, node.Status.NodeInfo.KubeletVersion) // of the same release
	if got := mustKubectl(t, east, "", "exec", "deployment/web", "--", "app", "api", "https://kubernetes.default.svc/version"); !strings.Contains(got, version) {
		t.Errorf("the API answers a pod %q, want %s", got, version)
	}
	if out, err := kubectl(t, east, "", "exec", "deployment/web", "--", "app", "exit", "7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exec that fails: %v %s", err, out)
	}
	// What all pods talk to reads what it answers with, and no more.
	for resource, want := range map[string]string{"services": "yes\n", "endpointslices.discovery.k8s.io": "yes\n", "secrets": "no\n", "pods": "no\n"} {
		out, err := kubectl(t, east, "", "auth", "can-i", "list", resource, "--all-namespaces", "--as=coredns")
		if out != want || (err == nil) != (want == "yes\n") {
			t.Errorf("CoreDNS may list %s: %s %v, want %s", resource, out, err, want)
		}
	}
	// A process is known by another number in the node.
	if ready, err := os.ReadFile(filepath.Join(east.Dir, "ready")); err != nil || strings.Contains(string(ready), `"pid"`) {
		t.Errorf("it says that it is ready with %s %v, want no pid", ready, err)
	}
	says(t, east)
	t.Log("done: a Deployment is Available by its readiness probe; its log is read, and a command run in it, with its exit code")
	t.Log("done: a pod finds a Service by its name and itself through it, and the API of the cluster as kubernetes.default.svc")
}

// says tells the report what the node is made of.
func says(t *testing.T, p *framework.Physical) {
	t.Helper()
	node, err := p.Clientset().CoreV1().Nodes().Get(t.Context(), p.Name+"-node-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("program: kubelet %s", node.Status.NodeInfo.KubeletVersion)
	t.Logf("program: %s", strings.Replace(node.Status.NodeInfo.ContainerRuntimeVersion, "://", " ", 1))
}

// TestNothingStays: however a real node ends, no process, mount, address, cgroup or setting of it stays on this machine, and its pods run again where it is started again.
func TestNothingStays(t *testing.T) {
	needsRealNodes(t)
	here := newRealNode(t, "stays")
	before := here.traces()
	east := framework.StartPhysical(t, "stays", framework.PhysicalDir(here.dir), framework.PhysicalRealNode([]string{imageOfApp(t)}))
	mustKubectl(t, east, plain, "apply", "-f", "-")
	mustKubectl(t, east, "", "rollout", "status", "deployment/web", "--timeout=3m")
	here.shows(difference(here.traces(), before))
	here.keepsSettings()

	for _, end := range []struct {
		how string
		end func()
	}{{"killed", east.Kill}, {"stopped", east.Stop}} {
		ran := onlyContainer(t, east)
		end.end()
		framework.Eventually(t, patience, "nothing stays of a node that was "+end.how, func() string {
			return strings.Join(append(difference(here.traces(), before), difference(before, here.traces())...), "\n")
		})
		east.Start()
		restarted := time.Now()
		framework.Eventually(t, patience, "the pod runs again after the node was "+end.how, func() string {
			pods, err := east.Clientset().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil || len(pods.Items) != 1 {
				return fmt.Sprint(len(pods.Items), " pods ", err)
			}
			pod := pods.Items[0]
			if len(pod.Status.ContainerStatuses) != 1 {
				return fmt.Sprintf("%+v", pod.Status)
			}
			if c := pod.Status.ContainerStatuses[0]; c.RestartCount <= ran.RestartCount || c.ContainerID == ran.ContainerID || !isReady(&pod) {
				return fmt.Sprintf("%+v", pod.Status)
			}
			return ""
		})
		t.Logf("%s: the pod runs again %s after the node was ready", end.how, time.Since(restarted).Round(time.Millisecond))
		t.Logf("done: no process, mount, address, cgroup or changed setting stays of a node that was %s, and its pod runs again on the next start", end.how)
	}
}

// onlyContainer returns what the API says of the container of web.
func onlyContainer(t *testing.T, p *framework.Physical) corev1.ContainerStatus {
	t.Helper()
	pods, err := p.Clientset().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) != 1 {
		t.Fatalf("the pod of web: %+v %v", pods, err)
	}
	return pods.Items[0].Status.ContainerStatuses[0]
}

// TestAComponentEnds: a node of which something has ended is none, and says what it was.
func TestAComponentEnds(t *testing.T) {
	needsRealNodes(t)
	here := newRealNode(t, "ends")
	before := here.traces()
	east := framework.StartPhysical(t, "ends", framework.PhysicalDir(here.dir), framework.PhysicalRealNode(nil))
	if err := syscall.Kill(here.process("kubelet"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if said, want := east.Ends(time.Minute), "kubelet ended: killed; see "+filepath.Join(here.dir, "log", "kubelet.log"); !strings.Contains(said, want) {
		t.Errorf("it does not say %q:\n%s", want, said)
	}
	framework.Eventually(t, patience, "nothing stays", func() string { return strings.Join(difference(here.traces(), before), "\n") })
	t.Log("done: a node whose kubelet is killed ends, says so, and leaves nothing")
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
