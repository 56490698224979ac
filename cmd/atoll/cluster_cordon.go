package main

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

func newClusterCordonCommand(open hubOpener, streams genericiooptions.IOStreams, cordon bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cordon NAME",
		Short:   "Place nothing new on a physical cluster; what it runs stays",
		Example: "  atoll cluster cordon east",
		Args:    exactArgs(1),

		ValidArgsFunction: completeNames(open, clusterNames),
	}
	done := "Cluster %s of %s is cordoned: the namespaces and objects that are placed there stay, no others come.\n"
	if !cordon {
		cmd.Use, cmd.Short, cmd.Example = "uncordon NAME", "Let things be placed on a physical cluster again", "  atoll cluster uncordon east"
		done = "Cluster %s of %s takes new placements.\n"
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		hub, err := open()
		if err != nil {
			return err
		}
		path, err := changeCluster(cmd.Context(), hub, args[0], func(t *workloadv1alpha1.SyncTarget) { t.Spec.Unschedulable = cordon })
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(streams.Out, done, args[0], path)
		return err
	}
	return cmd
}

// changeCluster patches the SyncTarget that getCluster finds by what change does to it, and returns the workspace it is in.
func changeCluster(ctx context.Context, hub *cli.Hub, name string, change func(*workloadv1alpha1.SyncTarget)) (logicalcluster.Path, error) {
	path, target, err := getCluster(ctx, hub, name)
	if err != nil {
		return path, err
	}
	before := target.DeepCopy()
	change(target)
	if err := hub.Objects.Patch(cli.In(ctx, path), target, ctrlclient.MergeFrom(before)); err != nil {
		return path, fmt.Errorf("change cluster %q: %w", name, refusedIn(path, err))
	}
	return path, nil
}
