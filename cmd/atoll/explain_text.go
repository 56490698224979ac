package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

const (
	// mostUnready pods are shown, and mostEvents; what comes after them says no more.
	mostUnready = 10
	mostEvents  = 5
)

// badIfTrue are the conditions that tell of something in the way when they are True; all others do when they are not.
var badIfTrue = []string{"ReplicaFailure", "Suspended", "FailureTarget", "Failed"}

// stepInWords says what it means that a cluster is not Ready.
var stepInWords = map[placementv1alpha1.PlacedClusterPhase]string{
	placementv1alpha1.PhasePending:  "something of it is not written for the cluster yet",
	placementv1alpha1.PhaseApplying: "written; the cluster does not have it yet, does not answer, or is only observed",
	placementv1alpha1.PhaseSynced:   "the cluster has it; not all of it serves, or it is not its share yet",
	placementv1alpha1.PhaseRefused:  "the cluster would not take something",
	placementv1alpha1.PhaseDraining: "is being left, once what replaces it serves",
	placementv1alpha1.PhaseDeleting: "is being deleted there",
	placementv1alpha1.PhaseStaying:  "left by the decision; what has its volumes there, or has begun, does not move",
}

// write writes it on one screen.
func (x *explanation) write(out io.Writer) error {
	var text strings.Builder
	x.writeWhole(&text)
	x.writePlacement(&text)
	if err := x.writeClusters(&text); err != nil {
		return err
	}
	if err := x.writeUnready(&text); err != nil {
		return err
	}
	for _, e := range x.events[:min(len(x.events), mostEvents)] {
		fmt.Fprintf(&text, "Warning %s, %s ago: %s\n", e.Reason, age(lastSeen(e)), e.Message)
	}
	if len(x.hidden) > 0 {
		fmt.Fprintf(&text, "Left out, since you may not read it: %s.\n", strings.Join(x.hidden, ", "))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// writeWhole says what is wanted and what is the matter with it as a whole.
func (x *explanation) writeWhole(out io.Writer) {
	fmt.Fprintf(out, "%s %s/%s", x.kind.GVK.Kind, x.object.GetNamespace(), x.object.GetName())
	switch {
	case x.kind.Ended != nil && x.kind.Ended(x.object):
		fmt.Fprint(out, ": ended")
	case x.kind.Pods != nil:
		wanted, ready := x.kind.Pods(x.object)
		fmt.Fprintf(out, ": %d of %d pods ready", ready, wanted)
	}
	if since := x.object.GetDeletionTimestamp(); since != nil {
		fmt.Fprintf(out, ", being deleted for %s", age(*since))
	}
	fmt.Fprintln(out)
	if why := x.kind.WhyWithheld(x.object); why != "" {
		fmt.Fprintf(out, "It does not go to physical clusters: %s.\n", why)
	}
	for _, c := range x.conditions {
		if (c.Status == metav1.ConditionTrue) != slices.Contains(badIfTrue, c.Type) {
			continue
		}
		fmt.Fprintf(out, "%s is %s for %s: %s: %s\n", c.Type, c.Status, age(c.LastTransitionTime), c.Reason, c.Message)
	}
}

func (x *explanation) writePlacement(out io.Writer) {
	if x.placement == nil {
		if !x.isHidden(itsPlacement) {
			fmt.Fprintln(out, "It is not placed yet: there is no Placement of it or of its namespace.")
		}
		return
	}
	spec, what := x.placement.Spec, "it"
	if spec.Object == nil {
		what = "all of its namespace that has no annotations of its own"
	}
	fmt.Fprintf(out, "Placement %s, of %s", x.placement.Name, what)
	if x.kind.Goes == kinds.Divided && len(spec.Clusters) > 1 {
		fmt.Fprintf(out, ", divided %s", cmp.Or(spec.Split, placementv1alpha1.SplitEven))
	}
	fmt.Fprintf(out, ". Wished by %s.\n", x.wish)
	if c := meta.FindStatusCondition(x.placement.Status.Conditions, placementv1alpha1.PlacementPlaced); c != nil && c.Status != metav1.ConditionTrue {
		fmt.Fprintf(out, "Not as wished for %s: %s: %s\n", age(c.LastTransitionTime), c.Reason, c.Message)
	}
}

// writeClusters has a row for each cluster where it is, or is to be.
func (x *explanation) writeClusters(out io.Writer) error {
	var rows [][]string
	steps := map[placementv1alpha1.PlacedClusterPhase]bool{}
	for _, name := range x.clusters() {
		at, known := x.at(name)
		step, share := "-", "-"
		if known {
			step, share = string(at.Phase), fmt.Sprintf("%d/%d", at.ReadyReplicas, at.Replicas)
			steps[at.Phase] = true
		}
		pods, ready := 0, 0
		for i := range x.pods {
			if p := &x.pods[i]; p.Spec.NodeName == name {
				pods++
				if isReady(p) {
					ready++
				}
			}
		}
		row := []string{name, step, share}
		switch {
		case !x.kind.MakesPods():
		case x.isHidden(itsPods) || x.isHidden(itsReplicaSets):
			row = append(row, "-")
		default:
			row = append(row, fmt.Sprintf("%d/%d", ready, pods))
		}
		rows = append(rows, append(row, x.heard(name)))
	}
	if len(rows) == 0 {
		return nil
	}
	header := []string{"CLUSTER", "STEP", "PLACEMENT", "PODS", "HEARD"}
	if !x.kind.MakesPods() {
		header = slices.Delete(header, 3, 4)
	}
	fmt.Fprintln(out)
	if err := printTable(out, header, rows); err != nil {
		return err
	}
	ready := true
	for _, step := range sortedPhases {
		if words := stepInWords[step]; steps[step] && words != "" {
			fmt.Fprintf(out, "%s: %s.\n", step, words)
			ready = false
		}
	}
	if !ready && x.placement.Spec.Object == nil {
		fmt.Fprintln(out, "STEP and PLACEMENT are of all that the Placement decides for: it may be something else in the namespace.")
	}
	return nil
}

var sortedPhases = []placementv1alpha1.PlacedClusterPhase{
	placementv1alpha1.PhaseRefused, placementv1alpha1.PhasePending, placementv1alpha1.PhaseApplying, placementv1alpha1.PhaseSynced,
	placementv1alpha1.PhaseDraining, placementv1alpha1.PhaseDeleting, placementv1alpha1.PhaseStaying,
}

// clusters are the names of those where it is, or is to be, sorted.
func (x *explanation) clusters() (names []string) {
	if x.placement != nil {
		for _, c := range x.placement.Spec.Clusters {
			names = append(names, c.Name)
		}
		for _, c := range x.placement.Status.Clusters {
			names = append(names, c.Name)
		}
	}
	for _, p := range x.pods {
		if p.Spec.NodeName != "" {
			names = append(names, p.Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// at is how far a cluster is with what the Placement is of, if the Placement says or names it.
func (x *explanation) at(name string) (at placementv1alpha1.PlacedClusterStatus, known bool) {
	if x.placement == nil {
		return at, false
	}
	for _, c := range x.placement.Status.Clusters {
		if c.Name == name {
			return c, true
		}
	}
	at = placementv1alpha1.PlacedClusterStatus{Name: name, Phase: placementv1alpha1.PhasePending}
	return at, slices.ContainsFunc(x.placement.Spec.Clusters, func(c placementv1alpha1.PlacedCluster) bool { return c.Name == name })
}

// heard says whether what is known of a cluster is how it is.
func (x *explanation) heard(name string) string {
	node, ok := x.nodes[name]
	if !ok {
		return "-"
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return "yes"
		}
		return fmt.Sprintf("no, for %s: %s", age(c.LastTransitionTime), c.Reason)
	}
	return "never"
}

func (x *explanation) writeUnready(out io.Writer) error {
	var rows [][]string
	for i := range x.pods {
		if p := &x.pods[i]; !isReady(p) && p.Status.Phase != corev1.PodSucceeded {
			rows = append(rows, append([]string{p.Name, p.Spec.NodeName}, whyUnready(p)...))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b []string) int { return slices.Compare(a, b) })
	more := len(rows) - mostUnready
	fmt.Fprintln(out)
	if err := printTable(out, []string{"NOT READY", "CLUSTER", "FOR", "REASON", "MESSAGE"}, rows[:min(len(rows), mostUnready)]); err != nil {
		return err
	}
	if more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}

func isReady(p *corev1.Pod) bool { return readyOf(p).Status == corev1.ConditionTrue }

func readyOf(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{LastTransitionTime: p.CreationTimestamp, Reason: string(p.Status.Phase)}
}

// whyUnready returns since when a pod is not ready, and what keeps it from that: a container before the pod.
func whyUnready(p *corev1.Pod) []string {
	ready := readyOf(p)
	reason, message := ready.Reason, ready.Message
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			reason, message = w.Reason, cmp.Or(w.Message, "container "+c.Name)
			break
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			reason, message = t.Reason, cmp.Or(t.Message, fmt.Sprintf("container %s ended with %d", c.Name, t.ExitCode))
			break
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reason, message = c.Reason, c.Message
		}
	}
	if p.DeletionTimestamp != nil {
		reason, message = "Terminating", fmt.Sprintf("has %ds to end", ptr.Deref(p.DeletionGracePeriodSeconds, 0))
	}
	return []string{age(ready.LastTransitionTime), orNone(reason), strings.Join(strings.Fields(message), " ")}
}
