package realnodes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// workspace is one whose pods truly run, in the physical cluster east, whose syncer is a Pod of it.
type workspace struct {
	*testing.T
	hub        *framework.Atoll
	east       *framework.Physical
	cluster    logicalcluster.Name
	kubeconfig string
}

// TestWorkspace places a workspace on a real node, and does with its pods what people do.
func TestWorkspace(t *testing.T) {
	needsRealNodes(t)
	hub, port := hubForPods(t)
	image, name := atollImage(t)
	east := framework.StartPhysical(t, "east", framework.PhysicalRealNode([]string{imageOfApp(t), image}, port))
	w := &workspace{T: t, hub: hub, east: east}

	// The syncer is the Pod that the manifest says, in the namespace of its own.
	manifest := hub.MustStdout("cluster", "add", "east", "--manifest", "--image="+name, fmt.Sprintf("--hub-url=https://%s:%d", framework.RealNodeMachine, port))
	mustKubectl(t, east, manifest, "apply", "-f", "-")
	w.clusterReady("east")
	mustKubectl(t, east, "", "-n", workloadv1alpha1.HeartbeatNamespace, "wait", "deployments", "--all", "--for=condition=Available", "--timeout=3m")

	w.cluster = framework.MakeWorkspace(t, hub.Clients(), "root", "shop")
	w.kubeconfig = hub.KubeconfigOf(t, "root:shop")
	w.kubectl(talking, "apply", "-f", "-")
	w.kubectl("", "rollout", "status", "deployment/web", "--timeout=3m")
	says(t, east)
	t.Log("done: the syncer runs as the Pods that `atoll cluster add --manifest` wrote, from the image of `make image`, read-only and as nobody; the cluster is Ready and runs what the workspace is given")
	for _, part := range []struct {
		name string
		test func(*workspace)
		done string
	}{
		{"LogsAndExec", (*workspace).logsAndExec, "logs, and exec with its input and exit code"},
		{"LogsAreFollowed", (*workspace).logsFollowed, "logs that are followed go on with what is printed then"},
		{"PortForward", (*workspace).portForward, "a forwarded port answers HTTP"},
		{"Copy", (*workspace).copies, "cp of a megabyte, there and back"},
		{"Names", (*workspace).names, "a pod finds a Service of its workspace by its short name"},
		{"ItsTokenIsOfTheWorkspace", (*workspace).token, "a client in the pod finds the API of its workspace, by the files and variables that it looks for, and may there what the roles of its ServiceAccount say; the physical cluster does not know its token"},
		{"AWebhookInAPod", (*workspace).webhook, "an admission webhook that runs in a pod of the workspace is asked, by its Service"},
		{"ReadinessHoldsARolloutBack", (*workspace).readiness, "a pod that is not ready by its probe is not Available, and the rollout waits for it"},
		{"LivenessRestartsShow", (*workspace).liveness, "a container that its probe ends shows as restarted, with the log of before and the Event"},
		{"AResizeIsInPlace", (*workspace).resizedInPlace, "a pod that is resized in the workspace has its new limit where it runs, by the status and by its cgroup, and is not restarted; more than the node has is refused in the cluster's words"},
		{"ASyncerPodThatIsKilled", (*workspace).syncerKilled, "the syncer's Pods are killed, and others go on"},
	} {
		t.Run(part.name, func(t *testing.T) {
			of := *w
			of.T = t
			hub.Use(t)
			east.Use(t)
			part.test(&of)
			if !t.Failed() {
				t.Log("done: " + part.done)
			}
		})
	}
}

// hubForPods starts a server that pods reach, by a name that is theirs alone, and returns its port.
func hubForPods(t *testing.T) (*framework.Atoll, int) {
	t.Helper()
	hub := framework.StartAtoll(t, "--external-hostname="+framework.RealNodeMachine)
	at, err := url.Parse(hub.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	hub.Kubeconfig = hub.KubeconfigOf(t, "root")
	return hub, port
}

// atollImage returns the image that "make image" built, and its name.
func atollImage(t *testing.T) (file, name string) {
	t.Helper()
	file = filepath.Join(filepath.Dir(framework.Binary(t)), "atoll-linux-"+runtime.GOARCH+".tar")
	list, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		t.Fatalf("read the image: %v; run `make image` first", err)
	}
	if len(list) != 1 || len(list[0].RepoTags) != 1 {
		t.Fatalf("%s holds %+v, want one image of one name", file, list)
	}
	return file, list[0].RepoTags[0]
}

