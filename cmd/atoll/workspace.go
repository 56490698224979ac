package main

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

func newWorkspaceCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var kubeconfig string
	open := func() (*cli.Hub, error) { return cli.Open(kubeconfig) }
	cmd := &cobra.Command{
		Use:     "workspace",
		Aliases: []string{"ws", "workspaces"},
		Short:   "Create, enter, list, delete, export and import workspaces",
		Long: `Workspaces form a tree below "root". Each looks like a whole Kubernetes cluster. A kubeconfig points at one of them, the
current workspace; names are relative to it, and paths such as root:org:team are not.`,
		Example: `  atoll workspace create shop --enter
  atoll workspace use root:org:team
  atoll workspace use -        # the one before
  atoll workspace tree`,
		RunE: needsSubcommand,
	}
	cmd.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig of the Atoll (default: KUBECONFIG, else .atoll/admin.kubeconfig here, else your own).")
	cmd.AddCommand(
		newWorkspaceCreateCommand(open, streams),
		newWorkspaceUseCommand(open, streams),
		newWorkspaceCurrentCommand(open, streams),
		newWorkspaceListCommand(open, streams),
		newWorkspaceTreeCommand(open, streams),
		newWorkspaceDeleteCommand(open, streams),
		newWorkspaceExportCommand(open, streams),
		newWorkspaceImportCommand(open, streams),
	)
	asksAtoll(cmd, open)
	return cmd
}

// child splits the path that arg means into the workspace that holds the object and the object's name.
func child(ctx context.Context, hub *cli.Hub, arg string) (path, holder logicalcluster.Path, name string, err error) {
	if path, err = hub.Resolve(ctx, arg); err != nil {
		return path, holder, "", err
	}
	ancestors := cli.Ancestors(path)
	if len(ancestors) < 2 && path != cli.Root {
		return path, holder, "", fmt.Errorf("%q is not below root, where all workspaces are: give a path such as root:shop", path)
	}
	if len(ancestors) < 2 {
		return path, holder, "", fmt.Errorf("%q is the top of the tree, with no workspace above it: it is always there", path)
	}
	return path, ancestors[1], path.Base(), nil
}

// getWorkspace reads the Workspace object of that name in holder.
func getWorkspace(ctx context.Context, hub *cli.Hub, holder logicalcluster.Path, name string) (*tenancyv1alpha1.Workspace, error) {
	w := &tenancyv1alpha1.Workspace{}
	err := hub.Objects.Get(cli.In(ctx, holder), ctrlclient.ObjectKey{Name: name}, w)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no workspace %q in %q: \"%s workspace list\" shows what there is", name, holder, self)
	}
	if err != nil {
		return nil, fmt.Errorf("read workspace %q in %q: %w", name, holder, err)
	}
	return w, nil
}
