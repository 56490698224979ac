package server

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
)

// asHook lets a server be the Service default/hook, with its certificate.
func asHook(t *testing.T) (show func(*httptest.Server), bundle []byte) {
	t.Helper()
	public, private, err := cert.GenerateSelfSignedCertKey("hook.default.svc", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	must(t, err)
	pair, err := tls.X509KeyPair(public, private)
	must(t, err)
	return func(s *httptest.Server) { s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}} },
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
}

// outside makes a Service that stands for a name, or an address, outside of physical clusters.
func (p place) outside(t *testing.T, service, host string) {
	t.Helper()
	_, err := p.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: host},
	}, metav1.CreateOptions{})
	must(t, err)
}

func portOf(t *testing.T, server *httptest.Server) int32 {
	t.Helper()
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	port, err := strconv.ParseInt(text, 10, 32)
	must(t, err)
	return int32(port)
}

// TestConversionByService: equal definitions of two workspaces are converted by the Service of each.
func TestConversionByService(t *testing.T) {
	r := startServer(t, func(o *Options) { o.WebhookAllowedAddresses = []string{"127.0.0.0/8"} })
	show, bundle := asHook(t)
	inShop, ofShop := converter(t, show)
	port := portOf(t, inShop)
	inBank, ofBank := converter(t, show, func(s *httptest.Server) {
		must(t, s.Listener.Close())
		var err error
		s.Listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(int(port))))
		must(t, err)
	})
	crd := twoVersions()
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{
			Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "hook", Port: &port}, CABundle: bundle,
		},
		ConversionReviewVersions: []string{"v1"},
	}}
	for cluster, server := range map[logicalcluster.Name]*httptest.Server{shop: inShop, bank: inBank} {
		r.makeNamespace(t, cluster, "default")
		host, _, err := net.SplitHostPort(server.Listener.Addr().String())
		must(t, err)
		r.place(t, cluster).outside(t, "hook", host)
		c := r.custom(t, cluster)
		c.define(t, crd.DeepCopy())
		_, err = c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", map[string]any{"size": int64(4)}), metav1.CreateOptions{})
		must(t, err)
	}
	v2 := widgetsV1
	v2.Version = "v2"
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		toShop, toBank := ofShop.Load(), ofBank.Load()
		got, err := r.custom(t, cluster).objects.Resource(v2).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
		must(t, err)
		if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "extent"); n != 4 {
			t.Errorf("in %s: %v", cluster, got.Object)
		}
		if askedShop, askedBank := ofShop.Load() > toShop, ofBank.Load() > toBank; askedShop != (cluster == shop) || askedBank != (cluster == bank) {
			t.Errorf("for %s the Service of shop was asked: %t, that of bank: %t", cluster, askedShop, askedBank)
		}
	}
}

// TestAdmissionByService: a webhook is called by a Service that stands for a name outside, and has to show the Service's certificate.
func TestAdmissionByService(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	a := r.place(t, shop)
	show, _ := asHook(t)
	h := newHook(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "asked at " + path}}
	}, show)
	by := func(service, resource string) admissionregistrationv1.ValidatingWebhook {
		a.outside(t, service, "127.0.0.1")
		config := h.at("")
		config.URL, config.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: "default", Name: service, Port: new(portOf(t, h.Server)), Path: new("/" + service)}
		return validatingBy(service, config, rule("", resource, admissionregistrationv1.Create))
	}
	a.validate(t, h, "services", by("hook", "secrets"), by("other", "serviceaccounts"))
	_, err := a.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "asked at /hook") {
		t.Errorf("with its certificate: %v", err)
	}
	_, err = a.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "not other.default.svc") {
		t.Errorf("with the certificate of another Service: %v", err)
	}
}

// TestAdmissionByEndpointSlice: where the EndpointSlices of a Service without selector lead is dialled, as the workspace has them then.
// Their addresses cannot be loopback ones, so no webhook of a test is there: who is refused is told what would have been dialled.
func TestAdmissionByEndpointSlice(t *testing.T) {
	r := startServer(t, func(o *Options) { o.WebhookRefusedAddresses = []string{"192.0.2.0/24"} })
	_, bundle := asHook(t)
	slice := func(address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "hook", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(8443))}},
		}
	}
	leadsTo := func(cluster logicalcluster.Name, address string) {
		t.Helper()
		waitFor(t, 30*time.Second, fmt.Sprintf("in %s %s is dialled", cluster, address), func() (string, bool) {
			_, err := r.in(t, cluster).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), address)
		})
	}
	addresses := map[logicalcluster.Name]string{shop: "192.0.2.11", bank: "192.0.2.12"}
	for cluster, address := range addresses {
		r.makeNamespace(t, cluster, "default")
		kube := r.in(t, cluster)
		_, err := kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}, metav1.CreateOptions{})
		must(t, err)
		_, err = kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice("127.0.0.1"), metav1.CreateOptions{})
		if err == nil {
			t.Fatal("an address of the server's own machine was taken: have the webhook there")
		}
		_, err = kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice(address), metav1.CreateOptions{})
		must(t, err)
		hook := validatingBy("hook", admissionregistrationv1.WebhookClientConfig{
			CABundle: bundle, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook"},
		}, rule("", "secrets", admissionregistrationv1.Create))
		_, err = kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{hook},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	for cluster, address := range addresses {
		leadsTo(cluster, address)
	}
	_, err := r.in(t, shop).DiscoveryV1().EndpointSlices("default").Update(t.Context(), slice("192.0.2.13"), metav1.UpdateOptions{})
	must(t, err)
	leadsTo(shop, "192.0.2.13")
	leadsTo(bank, addresses[bank])
}
