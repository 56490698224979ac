package server

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// hook is an admission webhook. It remembers what it was asked.
type hook struct {
	*httptest.Server
	answer func(path string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

	mu    sync.Mutex // guards asked
	asked []string
}

// markedBy is the label of requests that only find out whether a configuration is known.
const markedBy = "marked-by"

func newHook(t *testing.T, answer func(path string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse, prepare ...func(*httptest.Server)) *hook {
	t.Helper()
	h := &hook{answer: answer}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "" || len(req.TLS.PeerCertificates) > 0 {
			t.Error("the webhook was shown a credential")
		}
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Errorf("admission webhook: %v", err)
			return
		}
		request := review.Request
		object := &metav1.PartialObjectMetadata{}
		if raw := append(slices.Clone(request.Object.Raw), request.OldObject.Raw...); len(request.Object.Raw) == 0 || len(request.OldObject.Raw) == 0 {
			if len(raw) > 0 && json.Unmarshal(raw, object) != nil {
				t.Errorf("admission webhook: what is this: %s", raw)
			}
		}
		mark := object.Labels[markedBy]
		if mark == "" {
			h.note(fmt.Sprintf("%s %s %s", req.URL.Path, request.Operation, strings.TrimSuffix(request.Resource.Resource+"/"+request.SubResource, "/")+" "+request.Name))
		} else {
			h.note("marked by " + mark)
		}
		review.Response = &admissionv1.AdmissionResponse{Allowed: true}
		if mark == "" && h.answer != nil {
			review.Response = h.answer(req.URL.Path, request)
		}
		review.Response.UID = request.UID
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("admission webhook: %v", err)
		}
	}))
	for _, prepare := range prepare {
		prepare(h.Server)
	}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hook) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, what)
}

// take returns what was asked since the last call, without marks.
func (h *hook) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := slices.DeleteFunc(h.asked, func(what string) bool { return strings.HasPrefix(what, "marked by ") })
	h.asked = nil
	return asked
}

func (h *hook) marked(by string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.asked, "marked by "+by)
}

func (h *hook) at(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		URL: new(h.URL + path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
	}
}

func rule(group, resource string, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations, Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}}
}

func validatingBy(name string, client admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: name + ".webhooks.test", ClientConfig: client, Rules: rules, AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
	}
}

// validate makes a configuration with one more webhook, which is asked to see that it is known, and waits for that.
func (p place) validate(t *testing.T, h *hook, name string, hooks ...admissionregistrationv1.ValidatingWebhook) {
	t.Helper()
	mark := validatingBy("mark-"+name, h.at("/mark"), rule("", "configmaps", admissionregistrationv1.Create))
	mark.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{markedBy: name}}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: append(hooks, mark)}
	api := p.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made, err := api.Create(t.Context(), configuration, metav1.CreateOptions{})
	must(t, err)
	if made := made.Webhooks[len(hooks)]; *made.FailurePolicy != admissionregistrationv1.Fail || *made.TimeoutSeconds != 10 {
		t.Errorf("the webhook has no defaults: %+v", made)
	}
	p.waitMarked(t, h, name)
}

func (p place) mutate(t *testing.T, h *hook, name string, hooks ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	mark := admissionregistrationv1.MutatingWebhook{
		Name: "mark.webhooks.test", ClientConfig: h.at("/mark"), Rules: rule("", "configmaps", admissionregistrationv1.Create),
		AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{markedBy: name}},
	}
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: append(hooks, mark)}
	_, err := p.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{})
	must(t, err)
	p.waitMarked(t, h, name)
}

