package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/test/framework"
)

// TestServerThatEndsKnowsWhatOthersChange: a server that was told to end, and serves on until balancers have turned away, knows the
// workspaces as they are, not as they were then.
func TestServerThatEndsKnowsWhatOthersChange(t *testing.T) {
	t.Parallel()
	etcd := framework.StartEtcd(t)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	must(t, os.WriteFile(tokens, []byte("alice-token,alice,1\n"), 0o600))
	flags := append(etcd.Flags(), "--token-auth-file="+tokens)
	ends := framework.StartAtoll(t, append(flags, "--shutdown-delay-duration=15s")...)
	other := ends.StartReplica(t, flags...)
	framework.MakeWorkspace(t, other.Clients(), "root", "shop")
	shop := "--server=" + other.URL + "/clusters/root:shop"
	other.MustRunWithInput(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: alice},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: User, name: alice, apiGroup: rbac.authorization.k8s.io}]}`,
		"kubectl", shop, "apply", "-f", "-")
	config := rest.AnonymousClientConfig(ends.Config())
	config.BearerToken = "alice-token"
	config.Host += "/clusters/root:shop"
	alice, err := kubernetes.NewForConfig(config)
	must(t, err)
	n := 0
	write := func() error {
		n++
		_, err := alice.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n)}}, metav1.CreateOptions{})
		return err
	}
	framework.Eventually(t, 30*time.Second, "her right is known", func() string { return problemOf(write()) })

	ends.Signal(syscall.SIGTERM)
	admin, err := kubernetes.NewForConfig(ends.Config())
	must(t, err)
	framework.Eventually(t, 10*time.Second, "the server says that it ends", func() string {
		said, err := admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Raw()
		if err == nil {
			return string(said)
		}
		return ""
	})
	other.MustRun("kubectl", shop, "annotate", "logicalcluster", "cluster", "limits.atoll.dev/objects=1")
	framework.Eventually(t, 8*time.Second, "the new limit holds on the server that ends", func() string {
		if err := write(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may have 1:") {
			return fmt.Sprint(err)
		}
		return ""
	})
}
