package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func newWorkspaceUseCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:     "use PATH|NAME|..|-",
		Aliases: []string{"enter"},
		Short:   "Enter a workspace: make it the kubeconfig's current one",
		Long: `Enter a workspace. The kubeconfig's context "workspace.atoll.dev/current" is pointed at it and made current; kubectl
and every other client of that kubeconfig follows.`,
		Example: `  atoll workspace use shop       # below the current one
  atoll workspace use root:org   # by path
  atoll workspace use ..         # above
  atoll workspace use -          # the one before
  atoll workspace use :1a2b3c4d5e6f7g8h   # a logical cluster by name`,
		Args:              exactArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			if args[0] == "-" {
				path, err := hub.Back(cmd.Context())
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(streams.Out, "Current workspace is %s.\n", orNone(path.String()))
				return err
			}
			path, err := hub.Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := hub.Enter(cmd.Context(), path); err != nil {
				return err
			}
			_, err = fmt.Fprintf(streams.Out, "Current workspace is %s.\n", path)
			return err
		},
	}
}
