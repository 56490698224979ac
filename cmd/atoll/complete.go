package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

// completionTimeout is how long somebody who pressed TAB waits at most.
const completionTimeout = 2 * time.Second

// completions are what a word on the command line may become, and what the shell does with them.
type completions struct {
	words     []cobra.Completion
	directive cobra.ShellCompDirective
}

// nothing completes to nothing, not even to the names of files.
var nothing = completions{directive: cobra.ShellCompDirectiveNoFileComp}

// within returns what complete does, or nothing if that takes too long: what hangs, such as a plugin for credentials,
// is left behind, since the process ends next.
func within(ctx context.Context, complete func(context.Context) completions) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	answer := make(chan completions, 1)
	go func() { answer <- complete(ctx) }()
	select {
	case c := <-answer:
		return c.words, c.directive
	case <-ctx.Done():
		return nothing.words, nothing.directive
	}
}

// completeNames completes the first argument to one of names; the second, if the command has one, to one of second.
// Who presses TAB is not bothered with errors.
func completeNames(open hubOpener, names func(context.Context, *cli.Hub, string) completions, second ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
		case 1:
			return second, nothing.directive
		default:
			return nothing.words, nothing.directive
		}
		return completeOne(open, names)(cmd, args, typed)
	}
}

// completeOne completes to one of names.
func completeOne(open hubOpener, names func(context.Context, *cli.Hub, string) completions) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return within(cmd.Context(), func(ctx context.Context) completions {
			hub, err := open()
			if err != nil {
				return nothing
			}
			return names(ctx, hub, typed)
		})
	}
}

// clusterNames completes to the clusters that can be used from the current workspace.
func clusterNames(ctx context.Context, hub *cli.Hub, typed string) completions {
	path, err := hub.Current(ctx)
	if err != nil {
		return nothing
	}
	clusters, _, err := clustersFor(ctx, hub, path)
	if err != nil {
		return nothing
	}
	found := nothing
	for _, c := range clusters {
		if strings.HasPrefix(c.Name, typed) {
			found.words = append(found.words, c.Name)
		}
	}
	slices.Sort(found.words)
	found.words = slices.Compact(found.words) // the nearest hides those above
	return found
}

// completeFlag completes the value of a flag that the command has.
func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc(flag, complete))
}

// workspaceTypes completes to the types that are defined where the current workspace is and above, with their paths.
func workspaceTypes(ctx context.Context, hub *cli.Hub, typed string) completions {
	current, err := hub.Current(ctx)
	if err != nil {
		return nothing
	}
	found := nothing
	for _, path := range cli.Ancestors(current) {
		list := &tenancyv1alpha1.WorkspaceTypeList{}
		if err := hub.Objects.List(cli.In(ctx, path), list); err != nil {
			continue // he may not look there
		}
		for _, t := range list.Items {
			if word := path.Join(t.Name).String(); strings.HasPrefix(word, typed) {
				found.words = append(found.words, word)
			}
		}
	}
	return found
}

// workspacePaths completes to workspaces one level at a time: those below the current one, or below the path that ends
// at the last colon. No space follows, because a colon may.
func workspacePaths(ctx context.Context, hub *cli.Hub, typed string) completions {
	return paths(ctx, hub, typed, cli.Root.String())
}

// pathsBelowRoot completes to workspaces without root itself, with which every other path begins.
func pathsBelowRoot(ctx context.Context, hub *cli.Hub, typed string) completions {
	return paths(ctx, hub, typed, cli.Root.String()+":")
}

// paths completes to workspaces, and to top where a path begins.
func paths(ctx context.Context, hub *cli.Hub, typed, top string) completions {
	found := completions{directive: cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace}
	above, typedAbove, last := ".", "", typed
	if i := strings.LastIndex(typed, ":"); i > 0 { // :name is a logical cluster's, which nobody types
		above, typedAbove, last = typed[:i], typed[:i+1], typed[i+1:]
	} else if strings.HasPrefix(top, typed) {
		found.words = append(found.words, top)
	}
	path, err := hub.Resolve(ctx, above)
	if err != nil {
		return found
	}
	list, err := listWorkspaces(ctx, hub, path)
	if err != nil {
		return found
	}
	for _, w := range list.Items {
		if strings.HasPrefix(w.Name, last) {
			found.words = append(found.words, typedAbove+w.Name)
		}
	}
	return found
}
