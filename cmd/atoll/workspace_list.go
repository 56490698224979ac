package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/server"
)

func newWorkspaceListCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list [PATH]",
		Aliases: []string{"ls"},
		Short:   "List the workspaces below the current one, or below another",
		Example: `  atoll workspace list
  atoll workspace list -o wide
  atoll workspace list root:org -o name`,
		Args:              maximumArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, listFormats); err != nil {
				return err
			}
			hub, err := open()
			if err != nil {
				return err
			}
			path, err := hub.Resolve(cmd.Context(), append(args, ".")[0])
			if err != nil {
				return err
			}
			list, err := listWorkspaces(cmd.Context(), hub, path)
			if err != nil {
				return err
			}
			if output != "" && output != "wide" {
				return printList(streams.Out, output, list)
			}
			if len(list.Items) == 0 {
				_, err := fmt.Fprintf(streams.ErrOut, "No workspaces in %s. Create one with: %s workspace create NAME\n", path, self)
				return err
			}
			header, rows := workspaceTable(list, output == "wide")
			return printTable(streams.Out, header, rows)
		},
	}
	outputFlag(cmd, &output, listFormats)
	return cmd
}

func workspaceTable(list *tenancyv1alpha1.WorkspaceList, wide bool) (header []string, rows [][]string) {
	header = []string{"NAME", "PHASE", "CLUSTER", "AGE", "MESSAGE"}
	if wide {
		header = append(header, "TYPE", "OWNER", "URL")
	}
	for _, w := range list.Items {
		row := []string{w.Name, string(w.Status.Phase), orNone(w.Spec.Cluster), age(w.CreationTimestamp), notReadyBecause(&w)}
		if wide {
			row = append(row, orNone(server.TypeName(w.Spec.Type)), orNone(tenancyv1alpha1.OwnerOf(&w)), orNone(w.Spec.URL))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// notReadyBecause is what a workspace waits for, empty if it is ready.
func notReadyBecause(w *tenancyv1alpha1.Workspace) string {
	condition := tenancyv1alpha1.WorkspaceReady
	switch {
	case w.DeletionTimestamp != nil:
		condition = tenancyv1alpha1.WorkspaceContentDeleted
	case w.Status.Phase == corev1alpha1.LogicalClusterPhaseReady:
		return ""
	case w.Status.Phase == corev1alpha1.LogicalClusterPhaseInitializing:
		condition = tenancyv1alpha1.WorkspaceInitialized
	}
	if c := meta.FindStatusCondition(w.Status.Conditions, condition); c != nil {
		return c.Message
	}
	return ""
}

// listWorkspaces returns the workspaces that path holds, by name.
func listWorkspaces(ctx context.Context, hub *cli.Hub, path logicalcluster.Path) (*tenancyv1alpha1.WorkspaceList, error) {
	list := &tenancyv1alpha1.WorkspaceList{}
	if err := hub.Objects.List(cli.In(ctx, path), list); err != nil {
		return nil, fmt.Errorf("list the workspaces in %q: %w", path, err)
	}
	slices.SortFunc(list.Items, func(a, b tenancyv1alpha1.Workspace) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}
