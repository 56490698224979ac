package splitter

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestCertificateFollowsIngress: the Secret of an Ingress is there before it, and stays until the physical cluster has taken an Ingress
// that needs it no more, or none is left.
func TestCertificateFollowsIngress(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "front", UID: "cert", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	root := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "front", UID: "root-web", Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{SecretName: "cert"}}},
	}
	east := placementOf("", "Placed", mirrorEast)
	m := newMirrored(t, root, secret, east)
	m.look(t, key{"Ingress", client.KeyOf(root)})
	namespace := &corev1.NamespaceList{}
	if err := m.objects.List(t.Context(), namespace); err != nil || len(namespace.Items) != 1 {
		t.Fatalf("namespaces of the mirror: %v, %v", namespace.Items, err)
	}
	at := ctrlclient.ObjectKey{Namespace: namespace.Items[0].Name, Name: "web"}
	leaf, copied := &networkingv1.Ingress{}, &corev1.Secret{}
	if err := m.objects.Get(t.Context(), at, leaf); err != nil {
		t.Fatal(err)
	}
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKey{Namespace: at.Namespace, Name: "cert"}, copied); err != nil {
		t.Fatalf("the Ingress is there, and its certificate is not: %v", err)
	}
	copied.Annotations[lcctx.Annotation] = mirrorEast // the fake has one logical cluster

	rendered := leaf.Annotations[workloadv1alpha1.RenderedAnnotation]
	nothing := placementOf("", "Nowhere")
	for _, tc := range []struct {
		reason  string
		change  func(root, leaf *networkingv1.Ingress)
		applied string
		want    bool
	}{
		{"it refers to it", func(_, _ *networkingv1.Ingress) {}, rendered, true},
		{"the physical cluster may still have the one that does", func(root, leaf *networkingv1.Ingress) { root.Spec.TLS, leaf.Spec.TLS = nil, nil }, "before", true},
		{"nothing refers to it", func(_, _ *networkingv1.Ingress) {}, rendered, false},
	} {
		for at, o := range map[ctrlclient.ObjectKey]*networkingv1.Ingress{ctrlclient.ObjectKeyFromObject(root): root, at: leaf} {
			if err := m.objects.Get(t.Context(), at, o); err != nil {
				t.Fatal(err)
			}
		}
		tc.change(root, leaf)
		leaf.Annotations[workloadv1alpha1.AppliedAnnotation] = tc.applied
		for _, o := range []ctrlclient.Object{root, leaf} {
			if err := m.objects.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		got, err := m.needed(t.Context(), m.sources["Secret"], client.KeyOf(secret), nothing, copied)
		if err != nil || got != tc.want {
			t.Errorf("%s: needed is %v, %v", tc.reason, got, err)
		}
	}
}
