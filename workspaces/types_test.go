package workspaces_test

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/workspaces"
)

// A workspace has its type wherever the process died that made it, and the type holds for what is made in it.
func TestWorkspacesHaveTypes(t *testing.T) {
	h := startHub(t)
	inRoot := client.In(h.ctx, workspaces.Root)
	for name, spec := range map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"team": {
			LimitAllowedChildren:      &tenancyv1alpha1.WorkspaceTypeSelector{Types: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "leaf"}}},
			DefaultChildWorkspaceType: &tenancyv1alpha1.WorkspaceTypeReference{Name: "leaf"},
		},
		"leaf": {LimitAllowedChildren: &tenancyv1alpha1.WorkspaceTypeSelector{None: true}},
	} {
		must(t, h.clients.Objects.Create(inRoot, &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}))
	}
	must(t, h.clients.Objects.Create(inRoot, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "team"}}}))
	w := h.ready(workspaces.Root, "shop")
	cluster := logicalcluster.Name(w.Spec.Cluster)
	inShop := client.In(h.ctx, cluster)
	for _, reason := range []string{"at first", "after a death before it made anything"} {
		lc := &corev1alpha1.LogicalCluster{}
		must(t, h.clients.Objects.Get(inShop, types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc))
		if got := lc.Annotations[tenancyv1alpha1.TypeAnnotation]; got != "root:team" {
			t.Errorf("%s: its type is %q", reason, got)
		}
		h.empty(cluster)
		must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: "shop"}, w))
		w.Status.Phase = corev1alpha1.LogicalClusterPhaseScheduling
		must(t, h.clients.Objects.Status().Update(inRoot, w))
		w = h.ready(workspaces.Root, "shop")
	}

	err := h.clients.Objects.Create(inShop, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "any"},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}}})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only allows [root:leaf] child workspaces") {
		t.Errorf("a child that the type does not allow: %v", err)
	}
	leaf := h.create(h.clients, cluster, "leaf")
	if got := leaf.Spec.Type; got == nil || got.Path != "root" || got.Name != "leaf" {
		t.Errorf("a child that names no type is of type %v", got)
	}
	err = h.clients.Objects.Create(client.In(h.ctx, logicalcluster.Name(h.ready(cluster, "leaf").Spec.Cluster)),
		&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "below"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "team"}}})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "workspace type root:leaf cannot have any children") {
		t.Errorf("a child of what can have none: %v", err)
	}
}