func (p place) waitMarked(t *testing.T, h *hook, name string) {
	t.Helper()
	waitFor(t, 10*time.Second, "the configuration is known", func() (string, bool) {
		_, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("marker", map[string]string{markedBy: name}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(err), h.marked(name)
	})
}

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func deploymentNamed(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
}

func allowed(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// TestAdmissionWebhooks: those of a workspace are asked about what happens in it, and about nothing else.
func TestAdmissionWebhooks(t *testing.T) {
	r := startServer(t, nil)
	for _, cluster := range []logicalcluster.Name{shop, bank, east} {
		r.makeNamespace(t, cluster, "default")
	}
	r.makeNamespace(t, shop, "elsewhere")
	a, b := r.place(t, shop), r.place(t, bank)
	create := func(p place, name string, labels map[string]string) error {
		_, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name, labels), metav1.CreateOptions{})
		return err
	}

	t.Run("validating", func(t *testing.T) {
		h := newHook(t, func(_ string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{
				Allowed: !strings.HasPrefix(asked.Name, "bad"), Result: &metav1.Status{Message: "too bad", Code: http.StatusTeapot},
				Warnings: []string{"seen " + asked.Name},
			}
		})
		any := []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
		a.validate(t, h, "checks", validatingBy("all", h.at("/configmaps"), rule("", "configmaps", any...)), validatingBy("scale", h.at("/scale"), rule("apps", "deployments/scale", any...)))
		h.take()
		a.told.take()

		must(t, create(a, "good", nil))
		if !a.told.containing("seen good") {
			t.Error("the webhook's warning does not reach the client")
		}
		if err := create(a, "bad", nil); err == nil || !strings.Contains(err.Error(), `admission webhook "all.webhooks.test" denied the request: too bad`) {
			t.Errorf("refused by a webhook: %v", err)
		}
		_, err := a.CoreV1().ConfigMaps("default").Patch(t.Context(), "good", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{})
		must(t, err)
		must(t, create(a, "good2", map[string]string{"set": "x"}))
		must(t, a.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "set=x"}))
		must(t, a.CoreV1().ConfigMaps("default").Delete(t.Context(), "good", metav1.DeleteOptions{}))
		_, err = a.AppsV1().Deployments("default").Create(t.Context(), deploymentNamed("web"), metav1.CreateOptions{})
		must(t, err)
		_, err = a.AppsV1().Deployments("default").UpdateScale(t.Context(), "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 2}}, metav1.UpdateOptions{})
		must(t, err)
		_, err = a.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other-kind"}}, metav1.CreateOptions{})
		must(t, err)
		want := []string{
			"/configmaps CREATE configmaps good", "/configmaps CREATE configmaps bad", "/configmaps UPDATE configmaps good", "/configmaps CREATE configmaps good2",
			"/configmaps DELETE configmaps ", "/configmaps DELETE configmaps good", "/scale UPDATE deployments/scale web",
		}
		if diff := cmp.Diff(want, h.take()); diff != "" {
			t.Errorf("the webhook was asked (-want +got):\n%s", diff)
		}

		must(t, create(b, "bad", nil))
		must(t, create(r.place(t, east), "bad", nil))
		if got := h.take(); len(got) > 0 {
			t.Errorf("the webhook of one workspace was asked about others: %q", got)
		}

		must(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "checks", metav1.DeleteOptions{}))
		waitFor(t, 10*time.Second, "the webhook is asked no more", func() (string, bool) {
			err := create(a, "bad", nil)
			return fmt.Sprint(err), err == nil
		})
	})

	t.Run("mutating", func(t *testing.T) {
		patch := new(admissionv1.PatchTypeJSONPatch)
		h := newHook(t, func(path string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			object := &corev1.ConfigMap{}
			if err := json.Unmarshal(asked.Object.Raw, object); err != nil {
				t.Error(err)
			}
			response := &admissionv1.AdmissionResponse{Allowed: true, PatchType: patch}
			switch {
			case path == "/first" && object.Data["first"] == "" || path == "/first" && object.Data["second"] != "" && object.Data["again"] == "":
				key := map[bool]string{true: "first", false: "again"}[object.Data["first"] == ""]
				response.Patch = []byte(`[{"op":"add","path":"/data/` + key + `","value":"yes"}]`)
			case path == "/second" && object.Data["second"] == "":
				response.Patch = []byte(`[{"op":"add","path":"/data/second","value":"yes"}]`)
			default:
				response.PatchType = nil
			}
			return response
		})
		of := func(name, path string, again admissionregistrationv1.ReinvocationPolicyType) admissionregistrationv1.MutatingWebhook {
			return admissionregistrationv1.MutatingWebhook{
				Name: name + ".webhooks.test", ClientConfig: h.at(path), Rules: rule("", "configmaps", admissionregistrationv1.Create), ReinvocationPolicy: &again,
				AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}},
				MatchConditions: []admissionregistrationv1.MatchCondition{
					{Name: "wanted", Expression: `object.metadata.name.startsWith("changed")`},
					{Name: "may", Expression: `authorizer.group("").resource("configmaps").namespace("default").check("create").allowed()`},
				},
			}
		}
		a.mutate(t, h, "changes", of("first", "/first", admissionregistrationv1.IfNeededReinvocationPolicy), of("second", "/second", admissionregistrationv1.NeverReinvocationPolicy))
		h.take()
		changed, err := a.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "changed"}, Data: map[string]string{"mine": "x"}}, metav1.CreateOptions{})
		must(t, err)
		if diff := cmp.Diff(map[string]string{"mine": "x", "first": "yes", "second": "yes", "again": "yes"}, changed.Data); diff != "" {
			t.Errorf("changed by webhooks, the first again after the second (-want +got):\n%s", diff)
		}
		must(t, create(a, "other", nil))
		must(t, create(b, "changed", nil))
		_, err = a.CoreV1().ConfigMaps("elsewhere").Create(t.Context(), configMap("changed", nil), metav1.CreateOptions{})
		must(t, err)
		if diff := cmp.Diff([]string{"/first CREATE configmaps changed", "/second CREATE configmaps changed", "/first CREATE configmaps changed"}, h.take()); diff != "" {
			t.Errorf("the webhooks were asked (-want +got):\n%s", diff)
		}
	})

	t.Run("custom resources", func(t *testing.T) {
		h := newHook(t, func(_ string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Allowed: asked.Name != "bad", Result: &metav1.Status{Message: "too bad"}}
		})
		inA, inB := r.custom(t, shop), r.custom(t, bank)
		for _, c := range []custom{inA, inB} {
			c.define(t, widgets(`{"size":{"type":"integer"}}`))
		}
		a.validate(t, h, "widgets", validatingBy("widgets", h.at("/widgets"), rule("shop.example", "*/*", admissionregistrationv1.OperationAll)))
		h.take()
		api := inA.objects.Resource(widgetsV1).Namespace("default")
		_, err := api.Create(t.Context(), widget("good", nil), metav1.CreateOptions{})
		must(t, err)
		_, err = api.Patch(t.Context(), "good", types.MergePatchType, []byte(`{"status":{"a":"b"}}`), metav1.PatchOptions{}, "status")
		must(t, err)
		if _, err := api.Create(t.Context(), widget("bad", nil), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "too bad") {
			t.Errorf("refused by a webhook: %v", err)
		}
		_, err = inB.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("bad", nil), metav1.CreateOptions{})
		must(t, err)
		if diff := cmp.Diff([]string{"/widgets CREATE widgets good", "/widgets UPDATE widgets/status good", "/widgets CREATE widgets bad"}, h.take()); diff != "" {
			t.Errorf("the webhook was asked (-want +got):\n%s", diff)
		}
	})

	t.Run("services and addresses", func(t *testing.T) {
		h := newHook(t, allowed)
		inside := validatingBy("inside", admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook"}}, rule("", "secrets", admissionregistrationv1.Create))
		metadata := validatingBy("metadata", admissionregistrationv1.WebhookClientConfig{URL: new("https://169.254.169.254/latest")}, rule("", "serviceaccounts", admissionregistrationv1.Create))
		open := validatingBy("open", admissionregistrationv1.WebhookClientConfig{URL: new("https://169.254.169.254/latest")}, rule("", "services", admissionregistrationv1.Create))
		open.FailurePolicy = new(admissionregistrationv1.Ignore)
		b.validate(t, h, "unreachable", inside, metadata, open)
		_, err := b.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
		if want := "the Service default/hook cannot be called: the workspace has no such Service; make it, or give the webhook a url instead of a service"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "inside.webhooks.test") {
			t.Errorf("webhook by Service: %v, want the name and %q", err, want)
		}
		_, err = b.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
		if want := "webhooks may not be at 169.254.169.254, a link-local address"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("webhook at a refused address: %v, want %q", err, want)
		}
		_, err = b.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "hooks.example.com"}}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("failurePolicy Ignore: %v", err)
		}
	})

	t.Run("series have no names of tenants", func(t *testing.T) {
		metrics, err := r.as(t, r.LoopbackConfig(), "").Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		must(t, err)
		if !strings.Contains(string(metrics), `apiserver_admission_webhook_request_total{code="200",name="unexpected"`) {
			t.Error("no series of webhooks")
		}
		for _, line := range strings.Split(string(metrics), "\n") {
			if strings.Contains(line, "webhooks.test") {
				t.Errorf("a webhook's name in a series: %s", line)
			}
		}
	})
}

