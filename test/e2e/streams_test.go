package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"

	"atoll.dev/atoll/test/framework"
)

// TestT4_LogsAndStreams: kubectl looks into pods, and goes into them, through the workspace. The pods are simulated; what answers for
// them as the kubelet of their node is the test.
func TestT4_LogsAndStreams(t *testing.T) {
	t.Parallel()
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": framework.StartPhysical(t, "east", framework.PhysicalNodes(1))}}
	f.MustRun("cluster", "add", "east", "--kubeconfig", f.clusters["east"].Kubeconfig)
	f.looksAndGoesIn(t)
}

// TestT4_LogsAndStreamsOfPull: the same, of a cluster that nobody reaches from outside: through its syncer's connection, which is there
// again after either end was away.
func TestT4_LogsAndStreamsOfPull(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	east := framework.StartPhysical(t, "east", framework.PhysicalNodes(1))
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": east}}
	syncer := framework.StartSyncer(t, f.Atoll, east, f.MustStdout("cluster", "add", "east", "--manifest", "--allow-loopback"))
	f.clusterReady(t, "east")
	w := f.workspace(t, "tunnel")
	beKubelet(t, east, t.TempDir())
	w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
	w.runsIn("east", "solo")
	reads := func(when string) {
		t.Helper()
		framework.Eventually(t, patience, "logs "+when, func() string {
			if got, err := w.try("logs", "solo"); err != nil || !strings.HasPrefix(got, framework.LogLine("solo", "main", false, 1)) {
				return fmt.Sprint(got, err)
			}
			return ""
		})
	}
	reads("at first")
	f.Restart()
	reads("after a restart of the server")
	syncer.Kill()
	if out, err := w.try("logs", "solo"); err == nil || !strings.Contains(out, `physical cluster "east"`) {
		t.Errorf("logs while the syncer is away: %s %v", out, err)
	}
	syncer.Start()
	reads("after a restart of the syncer")
	f.looksAndGoesIn(t)
}

