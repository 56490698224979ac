package main

import (
	"fmt"
	"os"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func newWorkspaceUseCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:     "use [PATH|NAME|..|-|~]",
		Aliases: []string{"enter"},
		Short:   "Enter a workspace: make it the kubeconfig's current one",
		Long: `Enter a workspace. The kubeconfig's context "workspace.atoll.dev/current" is pointed at it and made current; kubectl
and every other client of that kubeconfig follows.

Without an argument, or with ~, it is your home workspace: your own, made when you first ask for it, if the server makes
such for you (--home-workspaces of "atoll start").`,
		Example: `  atoll workspace use shop       # below the current one
  atoll workspace use root:org   # by path
  atoll workspace use ..         # above
  atoll workspace use -          # the one before
  atoll workspace use            # your home workspace
  atoll workspace use :1a2b3c4d5e6f7g8h   # a logical cluster by name`,
		Args:              maximumArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			if len(args) == 1 && args[0] == "-" {
				path, err := hub.Back(cmd.Context())
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(streams.Out, "Current workspace is %s.\n", orNone(path.String()))
				return err
			}
			var path logicalcluster.Path
			if len(args) == 0 || isHome(args[0]) {
				path, err = hub.Home(cmd.Context())
			} else {
				path, err = hub.Resolve(cmd.Context(), args[0])
			}
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

// isHome says whether an argument means the home workspace. Shells make the home directory of a ~ that is not quoted, and no
// workspace is called like one.
func isHome(arg string) bool {
	directory, err := os.UserHomeDir()
	return arg == "~" || err == nil && arg == directory
}
