package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/test/framework"
)

const (
	hubNamespace = "atoll" // as in docs/install.md
	hubHost      = "atoll." + hubNamespace + ".svc"
)

// zonedCronJob is of a time zone, which the image has no files for.
const zonedCronJob = `{apiVersion: batch/v1, kind: CronJob, metadata: {name: report}, spec: {schedule: "0 3 * * *", timeZone: Europe/Berlin, suspend: true,
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: report, image: report}]}}}}}}`

// TestImageByChart installs the chart in a physical cluster, and runs the image as the node of its Pod would: with the file system of the
// image, read-only but for the volume, and the user, arguments, environment and probes of the Pod. Then the server is backed up, and
// goes on with what was restored, as docs/install.md says.
//
// What it does not show: that a container engine takes the file, and that a kubelet gives the volume to the user.
func TestImageByChart(t *testing.T) {
	t.Parallel()
	chart, err := filepath.Abs("../../contrib/chart")
	if err != nil {
		t.Fatal(err)
	}
	east := framework.StartPhysical(t, "east", framework.PhysicalNodes(1))
	provideVolume(t, east)
	acceptsDocumented(t, east, "../../docs/install.md")
	bin, port := framework.NewHelm(t, east.Kubeconfig), framework.FreePort(t)
	helm := func(args ...string) string {
		t.Helper()
		stdout, stderr, err := bin.Run(t.Context(), args...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
		}
		return stdout
	}
	set := fmt.Sprintf("image=atoll:test,port=%d", port)
	helm("lint", "--strict", chart, "--set", set)
	if said := helm("install", "atoll", chart, "--namespace", hubNamespace, "--set", set, "--wait", "--timeout", "2m"); !strings.Contains(said, hubHost) {
		t.Errorf("helm says, and not where it is:\n%s", said)
	}

	if err := framework.CanRunContainers(); err != nil {
		t.Skipf("NOT TESTED: the image cannot be run as in a container: %v", err)
	}
	image, config := readImage(t)
	hub := &hubContainer{t: t, east: east, port: port, config: config}
	hub.Container = framework.Container{Root: image, Volume: filepath.Join(t.TempDir(), "volume"), Mount: "/var/lib/atoll", Hosts: []string{hubHost}}
	server := hub.start()
	if said := hub.MustRun(t, zonedCronJob, "atoll", "kubectl", "apply", "-f", "-"); !strings.Contains(said, "created") {
		t.Errorf("a CronJob with a time zone: %s", said)
	}

	hub.MustRun(t, "", "atoll", "backup", "-o", "backup.tar")
	hub.MustRun(t, "", "atoll", "kubectl", "delete", "cronjob", "report")
	upgrade := []string{"upgrade", "atoll", chart, "--namespace", hubNamespace, "--wait", "--timeout", "2m", "--reset-then-reuse-values", "--set"}
	helm(append(upgrade, "replicas=0")...)
	server.Stop()
	hub.MustRun(t, "", "atoll", "restore", "backup.tar", "--root-directory", "restored")
	helm(append(upgrade, "replicas=1,persistence.directory=restored")...)
	server = hub.start()
	if said := hub.MustRun(t, "", "atoll", "kubectl", "get", "cronjobs"); !strings.Contains(said, "report") {
		t.Errorf("the CronJob was not brought back: %s", said)
	}
	server.Stop()
}

