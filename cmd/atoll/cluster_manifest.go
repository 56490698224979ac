package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/syncer"
)

const (
	// bootstrapMount is where the syncer's Pod finds its bootstrap kubeconfig.
	bootstrapMount = "/etc/atoll"
	// podUser is the user and group of the syncer in its Pod. As the group of the Pod's volumes it may read them.
	podUser = 65532
	// mirrorTimeout is how long the server may take to make the mirror of a new SyncTarget.
	mirrorTimeout = 30 * time.Second
)

// clusterManifest are the flags of `atoll cluster add --manifest`.
type clusterManifest struct {
	hubURL        string
	allowLoopback bool
	image         string
	tokenTTL      time.Duration
}

func bootstrapSecretName(cluster string) string { return cluster + "-bootstrap" }

// hubAddress returns the address at which a Pod reaches the hub.
func (m *clusterManifest) hubAddress(hub *cli.Hub) (string, error) {
	address := m.hubURL
	if address == "" {
		address = hub.Base
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("--hub-url %q: want an address such as https://atoll.example:6443", address)
	}
	if strings.Trim(u.Path, "/") != "" || u.User != nil {
		return "", fmt.Errorf("--hub-url %q: want it without a path, and without a user", u.Redacted())
	}
	if isLoopback(u.Hostname()) && !m.allowLoopback {
		return "", fmt.Errorf("a Pod of the cluster cannot reach the server at %s: start it with --bind-address and --external-hostname, and name it here with --hub-url. "+
			"--allow-loopback writes the manifest all the same, for a syncer that runs on the server's machine", address)
	}
	return u.Scheme + "://" + u.Host, nil
}

// isLoopback says whether a host of an address is the machine itself for whoever connects to it, by what it is called.
func isLoopback(host string) bool {
	name := "." + strings.ToLower(strings.TrimSuffix(host, "."))
	ip := net.ParseIP(host)
	return strings.HasSuffix(name, ".localhost") || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// run registers the cluster, or gives a registered one a new token, and writes the manifest of its syncer.
func (m *clusterManifest) run(ctx context.Context, o *clusterAdd, hub *cli.Hub, path logicalcluster.Path, target *workloadv1alpha1.SyncTarget) error {
	address, err := m.hubAddress(hub)
	if err != nil {
		return err
	}
	if m.tokenTTL <= 0 {
		return fmt.Errorf("--token-ttl %s: want the time in which the manifest will be applied, such as 1h", m.tokenTTL)
	}
	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return fmt.Errorf("make a bootstrap token: %w", err)
	}
	expiration := time.Now().Add(m.tokenTTL).UTC().Truncate(time.Second)
	target, err = registerPull(ctx, hub, path, target, bootstrapSecret(target.Name, token, expiration))
	if err != nil {
		return err
	}
	err = awaited{hub, path, &workloadv1alpha1.SyncTargetList{}, target.Name}.until(ctx, mirrorTimeout, func(ctx context.Context) (bool, string, error) {
		if err := hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKeyFromObject(target), target); err != nil {
			return false, "", err
		}
		// The condition comes after the mirror is there.
		known := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) != nil
		return target.Status.Mirror != "" && known, "the server has not made its mirror", nil
	})
	if err != nil {
		return fmt.Errorf("cluster %q is registered in %s: %w", target.Name, path, err)
	}
	bootstrap, err := bootstrapKubeconfig(address+"/clusters/"+target.Status.Mirror, hub.CA, token)
	if err != nil {
		return err
	}
	manifest, err := m.render(target, bootstrap)
	if err != nil {
		return err
	}
	if problem := distrust(ctx, address, hub.Base, hub.CA); problem != "" {
		fmt.Fprintf(o.ErrOut, `Warning: a syncer will not trust %s: %s.
Name an address that the server's certificate is for with --hub-url, or start the server with --external-hostname.

`, address, problem)
	}
	if _, err := o.Out.Write(manifest); err != nil {
		return err
	}
	if othersMayRead(o.Out) {
		fmt.Fprint(o.ErrOut, "Warning: others on this machine may read the file, and the token in it. Keep it to yourself: chmod 600 FILE\n\n")
	}
	state := "is registered in"
	if target.DeletionTimestamp != nil {
		state = "is being removed from"
		fmt.Fprintf(o.ErrOut, "Cluster %s is being removed: its syncer takes away what it runs there, and then the registration goes. To use the cluster on, add it again after that.\n\n", target.Name)
	}
	fmt.Fprintf(o.ErrOut, `Cluster %s %s %s. Apply the manifest in that cluster:

  kubectl apply -f FILE

It holds a token that is good once, until %s. Another one, if you need it: the same command again.
No image of Atoll is published yet: "make image" builds one. Bring it to where the cluster finds it as %s, or name yours with --image.
`, target.Name, state, path, expiration.Format(time.RFC3339), m.image)
	return nil
}

