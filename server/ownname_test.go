package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestObjectsSayTheirOwnWorkspace: which workspace an object says it is in is that one, for webhooks and in answers, whatever
// clients and webhooks that change it claim.
func TestObjectsSayTheirOwnWorkspace(t *testing.T) {
	for _, again := range []admissionregistrationv1.ReinvocationPolicyType{admissionregistrationv1.NeverReinvocationPolicy, admissionregistrationv1.IfNeededReinvocationPolicy} {
		t.Run(string(again), func(t *testing.T) {
			r := startServer(t, nil)
			r.makeNamespace(t, shop, "default")
			p := r.place(t, shop)
			h := newHook(t, nil)
			h.answer = func(path string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				object := &metav1.PartialObjectMetadata{}
				if err := json.Unmarshal(asked.Object.Raw, object); err != nil {
					t.Errorf("what is this: %s", asked.Object.Raw)
				}
				h.note(fmt.Sprintf("%s sees %s", path, object.Annotations[logicalcluster.AnnotationKey]))
				if path == "/checks" {
					return &admissionv1.AdmissionResponse{Allowed: true}
				}
				return &admissionv1.AdmissionResponse{Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: fmt.Appendf(nil,
					`[{"op":"add","path":"/metadata/annotations","value":{%q:%q}}]`, logicalcluster.AnnotationKey, bank)}
			}
			rules := rule("", "configmaps", admissionregistrationv1.Create, admissionregistrationv1.Update)
			p.validate(t, h, "checks", validatingBy("checks", h.at("/checks"), rules))
			p.mutate(t, h, "moves", admissionregistrationv1.MutatingWebhook{
				Name: "moves.webhooks.test", ClientConfig: h.at("/moves"), Rules: rules, ReinvocationPolicy: &again,
				AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			})
			h.take()
			api := p.CoreV1().ConfigMaps("default")
			is := func(what string, got *corev1.ConfigMap, err error) {
				t.Helper()
				must(t, err)
				if said := got.Annotations[logicalcluster.AnnotationKey]; said != string(shop) {
					t.Errorf("%s says that it is in %q, want %q", what, said, shop)
				}
			}
			claims := configMap("claims", nil)
			claims.Annotations, claims.Finalizers = map[string]string{logicalcluster.AnnotationKey: string(bank)}, []string{"example.com/waits"}
			made, err := api.Create(t.Context(), claims, metav1.CreateOptions{})
			is("what was made", made, err)
			stored, err := api.Get(t.Context(), "claims", metav1.GetOptions{})
			is("what is stored", stored, err)
			must(t, api.Delete(t.Context(), "claims", metav1.DeleteOptions{}))
			stored.Finalizers, stored.ResourceVersion = nil, ""
			stored.Annotations[logicalcluster.AnnotationKey] = string(bank)
			gone, err := api.Update(t.Context(), stored, metav1.UpdateOptions{})
			is("what an update lets go", gone, err)
			asked := h.take()
			for _, what := range asked {
				if strings.Contains(what, "sees") && !strings.HasSuffix(what, "sees "+string(shop)) {
					t.Errorf("a webhook sees another workspace: %s; %q", what, asked)
				}
			}
			if !slices.ContainsFunc(asked, func(what string) bool { return strings.HasPrefix(what, "/checks sees") }) || !slices.ContainsFunc(asked, func(what string) bool { return strings.HasPrefix(what, "/moves sees") }) {
				t.Errorf("the webhooks were asked %q", asked)
			}
		})
	}
}