// TestChartValues renders the chart with everything that can be chosen, and asks the program whether it has such flags.
func TestChartValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chart, err := filepath.Abs("../../contrib/chart")
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte(everyValue), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := framework.NewHelm(t, "").Run(t.Context(), "template", "hub", chart, "--namespace", "sys", "--values", values, "--show-only", "templates/statefulset.yaml")
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, stderr)
	}
	var set appsv1.StatefulSet
	if err := yaml.UnmarshalStrict([]byte(stdout), &set); err != nil {
		t.Fatalf("read the StatefulSet: %v\n%s", err, stdout)
	}
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	if out, err := exec.CommandContext(t.Context(), framework.Binary(t), append(c.Args, "--help")...).CombinedOutput(); err != nil {
		t.Errorf("atoll %s: %v\n%s", c.Args, err, out)
	}
	for what, diff := range map[string]string{
		"arguments": cmp.Diff([]string{"start", "--bind-address=0.0.0.0", "--secure-port=7443", "--external-hostname=atoll.example", "--root-directory=/var/lib/atoll/other",
			"--etcd-servers=https://a:2379,https://b:2379", "--etcd-cafile=/etc/atoll/etcd/ca.crt", "--etcd-certfile=/etc/atoll/etcd/tls.crt",
			"--etcd-keyfile=/etc/atoll/etcd/tls.key", "--bind-address=::", "-v=2"}, c.Args),
		"environment": cmp.Diff([]corev1.EnvVar{{Name: "KUBECONFIG", Value: "/var/lib/atoll/other/admin.kubeconfig"}, {Name: "GOMEMLIMIT", Value: "1449551462"}}, c.Env),
		"mounts": cmp.Diff([]corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/atoll"}, {Name: "etcd", MountPath: "/etc/atoll/etcd", ReadOnly: true},
			{Name: "people", MountPath: "/etc/atoll/people"}}, c.VolumeMounts),
		"selector": cmp.Diff(map[string]string{"disk": "fast"}, pod.NodeSelector),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	if *set.Spec.Replicas != 0 || len(pod.Volumes) != 2 || pod.Volumes[0].Secret.SecretName != "etcd-client" || len(pod.ImagePullSecrets) != 1 || len(pod.Tolerations) != 1 ||
		pod.Affinity.PodAntiAffinity == nil || set.Spec.Template.Annotations["team"] != "platform" || c.ImagePullPolicy != corev1.PullAlways ||
		*set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName != "fast" || set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String() != "5Gi" {
		t.Errorf("the StatefulSet is\n%s", stdout)
	}
}

// everyValue is not a default in any line.
const everyValue = `
image: registry.example/atoll:v1
replicas: 0
imagePullPolicy: Always
imagePullSecrets: [{name: registry}]
externalHostname: atoll.example
port: 7443
service: {type: LoadBalancer, annotations: {a: b}}
persistence: {size: 5Gi, storageClassName: fast, directory: other}
etcd: {servers: ["https://a:2379", "https://b:2379"], secretName: etcd-client}
extraArgs: ["--bind-address=::", -v=2]
volumes: [{name: people, secret: {secretName: people}}]
volumeMounts: [{name: people, mountPath: /etc/atoll/people}]
resources: {requests: {memory: 1Gi}, limits: {memory: 1.5Gi}}
podAnnotations: {team: platform}
nodeSelector: {disk: fast}
tolerations: [{operator: Exists}]
affinity: {podAntiAffinity: {}}
`

// TestChartRefuses tries values that would make no server, or not the one that is meant.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	helm := framework.NewHelm(t, "")
	chart, err := filepath.Abs("../../contrib/chart")
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		"port=6443":                                "/image",
		"image=a,replicas=3":                       "/replicas",
		"image=a,replica=0":                        "replica",
		"image=a,port=443":                         "/port",
		"image=a,externalHostname=https://a":       "/externalHostname",
		"image=a,externalHostname=a:6443":          "/externalHostname",
		"image=a,resources.limits.memory=0Gi":      "/resources/limits/memory",
		"image=a,persistence.directory=../etc":     "/persistence/directory",
		"image=a,persistence.directory=..":         "/persistence/directory",
		"image=a,etcd.servers={etcd:2379}":         "/etcd/servers",
		"image=a,resources.limits.memory=plenty":   "/resources/limits/memory",
		"image=a,extraArgs={v=2}":                  "/extraArgs",
		"image=a,service.type=NodePort":            "/service/type",
		"image=a,imagePullPolicy=Sometimes":        "/imagePullPolicy",
		"image=a,etcd.secretName=client-of-an-etc": "etcd.servers",
	} {
		stdout, stderr, err := helm.Run(t.Context(), "template", "atoll", chart, "--set", set)
		if err == nil {
			t.Errorf("%s is taken:\n%s", set, stdout)
		} else if !strings.Contains(stderr, want) {
			t.Errorf("%s is refused with\n%s, want a word of %s", set, stderr, want)
		}
	}
}

// provideVolume makes a namespace for the server, in which the strictest Pod Security holds, and a volume for its claim.
func provideVolume(t *testing.T, p *framework.Physical) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hubNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := p.Clientset().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatalf("make a namespace in %s: %v", p.Name, err)
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "hub"}, Spec: corev1.PersistentVolumeSpec{
		Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")},
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
	}}
	if _, err := p.Clientset().CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatalf("make a volume in %s: %v", p.Name, err)
	}
}

// acceptsDocumented asks a cluster whether it would take the manifests in a document, without a word.
func acceptsDocumented(t *testing.T, p *framework.Physical, document string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	manifests := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(manifests) == 0 {
		t.Fatalf("%s has no manifests", document)
	}
	for _, manifest := range manifests {
		cmd := exec.CommandContext(t.Context(), framework.Binary(t), "kubectl", "--kubeconfig", p.Kubeconfig, "create", "--dry-run=server", "--validate=strict", "-f", "-")
		cmd.Stdin = bytes.NewReader(manifest[1])
		if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("Warning")) {
			t.Errorf("a manifest of %s: %v\n%s\n%s", document, err, out, manifest[1])
		}
	}
}

