package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
		Long: `Show the tree of workspaces from root, or from another. What you may not list is shown as such, and the way from root to the
current workspace is shown in any case.`,
		Example: `  atoll workspace tree
  atoll workspace tree .    # from the current one`,
		Args:              maximumArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			path, tree := cli.Root, treeprint.NewWithRoot(cli.Root.String())
			if len(args) > 0 {
				if path, err = hub.Resolve(cmd.Context(), args[0]); err != nil {
					return err
				}
				tree = treeprint.NewWithRoot(path.String())
				err = grow(cmd.Context(), hub, path, tree)
			} else {
				err = growTowards(cmd.Context(), hub, path, tree)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(streams.Out, tree)
			return err
		},
	}
}

const mayNotList = "(you may not list what is in here)"

// growTowards is grow for who may not list path: then of what is below it there is the way to the current workspace.
func growTowards(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, tree treeprint.Tree) error {
	err := grow(ctx, hub, path, tree)
	if !refused(err) {
		return err
	}
	current, currentErr := hub.Current(ctx)
	if currentErr != nil || !current.HasPrefix(path) || current == path {
		return err
	}
	ancestors := cli.Ancestors(current)
	next := ancestors[slices.Index(ancestors, path)-1]
	tree.AddNode(mayNotList)
	return growTowards(ctx, hub, next, tree.AddBranch(next.Base()))
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
		case refused(err):
			branch.AddNode(mayNotList)
		case errors.As(err, &status):
			branch.AddNode("(" + status.Status().Message + ")")
		case err != nil:
			return err
		}
	}
	return nil
}
