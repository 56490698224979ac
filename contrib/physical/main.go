package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"atoll.dev/atoll/internal/memory"
	"atoll.dev/atoll/internal/process"
)

func main() {
	terminal := os.Stderr
	// --log-file takes the standard error over; whoever started us still wants to read why we end.
	if fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		terminal = os.NewFile(uintptr(fd), "stderr")
	}
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(terminal, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	o := newOptions()
	start := &cobra.Command{
		Use:   "start --name NAME --root-directory DIR",
		Short: "Run the cluster in the foreground until SIGTERM, SIGINT or, with --exit-with-parent, the end of stdin",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			if err := o.complete(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if o.exitWithParent {
				ctx = process.UntilEOF(ctx, os.Stdin)
			}
			// A second signal ends the process at once.
			context.AfterFunc(ctx, stop)
			defer memory.NewHeadroom(memory.ServerHeadroom).End() // as the server that it is compared with has
			return run(ctx, o, cmd.OutOrStdout())
		},
	}
	credentials := &cobra.Command{
		Use:   "credentials --name NAME --root-directory DIR --secure-port PORT",
		Short: "Make the keys, certificates and kubeconfigs that start would make, for who is to be there before it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			if err := o.complete(); err != nil {
				return err
			}
			if o.securePort == 0 {
				return errors.New("--secure-port is required: kubeconfigs name it")
			}
			_, err := makeCredentials(o, urlAt(o.securePort))
			return err
		},
	}
	o.addFlags(start.Flags())
	o.addFlags(credentials.Flags())

	root := &cobra.Command{
		Use:           "physical",
		Short:         "A whole Kubernetes cluster with simulated nodes in one process, for development and tests",
		SilenceErrors: true,
	}
	root.AddCommand(start, credentials)
	return root
}
