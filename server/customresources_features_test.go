package server

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// converter is a conversion webhook: spec.size of v1 is spec.extent of v2. It counts its calls.
func converter(t *testing.T, prepare ...func(*httptest.Server)) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	calls := &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		if len(req.Header["Authorization"]) > 0 {
			t.Errorf("the webhook was shown a credential")
		}
		review := &apiextensionsv1.ConversionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Errorf("conversion webhook: %v", err)
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			obj := &unstructured.Unstructured{}
			if err := json.Unmarshal(raw.Raw, &obj.Object); err != nil {
				t.Errorf("conversion webhook: %v", err)
			}
			spec, _ := obj.Object["spec"].(map[string]any)
			from, to := "size", "extent"
			if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v1") {
				from, to = to, from
			}
			if value, ok := spec[from]; ok {
				delete(spec, from)
				spec[to] = value
			}
			obj.SetAPIVersion(review.Request.DesiredAPIVersion)
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: obj})
		}
		review.Request = nil
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("conversion webhook: %v", err)
		}
	}))
	for _, prepare := range prepare {
		prepare(server)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, calls
}

// twoVersions is a definition of widgets in v1, which is stored, and v2.
func twoVersions() *apiextensionsv1.CustomResourceDefinition {
	crd := widgets(`{"size":{"type":"integer"}}`)
	v2 := *crd.Spec.Versions[0].DeepCopy()
	v2.Name, v2.Storage = "v2", false
	v2.Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"extent": {Type: "integer"}},
	}
	crd.Spec.Versions = append(crd.Spec.Versions, v2)
	return crd
}

func TestCustomResourcesAreConverted(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	r.makeNamespace(t, bank, "default")
	webhook, calls := converter(t)
	crd := twoVersions()
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{
			URL: new(webhook.URL + "/convert"), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}),
		},
		ConversionReviewVersions: []string{"v1"},
	}}
	c := r.custom(t, shop)
	c.define(t, crd)
	v2 := widgetsV1
	v2.Version = "v2"
	w := widget("w", map[string]any{"extent": int64(4)})
	w.SetAPIVersion("shop.example/v2")
	if _, err := c.objects.Resource(v2).Namespace("default").Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for version, field := range map[string]string{"v1": "size", "v2": "extent"} {
		gvr := widgetsV1
		gvr.Version = version
		list, err := c.objects.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range list.Items {
			if n, _, _ := unstructured.NestedInt64(got.Object, "spec", field); n != 4 || got.GetAPIVersion() != "shop.example/"+version {
				t.Errorf("in %s: %v", version, got.Object)
			}
		}
	}
	if calls.Load() == 0 {
		t.Error("the webhook was not called")
	}
	rows, err := r.data.Get(t.Context(), "/registry/shop.example/widgets/shopname/default/w")
	if err != nil || len(rows.Kvs) != 1 || !strings.Contains(string(rows.Kvs[0].Value), `"apiVersion":"shop.example/v1"`) || strings.Contains(string(rows.Kvs[0].Value), "kcp.io/cluster") {
		t.Errorf("the row: %v (%v)", rows, err)
	}

	// A Service that is not there cannot be reached, and whoever needs it is told so. Without conversion all is well.
	crd = twoVersions()
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig:             &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "kubernetes"}},
		ConversionReviewVersions: []string{"v1"},
	}}
	c = r.custom(t, bank)
	made := c.define(t, crd)
	if _, err := c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Errorf("create in the version that is stored: %v", err)
	}
	_, err = c.objects.Resource(v2).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), "give the webhook a url instead of a service") {
		t.Errorf("get in another version: %v, want the reason", err)
	}
	if _, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 30*time.Second, "custom resources", func() (string, bool) {
		got, err := c.objects.Resource(v2).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return got.GetAPIVersion(), got.GetAPIVersion() == "shop.example/v2"
	})
}

