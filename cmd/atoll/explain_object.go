package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// explained is what is said of something that is placed: the text is written from it, and with -o json or yaml it is printed itself. Programs
// read it: fields are added, none is renamed.
type explained struct {
	Kind              string              `json:"kind"`
	Namespace         string              `json:"namespace"`
	Name              string              `json:"name"`
	DeletionTimestamp *metav1.Time        `json:"deletionTimestamp,omitempty"`
	Ended             bool                `json:"ended,omitempty"`
	Wanted            *podCount           `json:"wanted,omitempty"`     // pods, of a kind that says how many
	Withheld          string              `json:"withheld,omitempty"`   // why it does not go to physical clusters
	Conditions        []metav1.Condition  `json:"conditions,omitempty"` // of it, those that tell of something in the way
	Placement         *explainedPlacement `json:"placement,omitempty"`
	Clusters          []explainedCluster  `json:"clusters,omitempty"` // where it is, or is to be, by name
	Pods              []explainedPod      `json:"pods,omitempty"`     // by cluster and name
	Warnings          []explainedWarning  `json:"warnings,omitempty"` // Events, the latest first
	LeftOut           []string            `json:"leftOut,omitempty"`  // what may not be read

	makesPods bool
}

// podCount is how many there are, or are to be, and how many of them are ready.
type podCount struct {
	Pods  int `json:"pods"`
	Ready int `json:"ready"`
}

// explainedPlacement is what decides where it goes.
type explainedPlacement struct {
	Name     string                        `json:"name"`
	Of       string                        `json:"of"` // Object or Namespace
	Split    placementv1alpha1.SplitPolicy `json:"split,omitempty"`
	WishedBy string                        `json:"wishedBy"`
	Placed   *metav1.Condition             `json:"placed,omitempty"` // if it is not placed as wished
}

// explainedCluster is one cluster's part. Replicas are those of all that the Placement is of.
type explainedCluster struct {
	Name          string                               `json:"name"`
	Step          placementv1alpha1.PlacedClusterPhase `json:"step,omitempty"`    // none: the Placement does not say or name it
	Meaning       string                               `json:"meaning,omitempty"` // of the step, unless all is there
	Replicas      int32                                `json:"replicas"`
	ReadyReplicas int32                                `json:"readyReplicas"`
	Shown         *podCount                            `json:"shown,omitempty"` // pods in the workspace; none: they may not be read
	Heard         *hearing                             `json:"heard,omitempty"` // none: Nodes may not be read, or it is none
}

// hearing is whether what is known of a cluster is how it is, and since when that is so.
type hearing struct {
	Heard  bool         `json:"heard"`
	Since  *metav1.Time `json:"since,omitempty"` // none: it never was
	Reason string       `json:"reason,omitempty"`
}

// explainedPod is where one replica is, and what keeps it from being ready.
type explainedPod struct {
	Name    string       `json:"name"`
	Cluster string       `json:"cluster,omitempty"` // none yet
	Ready   bool         `json:"ready"`
	Phase   string       `json:"phase,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
}

type explainedWarning struct {
	Reason   string      `json:"reason"`
	Message  string      `json:"message"`
	LastSeen metav1.Time `json:"lastSeen"`
}

// explained says what was read.
func (x *explanation) explained() *explained {
	e := &explained{
		Kind: x.kind.GVK.Kind, Namespace: x.object.GetNamespace(), Name: x.object.GetName(), DeletionTimestamp: x.object.GetDeletionTimestamp(),
		Ended: x.kind.Ended != nil && x.kind.Ended(x.object), Withheld: x.kind.WhyWithheld(x.object),
		Placement: x.explainPlacement(), LeftOut: x.hidden, makesPods: x.kind.MakesPods(),
	}
	if x.kind.Pods != nil {
		wanted, ready := x.kind.Pods(x.object)
		e.Wanted = &podCount{Pods: int(wanted), Ready: int(ready)}
	}
	for _, c := range x.conditions {
		if (c.Status == metav1.ConditionTrue) == slices.Contains(badIfTrue, c.Type) {
			e.Conditions = append(e.Conditions, c)
		}
	}
	for _, name := range x.clusters() {
		e.Clusters = append(e.Clusters, x.explainCluster(name))
	}
	for i := range x.pods {
		e.Pods = append(e.Pods, explainPod(&x.pods[i]))
	}
	slices.SortFunc(e.Pods, func(a, b explainedPod) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	for _, w := range x.events {
		e.Warnings = append(e.Warnings, explainedWarning{Reason: w.Reason, Message: w.Message, LastSeen: lastSeen(w)})
	}
	return e
}

func (x *explanation) explainPlacement() *explainedPlacement {
	if x.placement == nil {
		return nil
	}
	spec := x.placement.Spec
	p := &explainedPlacement{Name: x.placement.Name, Of: "Object", WishedBy: x.wish}
	if spec.Object == nil {
		p.Of = "Namespace"
	}
	if x.kind.Goes == kinds.Divided && len(spec.Clusters) > 1 {
		p.Split = cmp.Or(spec.Split, placementv1alpha1.SplitEven)
	}
	if c := meta.FindStatusCondition(x.placement.Status.Conditions, placementv1alpha1.PlacementPlaced); c != nil && c.Status != metav1.ConditionTrue {
		p.Placed = c
	}
	return p
}

func (x *explanation) explainCluster(name string) explainedCluster {
	e := explainedCluster{Name: name, Heard: x.heard(name)}
	if at, known := x.at(name); known {
		e.Step, e.Meaning, e.Replicas, e.ReadyReplicas = at.Phase, stepInWords[at.Phase], at.Replicas, at.ReadyReplicas
	}
	if !x.kind.MakesPods() || x.isHidden(itsPods) || x.isHidden(itsReplicaSets) {
		return e
	}
	e.Shown = &podCount{}
	for i := range x.pods {
		if p := &x.pods[i]; p.Spec.NodeName == name {
			e.Shown.Pods++
			if isReady(p) {
				e.Shown.Ready++
			}
		}
	}
	return e
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
func (x *explanation) heard(name string) *hearing {
	node, ok := x.nodes[name]
	if !ok {
		return nil
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return &hearing{Heard: c.Status == corev1.ConditionTrue, Since: ptr.To(c.LastTransitionTime), Reason: c.Reason}
		}
	}
	return &hearing{}
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

// explainPod says since when a pod is ready, or what keeps it from that: a container before the pod.
func explainPod(p *corev1.Pod) explainedPod {
	ready := readyOf(p)
	e := explainedPod{Name: p.Name, Cluster: p.Spec.NodeName, Ready: isReady(p), Phase: string(p.Status.Phase), Since: ptr.To(ready.LastTransitionTime)}
	if e.Ready || p.Status.Phase == corev1.PodSucceeded {
		return e
	}
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
	e.Reason, e.Message = reason, strings.Join(strings.Fields(message), " ")
	return e
}

// print writes it as json or yaml, and else as text.
func (e *explained) print(out io.Writer, format string) error {
	var text []byte
	var err error
	switch format {
	case "json":
		text, err = json.MarshalIndent(e, "", "    ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(e)
	default:
		return e.write(out)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
