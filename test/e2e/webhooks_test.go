package e2e

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestWebhookOnAnotherHost: a webhook that a workspace names as a Service without selector is called where its EndpointSlice leads: to another host
// than the server's, at the port that the Service's port stands for there, with the certificate of the Service.
func TestWebhookOnAnotherHost(t *testing.T) {
	t.Parallel()
	if err := framework.CanLink(); err != nil {
		t.Skipf("NOT TESTED: network namespaces cannot be made here: %v", err)
	}
	link := framework.StartLink(t, 0, 0)
	a := framework.NewAtoll(t)
	link.Put(a)
	a.Start()

	public, private, err := cert.GenerateSelfSignedCertKey("hook.default.svc", nil, nil)
	must(t, err)
	pair, err := tls.X509KeyPair(public, private)
	must(t, err)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil || review.Request == nil {
			t.Errorf("the webhook was sent no AdmissionReview: %v", err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "refused", Result: &metav1.Status{
			Message: fmt.Sprintf("asked at %s of %s", req.Host, review.Request.Name),
		}}
		_ = json.NewEncoder(w).Encode(review) // who has asked sees it
	}))
	must(t, hook.Listener.Close())
	hook.Listener = link.Listen()
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair}} //nolint:gosec // of a test
	hook.StartTLS()
	t.Cleanup(hook.Close)
	address, ok := hook.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("the webhook listens at %v", hook.Listener.Addr())
	}

	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "hooked")
	in, kube := client.In(t.Context(), cluster), clients.Kube
	_, err = kube.CoreV1().Services("default").Create(in, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = kube.DiscoveryV1().EndpointSlices("default").Create(in, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hook", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.IP.String()}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(address.Port))}}, //nolint:gosec // a port
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(in, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.webhooks.test", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
				Service:  &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook"},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"secrets"}},
			}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)

	try := func(name string, dryRun ...string) error {
		_, err := kube.CoreV1().Secrets("default").Create(in, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	want := `admission webhook "hook.webhooks.test" denied the request: asked at hook.default.svc:443 of refused`
	framework.Eventually(t, patience, "the webhook refuses", func() string {
		if err := try("refused", metav1.DryRunAll); err == nil || err.Error() != want {
			return fmt.Sprintf("%v, want %s", err, want)
		}
		return ""
	})
	if err := try("taken"); err != nil {
		t.Errorf("what the webhook allows: %v", err)
	}
	hook.Close()
	if err := try("later"); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("without its webhook, which must not fail: %v", err)
	}
}