// TestCustomResourceFeatures uses what a definition can ask for beside a schema.
func TestCustomResourceFeatures(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	c := r.custom(t, shop)
	crd := widgets(`{"size":{"type":"integer"},"replicas":{"type":"integer"},"colour":{"type":"string"},
		"fixed":{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf","message":"is fixed"}]}}`)
	version := &crd.Spec.Versions[0]
	version.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.colour"}}
	version.AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}}
	version.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	made := c.define(t, crd)
	objects := c.objects.Resource(widgetsV1).Namespace("default")
	for name, colour := range map[string]string{"rose": "red", "grass": "green"} {
		spec := map[string]any{"colour": colour, "size": int64(500), "replicas": int64(2), "fixed": "so"}
		if _, err := objects.Create(t.Context(), widget(name, spec), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	merge := func(name, patch string, subresources ...string) error {
		_, err := objects.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}

	if err := merge("rose", `{"spec":{"fixed":"otherwise"}}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "is fixed") {
		t.Errorf("change of what a rule fixes: %v, want Invalid", err)
	}
	reds, err := objects.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.colour=red"})
	if err != nil {
		t.Fatal(err)
	}
	defer reds.Stop()
	// What comes to be red is added for who watches those, and what is not any more is deleted.
	for _, step := range []struct {
		colour string
		want   watch.EventType
		of     string
	}{{"", watch.Added, "rose"}, {"red", watch.Added, "grass"}, {"green", watch.Deleted, "grass"}} {
		if step.colour != "" {
			if err := merge("grass", `{"spec":{"colour":"`+step.colour+`"}}`); err != nil {
				t.Fatal(err)
			}
		}
		e, open := <-reds.ResultChan()
		if !open {
			t.Fatalf("the watch of what is red ends before %s %s", step.want, step.of)
		}
		if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != step.want || o.GetName() != step.of {
			t.Errorf("who watches what is red sees %s %v, want %s of %s", e.Type, e.Object, step.want, step.of)
		}
	}
	list, err := objects.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.colour=red"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"default/rose"}, names(list)); diff != "" {
		t.Errorf("selected by a field (-want +got):\n%s", diff)
	}
	if err := merge("rose", `{"spec":{"replicas":7}}`, "scale"); err != nil {
		t.Errorf("scale: %v", err)
	}
	scale := &autoscalingv1.Scale{}
	found, err := objects.Get(t.Context(), "rose", metav1.GetOptions{}, "scale")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, scale)
	}
	if err != nil || scale.Spec.Replicas != 7 {
		t.Errorf("scale is %+v (%v)", scale, err)
	}
	table, err := r.in(t, shop).Discovery().RESTClient().Get().AbsPath("/apis/shop.example/v1/namespaces/default/widgets").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(table), `"name":"Size"`) || !strings.Contains(string(table), `"cells":["grass",500]`) {
		t.Errorf("table: %s (%v)", table, err)
	}
	partial, err := r.in(t, shop).Discovery().RESTClient().Get().AbsPath("/apis/shop.example/v1/namespaces/default/widgets/rose").
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(partial), `"kind":"PartialObjectMetadata"`) {
		t.Errorf("metadata: %s (%v)", partial, err)
	}

	// A stricter schema ends watches, which read by the one before, and lets stay what it finds (ratcheting).
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	live, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Stop()
	patch := `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum","value":100}]`
	if _, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), made.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for event := range live.ResultChan() { // until it ends
		if event.Type == watch.Error {
			t.Errorf("the watch ends with an error: %v", event.Object)
		}
	}
	if ctx.Err() != nil {
		t.Error("the watch goes on with another schema than the current one")
	}
	if _, err := objects.Create(t.Context(), widget("tree", map[string]any{"size": int64(500)}), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("create beyond the new maximum: %v, want Invalid", err)
	}
	if err := merge("rose", `{"spec":{"colour":"white"}}`); err != nil {
		t.Errorf("change of another field than the one that is beyond the new maximum: %v", err)
	}
	if err := merge("rose", `{"spec":{"size":600}}`); !apierrors.IsInvalid(err) {
		t.Errorf("change beyond the new maximum: %v, want Invalid", err)
	}

	// Versions that are not served are not there.
	if _, err := r.in(t, shop).Discovery().RESTClient().Get().AbsPath("/apis/shop.example/v2/widgets").DoRaw(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("a version that is not defined: %v, want NotFound", err)
	}
}

// TestCustomResourcesAreAuthorized: roles of the workspace decide, as for built-in resources.
func TestCustomResourcesAreAuthorized(t *testing.T) {
	r := startServer(t, withTokens(t))
	for _, cluster := range []string{string(shop), string(bank)} {
		if a := r.ask(t, asked{method: http.MethodPost, token: root, path: "/clusters/" + cluster + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: mustJSON(t, clusterScoped(widgets(`{}`)))}); a.code != http.StatusCreated {
			t.Fatalf("define: %+v", a)
		}
	}
	objects := func(cluster string) string { return "/clusters/" + cluster + "/apis/shop.example/v1/widgets" }
	waitFor(t, 30*time.Second, "custom resources", func() (string, bool) {
		a := r.ask(t, asked{token: root, path: objects("bankname")})
		return a.body, a.code == http.StatusOK
	})
	r.makeAdmin(t, shop, "alice")
	body := mustJSON(t, widget("w", map[string]any{}).Object)
	for _, tc := range []struct {
		reason, token, cluster string
		want                   []int
	}{
		{"the admin of the workspace", alice, "shopname", []int{http.StatusOK, http.StatusCreated}},
		{"the admin of another workspace", alice, "bankname", []int{http.StatusForbidden, http.StatusForbidden}},
		{"a user without roles", bob, "shopname", []int{http.StatusForbidden, http.StatusForbidden}},
		{"everywhere, not an administrator", alice, "*", []int{http.StatusForbidden, http.StatusForbidden}},
		{"everywhere", root, "*", []int{http.StatusNotFound, http.StatusMethodNotAllowed}},
	} {
		listed := r.ask(t, asked{token: tc.token, path: objects(tc.cluster)})
		created := r.ask(t, asked{method: http.MethodPost, token: tc.token, path: objects(tc.cluster), body: body})
		if got := []int{listed.code, created.code}; !slices.Equal(got, tc.want) {
			t.Errorf("%s: list and create answer %v, want %v\n%s\n%s", tc.reason, got, tc.want, listed.body, created.body)
		}
	}
}

func clusterScoped(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
	return crd
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
