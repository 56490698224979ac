package framework

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
)

// inPod shows a process the files of a Pod where the Pod has them, in a mount namespace of its own: "sh -c inPod FILES
// COMMAND ...", where FILES holds the same tree below etc and run.
const inPod = `
files=$0
mount -t tmpfs tmpfs /etc
mount -t tmpfs tmpfs /var/run
cp -R "$files"/etc/. /etc/
cp -R "$files"/run/. /var/run/
exec "$@"`

// Syncer is the syncer of a physical cluster in a child process, which sees what its Pod would see.
type Syncer struct {
	*Process
}

// SharedBy is the syncer for a test that runs beside others, and neither stops nor restarts it.
func (s *Syncer) SharedBy(t testing.TB) *Syncer { return &Syncer{s.sharedBy(t)} }

// StartSyncer applies the manifest that `atoll cluster add --manifest` wrote in a physical cluster, and runs the built
// binary as a Pod of the manifest's Deployment would: with the very arguments, the ServiceAccount's token and the mounted
// Secrets. It is stopped at the end of the test.
func StartSyncer(t testing.TB, a *Atoll, p *Physical, manifest string) *Syncer {
	t.Helper()
	a.MustRunWithInput(manifest, "kubectl", "--kubeconfig="+p.Kubeconfig, "apply", "-f", "-")
	deployment := deploymentIn(t, manifest)
	dir := filepath.Join(t.TempDir(), "syncer-"+p.Name)
	files := filepath.Join(dir, "files")
	writeAccount(t, p, deployment, filepath.Join(files, "run", "secrets", "kubernetes.io", "serviceaccount"))
	container := deployment.Spec.Template.Spec.Containers[0]
	for _, mount := range container.VolumeMounts {
		writeVolume(t, p, deployment, mount, files)
	}
	address, err := url.Parse(p.URL)
	if err != nil {
		t.Fatalf("parse the address of %s: %v", p.Name, err)
	}
	command := append(append([]string{}, container.Command...), container.Args...)
	if command[0] != "atoll" {
		t.Fatalf("the manifest runs %q, want atoll", command)
	}
	command[0] = Binary(t)
	args := []string{"--mount"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	s := &Syncer{&Process{
		Dir: dir, t: t, name: "syncer of " + p.Name, binary: "unshare", log: filepath.Join(dir, "syncer.log"),
		args:  append(append(args, "sh", "-ec", inPod, files), command...),
		env:   append(os.Environ(), "KUBERNETES_SERVICE_HOST="+address.Hostname(), "KUBERNETES_SERVICE_PORT="+address.Port()),
		attr:  &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, // it does not look at its standard input
		ready: func(context.Context) error { return nil },       // the hub says whether it is
	}}
	t.Cleanup(s.Stop)
	s.Start()
	return s
}

// CanRunSyncers returns an error where mount namespaces cannot be made, which StartSyncer needs.
func CanRunSyncers() error {
	args := []string{"--mount"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	if out, err := exec.Command("unshare", append(args, "mount", "-t", "tmpfs", "tmpfs", "/etc")...).CombinedOutput(); err != nil {
		return fmt.Errorf("make a mount namespace: %w: %s", err, out)
	}
	return nil
}

func deploymentIn(t testing.TB, manifest string) *appsv1.Deployment {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(manifest), 4096)
	for {
		deployment := &appsv1.Deployment{}
		if err := decoder.Decode(deployment); err == io.EOF {
			t.Fatalf("the manifest has no Deployment:\n%s", manifest)
		} else if err != nil {
			continue // another kind
		}
		if deployment.Kind == "Deployment" {
			return deployment
		}
	}
}

// writeAccount writes what the kubelet would mount of the Pod's ServiceAccount.
func writeAccount(t testing.TB, p *Physical, deployment *appsv1.Deployment, dir string) {
	t.Helper()
	account := deployment.Spec.Template.Spec.ServiceAccountName
	token, err := p.Clientset().CoreV1().ServiceAccounts(deployment.Namespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 3600)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("get a token of ServiceAccount %s of %s: %v", account, p.Name, err)
	}
	writeFiles(t, dir, map[string][]byte{
		"token": []byte(token.Status.Token), "ca.crt": p.RESTConfig().CAData, "namespace": []byte(deployment.Namespace),
	})
}

// writeVolume writes the Secret of a volume where a container mounts it; below /etc is all that is shown.
func writeVolume(t testing.TB, p *Physical, deployment *appsv1.Deployment, mount corev1.VolumeMount, files string) {
	t.Helper()
	for _, volume := range deployment.Spec.Template.Spec.Volumes {
		if volume.Name != mount.Name {
			continue
		}
		if volume.Secret == nil {
			t.Fatalf("volume %s of the manifest is no Secret", volume.Name)
		}
		secret, err := p.Clientset().CoreV1().Secrets(deployment.Namespace).Get(t.Context(), volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("read Secret %s of %s: %v", volume.Secret.SecretName, p.Name, err)
		}
		writeFiles(t, filepath.Join(files, mount.MountPath), secret.Data)
		return
	}
	t.Fatalf("the manifest has no volume %s", mount.Name)
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
