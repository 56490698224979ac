package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"atoll.dev/atoll/internal/cli"
)

// self is this program in the commands that messages propose.
var self = cli.Self

func newRootCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:   "atoll",
		Short: "Many Kubernetes clusters, one API: apply plain manifests, Atoll runs them on your clusters",
		Long: `Atoll serves logical clusters. Each looks like a whole Kubernetes cluster; what is applied to one runs on the physical
clusters that are registered, and its status comes back.`,
		Example: `  atoll start                                          # the server; writes .atoll/admin.kubeconfig
  atoll cluster add east --kubeconfig east.kubeconfig  # a physical cluster, from now on synced by the server
  atoll workspace create shop --enter
  atoll kubectl apply -f app.yaml`,
		Version:       atollVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.AddCommand(
		newStartCommand(streams),
		newSyncerCommand(streams),
		newKubectlCommand(streams),
		newWorkspaceCommand(streams),
		newClusterCommand(streams),
		newExplainCommand(streams),
		newBackupCommand(streams),
		newRestoreCommand(streams),
		newVersionCommand(streams),
	)
	needShell(root)
	root.SetFlagErrorFunc(flagError)
	callAs(root, self)
	return root
}

// callAs makes a command and those below it show how the person called the program, so that what is shown can be pasted.
func callAs(command *cobra.Command, self string) {
	if !command.HasParent() {
		command.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: self}
	}
	lines := strings.Split(command.Example, "\n")
	for i, line := range lines {
		if args, ok := strings.CutPrefix(line, "  atoll "); ok {
			lines[i] = "  " + self + " " + args
		}
	}
	command.Example = strings.Join(lines, "\n")
	for _, c := range command.Commands() {
		callAs(c, self)
	}
}

// near is how many letters differ, at most, in what is proposed for a word that is not known: what cobra has at the top level.
const near = 2

// needsSubcommand is what a command does that only groups others: cobra would print its help and succeed, whatever word
// was misspelt.
func needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = near
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		return fmt.Errorf("unknown command %q for %q: did you mean %q?", args[0], cmd.CommandPath(), meant[0])
	}
	return fmt.Errorf("unknown command %q for %q: \"%s --help\" lists them", args[0], cmd.CommandPath(), cmd.CommandPath())
}

// needShell adds cobra's command completion, which prints its help and succeeds where the shell is missing or misspelt: what a
// script sources then is no program.
func needShell(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	utilruntime.Must(err)
	completion.Use, completion.Args = "completion SHELL", nil
	completion.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return needsSubcommand(cmd, args)
		}
		var shells []string
		for _, shell := range cmd.Commands() {
			shells = append(shells, shell.Name())
		}
		return fmt.Errorf("name a shell: %s. Usage: %s (more with --help)", strings.Join(shells, ", "), cmd.UseLine())
	}
}

// run executes a command and returns the exit code.
func run(command *cobra.Command, errOut io.Writer) int {
	if err := command.Execute(); err != nil {
		fmt.Fprintln(errOut, "Error:", explain(err))
		return 1
	}
	return 0
}

// explain adds what to do to errors that come from below every command.
func explain(err error) string {
	var (
		request *url.Error
		network net.Error
	)
	// What a request failed of, not the url.Error itself: that is a net.Error also where somebody answered, with the wrong certificate for instance.
	if !errors.As(err, &request) || !errors.As(request.Err, &network) && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	u, _ := url.Parse(request.URL) // the URL of a request that was made
	if request.Timeout() {
		return fmt.Sprintf("%v\nThe server at %s did not answer in time: it hangs, or nothing passes between it and here.", err, u.Host)
	}
	return fmt.Sprintf("%v\nIs the server at %s running? \"%s start\" starts one.", err, u.Host, self)
}

// asksAtoll has a command and those below it say, where they fail because what the kubeconfig points to is no Atoll at all, just that.
func asksAtoll(command *cobra.Command, open hubOpener) {
	for _, c := range append(command.Commands(), command) {
		run := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if err == nil || cmd.HasSubCommands() {
				return err
			}
			hub, openErr := open()
			if openErr != nil {
				return err
			}
			return orNotAnAtoll(cmd.Context(), hub, err)
		}
	}
}

// askedAgain is how long a command that failed asks on, for a better reason than the one it has.
const askedAgain = 2 * time.Second

// orNotAnAtoll returns err, or that hub is no Atoll, which then is why; and with err, that the current workspace is gone. One that did not
// answer, or not to the end, is not asked once more.
func orNotAnAtoll(ctx context.Context, hub *cli.Hub, err error) error {
	if network := net.Error(nil); errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askedAgain)
	defer cancel()
	if why := hub.NotAnAtoll(ctx); why != nil {
		return why
	}
	if why := hub.Gone(ctx); why != nil {
		return fmt.Errorf("%w\n%w", err, why)
	}
	return err
}

// hubOpener opens the Atoll that a command is to talk to, once its flags are parsed. Tests have their own.
type hubOpener func() (*cli.Hub, error)

// exactArgs and maximumArgs are cobra's, with an error that shows the usage.
func exactArgs(n int) cobra.PositionalArgs { return between(n, n) }

func maximumArgs(n int) cobra.PositionalArgs { return between(0, n) }

func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		problem := "an argument is missing"
		switch {
		case len(args) > most:
			problem = fmt.Sprintf("unexpected argument %q", args[most])
		case len(args) >= least:
			return nil
		}
		return fmt.Errorf("%s. Usage: %s (more with --help)", problem, cmd.UseLine())
	}
}

// flagError names the flags that one that is not known may have been meant for.
func flagError(cmd *cobra.Command, err error) error {
	unknown := (*pflag.NotExistError)(nil)
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return fmt.Errorf("%w. Usage: %s (more with --help)", err, cmd.UseLine())
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: near}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}, Hidden: f.Hidden})
	})
	meant := flags.SuggestionsFor(unknown.GetSpecifiedName())
	if len(meant) == 0 {
		return fmt.Errorf("unknown flag --%s: \"%s --help\" lists them", unknown.GetSpecifiedName(), cmd.CommandPath())
	}
	return fmt.Errorf("unknown flag --%s: did you mean --%s?", unknown.GetSpecifiedName(), strings.Join(meant, " or --"))
}
