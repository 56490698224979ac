package workspaces_test

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/workspaces"
)

// What every workspace has by itself is as old as the workspace: kubectl shows no age of before there was any.
func TestWhatIsSharedIsAsOldAsTheWorkspace(t *testing.T) {
	h := startHub(t)
	for _, cluster := range []logicalcluster.Name{workspaces.Root, logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)} {
		in := client.In(h.ctx, cluster)
		born := &corev1alpha1.LogicalCluster{}
		must(t, h.clients.Objects.Get(in, ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, born))
		admin := &rbacv1.ClusterRole{}
		must(t, h.clients.Objects.Get(in, ctrlclient.ObjectKey{Name: "admin"}, admin))
		if born.CreationTimestamp.IsZero() || !admin.CreationTimestamp.Equal(&born.CreationTimestamp) {
			t.Errorf("ClusterRole admin of %s was created %s, want %s", cluster, admin.CreationTimestamp, born.CreationTimestamp)
		}
		// Who writes it keeps that, and so does who brings it back.
		admin.Labels["mine"] = "yes"
		must(t, h.clients.Objects.Update(in, admin))
		must(t, h.clients.Objects.Delete(in, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "edit"}}))
		for _, list := range []ctrlclient.ObjectList{&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &schedulingv1.PriorityClassList{}} {
			must(t, h.clients.Objects.List(in, list))
			items, err := meta.ExtractList(list)
			must(t, err)
			if len(items) == 0 {
				t.Errorf("%T of %s is empty", list, cluster)
			}
			for _, item := range items {
				// The owner's binding and what namespaces hold come a moment later.
				if o := item.(metav1.Object); o.GetCreationTimestamp().Sub(born.CreationTimestamp.Time) < 0 || o.GetCreationTimestamp().Sub(born.CreationTimestamp.Time) > patience {
					t.Errorf("%T %s of %s was created %s, want %s", item, o.GetName(), cluster, o.GetCreationTimestamp(), born.CreationTimestamp)
				}
			}
		}
	}
}

// Whoever looks at managedFields learns which part of the server wrote.
func TestTheServerWritesUnderItsName(t *testing.T) {
	h := startHub(t)
	root := client.In(h.ctx, workspaces.Root)
	for name, in := range map[string]context.Context{"atoll-splitter": client.As(root, "atoll-splitter"), "atoll-server": root} {
		made := configMap(name)
		made.Data = map[string]string{"a": "b"} // of nothing there is no manager
		must(t, h.clients.Objects.Create(in, made))
		namespace, err := h.clients.Kube.CoreV1().Namespaces().Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
		for _, o := range []metav1.Object{made, namespace} {
			if m := o.GetManagedFields(); len(m) != 1 || m[0].Manager != name {
				t.Errorf("managed fields of a %T %v, want those of %s", o, m, name)
			}
		}
	}
}
