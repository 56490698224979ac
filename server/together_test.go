package server

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func inCluster[T ctrlclient.Object](cluster logicalcluster.Name, obj T) T {
	obj.SetAnnotations(map[string]string{lcctx.Annotation: string(cluster)})
	return obj
}

// What is written without a request is completed and checked like everything else, and is in its logical cluster alone.
func TestWriteTogether(t *testing.T) {
	s := startServer(t, nil)
	configMap := func(name string) *corev1.ConfigMap {
		return inCluster(shop, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "seeded", Name: name}, Data: map[string]string{"k": "v"}})
	}
	written, err := s.WriteTogether(t.Context(), nil,
		inCluster(shop, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "seeded"}}), configMap("cm"),
		// Without its defaults this is not valid.
		inCluster(shop, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "anns"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		}))
	if !written || err != nil {
		t.Fatal(written, err)
	}
	ns, err := s.in(t, shop).CoreV1().Namespaces().Get(t.Context(), "seeded", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ns.Status.Phase != corev1.NamespaceActive || len(ns.Spec.Finalizers) != 1 || ns.Labels[corev1.LabelMetadataName] != "seeded" || ns.UID == "" {
		t.Errorf("upstream's defaults and strategy were not asked: %+v", ns)
	}
	if _, err := s.in(t, bank).CoreV1().Namespaces().Get(t.Context(), "seeded", metav1.GetOptions{}); err == nil {
		t.Error("it is in another logical cluster, too")
	}

	for _, version := range []string{"", "0", ns.ResourceVersion} {
		cm := &corev1.ConfigMap{}
		// "0" is what the cache happens to hold: it has come so far after the others.
		if found, err := s.Read(t.Context(), shop, "seeded", "cm", ns.ResourceVersion, cm); !found || err != nil {
			t.Fatal(found, err)
		}
		found, err := s.Read(t.Context(), shop, "seeded", "cm", version, cm)
		if !found || err != nil || cm.Data["k"] != "v" || lcctx.NameFrom(cm) != shop || cm.ResourceVersion != ns.ResourceVersion {
			t.Errorf("read at %q: %v, %v, %+v", version, found, err, cm)
		}
		if found, err := s.Read(t.Context(), bank, "seeded", "cm", version, &corev1.ConfigMap{}); found || err != nil {
			t.Errorf("read at %q in another logical cluster: %v, %v", version, found, err)
		}
	}

	large := configMap("large")
	large.Data["k"] = strings.Repeat("x", 2<<20)
	for _, tc := range []struct {
		reason string
		obj    ctrlclient.Object
		want   string
	}{
		{"what a registry refuses is refused", large, "Too long"},
		{"it is not for every kind", inCluster(shop, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "seeded", Name: "s"}}), "by requests"},
		{"who makes a Workspace owns it: a request says who", inCluster(shop, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "w"}}), "only a request"},
		{"nothing says where to", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "seeded", Name: "lost"}}, "logical cluster name"},
		{"all is not one", inCluster("*", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "seeded", Name: "lost"}}), "logical cluster name"},
	} {
		written, err := s.WriteTogether(t.Context(), nil, tc.obj)
		if written || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: written %v, error %v, want one that says %q", tc.reason, written, err, tc.want)
		}
	}
}
