package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"atoll.dev/atoll/internal/process"
	"atoll.dev/atoll/internal/programimage"
)

func main() {
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "realnode",
		Short:         "A Kubernetes cluster of one node that truly runs pods, for tests",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(
		withOptions(&cobra.Command{
			Use:   "start --name NAME --root-directory DIR",
			Short: "Run the cluster in the foreground until SIGTERM, SIGINT or, with --exit-with-parent, the end of stdin",
		}, func(ctx context.Context, o *options, _ io.Writer) error {
			ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if o.exitWithParent {
				ctx = process.UntilEOF(ctx, os.Stdin)
			}
			return start(ctx, o)
		}),
		withOptions(&cobra.Command{
			Use:   "check",
			Short: "Say what this machine lacks to run pods: lines of a word, a tab and the reason. It fails if there are any",
		}, func(ctx context.Context, o *options, out io.Writer) error {
			lacks := check(ctx, o)
			for _, l := range lacks {
				fmt.Fprintf(out, "%s\t%s\n", l.what, l.why)
			}
			if len(lacks) > 0 {
				return fmt.Errorf("this machine lacks %d things to run pods", len(lacks))
			}
			return nil
		}),
		&cobra.Command{
			Use:   "image PROGRAM NAME FILE",
			Short: "Write an image that holds one program, linked statically, such as the pause of build.sh",
			Args:  cobra.ExactArgs(3),
			RunE: func(_ *cobra.Command, args []string) error {
				return programimage.Write(args[2], programimage.Image{Program: args[0], Name: args[1]})
			},
		},
		// What follows is for realnode itself.
		withOptions(&cobra.Command{Use: initCommand, Hidden: true}, func(_ context.Context, o *options, _ io.Writer) error { return runInit(o) }),
		withOptions(&cobra.Command{Use: sweepCommand, Hidden: true}, func(_ context.Context, o *options, out io.Writer) error {
			return sweep(o.cgroup(), o.path("sweep.lock"), os.Stdin, os.NewFile(firstExtraFile, "pidfd"), out)
		}),
		withOptions(&cobra.Command{Use: probeCommand, Hidden: true}, func(ctx context.Context, o *options, out io.Writer) error { return probe(ctx, o, out) }),
	)
	return root
}

// withOptions completes a command, which runs with the options that its flags say.
func withOptions(cmd *cobra.Command, run func(context.Context, *options, io.Writer) error) *cobra.Command {
	o := newOptions()
	o.addFlags(cmd.Flags())
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.complete(); err != nil {
			return err
		}
		return run(cmd.Context(), o, cmd.OutOrStdout())
	}
	return cmd
}
