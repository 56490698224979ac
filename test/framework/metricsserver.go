package framework

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
)

// StartMetricsServer gives a physical cluster a Metrics API: metrics-server, which asks whoever answers as the kubelets of its nodes every ten seconds, and shows
// of a container what it has heard twice. Its Service is a name of this machine, since nothing routes the cluster's addresses.
func StartMetricsServer(t testing.TB, p *Physical) *Process {
	t.Helper()
	port, client := FreePort(t), p.Clientset().Discovery().RESTClient()
	for path, object := range map[string]string{
		"/api/v1/namespaces/kube-system/services": `{"apiVersion":"v1","kind":"Service","metadata":{"name":"metrics-server"},"spec":{"type":"ExternalName","externalName":"localhost"}}`,
		"/apis/apiregistration.k8s.io/v1/apiservices": fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1beta1.metrics.k8s.io"},"spec":{"group":"metrics.k8s.io","version":"v1beta1",`+
			`"groupPriorityMinimum":100,"versionPriority":100,"insecureSkipTLSVerify":true,"service":{"namespace":"kube-system","name":"metrics-server","port":%d}}}`, port),
	} {
		if err := client.Post().AbsPath(path).Body([]byte(object)).Do(t.Context()).Error(); err != nil {
			t.Fatalf("physical cluster %q: register metrics-server: %v", p.Name, err)
		}
	}
	return StartProgram(t, Program{
		Name: fmt.Sprintf("metrics-server of physical cluster %q", p.Name), Binary: filepath.Join(binDir(t, "contrib/physical/build.sh"), "metrics-server"),
		Args: []string{
			"--kubeconfig=" + p.Kubeconfig, "--authentication-kubeconfig=" + p.Kubeconfig, "--authorization-kubeconfig=" + p.Kubeconfig,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + t.TempDir(),
			"--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP", "--metric-resolution=10s", "--kubelet-request-timeout=5s",
		},
		Ready: func(ctx context.Context) error {
			return client.Get().AbsPath("/apis/metrics.k8s.io/v1beta1/pods").Do(ctx).Error()
		},
	})
}
