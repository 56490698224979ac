package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/test/framework"
)

// TestLimitsOfOneWorkspace: an administrator gives one workspace limits of its own, which its owner may not, and which hold at once
// on all servers.
func TestLimitsOfOneWorkspace(t *testing.T) {
	t.Parallel()
	etcd := framework.StartEtcd(t)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	must(t, os.WriteFile(tokens, []byte("alice-token,alice,1\n"), 0o600))
	flags := append(etcd.Flags(), "--max-objects-per-workspace=30", "--token-auth-file="+tokens)
	first := framework.StartAtoll(t, flags...)
	second := first.StartReplica(t, flags...)
	const owner = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: alice},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: User, name: alice, apiGroup: rbac.authorization.k8s.io}]}`
	as := func(a *framework.Atoll, workspace string) *kubernetes.Clientset {
		config := rest.AnonymousClientConfig(a.Config())
		config.BearerToken = "alice-token"
		config.Host += "/clusters/root:" + workspace
		clients, err := kubernetes.NewForConfig(config)
		must(t, err)
		return clients
	}
	n := 0
	write := func(a *framework.Atoll, workspace string) error {
		n++
		_, err := as(a, workspace).CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n)}}, metav1.CreateOptions{})
		return err
	}
	fill := func(a *framework.Atoll, workspace string) error {
		for range 100 {
			if err := write(a, workspace); err != nil {
				return err
			}
		}
		return nil
	}
	in := func(workspace string) string { return "--server=" + first.URL + "/clusters/root:" + workspace }
	annotate := []string{"kubectl", in("shop"), "annotate", "--overwrite", "logicalcluster", "cluster"}
	for _, workspace := range []string{"shop", "bank"} {
		framework.MakeWorkspace(t, first.Clients(), "root", workspace)
		first.MustRunWithInput(owner, "kubectl", in(workspace), "apply", "-f", "-")
		framework.Eventually(t, 30*time.Second, "her right is known", func() string { return problemOf(write(first, workspace)) })
		if err := fill(first, workspace); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may have 30") || !strings.Contains(err.Error(), "limits.atoll.dev/objects") {
			t.Fatalf("in %s, which has what it may have by the flag: %v", workspace, err)
		}
	}
	err := as(first, "shop").RESTClient().Patch(types.MergePatchType).AbsPath("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").
		Body([]byte(`{"metadata": {"annotations": {"limits.atoll.dev/objects": "1000"}}}`)).Do(t.Context()).Error()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only administrators of the server set the limits") {
		t.Errorf("the owner sets a limit: %v", err)
	}
	first.MustRun(append(annotate, "limits.atoll.dev/objects=40")...)
	for _, a := range []*framework.Atoll{first, second} {
		framework.Eventually(t, 30*time.Second, "the higher limit holds", func() string {
			return problemOf(write(a, "shop"))
		})
	}
	if err := fill(second, "shop"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may have 40") {
		t.Errorf("at the higher limit: %v", err)
	}
	if err := write(first, "bank"); !apierrors.IsForbidden(err) {
		t.Errorf("the limit of bank is what it was: %v", err)
	}
	first.MustRun(append(annotate, "limits.atoll.dev/objects-")...)
	framework.Eventually(t, 30*time.Second, "the flag's limit holds again", func() string {
		if err := write(second, "shop"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may have 30") {
			return fmt.Sprint(err)
		}
		return ""
	})
}
