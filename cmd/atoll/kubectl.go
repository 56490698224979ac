package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
		ValidArgsFunction:  completeKubectl,
		RunE: func(_ *cobra.Command, args []string) error {
			return runKubectl(args, streams)
		},
	}
}

// runKubectl ends the process with kubectl's exit code if kubectl fails: it does so by itself, deep inside.
func runKubectl(args []string, streams genericiooptions.IOStreams) error {
	command, err := kubectlCommand(args, streams)
	if err != nil {
		return err
	}
	kubectlutil.CheckErr(kubecli.RunNoErrOutput(command))
	return nil
}

// completeKubectl asks kubectl, as the shell would.
func completeKubectl(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return within(cmd.Context(), func(ctx context.Context) completions {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard}
		command, err := kubectlCommand(slices.Concat([]string{cobra.ShellCompRequestCmd}, args, []string{typed}), streams)
		if err != nil {
			return nothing
		}
		command.SetOut(&out)
		command.SetErr(io.Discard)
		if err := command.ExecuteContext(ctx); err != nil {
			return nothing
		}
		return parseCompletions(out.String())
	})
}

// parseCompletions reads what a command answers to a shell: a completion a line, then a colon and the directive.
func parseCompletions(answer string) completions {
	lines := strings.Split(strings.TrimRight(answer, "\n"), "\n")
	directive, found := strings.CutPrefix(lines[len(lines)-1], ":")
	n, err := strconv.Atoi(directive)
	if !found || err != nil {
		return nothing
	}
	return completions{words: lines[:len(lines)-1], directive: cobra.ShellCompDirective(n)}
}

// kubectlCommand is kubectl with the arguments, which may name its kubeconfig; else it uses ours.
func kubectlCommand(args []string, streams genericiooptions.IOStreams) (*cobra.Command, error) {
	if !namesKubeconfig(args) {
		if file := cli.Locate(""); file != "" {
			// The environment, since "kubectl config" and what kubectl starts (editors, credential plugins) look there, too.
			file, err := filepath.Abs(file)
			if err != nil {
				return nil, err
			}
			if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file); err != nil {
				return nil, err
			}
		}
	}
	// Before the command is built, which logs already; as kubectl's own main does.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(args)); err != nil {
		return nil, err
	}
	command := kubectl.NewKubectlCommand(kubectl.KubectlOptions{Arguments: append([]string{"kubectl"}, args...), IOStreams: streams})
	command.SetArgs(args)
	return command, nil
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