// othersMayRead says whether what is written to w ends in a file that is not its owner's alone.
func othersMayRead(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0
}

func bootstrapSecret(cluster, token string, expiration time.Time) *corev1.Secret {
	id, _, _ := strings.Cut(token, ".")
	hash := sha256.Sum256([]byte(token))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secretNamespace, Name: bootstrapSecretName(cluster)},
		Type:       workloadv1alpha1.BootstrapTokenSecretType,
		Data: map[string][]byte{
			workloadv1alpha1.BootstrapTokenID:         []byte(id),
			workloadv1alpha1.BootstrapTokenHash:       []byte(hex.EncodeToString(hash[:])),
			workloadv1alpha1.BootstrapTokenExpiration: []byte(expiration.Format(time.RFC3339)),
		},
	}
}

// registerPull writes the token and the SyncTarget. One that is there already, and synced from outside, gets the new
// token and stays as it is.
func registerPull(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, target *workloadv1alpha1.SyncTarget, secret *corev1.Secret) (*workloadv1alpha1.SyncTarget, error) {
	in := cli.In(ctx, path)
	found := &workloadv1alpha1.SyncTarget{}
	err := hub.Objects.Get(in, ctrlclient.ObjectKeyFromObject(target), found)
	switch {
	case apierrors.IsNotFound(err):
		target.Spec.KubeconfigSecretRef = nil
		target.Spec.BootstrapTokenSecretRef = &corev1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}
		return target, register(ctx, hub, path, target, secret)
	case err != nil:
		return nil, fmt.Errorf("look for a cluster %q in workspace %s: %w", target.Name, path, err)
	case found.Spec.BootstrapTokenSecretRef == nil:
		return nil, fmt.Errorf("cluster %q in workspace %s is synced by the server: remove it first with \"%s cluster remove %s\", or choose another name", target.Name, path, self, target.Name)
	case *found.Spec.BootstrapTokenSecretRef != corev1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}:
		return nil, fmt.Errorf("cluster %q in workspace %s has its token in Secret %s/%s, which this command does not write", target.Name, path,
			found.Spec.BootstrapTokenSecretRef.Namespace, found.Spec.BootstrapTokenSecretRef.Name)
	}
	_, err = storeSecret(ctx, hub, path, secret)
	return found, err
}