// looksAndGoesIn does so with pods in east, and takes that away at the end.
func (f *fleet) looksAndGoesIn(t *testing.T) {
	t.Helper()
	inside := t.TempDir()
	kubelet := beKubelet(t, f.clusters["east"], inside)
	framework.StartMetricsServer(t, f.clusters["east"])

	w := f.workspace(t, "streams")
	w.apply(1, "")
	w.rolledOut()
	w.shows()
	var pod, container string
	for name, shown := range w.shownPods() {
		pod, container = name, shown.Spec.Containers[0].Name
	}
	line := func(previous bool, i int) string { return framework.LogLine(pod, container, previous, i) }
	kubelet.Uses(w.namespaceIn("east"), pod, container, 0.25, 20<<20) // which takes metrics-server a while to see
	kubelet.Uses("kube-system", pod, container, 7, 7<<30)

	if got := w.stdout("logs", "deployment/"+w.app); !strings.HasPrefix(got, line(false, 1)) || !strings.HasSuffix(got, line(false, framework.LogLines)) {
		t.Errorf("logs: %q", got)
	}
	if got := w.stdout("logs", pod, "--previous", "--tail=1", "--timestamps"); got != "2026-01-01T00:00:00Z "+line(true, framework.LogLines) {
		t.Errorf("logs of before: %q", got)
	}
	w.follows(pod, line(false, framework.LogLines))
	w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
	w.runsIn("east", "solo")
	if got, want := w.stdout("logs", "solo"), framework.LogLine("solo", "main", false, 1); !strings.HasPrefix(got, want) {
		t.Errorf("logs of a pod that was made in the workspace: %q", got)
	}
	if got := w.stdout("exec", "solo", "--", "echo", "out"); got != "out\n" {
		t.Errorf("exec in a pod that was made in the workspace: %q", got)
	}

	// exec, and its exit code
	if got := w.stdout("exec", "deployment/"+w.app, "--", "sh", "-c", "echo out; echo err >&2"); got != "out\n" {
		t.Errorf("exec: %q", got)
	}
	if out, err := w.try("exec", pod, "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out+err.Error(), "exit code 7") {
		t.Errorf("exec that fails: %s %v", out, err)
	}
	if got := w.kubectlWithInput("to you", "attach", "-i", pod); !strings.Contains(got, "to you") {
		t.Errorf("attach: %q", got)
	}

	// cp, there and back
	from, back := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "back")
	if err := os.WriteFile(from, []byte(strings.Repeat("content\n", 1<<16)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.kubectl("cp", from, pod+":"+filepath.Join(inside, "copied"))
	w.kubectl("cp", pod+":"+filepath.Join(inside, "copied"), back)
	want, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(back); err != nil || string(got) != string(want) {
		t.Errorf("cp: %d bytes of %d came back: %v", len(got), len(want), err)
	}

	w.forwards(pod)
	w.proxies(pod)
	w.isAskedInPods(kubelet)
	w.debugs("solo", "main")
	w.debugs(pod, container)
	w.tops(pod, container)

	f.clusters["east"].Kill()
	framework.Eventually(t, patience, "what a webhook has to allow is refused while that is away, and whoever asks is told where it is", func() string {
		if out, err := w.try("create", "configmap", "unasked"); err == nil || !strings.Contains(out+err.Error(), "the Service default/hooks cannot be called") || !strings.Contains(out+err.Error(), `physical cluster "east"`) {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	if out, err := w.try("top", "pods"); err == nil || !strings.Contains(out+err.Error(), `physical cluster "east"`) {
		t.Errorf("top of a cluster that is away: %s %v", out, err)
	}
	if out, err := w.try("logs", pod); err == nil || !strings.Contains(out+err.Error(), `physical cluster "east"`) {
		t.Errorf("logs of a cluster that is away: %s %v", out, err)
	}
	if out, err := w.try("exec", pod, "--", "true"); err == nil || !strings.Contains(out+err.Error(), `physical cluster "east"`) {
		t.Errorf("exec in a cluster that is away: %s %v", out, err)
	}
}

// proxies asks a pod, and one behind a Service, over HTTP, by way of the API server.
func (w *workspace) proxies(pod string) {
	w.t.Helper()
	w.kubectl("create", "service", "clusterip", "proxied", "--tcp=80:"+framework.HTTPPort)
	w.kubectl("set", "selector", "service", "proxied", "app="+w.app)
	for at, want := range map[string]string{
		"pods/" + pod + ":" + framework.HTTPPort + "/proxy/some/path?q=1": "GET /some/path?q=1",
		"services/proxied:80/proxy/other":                                 "GET /other",
		"services/http:proxied:/proxy/":                                   "GET /",
		"pods/" + pod + ":" + framework.HTTPPort + "/proxy":               "GET / ", // by a redirect, and so the next two
		"services/proxied:80/proxy/to/another/path":                       "GET /another/path ",
		"services/proxied:80/proxy/to/a?b":                                "GET /a ",
	} {
		if got := w.stdout("get", "--raw", "/api/v1/namespaces/default/"+at); !strings.HasPrefix(got, want) {
			w.t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
	out, err := w.try("get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":"+framework.ClosedPort+"/proxy/")
	if err == nil || !strings.Contains(out+err.Error(), "refused") {
		w.t.Errorf("a port that is closed: %s %v", out, err)
	}
}

// hookPort is that of a pod with webhooks.
const hookPort = "9443"

// inPods has a pod and a Service of webhooks, and what they are asked about.
const inPods = `
apiVersion: v1
kind: Pod
metadata: {name: hooks, labels: {app: hooks}}
spec: {containers: [{name: main, image: "registry.example/app:1", ports: [{containerPort: %[2]s}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: hooks}
spec: {selector: {app: hooks}, ports: [{port: 443, targetPort: %[2]s}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hooks.example.com}
webhooks:
- name: hooks.example.com
  clientConfig: {service: {namespace: default, name: hooks, path: /judge}, caBundle: %[1]s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.hooks.example.com}
spec:
  group: hooks.example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  conversion:
    strategy: Webhook
    webhook: {clientConfig: {service: {namespace: default, name: hooks, path: /convert}, caBundle: %[1]s}, conversionReviewVersions: [v1]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// isAskedInPods has the workspace ask a webhook that runs in its pods, by a Service that selects them.
func (w *workspace) isAskedInPods(kubelet *framework.Kubelet) {
	w.t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("hooks.default.svc", nil, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/judge", func(out http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(out, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "unwanted", Result: &metav1.Status{Message: "nobody wants it"}}
		_ = json.NewEncoder(out).Encode(review) // whoever asked has gone
	})
	mux.HandleFunc("/convert", func(out http.ResponseWriter, req *http.Request) {
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(out, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, from := range review.Request.Objects {
			var object map[string]any
			if err := json.Unmarshal(from.Raw, &object); err != nil {
				http.Error(out, err.Error(), http.StatusBadRequest)
				return
			}
			object["apiVersion"], object["convertedIn"] = review.Request.DesiredAPIVersion, "a pod"
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: &unstructured.Unstructured{Object: object}})
		}
		_ = json.NewEncoder(out).Encode(review) // as above
	})
	hook := httptest.NewUnstartedServer(mux)
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	hook.StartTLS()
	w.t.Cleanup(hook.Close)
	kubelet.Leads(hookPort, hook.Listener.Addr().String())

	bundle := base64.StdEncoding.EncodeToString(certificate)
	w.kubectlWithInput(fmt.Sprintf(inPods, bundle, hookPort), "apply", "-f", "-")
	framework.Eventually(w.t, patience, "the webhook in a pod refuses a ConfigMap", func() string {
		if out, err := w.try("create", "configmap", "unwanted"); err == nil || !strings.Contains(out+err.Error(), "nobody wants it") {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	w.kubectl("create", "configmap", "wanted")
	w.kubectl("wait", "--for=condition=Established", "crd/widgets.hooks.example.com")
	w.kubectlWithInput("apiVersion: hooks.example.com/v1\nkind: Widget\nmetadata: {name: one}\n", "create", "-f", "-")
	framework.Eventually(w.t, patience, "a custom resource is converted in a pod", func() string {
		if out, err := w.try("get", "widgets.v2.hooks.example.com", "one", "-o", "jsonpath={.apiVersion} {.convertedIn}"); err != nil || out != "hooks.example.com/v2 a pod" {
			return fmt.Sprint(out, err)
		}
		return ""
	})
}

// refusedImage is one that refuseImage has the clusters refuse.
const refusedImage = "registry.example/refused:1"

// refuseImage has a physical cluster refuse an image of ephemeral containers, by a policy of its own. It returns when that holds for a pod.
func (f *fleet) refuseImage(t *testing.T, cluster, namespace, pod string) {
	t.Helper()
	kube := f.clusters[cluster].Clientset()
	const name = "refused-image.example"
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/ephemeralcontainers"}}}}}},
		Validations: []admissionregistrationv1.Validation{{
			Expression: `!object.spec.?ephemeralContainers.orValue([]).exists(c, c.image == "` + refusedImage + `")`, Message: "not one of our tools"}},
	}}
	_, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
	if err == nil {
		_, err = kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) { // by another workspace of the fleet
		t.Fatal(err)
	}
	added := []byte(`{"spec":{"ephemeralContainers":[{"name":"refused","image":"` + refusedImage + `"}]}}`)
	framework.Eventually(t, patience, "the cluster refuses the image", func() string {
		_, err := kube.CoreV1().Pods(namespace).Patch(t.Context(), pod, types.StrategicMergePatchType, added, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "ephemeralcontainers")
		if err == nil || !strings.Contains(err.Error(), policy.Spec.Validations[0].Message) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// debugs adds a container to a pod that the physical cluster is known to refuse, one that it refuses when it gets there, and one that runs beside another
// one where the pod does.
func (w *workspace) debugs(pod, beside string) {
	w.t.Helper()
	// With kubectl's own profile.
	out, err := w.try("debug", pod, "--image=registry.example/tools:1", "--container=tracer", "--target="+beside)
	if err == nil || !strings.Contains(out, `refused by the physical clusters "east", which hold pods to Pod Security "baseline"`) || !strings.Contains(out, "SYS_PTRACE") || !strings.Contains(out, "--profile=baseline") {
		w.t.Errorf("a container that the floor of its cluster forbids: %s %v", out, err)
	}
	w.f.refuseImage(w.t, "east", w.namespaceIn("east"), pod)
	w.kubectl("debug", pod, "--image="+refusedImage, "--container=refused", "--profile=baseline")
	framework.Eventually(w.t, patience, "an Event says that the physical cluster refuses it", func() string {
		out := w.kubectl("get", "events", "--field-selector=reason=EphemeralContainerRefused,involvedObject.name="+pod, "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "not one of our tools") {
			return out
		}
		return ""
	})
	w.kubectl("debug", pod, "--image=registry.example/tools:1", "--container=tools", "--target="+beside, "--profile=baseline")
	below := w.f.clusters["east"].Clientset().CoreV1().Pods(w.namespaceIn("east"))
	framework.Eventually(w.t, patience, "the pod has the other one below", func() string {
		now, err := below.Get(w.t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if all := now.Spec.EphemeralContainers; len(all) != 1 || all[0].Name != "tools" || all[0].Image != "registry.example/tools:1" || all[0].TargetContainerName != beside {
			return fmt.Sprintf("%+v", all)
		}
		return ""
	})
	if got, want := w.stdout("logs", pod, "-c", "tools"), framework.LogLine(pod, "tools", false, 1); !strings.HasPrefix(got, want) {
		w.t.Errorf("logs of a container that was added: %q", got)
	}
}

// tops shows what a pod uses: in the workspace, and on the Node that its physical cluster is to that.
func (w *workspace) tops(pod, container string) {
	w.t.Helper()
	const used = `\s+25[01]m\s+`
	for _, of := range []struct {
		args []string
		want string
	}{
		{[]string{"pods"}, `(?m)^` + pod + used + `20Mi`},
		{[]string{"pods", pod, "--containers"}, `(?m)^` + pod + `\s+` + container + used + `20Mi`},
		{[]string{"pods", "-A", "-l", "app=" + w.app}, `(?m)^default\s+` + pod + used + `20Mi`},
		{[]string{"nodes"}, `(?m)^east` + used + `\d+%\s+20Mi`},
		{[]string{"node", "east"}, `(?m)^east` + used},
	} {
		framework.Eventually(w.t, patience, "top "+strings.Join(of.args, " "), func() string {
			out, err := w.try(append([]string{"top"}, of.args...)...)
			if err != nil || !regexp.MustCompile(of.want).MatchString(out) {
				return fmt.Sprintf("%s %v, want %s", out, err, of.want)
			}
			return ""
		})
	}
	if out, err := w.try("top", "pod", "solo"); err == nil || !strings.Contains(out+err.Error(), "not found") {
		w.t.Errorf("top of a pod that nobody has measured: %s %v", out, err)
	}
}

// beKubelet answers for the pods of a physical cluster's nodes from now on, over TLS.
func beKubelet(t *testing.T, c *framework.Physical, dir string) *framework.Kubelet {
	t.Helper()
	answers := &framework.Kubelet{T: t, Dir: dir}
	pki := filepath.Join(c.Dir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "kubelet.crt"), filepath.Join(pki, "kubelet.key"))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := httptest.NewUnstartedServer(answers)
	kubelet.TLS = &tls.Config{Certificates: []tls.Certificate{pair}} // the cluster's own, which its apiserver asks for
	kubelet.StartTLS()
	t.Cleanup(kubelet.Close)
	at, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(at.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	nodes := c.Clientset().CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		name := list.Items[i].Name
		framework.Eventually(t, patience, "node "+name+" has the test as its kubelet", func() string {
			node, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Hostname()}}
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
			node.Status.DeclaredFeatures = nil // it speaks SPDY alone
			if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				return err.Error() // a conflict with what simulates the node
			}
			return ""
		})
	}
	return answers
}

// args are those of atoll kubectl in the workspace.
func (w *workspace) args(args ...string) []string {
	return append([]string{"kubectl", "--server=" + w.f.URL + "/clusters/root:" + w.app}, args...)
}

// stdout runs atoll kubectl in the workspace.
func (w *workspace) stdout(args ...string) string {
	w.t.Helper()
	return w.f.MustStdout(w.args(args...)...)
}

// try runs atoll kubectl in the workspace, and returns what it printed.
func (w *workspace) try(args ...string) (string, error) { return w.f.Run(w.args(args...)...) }

// runs starts atoll kubectl in the workspace, and returns what reads its output. It ends with the test.
func (w *workspace) runs(args ...string) *bufio.Reader {
	w.t.Helper()
	return w.talks(nil, args...).out
}

// talk is a kubectl that runs: what it reads, writes, and says beside that.
type talk struct {
	in  io.Writer
	out *bufio.Reader
	*words
}

// words are what somebody has said until now.
type words struct {
	mu   sync.Mutex // guards said
	said []byte
}

func (w *words) Write(more []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, more...)
	return len(more), nil
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.said)
}

// talks is runs, with more in its environment.
func (w *workspace) talks(environment []string, args ...string) talk {
	w.t.Helper()
	said := &words{}
	cmd := exec.CommandContext(w.t.Context(), framework.Binary(w.t), w.args(args...)...)
	cmd.Env, cmd.Stderr = append(append(os.Environ(), "KUBECONFIG="+w.f.Kubeconfig), environment...), said
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended by then, or ends now
		_ = cmd.Wait()
	})
	return talk{in, bufio.NewReader(out), said}
}

// follows reads a log up to its last line, while it goes on.
func (w *workspace) follows(pod, last string) {
	w.t.Helper()
	for log := w.runs("logs", "-f", pod); ; {
		line, err := log.ReadString('\n')
		if err != nil {
			w.t.Errorf("logs -f ends: %v", err)
			return
		}
		if line == last {
			return
		}
	}
}

// forwards sends a line through a forwarded port.
func (w *workspace) forwards(pod string) {
	w.t.Helper()
	conn, _ := w.forwarded(nil, pod)
	_, _ = io.WriteString(conn, "through\n")
	if back, err := bufio.NewReader(conn).ReadString('\n'); back != "through\n" || err != nil {
		w.t.Error(fmt.Sprintf("port-forward: %q", back), err)
	}
}

// forwarded is a connection to port 80 of a pod, until the test ends, and the kubectl that forwards it.
func (w *workspace) forwarded(environment []string, pod string, flags ...string) (net.Conn, talk) {
	w.t.Helper()
	kubectl := w.talks(environment, append([]string{"port-forward", "--address=127.0.0.1", pod, ":80"}, flags...)...)
	said, err := kubectl.out.ReadString('\n')
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+) -> 80`).FindStringSubmatch(said)
	if err != nil || port == nil {
		w.t.Fatalf("port-forward says %q: %v\n%s", said, err, kubectl)
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+port[1])
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn, kubectl
}
