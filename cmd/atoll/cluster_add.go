package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// secretNamespace, in the workspace that holds a SyncTarget, holds its credential.
const secretNamespace = "atoll-system"

// secretKey is the key of a kubeconfig in a Secret that a SyncTarget refers to.
const secretKey = "kubeconfig"

func secretName(cluster string) string { return cluster + "-kubeconfig" }

type clusterAdd struct {
	genericiooptions.IOStreams
	kubeconfig, context string
	labels              map[string]string
	region, zone        string
	dedicatedTo         string
	dnsKnowsWorkspaces  bool
	wait                bool
	timeout             time.Duration
	pull                bool
	manifest            clusterManifest
	// connect asks the physical cluster who it is; tests answer themselves.
	connect func(*credential, context.Context) (identity, error)
}

func newClusterAddCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	return (&clusterAdd{IOStreams: streams, connect: (*credential).connect}).command(open)
}

func (o *clusterAdd) command(open hubOpener) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME --kubeconfig FILE | --manifest",
		Short: "Add a physical cluster, synced by the server or by a Pod there",
		Long: `Register a physical cluster in the current workspace.

With --kubeconfig the server syncs it (push). The kubeconfig, with its certificates inlined, is stored in a Secret of the
workspace: the address in it has to be reachable from the server, and its user needs to be cluster-admin.

With --manifest a Deployment in the cluster syncs it (pull). The manifest is written to standard output, to be applied in
the cluster: it connects to the server, never the other way round, and holds a token that is good once.`,
		Example: `  atoll cluster add east --kubeconfig east.kubeconfig
  atoll cluster add west --kubeconfig ~/.kube/config --context west --region eu --zone eu-1 --labels tier=gold
  atoll cluster add north --manifest --hub-url https://atoll.example:6443 > syncer.yaml`,
		Args:              exactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions, // a new name
		PreRunE:           func(*cobra.Command, []string) error { return o.oneWay() },
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), hub, args[0])
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig of the physical cluster, which the server then syncs.")
	fs.StringVar(&o.context, "context", "", "Context of that kubeconfig (default: its current one).")
	fs.StringToStringVar(&o.labels, "labels", nil, "Labels of the cluster, for selectors of placements: key=value,...")
	fs.StringVar(&o.region, "region", "", "Region of the cluster: label "+corev1.LabelTopologyRegion+".")
	fs.StringVar(&o.zone, "zone", "", "Zone of the cluster: label "+corev1.LabelTopologyZone+".")
	fs.StringVar(&o.dedicatedTo, "dedicated-to", "", "Path of the one workspace that the cluster serves; its namespaces keep their names there.")
	fs.BoolVar(&o.dnsKnowsWorkspaces, "dns-knows-workspaces", false, "The cluster's DNS finds Services by the names of workspaces (contrib/dns): pods are told what their namespace is called there.")
	fs.BoolVar(&o.wait, "wait", true, "Wait until the cluster is ready.")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Minute, "How long to wait; the cluster stays registered.")
	fs.BoolVar(&o.pull, "manifest", false, "Write the manifest of a syncer that runs in the cluster.")
	fs.StringVar(&o.manifest.hubURL, "hub-url", "", "With --manifest: address at which Pods of the cluster reach the server (default: the kubeconfig's).")
	fs.BoolVar(&o.manifest.allowLoopback, "allow-loopback", false, "With --manifest: accept an address that no Pod can reach.")
	fs.StringVar(&o.manifest.image, "image", "atoll:"+atollVersion, "With --manifest: image of the syncer, whose command atoll is this program.")
	fs.DurationVar(&o.manifest.tokenTTL, "token-ttl", 24*time.Hour, "With --manifest: how long the token is good for its one use.")
	cmd.MarkFlagsOneRequired("kubeconfig", "manifest")
	cmd.MarkFlagsMutuallyExclusive("kubeconfig", "manifest")
	return cmd
}

// oneWay says, before cobra does in words of its own, that the flags name no way to sync the cluster, or two.
func (o *clusterAdd) oneWay() error {
	switch {
	case o.kubeconfig == "" && !o.pull:
		return errors.New("say how the cluster is synced: give --kubeconfig FILE if the server is to sync it, or --manifest if a Pod in the cluster is")
	case o.kubeconfig != "" && o.pull:
		return errors.New("give --kubeconfig or --manifest, not both: either the server syncs the cluster, or a Pod in it does")
	}
	return nil
}

// target returns the SyncTarget that the flags describe.
func (o *clusterAdd) target(name string) (*workloadv1alpha1.SyncTarget, error) {
	// The name becomes a label's value, part of other names, and the name of a Node.
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return nil, fmt.Errorf("cluster name %q: %s", name, strings.Join(faults, "; "))
	}
	labels := map[string]string{}
	for key, value := range o.labels {
		labels[key] = value
	}
	if o.region != "" {
		labels[corev1.LabelTopologyRegion] = o.region
	}
	if o.zone != "" {
		labels[corev1.LabelTopologyZone] = o.zone
	}
	for key, value := range labels {
		if faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(faults) > 0 {
			return nil, fmt.Errorf("label %s=%s: %s", key, value, strings.Join(faults, "; "))
		}
	}
	return &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: workloadv1alpha1.SyncTargetSpec{
			KubeconfigSecretRef: &corev1.SecretReference{Namespace: secretNamespace, Name: secretName(name)},
			DedicatedTo:         o.dedicatedTo,
			DNSKnowsWorkspaces:  o.dnsKnowsWorkspaces,
		},
	}, nil
}

