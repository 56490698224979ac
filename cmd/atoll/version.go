package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubeversion "k8s.io/component-base/version"
)

// atollVersion is set by the Makefile: git describe of what was built.
var atollVersion = "unknown"

func newVersionCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the Kubernetes API it serves",
		Example: "  atoll version",
		Args:    exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(streams.Out, "Atoll       %s\nKubernetes  %s\nGo          %s %s/%s\n",
				atollVersion, kubeversion.Get().GitVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
