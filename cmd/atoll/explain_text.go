package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
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
func (e *explained) write(out io.Writer) error {
	var text strings.Builder
	e.writeWhole(&text)
	e.writePlacement(&text)
	if err := e.writeClusters(&text); err != nil {
		return err
	}
	if err := e.writeUnready(&text); err != nil {
		return err
	}
	for _, w := range e.Warnings[:min(len(e.Warnings), mostEvents)] {
		fmt.Fprintf(&text, "Warning %s, %s ago: %s\n", w.Reason, age(w.LastSeen), w.Message)
	}
	if len(e.LeftOut) > 0 {
		fmt.Fprintf(&text, "Left out, since you may not read it: %s.\n", strings.Join(e.LeftOut, ", "))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// writeWhole says what is wanted and what is the matter with it as a whole.
func (e *explained) writeWhole(out io.Writer) {
	fmt.Fprintf(out, "%s %s/%s", e.Kind, e.Namespace, e.Name)
	switch {
	case e.Ended:
		fmt.Fprint(out, ": ended")
	case e.Wanted != nil:
		fmt.Fprintf(out, ": %d of %d pods ready", e.Wanted.Ready, e.Wanted.Pods)
	}
	if e.DeletionTimestamp != nil {
		fmt.Fprintf(out, ", being deleted for %s", age(*e.DeletionTimestamp))
	}
	fmt.Fprintln(out)
	if e.Withheld != "" {
		fmt.Fprintf(out, "It does not go to physical clusters: %s.\n", e.Withheld)
	}
	for _, c := range e.Conditions {
		fmt.Fprintf(out, "%s is %s for %s: %s: %s\n", c.Type, c.Status, age(c.LastTransitionTime), c.Reason, c.Message)
	}
}

func (e *explained) writePlacement(out io.Writer) {
	p := e.Placement
	if p == nil {
		if !slices.Contains(e.LeftOut, itsPlacement) {
			fmt.Fprintln(out, "It is not placed yet: there is no Placement of it or of its namespace.")
		}
		return
	}
	what := "it"
	if p.Of == "Namespace" {
		what = "all of its namespace that has no annotations of its own"
	}
	fmt.Fprintf(out, "Placement %s, of %s", p.Name, what)
	if p.Split != "" {
		fmt.Fprintf(out, ", divided %s", p.Split)
	}
	fmt.Fprintf(out, ". Wished by %s.\n", p.WishedBy)
	if c := p.Placed; c != nil {
		fmt.Fprintf(out, "Not as wished for %s: %s: %s\n", age(c.LastTransitionTime), c.Reason, c.Message)
	}
}

// writeClusters has a row for each cluster where it is, or is to be.
func (e *explained) writeClusters(out io.Writer) error {
	var rows [][]string
	steps := map[placementv1alpha1.PlacedClusterPhase]bool{}
	for _, c := range e.Clusters {
		row := []string{c.Name, "-", "-"}
		if c.Step != "" {
			row[1], row[2] = string(c.Step), fmt.Sprintf("%d/%d", c.ReadyReplicas, c.Replicas)
			steps[c.Step] = true
		}
		switch {
		case !e.makesPods:
		case c.Shown == nil:
			row = append(row, "-")
		default:
			row = append(row, fmt.Sprintf("%d/%d", c.Shown.Ready, c.Shown.Pods))
		}
		rows = append(rows, append(row, c.Heard.inWords()))
	}
	if len(rows) == 0 {
		return nil
	}
	header := []string{"CLUSTER", "STEP", "PLACEMENT", "PODS", "HEARD"}
	if !e.makesPods {
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
	if !ready && e.Placement.Of == "Namespace" {
		fmt.Fprintln(out, "STEP and PLACEMENT are of all that the Placement decides for: it may be something else in the namespace.")
	}
	return nil
}

var sortedPhases = []placementv1alpha1.PlacedClusterPhase{
	placementv1alpha1.PhaseRefused, placementv1alpha1.PhasePending, placementv1alpha1.PhaseApplying, placementv1alpha1.PhaseSynced,
	placementv1alpha1.PhaseDraining, placementv1alpha1.PhaseDeleting, placementv1alpha1.PhaseStaying,
}

func (h *hearing) inWords() string {
	switch {
	case h == nil:
		return "-"
	case h.Heard:
		return "yes"
	case h.Since == nil:
		return "never"
	}
	return fmt.Sprintf("no, for %s: %s", age(*h.Since), h.Reason)
}

func (e *explained) writeUnready(out io.Writer) error {
	var rows [][]string
	for _, p := range e.Pods {
		if !p.Ready && p.Phase != string(corev1.PodSucceeded) {
			rows = append(rows, []string{p.Name, p.Cluster, age(*p.Since), orNone(p.Reason), p.Message})
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