func (o *clusterAdd) run(ctx context.Context, hub *cli.Hub, name string) error {
	target, err := o.target(name)
	if err != nil {
		return err
	}
	if o.dedicatedTo != "" {
		path, err := hub.Resolve(ctx, o.dedicatedTo)
		if err != nil {
			return fmt.Errorf("--dedicated-to: %w", err)
		}
		target.Spec.DedicatedTo = path.String()
	}
	path, err := hub.Current(ctx)
	if err != nil {
		return err
	}
	for _, above := range cli.Ancestors(path)[1:] {
		there := &workloadv1alpha1.SyncTarget{}
		err := hub.Objects.Get(cli.In(ctx, above), ctrlclient.ObjectKey{Name: name}, there)
		switch {
		case err == nil && serves(there, path):
			return fmt.Errorf("cluster %q of workspace %s can be used in %s already: nothing is to be added. Another physical cluster needs another name", name, above, path)
		case err == nil:
			return fmt.Errorf("there is a cluster %q in workspace %s already, dedicated to workspace %s: choose another name", name, above, there.Spec.DedicatedTo)
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			return fmt.Errorf("look for a cluster %q in workspace %s: %w", name, above, err)
		}
	}
	if o.pull {
		return o.manifest.run(ctx, o, hub, path, target)
	}
	credential, err := loadCredential(o.kubeconfig, o.context)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.ErrOut, "Connecting to %s ...\n", credential)
	who, err := o.connect(credential, ctx)
	if err != nil {
		return err
	}
	if err := refuseTwice(ctx, hub, path, name, credential, who); err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secretNamespace, Name: secretName(name)},
		Data:       map[string][]byte{secretKey: credential.data},
	}
	if err := register(ctx, hub, path, target, secret); err != nil {
		return err
	}
	if !o.wait {
		_, err := fmt.Fprintf(o.Out, "Cluster %s (Kubernetes %s) is registered in %s. See how it goes with: %s cluster status %s\n", name, who.version, path, self, name)
		return err
	}
	ready, err := o.waitUntilReady(ctx, hub, path, name)
	if err != nil {
		return fmt.Errorf("cluster %q is registered but not ready: %w\nIt stays registered. Look again with \"%s cluster status %s\", or take it away with \"%s cluster remove %s\"", name, err, self, name, self, name)
	}
	_, err = fmt.Fprintf(o.Out, "Cluster %s is ready: Kubernetes %s, %d nodes. What is applied in %s and below can run there.\n", name, ready.Status.Version, ready.Status.Nodes, path)
	return err
}

// refuseTwice returns an error if the name is taken, or the physical cluster is registered already, under whatever name.
func refuseTwice(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, name string, c *credential, who identity) error {
	list := &workloadv1alpha1.SyncTargetList{}
	err := hub.Objects.List(client.Everywhere(ctx), list)
	if apierrors.IsForbidden(err) { // no administrator of all workspaces: look where we may
		err = hub.Objects.List(cli.In(ctx, path), list)
	}
	if err != nil {
		return fmt.Errorf("list the clusters there are: %w", err)
	}
	byMirror := map[logicalcluster.Name]*workloadv1alpha1.SyncTarget{}
	for i := range list.Items {
		if t := &list.Items[i]; t.Status.Mirror != "" {
			byMirror[logicalcluster.Name(t.Status.Mirror)] = t
		}
	}
	var same []*workloadv1alpha1.SyncTarget
	for i := range list.Items {
		t := &list.Items[i]
		if t.Status.ClusterUID != who.uid {
			continue
		}
		if original, ok := byMirror[lcctx.NameFrom(t)]; ok {
			t = original // a mirror holds a copy, which nobody knows
		}
		same = append(same, t)
	}
	if t := holder(same); t != nil {
		where, err := hub.PathOf(ctx, lcctx.NameFrom(t))
		if err != nil {
			return err
		}
		if t.DeletionTimestamp != nil {
			return fmt.Errorf("the physical cluster of %s is still registered, as %q in workspace %s, and is being removed: add it when that is gone; what that waits for is its condition Ready, see \"%s cluster list\" there",
				c, t.Name, where, self)
		}
		if where != path && slices.Contains(cli.Ancestors(path), where) && serves(t, path) {
			return fmt.Errorf("the physical cluster of %s was added already: as %q in workspace %s, and %s can use it: nothing is to be added. %s", c, t.Name, where, path, credentialOf(t))
		}
		return fmt.Errorf("the physical cluster of %s was added already: as %q in workspace %s. %s", c, t.Name, where, credentialOf(t))
	}
	there := &workloadv1alpha1.SyncTarget{}
	err = hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKey{Name: name}, there)
	if err == nil && there.DeletionTimestamp != nil {
		return fmt.Errorf("there is another cluster %q in workspace %s, which is being removed: choose another name, or wait until it is gone; \"%s cluster status %s\" says what for", name, path, self, name)
	}
	if err == nil {
		return fmt.Errorf("there is another cluster %q in workspace %s: choose another name, or remove that one first with \"%s cluster remove %s\"", name, path, self, name)
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for a cluster %q in workspace %s: %w", name, path, err)
	}
	return nil
}

