package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // exec and OIDC credentials in kubeconfigs
	"k8s.io/client-go/tools/clientcmd"
	kubecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"atoll.dev/atoll/internal/cli"
)

func newKubectlCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl ...",
		Short: "kubectl, built in; it finds .atoll/admin.kubeconfig of this directory by itself",
		Long: `kubectl, built in, with all its commands and flags except plugins. Unless --kubeconfig or KUBECONFIG says otherwise it
uses .atoll/admin.kubeconfig of the current directory, and so the workspace that "atoll workspace use" entered last.`,
		Example: `  atoll kubectl apply -f app.yaml
  atoll kubectl rollout status deployment/web
  atoll kubectl get placements`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return runKubectl(args, streams)
		},
	}
}

// runKubectl ends the process with kubectl's exit code if kubectl fails: it does so by itself, deep inside.
func runKubectl(args []string, streams genericiooptions.IOStreams) error {
	if !namesKubeconfig(args) {
		if file := cli.Locate(""); file != "" {
			// The environment, since "kubectl config" and what kubectl starts (editors, credential plugins) look there, too.
			file, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file); err != nil {
				return err
			}
		}
	}
	// Before the command is built, which logs already; as kubectl's own main does.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(args)); err != nil {
		return err
	}
	command := kubectl.NewKubectlCommand(kubectl.KubectlOptions{Arguments: append([]string{"kubectl"}, args...), IOStreams: streams})
	command.SetArgs(args)
	kubectlutil.CheckErr(kubecli.RunNoErrOutput(command))
	return nil
}

// namesKubeconfig says whether the arguments have the flag --kubeconfig, before a "--" that ends kubectl's own.
func namesKubeconfig(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.ContainsFunc(args, func(a string) bool {
		return a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=")
	})
}