// readImage unpacks the image that "make image" built, and returns the directory and how it is run.
func readImage(t *testing.T) (string, v1.Config) {
	t.Helper()
	file := filepath.Join(filepath.Dir(framework.Binary(t)), "atoll-linux-"+runtime.GOARCH+".tar")
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatalf("read the image: %v; run `make image` first", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatalf("read the image %s: %v", file, err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Fatalf("%s is for %s/%s", file, config.OS, config.Architecture)
	}
	dir := filepath.Join(t.TempDir(), "image")
	content := mutate.Extract(img)
	defer content.Close()
	if err := unpack(content, dir); err != nil {
		t.Fatalf("unpack the image %s: %v", file, err)
	}
	packed, err := os.ReadFile(filepath.Join(dir, "usr", "local", "bin", "atoll"))
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.ReadFile(framework.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(packed, built) {
		t.Fatalf("the program in %s is not %s: run `make image` first", file, framework.Binary(t))
	}
	return dir, config.Config
}

// unpack makes the files and directories of a tar, with their modes and owners.
func unpack(from io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for archive := tar.NewReader(from); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		name := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(name, h.FileInfo().Mode().Perm())
		case tar.TypeReg:
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(name, data, h.FileInfo().Mode().Perm())
			}
		default:
			err = fmt.Errorf("%s has type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(os.Chown(name, h.Uid, h.Gid), os.Chmod(name, h.FileInfo().Mode().Perm())); err != nil {
			return err
		}
	}
}

// hubContainer is the container of the chart's Pod.
type hubContainer struct {
	framework.Container
	t      *testing.T
	east   *framework.Physical
	port   int
	config v1.Config
}

// start runs the container as the Pod says now, and waits until its probes pass.
func (h *hubContainer) start() *framework.Process {
	h.t.Helper()
	pod, err := h.east.Clientset().CoreV1().Pods(hubNamespace).Get(h.t.Context(), "atoll-0", metav1.GetOptions{})
	if err != nil {
		h.t.Fatalf("read the chart's Pod: %v", err)
	}
	c, user := pod.Spec.Containers[0], *pod.Spec.SecurityContext.RunAsUser
	if len(pod.Spec.Volumes) != 1 || len(c.VolumeMounts) != 1 || c.VolumeMounts[0].MountPath != h.Mount || len(c.Command) > 0 {
		h.t.Fatalf("the Pod has volumes %v, mounts %v and command %v; want those of the image and one claim at %s", pod.Spec.Volumes, c.VolumeMounts, c.Command, h.Mount)
	}
	if s := c.SecurityContext; s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		h.t.Error("the container's file system is not read-only, as it is here")
	}
	if want := fmt.Sprintf("%d:%d", user, *pod.Spec.SecurityContext.RunAsGroup); h.config.User != want {
		h.t.Errorf("the image's user is %s, the Pod's %s", h.config.User, want)
	}
	h.Dir, h.User, h.Env = h.config.WorkingDir, user, slices.Clone(h.config.Env)
	for _, e := range c.Env {
		h.Env = append(h.Env, e.Name+"="+e.Value)
	}
	h.Prepare(h.t)
	command := slices.Concat(h.config.Entrypoint, c.Args, []string{"--exit-with-parent"})
	return h.Start(h.t, "the image", func(ctx context.Context) error {
		var errs []error
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			errs = append(errs, h.probe(ctx, probe.HTTPGet))
		}
		return errors.Join(errs...)
	}, command...)
}

// probe asks as a kubelet does, which trusts any certificate, after having seen that clients of the Service trust this one.
func (h *hubContainer) probe(ctx context.Context, get *corev1.HTTPGetAction) error {
	if get.Scheme != corev1.URISchemeHTTPS || get.Port.String() != "https" {
		return fmt.Errorf("it goes to %s %s", get.Scheme, get.Port.String())
	}
	authority, err := os.ReadFile(filepath.Join(h.Volume, h.directory(), "pki", "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: hubHost}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", h.port, get.Path), nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", get.Path, resp.Status)
	}
	return nil
}

// directory in the volume is where the Pod's kubeconfig is.
func (h *hubContainer) directory() string {
	for _, e := range h.Env {
		if file, ok := strings.CutPrefix(e, "KUBECONFIG="+h.Mount+"/"); ok {
			return filepath.Dir(file)
		}
	}
	return ""
}
