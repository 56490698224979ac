package operators

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// helm runs Helm v4 as the workspace's administrator, and returns what it prints.
func (w *workspace) helm(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	return run(t, dir, w.helmEnv(t, dir), binary(t, "helm"), args...)
}

// helmEnv is a home of its own: neither this person's plugins and settings, nor traces in his caches.
func (w *workspace) helmEnv(t *testing.T, dir string) []string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(w.atoll.Kubeconfig)
	if err != nil {
		t.Fatalf("read the administrator's kubeconfig: %v", err)
	}
	config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server = w.url
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatalf("write the workspace's kubeconfig: %v", err)
	}
	return []string{"HOME=" + dir, "KUBECONFIG=" + file}
}
