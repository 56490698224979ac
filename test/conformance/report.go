package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"atoll.dev/atoll/test/conformance/exceptions"
	"atoll.dev/atoll/test/host"
)

// report is docs/conformance.md. took is what the runs, which were at the same time, took.
func report(run host.Run, kubernetes string, seed int64, took time.Duration, specs []string, allowed []exceptions.Exception, peer side, workspaces []side) string {
	var b strings.Builder
	sides := append([]side{peer}, workspaces...)
	fmt.Fprintf(&b, `# Conformance

Written by `+"`%s`"+`: the [Conformance] specs of Kubernetes' own end-to-end suite, %s, unmodified, that need no running pod, inside two
workspaces of one server at the same time, and on etcd, kube-apiserver, kube-controller-manager and kube-scheduler of that release
without nodes, the peer. Each workspace is used by a cluster-admin of it who is nobody elsewhere. A third workspace with objects of its
own was the same before and after, resourceVersions included.

The [specs](../test/conformance/specs.txt) are all that the peer passes, each within %s.

%s UTC, commit %s, %s, %s, load before %s. Seed %d, %s.

| group | specs |`, run.Command, kubernetes, specTime, run.Began, run.Commit, run.Machine, run.Go, run.Load, seed, took.Round(time.Second))
	for _, s := range sides {
		fmt.Fprintf(&b, " %s |", s.name)
	}
	fmt.Fprintf(&b, "\n|---|---:|%s\n", strings.Repeat("---:|", len(sides)))
	groups := map[string][]string{}
	for _, spec := range specs {
		groups[group(spec)] = append(groups[group(spec)], spec)
	}
	row := func(name string, specs []string) {
		fmt.Fprintf(&b, "| %s | %d |", name, len(specs))
		for _, s := range sides {
			fmt.Fprintf(&b, " %d |", s.passes(specs))
		}
		fmt.Fprintln(&b)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		row(name, groups[name])
	}
	row("**all**", specs)

	fmt.Fprint(&b, "\n## What workspaces do not pass\n\n")
	if len(allowed) == 0 {
		fmt.Fprintln(&b, "Nothing.")
		return b.String()
	}
	fmt.Fprint(&b, "An exception that passes fails the run.\n\n| spec | why |\n|---|---|\n")
	for _, e := range allowed {
		fmt.Fprintf(&b, "| %s | %s |\n", e.Spec, e.Reason)
	}
	return b.String()
}