// clusterReady waits until the SyncTarget of that name in root is Ready.
func (w *workspace) clusterReady(name string) {
	w.Helper()
	framework.Eventually(w, patience, "cluster "+name+" is Ready", func() string {
		target := &workloadv1alpha1.SyncTarget{}
		if err := w.hub.Clients().Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
			return fmt.Sprintf("its conditions are %+v", target.Status.Conditions)
		}
		return ""
	}, func() string {
		out, err := kubectl(w.T, w.east, "", "-n", workloadv1alpha1.HeartbeatNamespace, "describe", "pods")
		logs, logsErr := kubectl(w.T, w.east, "", "-n", workloadv1alpha1.HeartbeatNamespace, "logs", "-l", "app.kubernetes.io/name=atoll-syncer", "--tail=30")
		return fmt.Sprint(out, err, logs, logsErr)
	})
}

// command is kubectl in the workspace.
func (w *workspace) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, framework.Binary(w), append([]string{"kubectl", "--kubeconfig", w.kubeconfig}, args...)...)
}

func (w *workspace) try(input string, args ...string) (string, error) {
	w.Helper()
	cmd := w.command(w.Context(), args...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (w *workspace) kubectl(input string, args ...string) string {
	w.Helper()
	out, err := w.try(input, args...)
	if err != nil {
		w.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// runs starts kubectl, which ends with the test, and returns what it prints.
func (w *workspace) runs(args ...string) *bufio.Reader {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	cmd := w.command(ctx, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	return bufio.NewReader(out)
}

// in runs app in the pod of web.
func (w *workspace) in(args ...string) (string, error) {
	w.Helper()
	return w.try("", append([]string{"exec", "deployment/web", "--", "app"}, args...)...)
}

func (w *workspace) pods(app string) []corev1.Pod {
	w.Helper()
	list, err := w.hub.Clients().Kube.CoreV1().Pods("default").List(client.In(w.Context(), w.cluster), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.Fatal(err)
	}
	return list.Items
}

// talking is plain with a ServiceAccount of its own, who may read one ConfigMap.
const talking = plain + `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: greeting}
data: {text: from-the-workspace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: greeting}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [greeting], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: greeting}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: greeting}
subjects: [{kind: ServiceAccount, name: default, namespace: default}]
`

func (w *workspace) logsAndExec() {
	// Where there are several pods, it says first which of them it is.
	if got := w.kubectl("", "logs", "deployment/web"); !strings.Contains("\n"+got, "\nserving web-") {
		w.Errorf("logs: %q", got)
	}
	if got, err := w.in("echo", "hello"); got != "hello\n" || err != nil {
		w.Errorf("exec: %q %v", got, err)
	}
	if out, err := w.in("exit", "7"); err == nil || !strings.Contains(out, "exit code 7") {
		w.Errorf("exec that fails: %v %s", err, out)
	}
	if got := w.kubectl("to you\n", "exec", "-i", "deployment/web", "--", "app", "cat"); got != "to you\n" {
		w.Errorf("exec with input: %q", got)
	}
}

// logsFollowed: a line is read while the pod runs, after it was printed.
func (w *workspace) logsFollowed() {
	log := w.runs("logs", "-f", "deployment/web", "--tail=1")
	if line, err := log.ReadString('\n'); err != nil {
		w.Fatalf("the last line so far: %q %v", line, err)
	}
	path := fmt.Sprintf("/follow-%d", time.Now().UnixNano())
	if out, err := w.in("get", "http://127.0.0.1:8080"+path); err != nil {
		w.Fatalf("ask it for something: %v\n%s", err, out)
	}
	if line, err := log.ReadString('\n'); line != "GET "+path+"\n" || err != nil {
		w.Errorf("the log goes on with %q %v", line, err)
	}
}

func (w *workspace) portForward() {
	said, err := w.runs("port-forward", "--address=127.0.0.1", "deployment/web", ":8080").ReadString('\n')
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+) -> 8080`).FindStringSubmatch(said)
	if err != nil || port == nil {
		w.Fatalf("port-forward says %q: %v", said, err)
	}
	for i := range 3 {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%s/%d", port[1], i))
		if err != nil {
			w.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // read whole
		if want := fmt.Sprintf("/%d from web-", i); err != nil || !strings.HasPrefix(string(body), want) {
			w.Errorf("through the port: %q %v, want %q", body, err, want)
		}
	}
}

// copies: there and back, more than what is on its way at a time.
func (w *workspace) copies() {
	dir := w.TempDir()
	from, back := filepath.Join(dir, "from"), filepath.Join(dir, "back")
	content := strings.Repeat("0123456789abcdef\n", 1<<16)
	if err := os.WriteFile(from, []byte(content), 0o600); err != nil {
		w.Fatal(err)
	}
	pods := w.pods("web")
	if len(pods) != 1 {
		w.Fatalf("there are %d pods of web, want one", len(pods))
	}
	pod := pods[0].Name
	w.kubectl("", "cp", from, pod+":/tmp/copied")
	w.kubectl("", "cp", pod+":/tmp/copied", back)
	if got, err := os.ReadFile(back); err != nil || string(got) != content {
		w.Errorf("%d bytes of %d came back: %v", len(got), len(content), err)
	}
}

// names: a Service of the workspace has the name that it would have on a cluster, in its namespace.
func (w *workspace) names() {
	framework.Eventually(w, patience, "a Service answers by its short name", func() string {
		if got, err := w.in("get", "http://web/by-name"); err != nil || !strings.HasPrefix(got, "/by-name from web-") {
			return fmt.Sprint(got, err)
		}
		return ""
	})
}

// token: a client in the pod finds the API of its workspace, which knows it, and no other.
func (w *workspace) token() {
	const greeting = "/api/v1/namespaces/default/configmaps/greeting"
	framework.Eventually(w, patience, "the pod reads a ConfigMap of its workspace", func() string {
		if got, err := w.in("api", greeting); err != nil || !strings.Contains(got, "from-the-workspace") {
			return fmt.Sprint(got, err)
		}
		return ""
	})
	if got, err := w.in("api", "/api/v1/namespaces/default/secrets"); err == nil || !strings.Contains(got, `system:serviceaccount:default:default`) || !strings.Contains(got, "403") {
		w.Errorf("Secrets, which it may not read: %q %v", got, err)
	}
	if got, err := w.in("read", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"); got != "default" || err != nil {
		w.Errorf("it is in namespace %q, says its file: %v", got, err)
	}
	// The physical cluster's API does not know the token, while it knows one of its own, of who may not do this either.
	token, err := w.in("read", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	if err != nil {
		w.Fatalf("read the token: %v\n%s", err, token)
	}
	if err := w.askEast(token); !apierrors.IsUnauthorized(err) {
		w.Errorf("the physical cluster's API says to the token of the pod: %v, want that it does not know it", err)
	}
	if err := w.askEast(strings.TrimSpace(mustKubectl(w.T, w.east, "", "create", "token", "default"))); !apierrors.IsForbidden(err) {
		w.Errorf("the physical cluster's API says to a token of its own: %v, want that it may not", err)
	}
}

// judging is an admission webhook, of app, with a certificate and its key for its Service's name.
const judging = `
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: judge}
data: {tls.crt: %[1]s, tls.key: %[2]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: judge}
spec:
  selector: {matchLabels: {app: judge}}
  template:
    metadata: {labels: {app: judge}}
    spec:
      containers:
      - name: main
        image: ` + appImage + `
        args: [judge, /certificate]
        ports: [{name: https, containerPort: 8443}]
        readinessProbe: {httpGet: {path: /readyz, port: https, scheme: HTTPS}, periodSeconds: 1}
        volumeMounts: [{name: certificate, mountPath: /certificate}]
      volumes: [{name: certificate, secret: {secretName: judge}}]
---
apiVersion: v1
kind: Service
metadata: {name: judge}
spec: {selector: {app: judge}, ports: [{port: 443, targetPort: https}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: judge.example.com}
webhooks:
- name: judge.example.com
  clientConfig: {service: {namespace: default, name: judge, path: /judge}, caBundle: %[1]s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
`

// webhook: what runs in a pod judges what is made in its workspace.
func (w *workspace) webhook() {
	certificate, key, err := cert.GenerateSelfSignedCertKey("judge.default.svc", nil, nil)
	if err != nil {
		w.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	w.kubectl(fmt.Sprintf(judging, encode(certificate), encode(key)), "apply", "-f", "-")
	w.kubectl("", "rollout", "status", "deployment/judge", "--timeout=3m")
	framework.Eventually(w, patience, "the webhook refuses a ConfigMap", func() string {
		if out, err := w.try("", "create", "configmap", "unwanted"); err == nil || !strings.Contains(out, "nobody wants it") {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	w.kubectl("", "create", "configmap", "wanted")
	if got := w.kubectl("", "logs", "deployment/judge"); !strings.Contains(got, "asked about wanted\n") {
		w.Errorf("the log of the webhook: %q", got)
	}
	w.kubectl("", "delete", "validatingwebhookconfiguration", "judge.example.com")
	w.kubectl("", "delete", "deployment/judge", "service/judge", "secret/judge")
}

// askEast asks the physical cluster for Secrets, by a token.
func (w *workspace) askEast(token string) error {
	w.Helper()
	config := rest.AnonymousClientConfig(w.east.RESTConfig())
	config.BearerToken = token
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	_, err = clientset.CoreV1().Secrets("default").List(w.Context(), metav1.ListOptions{})
	return err
}

// readiness: a pod that is not ready is not counted, and a rollout waits for it.
func (w *workspace) readiness() {
	available := func(want string) {
		w.Helper()
		framework.Eventually(w, patience, "web is Available: "+want, func() string {
			got, err := w.try("", "get", "deployment/web", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].status}`)
			if got != want || err != nil {
				return fmt.Sprint(got, err)
			}
			return ""
		})
	}
	available("True")
	if out, err := w.in("touch", "/tmp/unready"); err != nil {
		w.Fatalf("make it not ready: %v\n%s", err, out)
	}
	available("False")
	if out, err := w.try("", "rollout", "status", "deployment/web", "--timeout=2s"); err == nil || !strings.Contains(out, "timed out") {
		w.Errorf("a rollout whose pod is not ready is not waited for: %v %s", err, out)
	}
	if out, err := w.in("rm", "/tmp/unready"); err != nil {
		w.Fatalf("make it ready: %v\n%s", err, out)
	}
	available("True")
	w.kubectl("", "rollout", "status", "deployment/web", "--timeout=1m")
}

// liveness: a container that is restarted for its probe shows as such, with the log of before.
func (w *workspace) liveness() {
	w.kubectl(strings.ReplaceAll(strings.ReplaceAll(plain, "name: web", "name: frail"), "app: web", "app: frail"), "apply", "-f", "-")
	w.kubectl("", "patch", "deployment/frail", "--type=json",
		`--patch=[{"op": "add", "path": "/spec/template/spec/containers/0/livenessProbe", "value": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1}}]`)
	w.kubectl("", "rollout", "status", "deployment/frail", "--timeout=3m")
	if out, err := w.try("", "exec", "deployment/frail", "--", "app", "touch", "/tmp/dead"); err != nil {
		w.Fatalf("make it fail its probe: %v\n%s", err, out)
	}
	framework.Eventually(w, patience, "the restart shows", func() string {
		pods := w.pods("frail")
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 || pods[0].Status.ContainerStatuses[0].RestartCount != 1 || !isReady(&pods[0]) {
			return fmt.Sprintf("%+v", pods)
		}
		return ""
	})
	if got := w.kubectl("", "logs", "deployment/frail", "--previous"); !strings.Contains(got, "told to end frail-") {
		w.Errorf("the log of before: %q", got)
	}
	framework.Eventually(w, patience, "the Event of the probe shows", func() string {
		if got, err := w.try("", "get", "events", "--field-selector=reason=Unhealthy"); err != nil || !strings.Contains(got, "Liveness probe failed") {
			return got
		}
		return ""
	})
}

// resizedInPlace: the kubelet gives the container what the workspace says, while it runs.
func (w *workspace) resizedInPlace() {
	sized := strings.NewReplacer("name: web", "name: sized", "app: web", "app: sized",
		"args: [serve]", "args: [serve]\n        resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 200m}}").Replace(plain)
	w.kubectl(sized, "apply", "-f", "-")
	w.kubectl("", "rollout", "status", "deployment/sized", "--timeout=3m")
	pods := w.pods("sized")
	if len(pods) != 1 {
		w.Fatalf("there are %d pods of sized, want one", len(pods))
	}
	pod := pods[0].Name
	to := func(cpu string) (string, error) {
		return w.try("", "patch", "pod", pod, "--subresource=resize", fmt.Sprintf(`--patch={"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":%q},"requests":{"cpu":%q}}}]}}`, cpu, cpu))
	}
	// Of 100 ms, by cgroups of version 1 or 2.
	quota := func() string {
		for _, file := range []string{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"} {
			if got, err := w.try("", "exec", pod, "--", "app", "read", file); err == nil {
				return strings.Fields(got + " -")[0]
			}
		}
		return "unknown"
	}
	if got := quota(); got != "20000" {
		w.Errorf("at first its container has %s us of 100 ms, want 20000", got)
	}
	if out, err := to("300m"); err != nil {
		w.Fatalf("resize it: %v\n%s", err, out)
	}
	framework.Eventually(w, patience, "the container has 300m", func() string {
		now := w.pods("sized")
		if len(now) != 1 || now[0].Name != pod || len(now[0].Status.ContainerStatuses) != 1 {
			return fmt.Sprintf("%+v", now)
		}
		status := now[0].Status.ContainerStatuses[0]
		if status.Resources == nil || status.Resources.Limits.Cpu().String() != "300m" || status.RestartCount != 0 || now[0].Status.ObservedGeneration != now[0].Generation {
			return fmt.Sprintf("of generation %d: %+v", now[0].Generation, now[0].Status)
		}
		if got := quota(); got != "30000" {
			return "its cgroup has " + got
		}
		return ""
	})
	if out, err := to("4000"); err == nil || !strings.Contains(out, `physical cluster "east"`) || !strings.Contains(out, "allocatable") {
		w.Errorf("more than the node has: %v %s", err, out)
	}
	w.kubectl("", "delete", "deployment/sized", "service/sized")
}

// syncerKilled: what is asked for once no Pod of before is left is done by others, and what is there is served by them.
func (w *workspace) syncerKilled() {
	syncers := func() map[types.UID]bool {
		w.Helper()
		list, err := w.east.Clientset().CoreV1().Pods(workloadv1alpha1.HeartbeatNamespace).List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		uids := map[types.UID]bool{}
		for _, pod := range list.Items {
			uids[pod.UID] = true
		}
		return uids
	}
	before := syncers()
	if len(before) == 0 {
		w.Fatal("there is no Pod of the syncer")
	}
	// Without --force the API keeps a Pod until the kubelet has ended its processes, which is waited for. They have a second to go.
	mustKubectl(w.T, w.east, "", "-n", workloadv1alpha1.HeartbeatNamespace, "delete", "pods", "--all", "--now", "--timeout=2m")
	for uid := range syncers() {
		if before[uid] {
			w.Fatalf("Pod %s of the syncer was not killed", uid)
		}
	}
	w.kubectl("", "scale", "deployment/web", "--replicas=2")
	w.kubectl("", "rollout", "status", "deployment/web", "--timeout=3m")
	framework.Eventually(w, patience, "logs of both pods", func() string {
		pods := w.pods("web")
		if len(pods) != 2 {
			return fmt.Sprintf("there are %d pods", len(pods))
		}
		for _, pod := range pods {
			if got, err := w.try("", "logs", pod.Name); err != nil || !strings.HasPrefix(got, "serving "+pod.Name) {
				return fmt.Sprint(pod.Name, ": ", got, err)
			}
		}
		return ""
	})
}
