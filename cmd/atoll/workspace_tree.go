package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"github.com/xlab/treeprint"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

func newWorkspaceTreeCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "tree [PATH]",
		Short: "Show the tree of workspaces from root, or from another",
		Example: `  atoll workspace tree
  atoll workspace tree .    # from the current one`,
		Args:              maximumArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			path := cli.Root
			if len(args) > 0 {
				if path, err = hub.Resolve(cmd.Context(), args[0]); err != nil {
					return err
				}
			}
			tree := treeprint.NewWithRoot(path.String())
			if err := grow(cmd.Context(), hub, path, tree); err != nil {
				return err
			}
			_, err = fmt.Fprint(streams.Out, tree)
			return err
		},
	}
}

// grow adds what is below path to tree. Below the first level, a workspace that may not be looked into, or is gone
// meanwhile, is shown as such.
func grow(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, tree treeprint.Tree) error {
	list, err := listWorkspaces(ctx, hub, path)
	if err != nil {
		return err
	}
	for _, w := range list.Items {
		label := w.Name
		if w.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			label += " (" + orNone(string(w.Status.Phase)) + ")"
		}
		branch := tree.AddBranch(label)
		err := grow(ctx, hub, path.Join(w.Name), branch)
		var status apierrors.APIStatus
		switch {
		case apierrors.IsForbidden(err):
			branch.AddNode("(you may not list what is in here)")
		case errors.As(err, &status):
			branch.AddNode("(" + status.Status().Message + ")")
		case err != nil:
			return err
		}
	}
	return nil
}
