package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func newClusterCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var kubeconfig string
	open := func() (*cli.Hub, error) { return cli.Open(kubeconfig) }
	cmd := &cobra.Command{
		Use:     "cluster",
		Aliases: []string{"clusters"},
		Short:   "Add, list and remove physical clusters",
		Long: `Physical clusters run what is applied to workspaces. A cluster is registered in a workspace (a SyncTarget object there)
and can be used from that workspace and all below it: one in root serves everybody.`,
		Example: `  atoll cluster add east --kubeconfig east.kubeconfig
  atoll cluster list
  atoll cluster status east`,
		RunE: needsSubcommand,
	}
	cmd.PersistentFlags().StringVar(&kubeconfig, "hub-kubeconfig", "", "Kubeconfig of the Atoll (default: KUBECONFIG, else .atoll/admin.kubeconfig here, else your own).")
	cmd.AddCommand(
		newClusterAddCommand(open, streams),
		newClusterListCommand(open, streams),
		newClusterStatusCommand(open, streams),
		newClusterCordonCommand(open, streams, true),
		newClusterCordonCommand(open, streams, false),
		newClusterConfirmCommand(open, streams),
		newClusterRemoveCommand(open, streams),
	)
	asksAtoll(cmd, open)
	return cmd
}

// listedCluster is a SyncTarget and the path of the workspace that holds it.
type listedCluster struct {
	workspace string
	workloadv1alpha1.SyncTarget
}

// clustersFor returns the SyncTargets that can be used from a workspace: those it holds, by name, then those above. hidden
// are the workspaces above that the person may not look into.
func clustersFor(ctx context.Context, hub *cli.Hub, path logicalcluster.Path) (clusters []listedCluster, hidden []logicalcluster.Path, err error) {
	for i, p := range cli.Ancestors(path) {
		list := &workloadv1alpha1.SyncTargetList{}
		err := hub.Objects.List(cli.In(ctx, p), list)
		if i > 0 && refused(err) {
			hidden = append(hidden, p)
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list the clusters in %q: %w", p, err)
		}
		slices.SortFunc(list.Items, func(a, b workloadv1alpha1.SyncTarget) int { return strings.Compare(a.Name, b.Name) })
		for _, t := range list.Items {
			clusters = append(clusters, listedCluster{p.String(), t})
		}
	}
	return clusters, hidden, nil
}

// refused says whether somebody may not see what he asked for: a ServiceAccount is a stranger outside of its own workspace.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// getCluster reads the SyncTarget of that name in the current workspace, else in the nearest above that has one; path is
// the workspace it was found in.
func getCluster(ctx context.Context, hub *cli.Hub, name string) (logicalcluster.Path, *workloadv1alpha1.SyncTarget, error) {
	current, err := hub.Current(ctx)
	if err != nil {
		return current, nil, err
	}
	var hidden []logicalcluster.Path
	for i, path := range cli.Ancestors(current) {
		target := &workloadv1alpha1.SyncTarget{}
		err := hub.Objects.Get(cli.In(ctx, path), ctrlclient.ObjectKey{Name: name}, target)
		switch {
		case err == nil:
			return path, target, nil
		case i > 0 && refused(err):
			hidden = append(hidden, path)
		case !apierrors.IsNotFound(err):
			return path, nil, fmt.Errorf("read cluster %q in workspace %q: %w", name, path, err)
		}
	}
	err = fmt.Errorf("there is no cluster %q in workspace %q or above: \"%s cluster list\" shows what there is", name, current, self)
	for _, path := range hidden {
		err = fmt.Errorf("%w.\nYou may not see the clusters registered in %q; %s", err, path, whoMay(path))
	}
	return current, nil, err
}

// whoMay says how somebody with more rights does what was refused in a workspace that is not the current one.
func whoMay(path logicalcluster.Path) string {
	return fmt.Sprintf("who may, does this after \"%s workspace use %s\"", self, path)
}

// refusedIn adds to the refusal of a write to a cluster where that one is registered, and what to do.
func refusedIn(path logicalcluster.Path, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("it is registered in workspace %q, where you have not the right to; %s: %w", path, whoMay(path), err)
}

// use is one Placement that names a cluster.
type use struct {
	workspace string
	placement *placementv1alpha1.Placement
}

// String is "root:shop default", with the object if the Placement is for one.
func (u use) String() string {
	s := u.workspace + " namespace " + u.placement.Spec.Namespace
	if o := u.placement.Spec.Object; o != nil {
		s += " " + o.Resource + "/" + o.Name
	}
	return s
}

// placements returns the Placements of all workspaces. Who may not list them sees none: visible is false.
func placements(ctx context.Context, hub *cli.Hub) (all []placementv1alpha1.Placement, visible bool, err error) {
	list := &placementv1alpha1.PlacementList{}
	if err := hub.Objects.List(client.Everywhere(ctx), list); refused(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("list the placements of all workspaces: %w", err)
	}
	return list.Items, true, nil
}

// placedOn returns those of all that send something to the cluster, or have left it and still run something there.
func placedOn(target *workloadv1alpha1.SyncTarget, all []placementv1alpha1.Placement) []*placementv1alpha1.Placement {
	var there []*placementv1alpha1.Placement
	for i := range all {
		p := &all[i]
		wanted := slices.IndexFunc(p.Spec.Clusters, func(c placementv1alpha1.PlacedCluster) bool { return c.Name == target.Name })
		if wanted >= 0 {
			if p.Spec.Clusters[wanted].UID == target.UID {
				there = append(there, p)
			}
			continue // another cluster of the same name
		}
		if slices.ContainsFunc(p.Status.Clusters, func(c placementv1alpha1.PlacedClusterStatus) bool { return c.Name == target.Name }) {
			there = append(there, p)
		}
	}
	return there
}

// withPaths says of which workspace each placement is, in the order of paths.
func withPaths(ctx context.Context, hub *cli.Hub, placements []*placementv1alpha1.Placement) ([]use, error) {
	paths := map[logicalcluster.Name]string{}
	uses := make([]use, 0, len(placements))
	for _, p := range placements {
		name := lcctx.NameFrom(p)
		if _, ok := paths[name]; !ok {
			path, err := hub.PathOf(ctx, name)
			if err != nil {
				return nil, err
			}
			paths[name] = path.String()
		}
		uses = append(uses, use{workspace: paths[name], placement: p})
	}
	slices.SortFunc(uses, func(a, b use) int { return strings.Compare(a.String(), b.String()) })
	return uses, nil
}
