package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // exec and OIDC credentials in kubeconfigs
	"k8s.io/client-go/rest"
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
	// As kubectl makes them by itself.
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	var drains bool
	var cordon cordonOutcome
	flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		if drains {
			c.Wrap(func(next http.RoundTripper) http.RoundTripper { return cordoned{next, &cordon} })
		}
		c.UserAgent = kubectlAgent(rest.DefaultKubernetesUserAgent())
		if asksNobody(flags) {
			c.Wrap(func(http.RoundTripper) http.RoundTripper { return nobody{*flags.KubeConfig} })
		}
		return c
	})
	command, err := kubectlCommand(args, streams, flags)
	if err != nil {
		return err
	}
	if found, _, err := command.Find(args); err == nil { // what it does not find it says by itself
		drains = found.Name() == "drain"
	}
	kubectlutil.BehaviorOnFatal(func(words string, code int) {
		if words != "" { // as when diff finds something
			fmt.Fprintln(streams.ErrOut, strings.TrimSuffix(words, "\n")+hintFor(words))
		}
		os.Exit(code)
	})
	kubectlutil.CheckErr(kubecli.RunNoErrOutput(command))
	return nil
}

// kubectlAgent is a user agent of this program by kubectl's name. By it the server calls who wrote a field where kubectl does not say,
// as when it scales, and a conflict would otherwise seem to be with Atoll itself.
func kubectlAgent(own string) string {
	_, build, _ := strings.Cut(own, "/")
	return "kubectl/" + build
}

// asksNobody says whether kubectl would ask localhost:8080, where nothing of ours ever is, because nothing names a server.
func asksNobody(flags *genericclioptions.ConfigFlags) bool {
	config, err := flags.ToRawKubeConfigLoader().RawConfig()
	return err == nil && len(config.Clusters) == 0 && *flags.APIServer == "" && os.Getenv("KUBERNETES_MASTER") == "" &&
		os.Getenv("KUBERNETES_SERVICE_HOST") == "" // in a Pod, its cluster's
}

// nobody ends kubectl at its first request: it would ask five times, and tell of each.
type nobody struct{ kubeconfig string }

func (n nobody) RoundTrip(*http.Request) (*http.Response, error) {
	_, err := cli.Open(n.kubeconfig) // which finds none either, and says where it looked
	kubectlutil.CheckErr(err)
	return nil, err
}

// cordonOutcome is the path of a Node that could not be cordoned; nil as long as all could.
type cordonOutcome = atomic.Pointer[string]

// cordoned ends kubectl drain before it evicts a pod, if a Node could not be cordoned: by itself kubectl goes on, and says in the end that
// the node is drained. The pods of a Node that is a physical cluster would start there again.
type cordoned struct {
	http.RoundTripper
	outcome *cordonOutcome
}

func (c cordoned) RoundTrip(req *http.Request) (*http.Response, error) {
	at := req.URL.Path
	evicts := req.Method == http.MethodPost && path.Base(at) == "eviction" || req.Method == http.MethodDelete && path.Base(path.Dir(at)) == "pods"
	if refused := c.outcome.Load(); refused != nil && evicts {
		return nil, fmt.Errorf("node %q could not be cordoned, so no pod is evicted: it could start there again", path.Base(*refused))
	}
	resp, err := c.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode >= http.StatusBadRequest && req.Method == http.MethodPatch && strings.HasSuffix(path.Dir(at), "/api/v1/nodes") {
		c.outcome.Store(&at)
	}
	return resp, err
}

// hintFor says what to do about what kubectl ends with; "" if it does by itself.
func hintFor(words string) string {
	if strings.HasPrefix(words, "The connection to the server ") {
		return fmt.Sprintf("\nIs the server running? \"%s start\" starts one.", self)
	}
	return ""
}

// completeKubectl asks kubectl, as the shell would.
func completeKubectl(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return within(cmd.Context(), func(ctx context.Context) completions {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard}
		command, err := kubectlCommand(slices.Concat([]string{cobra.ShellCompRequestCmd}, args, []string{typed}), streams, nil)
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

// kubectlCommand is kubectl with the arguments, which may name its kubeconfig; else it uses ours. Its own flags of connections
// are used if flags is nil.
func kubectlCommand(args []string, streams genericiooptions.IOStreams, flags *genericclioptions.ConfigFlags) (*cobra.Command, error) {
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
	command := kubectl.NewKubectlCommand(kubectl.KubectlOptions{Arguments: append([]string{"kubectl"}, args...), ConfigFlags: flags, IOStreams: streams})
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
