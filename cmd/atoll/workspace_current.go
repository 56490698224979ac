package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"atoll.dev/atoll/internal/cli"
)

func newWorkspaceCurrentCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var short bool
	cmd := &cobra.Command{
		Use:   "current",
		Short: "Print the current workspace",
		Example: `  atoll workspace current
  atoll workspace current --short   # the path alone, for scripts`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			path, err := hub.Current(cmd.Context())
			if err != nil {
				return err
			}
			if short {
				_, err = fmt.Fprintln(streams.Out, path)
				return err
			}
			_, err = fmt.Fprintf(streams.Out, "Current workspace is %s (%s).\n", path, cli.Address{Base: hub.Base, Path: path})
			return err
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "Print the path alone.")
	return cmd
}
