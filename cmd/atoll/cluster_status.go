package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

func newClusterStatusCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show what is known of a physical cluster, what is placed there and what needs attention",
		Long: `Show what is known of a physical cluster, what is placed there and what needs attention. As json or yaml it is the
SyncTarget alone, without what is placed there.`,
		Example: `  atoll cluster status east
  atoll cluster status east -o yaml`,
		Args: exactArgs(1),

		ValidArgsFunction: completeNames(open, clusterNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, objectFormats); err != nil {
				return err
			}
			hub, err := open()
			if err != nil {
				return err
			}
			if output != "" {
				_, target, err := getCluster(cmd.Context(), hub, args[0])
				if err != nil {
					return err
				}
				return printObject(streams.Out, output, target)
			}
			return clusterStatus(cmd.Context(), hub, streams.Out, args[0])
		},
	}
	outputFlag(cmd, &output, objectFormats)
	return cmd
}

func clusterStatus(ctx context.Context, hub *cli.Hub, out io.Writer, name string) error {
	path, t, err := getCluster(ctx, hub, name)
	if err != nil {
		return err
	}
	all, visible, err := placements(ctx, hub)
	if err != nil {
		return err
	}
	uses, err := withPaths(ctx, hub, placedOn(t, all))
	if err != nil {
		return err
	}
	beats, err := heartbeats(ctx, hub)
	if err != nil {
		return err
	}
	beat := beats[t.Status.Mirror]
	ready, reason := readiness(t, beat)
	w := printers.GetNewTabWriter(out)
	line := func(key, value string) { fmt.Fprintf(w, "%s:\t%s\n", key, orNone(value)) }
	line("Name", t.Name)
	line("Workspace", path.String())
	line("Ready", strings.TrimSpace(ready+" "+reason))
	line("Last heartbeat", beat.String())
	line("Version", t.Status.Version)
	line("Nodes", fmt.Sprint(t.Status.Nodes))
	line("Capacity", fmt.Sprintf("%s CPU, %s memory, %s pods", t.Status.Capacity.Cpu(), t.Status.Capacity.Memory(), t.Status.Capacity.Pods()))
	line("Labels", metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: t.Labels}))
	line("Schedulable", map[bool]string{true: "no (cordoned)", false: "yes"}[t.Spec.Unschedulable])
	line("Dedicated to", t.Spec.DedicatedTo)
	line("Workspace DNS", map[bool]string{true: "yes", false: "no"}[t.Spec.DNSKnowsWorkspaces])
	line("Mirror", t.Status.Mirror)
	line("Cluster UID", t.Status.ClusterUID)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, c := range t.Status.Conditions {
		message := inWords(c.Message, func(name logicalcluster.Name) string {
			path, err := hub.PathOf(ctx, name)
			if err != nil {
				return name.String() // who may not see the workspace is told of it by the name alone
			}
			return path.String()
		})
		fmt.Fprintf(out, "Condition %s is %s since %s: %s: %s\n", c.Type, c.Status, age(c.LastTransitionTime), c.Reason, message)
	}
	for _, condition := range slices.Sorted(maps.Keys(confirmable)) {
		what := confirmable[condition]
		if t.IsDuplicate() && condition == workloadv1alpha1.SyncTargetObserveOnly {
			continue // it cannot be confirmed
		}
		if meta.IsStatusConditionTrue(t.Status.Conditions, condition) {
			fmt.Fprintf(out, "Nothing is %s there until you confirm. Look first, then: %s cluster confirm %s %s\n", what.held, self, t.Name, what.word)
		}
	}
	if !t.IsDuplicate() && meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly) {
		if err := writeDifference(out, t.Status.Difference); err != nil {
			return err
		}
	}
	switch {
	case !visible:
		_, err = fmt.Fprintln(out, "What is placed there you may not see: it takes the right to list the placements of all workspaces.")
	case len(uses) == 0:
		_, err = fmt.Fprintln(out, "Nothing is placed there.")
	default:
		fmt.Fprintln(out, "Placed there:")
		for _, u := range uses {
			if _, err = fmt.Fprintf(out, "  %s%s\n", u, at(u, t)); err != nil {
				return err
			}
		}
	}
	return err
}

// keyed is how the server names a cluster-scoped object of a logical cluster: "1x2y3z4a5b6c7d8e|default".
var keyed = regexp.MustCompile(`\b([a-z0-9]{16}|root)\|([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)`)

// inWords puts the path of the workspace in place of the name of a logical cluster: "root:shop default".
func inWords(message string, path func(logicalcluster.Name) string) string {
	return keyed.ReplaceAllStringFunc(message, func(key string) string {
		name, object, _ := strings.Cut(key, "|")
		return path(logicalcluster.Name(name)) + " " + object
	})
}

// writeDifference says what a confirmation would do.
func writeDifference(out io.Writer, d *workloadv1alpha1.Difference) error {
	if d == nil {
		_, err := fmt.Fprintln(out, "What a confirmation would change there is not known yet.")
		return err
	}
	fmt.Fprintln(out, "A confirmation would do there:")
	w := printers.GetNewTabWriter(out)
	fmt.Fprintln(w, "  DELETE\tCREATE\tCHANGE\tLEAVE AS ORPHANS")
	fmt.Fprintf(w, "  %d\t%d\t%d\t%d\n", d.Delete, d.Create, d.Change, d.Orphans)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(d.Sample) == 0 {
		return nil
	}
	fmt.Fprintln(out, "Among them, by their names there:")
	for _, line := range d.Sample {
		fmt.Fprintf(out, "  %s\n", line)
	}
	return nil
}

// at says how far a use is at that cluster.
func at(u use, t *workloadv1alpha1.SyncTarget) string {
	for _, c := range u.placement.Status.Clusters {
		if c.Name == t.Name {
			return fmt.Sprintf(": %s, %d of %d replicas ready", c.Phase, c.ReadyReplicas, c.Replicas)
		}
	}
	return ""
}