// serves says whether a cluster of a workspace above path can be used there.
func serves(t *workloadv1alpha1.SyncTarget, path logicalcluster.Path) bool {
	return t.Spec.DedicatedTo == "" || t.Spec.DedicatedTo == path.String()
}

// holder returns which of the SyncTargets of one physical cluster is the one to name: one that works, else one that is
// no duplicate; nil of none.
func holder(same []*workloadv1alpha1.SyncTarget) *workloadv1alpha1.SyncTarget {
	rank := func(t *workloadv1alpha1.SyncTarget) int {
		if meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetReady) && t.DeletionTimestamp == nil {
			return 0
		}
		if !t.IsDuplicate() {
			return 1
		}
		return 2
	}
	if len(same) == 0 {
		return nil
	}
	return slices.MinFunc(same, func(a, b *workloadv1alpha1.SyncTarget) int { return cmp.Compare(rank(a), rank(b)) })
}

// credentialOf says how the credential of a registration is replaced.
func credentialOf(t *workloadv1alpha1.SyncTarget) string {
	if ref := t.Spec.KubeconfigSecretRef; ref != nil {
		return fmt.Sprintf("Its credential can be replaced in Secret %s/%s there", ref.Namespace, ref.Name)
	}
	return fmt.Sprintf("A syncer in the cluster connects it, which gets a new credential by \"%s cluster add %s --manifest\" there", self, t.Name)
}

// register writes the credential and the SyncTarget, or neither.
func register(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, target *workloadv1alpha1.SyncTarget, secret *corev1.Secret) error {
	before, err := storeSecret(ctx, hub, path, secret)
	if err != nil {
		return err
	}
	in := cli.In(ctx, path)
	if err := hub.Objects.Create(in, target); err != nil {
		err = fmt.Errorf("register cluster %q in workspace %s: %w", target.Name, path, err)
		if undo := putBack(in, hub, secret, before); undo != nil {
			return fmt.Errorf("%w; and its credential stays in Secret %s/%s: %w", err, secret.Namespace, secret.Name, undo)
		}
		return err
	}
	return nil
}

// storeSecret writes a Secret, and its namespace if that is missing. It replaces one that is there, which only a
// registration that was interrupted, or that is renewed, can have left, and returns what that was.
func storeSecret(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, secret *corev1.Secret) (before *corev1.Secret, err error) {
	in := cli.In(ctx, path)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secret.Namespace}}
	if err := hub.Objects.Create(in, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s in workspace %s: %w", secret.Namespace, path, err)
	}
	if err = hub.Objects.Create(in, secret); apierrors.IsAlreadyExists(err) {
		before = &corev1.Secret{}
		if err = hub.Objects.Get(in, ctrlclient.ObjectKeyFromObject(secret), before); err == nil {
			secret.ResourceVersion = before.ResourceVersion
			err = hub.Objects.Update(in, secret)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("store the credential in Secret %s/%s of workspace %s: %w", secret.Namespace, secret.Name, path, err)
	}
	return before, nil
}

// putBack makes a Secret be what it was before it was stored, nil if there was none, unless somebody has written it since: who
// registers a cluster of the same name at the same moment, and comes first, keeps his credential.
func putBack(in context.Context, hub *cli.Hub, stored, before *corev1.Secret) error {
	var err error
	if before == nil {
		err = hub.Objects.Delete(in, stored, ctrlclient.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	} else {
		before.ResourceVersion = stored.ResourceVersion
		err = hub.Objects.Update(in, before)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// waitUntilReady shows what the cluster waits for, each thing once.
func (o *clusterAdd) waitUntilReady(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, name string) (*workloadv1alpha1.SyncTarget, error) {
	t, shown := &workloadv1alpha1.SyncTarget{}, ""
	err := awaited{hub, path, &workloadv1alpha1.SyncTargetList{}, name}.until(ctx, o.timeout, func(ctx context.Context) (bool, string, error) {
		if err := hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKey{Name: name}, t); err != nil {
			return false, "", err
		}
		seen := "the server has not begun to sync it"
		if c := meta.FindStatusCondition(t.Status.Conditions, workloadv1alpha1.SyncTargetReady); c != nil {
			if c.Status == metav1.ConditionTrue {
				return true, "", nil
			}
			seen = c.Reason + ": " + c.Message
		}
		if seen != shown {
			fmt.Fprintf(o.ErrOut, "Waiting for cluster %s: %s\n", name, seen)
			shown = seen
		}
		return false, seen, nil
	})
	return t, err
}
