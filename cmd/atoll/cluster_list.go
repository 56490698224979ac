package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

type clusterList struct {
	genericiooptions.IOStreams
	output string
}

func newClusterListCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	o := &clusterList{IOStreams: streams}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the physical clusters that the current workspace may use",
		Long: `List the physical clusters registered in the current workspace and above it. PLACEMENTS counts the namespaces and
objects, of all workspaces, that are placed there; "-" where you may not see them. REASON is "Refuses" where the cluster would not take
some of that: "atoll cluster status" shows which. HEARTBEAT is how long ago the cluster's
syncer was last heard of, "unanswered" if the cluster does not answer it.`,
		Example: `  atoll cluster list
  atoll cluster list -o wide`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(o.output, listFormats); err != nil {
				return err
			}
			hub, err := open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), hub)
		},
	}
	outputFlag(cmd, &o.output, listFormats)
	return cmd
}

func (o *clusterList) run(ctx context.Context, hub *cli.Hub) error {
	path, err := hub.Current(ctx)
	if err != nil {
		return err
	}
	clusters, hidden, err := clustersFor(ctx, hub, path)
	if err != nil {
		return err
	}
	for _, p := range hidden {
		fmt.Fprintf(o.ErrOut, "You may not see the clusters registered in %s.\n", p)
	}
	if o.output != "" && o.output != "wide" {
		list := &workloadv1alpha1.SyncTargetList{Items: []workloadv1alpha1.SyncTarget{}} // an empty list, and not null
		for _, c := range clusters {
			list.Items = append(list.Items, c.SyncTarget)
		}
		return printList(o.Out, o.output, list)
	}
	if len(clusters) == 0 && len(hidden) > 0 {
		_, err := fmt.Fprintf(o.ErrOut, "There are no others in %s or above. \"%s kubectl get nodes\" shows those that it may use.\n", path, self)
		return err
	}
	if len(clusters) == 0 {
		_, err := fmt.Fprintf(o.ErrOut, "No clusters in %s or above. Add one with: %s cluster add NAME --kubeconfig FILE\n", path, self)
		return err
	}
	all, visible, err := placements(ctx, hub)
	if err != nil {
		return err
	}
	beats, err := heartbeats(ctx, hub)
	if err != nil {
		return err
	}
	header, rows := clusterTable(clusters, beats, all, visible, o.output == "wide")
	return printTable(o.Out, header, rows)
}

func clusterTable(clusters []listedCluster, beats map[string]heartbeat, all []placementv1alpha1.Placement, visible, wide bool) (header []string, rows [][]string) {
	header = []string{"NAME", "READY", "VERSION", "NODES", "PLACEMENTS", "HEARTBEAT", "REASON", "AGE"}
	if wide {
		header = append(header, "WORKSPACE", "CPU", "MEMORY", "MIRROR")
	}
	for _, c := range clusters {
		beat := beats[c.Status.Mirror]
		ready, reason := readiness(&c.SyncTarget, beat)
		used := "-"
		if visible {
			there := placedOn(&c.SyncTarget, all)
			used = strconv.Itoa(len(there))
			if reason == "" && takesNotAll(&c.SyncTarget, there) {
				reason = "Refuses"
			}
		}
		row := []string{c.Name, ready, c.Status.Version, strconv.Itoa(int(c.Status.Nodes)), used, beat.String(), reason, age(c.CreationTimestamp)}
		if wide {
			row = append(row, c.workspace, c.Status.Capacity.Cpu().String(), c.Status.Capacity.Memory().String(), orNone(c.Status.Mirror))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// takesNotAll says whether a cluster would not take something of what is placed there.
func takesNotAll(t *workloadv1alpha1.SyncTarget, there []*placementv1alpha1.Placement) bool {
	return slices.ContainsFunc(there, func(p *placementv1alpha1.Placement) bool {
		return slices.ContainsFunc(p.Status.Clusters, func(c placementv1alpha1.PlacedClusterStatus) bool {
			return c.Name == t.Name && c.Phase == placementv1alpha1.PhaseRefused
		})
	})
}

// readiness is the status of the condition Ready, and what is the matter: that it is a duplicate, what an administrator has
// to confirm, a cordon, or the reason of Ready where that is not True. It does not call a cluster ready that left the last heartbeat
// without an answer.
func readiness(t *workloadv1alpha1.SyncTarget, beat heartbeat) (ready, reason string) {
	ready, reason = "Unknown", "NeverSeen"
	if c := meta.FindStatusCondition(t.Status.Conditions, workloadv1alpha1.SyncTargetReady); c != nil {
		ready, reason = string(c.Status), c.Reason
		if ready == "True" {
			if reason = ""; beat.unanswered {
				ready, reason = "Unknown", "HeartbeatUnanswered"
			}
		}
	}
	if t.IsDuplicate() {
		return ready, reason // a confirmation would change nothing
	}
	for _, condition := range []string{workloadv1alpha1.SyncTargetObserveOnly, workloadv1alpha1.SyncTargetFrozen} {
		if meta.IsStatusConditionTrue(t.Status.Conditions, condition) {
			return ready, condition
		}
	}
	if t.DeletionTimestamp != nil {
		return ready, "Removing"
	}
	if t.Spec.Unschedulable && reason == "" {
		return ready, "Cordoned"
	}
	return ready, reason
}