// bootstrapKubeconfig is how a syncer reaches its mirror for the first time.
func bootstrapKubeconfig(server string, ca []byte, token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["hub"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["bootstrap"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["bootstrap"] = &clientcmdapi.Context{Cluster: "hub", AuthInfo: "bootstrap"}
	config.CurrentContext = "bootstrap"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write the bootstrap kubeconfig: %w", err)
	}
	return data, nil
}

// instanceLabel tells apart the syncers of a physical cluster.
const instanceLabel = "app.kubernetes.io/instance"

// syncerInstance is unique among them: two Atolls may sync one cluster, under the same name, and one of them may have registered
// it before.
func syncerInstance(target *workloadv1alpha1.SyncTarget) string {
	uid := string(target.UID)
	return target.Name + "-" + uid[:min(8, len(uid))]
}

// uninstall is the command that deletes what a manifest made, and leaves the namespace.
func uninstall(target *workloadv1alpha1.SyncTarget) string {
	return "kubectl delete -f FILE -l " + instanceLabel + "=" + syncerInstance(target)
}

// render returns the manifest of a syncer: everything it needs, and no more rights than it uses.
func (m *clusterManifest) render(target *workloadv1alpha1.SyncTarget, bootstrap []byte) ([]byte, error) {
	instance := syncerInstance(target)
	name := "atoll-syncer-" + instance
	namespace := workloadv1alpha1.HeartbeatNamespace
	labels := map[string]string{"app.kubernetes.io/name": "atoll-syncer", instanceLabel: instance, "app.kubernetes.io/managed-by": "atoll"}
	subject := rbacapply.Subject().WithKind(rbacv1.ServiceAccountKind).WithName(name).WithNamespace(namespace)
	// A new token starts new Pods, which alone read it.
	checksum := sha256.Sum256(bootstrap)
	container := coreapply.Container().WithName("syncer").WithImage(m.image).
		WithCommand("atoll").
		WithArgs("syncer", "--bootstrap-kubeconfig="+bootstrapMount+"/kubeconfig", "--namespace="+namespace, "--credential-secret="+name).
		WithVolumeMounts(coreapply.VolumeMount().WithName("bootstrap").WithMountPath(bootstrapMount).WithReadOnly(true)).
		WithResources(coreapply.ResourceRequirements().WithRequests(corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		})).
		WithSecurityContext(coreapply.SecurityContext().WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(coreapply.Capabilities().WithDrop("ALL")))
	pod := coreapply.PodSpec().WithServiceAccountName(name).WithContainers(container).
		WithSecurityContext(coreapply.PodSecurityContext().WithRunAsNonRoot(true).WithRunAsUser(podUser).WithRunAsGroup(podUser).WithFSGroup(podUser).
			WithSeccompProfile(coreapply.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		// Where there is a second host, it has the second replica.
		WithTopologySpreadConstraints(coreapply.TopologySpreadConstraint().WithMaxSkew(1).WithTopologyKey(corev1.LabelHostname).
			WithWhenUnsatisfiable(corev1.ScheduleAnyway).WithLabelSelector(metaapply.LabelSelector().WithMatchLabels(labels))).
		WithVolumes(coreapply.Volume().WithName("bootstrap").WithSecret(coreapply.SecretVolumeSource().WithSecretName(name + "-bootstrap").WithDefaultMode(0o440)))

	objects := []any{
		// Others use it too: without labels it is not among what uninstall deletes.
		coreapply.Namespace(namespace),
		coreapply.ServiceAccount(name, namespace).WithLabels(labels),
		rbacapply.ClusterRole(name).WithLabels(labels).WithRules(rules(syncer.ClusterRules())...),
		rbacapply.ClusterRoleBinding(name).WithLabels(labels).WithSubjects(subject).
			WithRoleRef(rbacapply.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(name)),
		rbacapply.Role(name, namespace).WithLabels(labels).WithRules(rules(syncer.NamespaceRules(name, string(target.UID)))...),
		rbacapply.RoleBinding(name, namespace).WithLabels(labels).WithSubjects(subject).
			WithRoleRef(rbacapply.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(name)),
		// Empty here: the syncer keeps its certificate in it.
		coreapply.Secret(name, namespace).WithLabels(labels).WithType(corev1.SecretTypeOpaque),
		coreapply.Secret(name+"-bootstrap", namespace).WithLabels(labels).WithType(corev1.SecretTypeOpaque).
			WithStringData(map[string]string{"kubeconfig": string(bootstrap)}),
		appsapply.Deployment(name, namespace).WithLabels(labels).WithSpec(appsapply.DeploymentSpec().
			WithReplicas(2).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).
				WithAnnotations(map[string]string{"workload.atoll.dev/bootstrap-checksum": hex.EncodeToString(checksum[:8])}).
				WithSpec(pod))),
	}
	var manifest bytes.Buffer
	fmt.Fprintf(&manifest, "# The syncer of cluster %s, for Atoll. To take it away, and not the namespace, which others use too:\n#\n#   %s\n#\n", target.Name, uninstall(target))
	for _, object := range objects {
		data, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("write the manifest of cluster %q: %w", target.Name, err)
		}
		manifest.WriteString("---\n")
		manifest.Write(data)
	}
	return manifest.Bytes(), nil
}

func rules(rules []rbacv1.PolicyRule) []*rbacapply.PolicyRuleApplyConfiguration {
	var out []*rbacapply.PolicyRuleApplyConfiguration
	for _, r := range rules {
		out = append(out, rbacapply.PolicyRule().WithAPIGroups(r.APIGroups...).WithResources(r.Resources...).
			WithResourceNames(r.ResourceNames...).WithVerbs(r.Verbs...))
	}
	return out
}
