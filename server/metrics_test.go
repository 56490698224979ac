package server

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func (r *running) metrics(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	data, err := r.as(t, r.LoopbackConfig(), "").Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	must(t, err)
	return string(data)
}

// TestMetricsNameNoTenantsResources: whatever tenants call their resources, and whatever they ask for, makes no series; what is
// built in has its own.
func TestMetricsNameNoTenantsResources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	mustWrite(t, file, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"+
		"- resources: ['*.*']\n  providers:\n  - aesgcm: {keys: [{name: k, secret: "+oldKey+"}]}\n")
	for name, change := range map[string]func(*Options){"in plain": nil, "encrypted": func(o *Options) { o.Encryption.ConfigFile = file }} {
		t.Run(name, func(t *testing.T) { testMetrics(t, startServer(t, change)) })
	}
}

func testMetrics(t *testing.T, r *running) {
	r.makeNamespace(t, shop, "ns")
	in := r.custom(t, shop)
	crd := widgets(`{"size":{"type":"integer"}}`)
	crd.Name, crd.Spec.Group = "tenantplurals.tenantgroup.example", "tenantgroup.example"
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "tenantplurals", Kind: "TenantKind"}
	crd.Spec.Versions[0].Name = "v1alpha77"
	crd = in.define(t, crd)
	objects := in.objects.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1alpha77", Resource: "tenantplurals"}).Namespace("ns")
	object := widget("tenantname", map[string]any{"size": int64(1)})
	object.SetAPIVersion(crd.Spec.Group + "/v1alpha77")
	object.SetKind("TenantKind")
	w, err := objects.Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	_, err = objects.Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
	<-w.ResultChan()
	w.Stop()
	_, err = objects.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	_, err = objects.Patch(t.Context(), "tenantname", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{})
	must(t, err)
	_, err = objects.Patch(t.Context(), "tenantname", types.MergePatchType, []byte(`{"status":{"a":"b"}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	must(t, objects.Delete(t.Context(), "tenantname", metav1.DeleteOptions{}))
	if _, err := in.objects.Resource(schema.GroupVersionResource{Group: "tenantgroup.example", Version: "v9", Resource: "tenantothers"}).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("what nobody defined is listed")
	}
	// To let its bearer in the Secret is read, in a request for something else.
	r.makeRobot(t, shop)
	_, err = r.in(t, shop).CoreV1().Secrets(team).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound"}}, metav1.CreateOptions{})
	must(t, err)
	token := r.token(t, shop, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "bound"}})
	if got := r.ask(t, asked{path: "/clusters/shopname/apis/tenantrandom.example/v1/tenantwhatevers", token: token}); got.code != http.StatusForbidden {
		t.Errorf("a token that is bound to a Secret, for what there is not: %d %s", got.code, got.body)
	}
	must(t, in.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	in.awaitGone(t, crd)

	seen := r.metrics(t)
	for line := range strings.Lines(seen) {
		if strings.Contains(line, "tenant") || strings.Contains(line, "v1alpha77") || strings.Contains(line, string(shop)) {
			t.Errorf("a tenant's name is a label: %s", line)
		}
	}
	for _, want := range []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="namespaces"`,
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="unexpected",resource="unexpected",scope="resource",subresource="",verb="POST",version="unexpected"}`,
		`etcd_requests_total{group="unexpected",operation="create",resource="unexpected"}`,
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("no series %s", want)
		}
	}
	if r.options.Encryption.ConfigFile != "" {
		for _, resource := range []string{"secrets", "namespaces", "customresourcedefinitions.apiextensions.k8s.io", "unexpected"} {
			if want := transformed + `{resource="` + resource + `",status="OK"`; !strings.Contains(seen, want) {
				t.Errorf("no series %s", want)
			}
		}
	}
	for _, stored := range r.backend.Resources() {
		// Events have no watch cache, which asks etcd by itself, and nobody has asked for one.
		if name := stored.GroupResource.Resource; name != "events" && stored.GroupResource.Group != crd.Spec.Group && !strings.Contains(seen, `resource="`+name+`"`) {
			t.Errorf("%s is built in and has no series", stored.GroupResource)
		}
	}
}
