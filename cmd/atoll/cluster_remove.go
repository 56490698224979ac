package main

import (
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
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/syncer"
)

type clusterRemove struct {
	genericiooptions.IOStreams
	timeout time.Duration
}

func newClusterRemoveCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	o := &clusterRemove{IOStreams: streams}
	cmd := &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Remove a physical cluster that nothing is placed on",
		Long: "Remove the registration of a physical cluster. It is refused while anything is placed there: move that first.\n" +
			"A Duplicate that was never anything else runs nothing, and goes at once.",
		Example: `  atoll cluster cordon east                                                             # nothing new comes
  atoll kubectl annotate ns default placement.atoll.dev/clusters=west --overwrite       # what is there moves
  atoll cluster remove east`,
		Args:              exactArgs(1),
		ValidArgsFunction: completeNames(open, clusterNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), hub, args[0])
		},
	}
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "How long to wait until the registration is gone; the removal itself goes on.")
	return cmd
}

func (o *clusterRemove) run(ctx context.Context, hub *cli.Hub, name string) error {
	path, target, err := getCluster(ctx, hub, name)
	if err != nil {
		return err
	}
	if !target.RunsNothing() {
		if err := refuseInUse(ctx, hub, path, target); err != nil {
			return err
		}
	}
	secrets, err := credentials(ctx, hub, path, target)
	if err != nil {
		return fmt.Errorf("remove cluster %q: %w", name, err)
	}
	if err := hub.Objects.Delete(cli.In(ctx, path), target, ctrlclient.Preconditions{UID: &target.UID}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove cluster %q: %w", name, refusedIn(path, err))
	}
	left := orphansOf(target)
	err = awaited{hub, path, &workloadv1alpha1.SyncTargetList{}, name}.until(ctx, o.timeout, func(ctx context.Context) (bool, string, error) {
		now := &workloadv1alpha1.SyncTarget{}
		err := hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKey{Name: name}, now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != target.UID {
			return true, "", nil
		}
		if err == nil {
			left = orphansOf(now)
		}
		seen := "the server has not begun"
		if c := meta.FindStatusCondition(now.Status.Conditions, workloadv1alpha1.SyncTargetReady); c != nil && now.DeletionTimestamp != nil {
			seen = c.Message
		}
		return false, seen, err
	})
	if err != nil {
		return fmt.Errorf("cluster %q is being removed: %w", name, err)
	}
	// The credential goes last: the syncer needs it to clean up. Whoever has added a cluster of that name meanwhile keeps his.
	for _, secret := range secrets {
		read := ctrlclient.Preconditions{}
		if secret.ResourceVersion != "" {
			read = ctrlclient.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}
		}
		err := hub.Objects.Delete(cli.In(ctx, path), secret, read)
		switch {
		case apierrors.IsConflict(err):
			fmt.Fprintf(o.ErrOut, "Secret %s/%s in workspace %s was written while the cluster was removed, and is left there.\n", secret.Namespace, secret.Name, path)
		case err != nil && !apierrors.IsNotFound(err):
			return fmt.Errorf("cluster %q is removed, but its credential is not: delete Secret %s/%s in workspace %s: %w", name, secret.Namespace, secret.Name, path, err)
		}
	}
	fmt.Fprintf(o.Out, "Cluster %s is removed from %s.\n", name, path)
	if target.Spec.BootstrapTokenSecretRef != nil {
		fmt.Fprintf(o.Out, "Take its syncer away in the cluster: %s\n", uninstall(target))
	}
	if left != "" {
		fmt.Fprintf(o.Out, "Left in the cluster, for you to delete there: %s\n", left)
	}
	return nil
}

// orphansOf says what Atoll leaves in a cluster.
func orphansOf(target *workloadv1alpha1.SyncTarget) string {
	if c := meta.FindStatusCondition(target.Status.Conditions, syncer.ConditionOrphans); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// refuseInUse returns an error unless it is sure that nothing is placed on a cluster.
func refuseInUse(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, target *workloadv1alpha1.SyncTarget) error {
	all, visible, err := placements(ctx, hub)
	if err != nil {
		return err
	}
	if !visible {
		return fmt.Errorf("remove cluster %q: it is registered in workspace %q, and whether anything is placed there is visible only with the right to list the placements of all workspaces; %s", target.Name, path, whoMay(path))
	}
	uses, err := withPaths(ctx, hub, placedOn(target, all))
	if err == nil && len(uses) > 0 {
		err = inUseError(target, uses)
	}
	return err
}

// credentials returns the Secrets with a cluster's credential as they are now. One that add did not make is its owner's, and not
// among them; one that the person may not read has no resource version.
func credentials(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, t *workloadv1alpha1.SyncTarget) (secrets []*corev1.Secret, err error) {
	for ours, ref := range map[string]*corev1.SecretReference{
		secretName(t.Name): t.Spec.KubeconfigSecretRef, bootstrapSecretName(t.Name): t.Spec.BootstrapTokenSecretRef,
	} {
		if ref == nil || ref.Name != ours || ref.Namespace != secretNamespace {
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
		err := hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKeyFromObject(secret), secret)
		switch {
		case err == nil, refused(err):
			secrets = append(secrets, secret)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read its credential in Secret %s/%s of workspace %s: %w", ref.Namespace, ref.Name, path, err)
		}
	}
	return secrets, nil
}

// usesShown are as many Placements as are named of a cluster in use.
const usesShown = 20

// inUseError says what keeps the cluster from being removed, and the first command of moving it away.
func inUseError(target *workloadv1alpha1.SyncTarget, uses []use) error {
	name := target.Name
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %q is in use and is not removed. Placed there:\n", name)
	for _, u := range uses[:min(len(uses), usesShown)] {
		fmt.Fprintf(&b, "  %s\n", u)
	}
	if more := len(uses) - usesShown; more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	names := func(u use) bool {
		return slices.ContainsFunc(u.placement.Spec.Clusters, func(c placementv1alpha1.PlacedCluster) bool { return c.UID == target.UID })
	}
	if i := slices.IndexFunc(uses, names); i >= 0 {
		u := uses[i]
		what, in := "namespace "+u.placement.Spec.Namespace, ""
		if o := u.placement.Spec.Object; o != nil {
			what, in = o.Resource+" "+o.Name, " -n "+u.placement.Spec.Namespace
		}
		fmt.Fprintf(&b, "Move it first, for instance:\n  %s cluster cordon %s\n  %s workspace use %s\n  %s kubectl annotate %s%s %s=OTHER --overwrite",
			self, name, self, u.workspace, self, what, in, placementv1alpha1.ClustersAnnotation)
	} else {
		b.WriteString("All of it has been moved, and leaves the cluster as what replaces it gets ready")
	}
	if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
		fmt.Fprintf(&b, "\nThe cluster is away: what it ran leaves it when it is back. If it is lost for good, give up what nothing names any more, which then runs on there if it is not:\n"+
			"  %[1]s kubectl delete synctarget %[2]s --wait=false\n  %[1]s kubectl annotate synctarget %[2]s %[3]s=abandon", self, name, workloadv1alpha1.ConfirmAnnotation)
	}
	return errors.New(b.String())
}
