package framework

import (
	"fmt"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
)

// MakeWorkspace makes a workspace in parent, waits until it is ready, and returns its logical cluster.
func MakeWorkspace(t testing.TB, clients *client.Clients, parent logicalcluster.Name, name string) logicalcluster.Name {
	t.Helper()
	ctx := client.In(t.Context(), parent)
	workspace := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := clients.Objects.Create(ctx, workspace); err != nil {
		t.Fatalf("create workspace %q: %v", name, err)
	}
	Eventually(t, time.Minute, "workspace "+name+" is ready", func() string {
		if err := clients.Objects.Get(ctx, ctrlclient.ObjectKey{Name: name}, workspace); err != nil {
			return err.Error()
		}
		if workspace.Status.Phase != "Ready" {
			return fmt.Sprintf("status %+v", workspace.Status)
		}
		return ""
	})
	return logicalcluster.Name(workspace.Spec.Cluster)
}