// TestHangingAdmissionWebhook: who waits for a webhook that hangs holds up nobody else.
func TestHangingAdmissionWebhook(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	r.makeNamespace(t, bank, "default")
	a, b := r.place(t, shop), r.place(t, bank)
	release, hanging := make(chan struct{}), make(chan string, 100)
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	h := newHook(t, func(_ string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		hanging <- asked.Name
		<-release
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	t.Cleanup(free) // before the hook is closed
	slow := validatingBy("slow", h.at("/slow"), rule("", "secrets", admissionregistrationv1.Create))
	slow.TimeoutSeconds = new(int32(30))
	a.validate(t, h, "slow", slow)
	secret := func(p place, name string) error {
		_, err := p.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	// The server's own: one waits, for a second, and then, since it is known to hang, for longer; another does not.
	if err := secret(a, "s1"); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "take longer than 1s") {
		t.Errorf("the first one: %v, want that it does not wait", err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := secret(a, "s2"); err != nil {
			t.Errorf("let through late: %v", err)
		}
	})
	for name := ""; name != "s2"; { // the first one may not have come so far
		name = <-hanging
	}
	if err := secret(a, "s3"); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "too many requests of the server itself wait for admission webhooks") {
		t.Errorf("one more: %v, want that only one waits", err)
	}
	if _, err := a.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("what the webhook is not about: %v", err)
	}
	if _, err := a.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	must(t, secret(b, "s1"))
	free()
	waiting.Wait()
}

// TestOwnRequestsAreNotPutToSleep: a webhook that wants to be asked again later does not have the server's own client wait for it, in a
// worker that all workspaces share.
func TestOwnRequestsAreNotPutToSleep(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	a := r.place(t, shop)
	h := newHook(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{
			Code: http.StatusTooManyRequests, Message: "come back later", Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
		}}
	})
	a.validate(t, h, "later", validatingBy("later", h.at("/later"), rule("", "secrets", admissionregistrationv1.Create)))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	_, err := a.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{})
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "come back later") {
		t.Errorf("refused for a second: %v, want the webhook's words", err)
	}
	if diff := cmp.Diff([]string{"/later CREATE secrets s"}, h.take()); diff != "" {
		t.Errorf("the webhook was asked, by a client that waits and tries again (-want +got):\n%s", diff)
	}
}
