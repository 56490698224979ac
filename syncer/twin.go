package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apimachineryversion "k8s.io/apimachinery/pkg/version"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// ConditionOrphans, on a SyncTarget, is True while the physical cluster has objects of ours that no leaf asks for.
// They are never deleted: an administrator decides.
const ConditionOrphans = "Orphans"

// Reasons of conditions that the Syncer writes.
const (
	ReasonConnected        = "Connected"                        // Ready: the physical cluster answers
	ReasonUnreachable      = "Unreachable"                      // not Ready: it has not answered for 40 s, over restarts of the syncer, or never did
	ReasonCannotWatch      = workloadv1alpha1.ReasonCannotWatch // not Ready: it answers, and lets us not list or watch what we sync
	ReasonHubRestored      = "HubRestored"                      // ObserveOnly: the hub is older than the physical cluster
	ReasonPhysicalRestored = "PhysicalRestored"                 // ObserveOnly: the physical cluster is older than the hub remembers
	ReasonInStep           = "InStep"                           // not ObserveOnly
	ReasonNoLeaf           = "NoLeaf"                           // Orphans
	ReasonNone             = "None"                             // no Orphans
)

const (
	// identifyEvery is how often version and identity of the physical cluster are asked for again.
	identifyEvery = 5 * time.Minute
	// named is how many objects a message names.
	named = 5
)

// facts are what is known of a physical cluster at one moment.
type facts struct {
	version, clusterUID string // empty while unknown
	// nodes is nil while unknown.
	nodes []corev1.Node
	// lastAnswer, everAnswered and trouble as in state.
	lastAnswer   time.Time
	everAnswered bool
	trouble      string
	verdict      verdict
	orphans      []string
	blind        []blindSpot
	// carried has the resources of which it is known whether they are carried.
	carried map[string]bool
	// classes are told of; of a kind that is not in it, what was told holds.
	classes classesSeen
	// difference is nil where nothing is held back, and while it is not known.
	difference *workloadv1alpha1.Difference
}

// blindSpot is a resource of the physical cluster that cannot be listed or watched: since when, and why.
type blindSpot struct {
	resource string // for example deployments.apps
	since    time.Time
	why      string
}

// cannotWatch says what cannot be watched, for long enough to count; "" for nothing.
func cannotWatch(spots []blindSpot, wasReady bool, now time.Time) string {
	var resources []string
	var why string
	for _, spot := range spots {
		if wasReady && now.Sub(spot.since) <= silence {
			continue
		}
		resources = append(resources, spot.resource)
		if why == "" {
			why = spot.why
		}
	}
	if len(resources) == 0 {
		return ""
	}
	return cut(fmt.Sprintf("Cannot list and watch %s: %s", strings.Join(resources, ", "), why), maxMessage)
}

// twinStatus returns what the twin's status should be, given what it is. It says the same for the same facts, so
// that nothing is written unless something changed.
func twinStatus(old workloadv1alpha1.SyncTargetStatus, generation int64, f facts, now time.Time) workloadv1alpha1.SyncTargetStatus {
	status := *old.DeepCopy()
	if f.version != "" {
		status.Version = f.version
	}
	if f.clusterUID != "" {
		status.ClusterUID = f.clusterUID
	}
	if f.nodes != nil {
		status.Nodes, status.Capacity = capacity(f.nodes)
	}
	status.CarriedResources = carriedResources(old.CarriedResources, f.carried)
	status.Classes = f.classes.status(old.Classes)
	set := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now)}
		if is {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}

	wasReady := meta.IsStatusConditionTrue(old.Conditions, workloadv1alpha1.SyncTargetReady)
	blind := cannotWatch(f.blind, wasReady, now)
	switch {
	case f.trouble == "" && f.everAnswered && blind != "":
		set(workloadv1alpha1.SyncTargetReady, false, ReasonCannotWatch, blind)
	case f.trouble == "" && f.everAnswered:
		set(workloadv1alpha1.SyncTargetReady, true, ReasonConnected, "The physical cluster answers.")
	case f.trouble != "" && (now.Sub(f.lastAnswer) > silence || !f.everAnswered && !wasReady):
		set(workloadv1alpha1.SyncTargetReady, false, ReasonUnreachable, "The physical cluster does not answer: "+f.trouble)
	}

	switch f.verdict {
	case fine:
		set(workloadv1alpha1.SyncTargetObserveOnly, false, ReasonInStep, "Hub and physical cluster remember the same heartbeats.")
	case hubRestored:
		set(workloadv1alpha1.SyncTargetObserveOnly, true, ReasonHubRestored,
			"The hub shows older heartbeats than the physical cluster: it was restored from a snapshot. Nothing is written to the physical cluster"+
				" until the SyncTarget is annotated "+workloadv1alpha1.ConfirmAnnotation+"="+confirmRestored+".")
	case physicalRestored:
		set(workloadv1alpha1.SyncTargetObserveOnly, true, ReasonPhysicalRestored,
			"The physical cluster shows older heartbeats than it confirmed before: it was restored, or is another one. Nothing is written to it"+
				" until the SyncTarget is annotated "+workloadv1alpha1.ConfirmAnnotation+"="+confirmRestored+".")
	}

	if f.verdict == fine || f.difference != nil {
		status.Difference = f.difference
	}

	if n := len(f.orphans); n > 0 {
		set(ConditionOrphans, true, ReasonNoLeaf, fmt.Sprintf("%d objects of Atoll's that nothing asks for, left alone: %s", n, some(f.orphans)))
	} else if meta.FindStatusCondition(old.Conditions, ConditionOrphans) != nil {
		set(ConditionOrphans, false, ReasonNone, "Every object of Atoll's is asked for.")
	}

	if !apiequality.Semantic.DeepEqual(old, status) {
		// Seconds, as the wire has them.
		heard := metav1.NewTime(f.lastAnswer.Truncate(time.Second))
		if f.everAnswered {
			status.LastHeartbeat = &heard
		}
	}
	return status
}

// some names the first of names, which are sorted. A physical cluster that is no Kubernetes may show names of any length.
func some(names []string) string {
	if len(names) > named {
		return cut(strings.Join(names[:named], ", "), maxMessage) + ", ..."
	}
	return cut(strings.Join(names, ", "), maxMessage)
}

// capacity counts the Ready nodes and sums what pods may use on them.
func capacity(nodes []corev1.Node) (ready int32, sum corev1.ResourceList) {
	for _, node := range nodes {
		isReady := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !isReady {
			continue
		}
		ready++
		for name, quantity := range node.Status.Allocatable {
			if sum == nil {
				sum = corev1.ResourceList{}
			}
			total, ok := sum[name]
			if !ok {
				total = resource.Quantity{Format: quantity.Format}
			}
			total.Add(quantity)
			sum[name] = total
		}
	}
	return ready, sum
}

// thinNode keeps of a Node what capacity reads: a Node's images and heartbeats are most of it.
func thinNode(node *unstructured.Unstructured) *unstructured.Unstructured {
	thin := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node"}}
	thin.SetName(node.GetName())
	thin.SetUID(node.GetUID())
	thin.SetResourceVersion(node.GetResourceVersion())
	status := map[string]any{}
	if allocatable, ok, _ := unstructured.NestedMap(node.Object, "status", "allocatable"); ok {
		status["allocatable"] = allocatable
	}
	if conditions, ok, _ := unstructured.NestedSlice(node.Object, "status", "conditions"); ok {
		status["conditions"] = slices.DeleteFunc(conditions, func(c any) bool {
			condition, ok := c.(map[string]any)
			return !ok || condition["type"] != string(corev1.NodeReady)
		})
	}
	thin.Object["status"] = status
	return thin
}

// confirms says whether an administrator wants the side to be written to that was restored by that verdict. It counts only once
// the twin, nil if there is none, says that this one was: who confirmed the one side has not seen what the other lost.
func confirms(twin *workloadv1alpha1.SyncTarget, v verdict) bool {
	if twin == nil || twin.Annotations[workloadv1alpha1.ConfirmAnnotation] != confirmRestored {
		return false
	}
	told := meta.FindStatusCondition(twin.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly)
	return told != nil && told.Status == metav1.ConditionTrue && told.Reason == v.String()
}

// publish writes the twin's status if it changed.
func (s *Syncer) publish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	twin := s.twinObject()
	if twin == nil {
		return nil // its event brings us back
	}
	f, err := s.facts()
	if err != nil {
		return err
	}
	status := twinStatus(twin.Status, twin.Generation, f, s.config.Clock.Now())
	if apiequality.Semantic.DeepEqual(twin.Status, status) {
		return nil
	}
	twin.Status = status
	twin.TypeMeta = metav1.TypeMeta{APIVersion: workloadv1alpha1.GroupVersion.String(), Kind: "SyncTarget"}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(twin)
	if err != nil {
		return fmt.Errorf("render the status of %s: %w", twin.Name, err)
	}
	_, err = s.mirror.dynamic.Resource(syncTargetsGVR).UpdateStatus(ctx, &unstructured.Unstructured{Object: content},
		metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", twin.Name, err)
	}
	return nil
}

// facts collects what is known.
func (s *Syncer) facts() (f facts, err error) {
	f = facts{orphans: s.orphans(), blind: s.blind(), carried: s.carried(), classes: s.classesSeen()}
	s.state.mu.Lock()
	f.lastAnswer, f.everAnswered, f.trouble = s.state.lastAnswer, s.state.everAnswered, s.state.trouble
	f.version, f.clusterUID = s.state.version, s.state.clusterUID
	s.state.mu.Unlock()
	s.gate.mu.Lock()
	f.verdict = s.gate.verdict
	s.gate.mu.Unlock()
	if f.verdict == notLetIn {
		f.verdict = fine // who lets in knows; nothing was restored
	}
	if f.verdict == hubRestored || f.verdict == physicalRestored {
		if f.difference, err = s.difference(); err != nil {
			return f, err
		}
	}

	if s.nodes.HasSynced() {
		f.nodes = []corev1.Node{}
		for _, obj := range s.nodes.List() {
			var node corev1.Node
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &node); err != nil {
				return f, fmt.Errorf("read a Node: %w", err)
			}
			f.nodes = append(f.nodes, node)
		}
	}
	return f, nil
}

// isLetIn says whether a SyncTarget, whose twin is nil if there is none, was let in to the physical cluster with that UID, ""
// while that is not known. A server that says nothing of it is older, and lets in whoever comes.
func isLetIn(twin *workloadv1alpha1.SyncTarget, clusterUID string) bool {
	if twin == nil || clusterUID == "" {
		return false
	}
	uid, told := twin.Annotations[workloadv1alpha1.LetInAnnotation]
	return !told || uid == clusterUID
}

// clusterUID returns which physical cluster answers, "" while that is not known.
func (s *Syncer) clusterUID() string {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.clusterUID
}

// identify asks the physical cluster who it is if that is not known, or long ago, or it did not answer. Before a heartbeat of
// ours was seen there, nothing else would show that another one answers now: it is asked each time, and has to say.
//
// Who answers decides what we see of heartbeats and what we are told here. It may become another cluster once it has been one for
// a while, and not with each heartbeat: each new one is compared with all SyncTargets, which closes the gate and has us ask again.
func (s *Syncer) identify(ctx context.Context) error {
	s.state.mu.Lock()
	known, again := s.state.clusterUID != "" && s.known.raised() > 0, s.state.trouble != "" || s.config.Clock.Since(s.state.asked) >= identifyEvery
	s.state.mu.Unlock()
	if known && !again {
		return nil
	}
	version, clusterUID, err := identity(ctx, s.physical.kube)
	if err != nil && !known {
		return err
	}
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	now := s.config.Clock.Now()
	s.state.asked = now
	if err != nil {
		// It is asked again with one of the next heartbeats, not with each that a failure brings about.
		s.state.asked = now.Add(beatEvery - identifyEvery)
		return nil
	}
	before := now.Sub(s.state.since)
	if clusterUID != s.state.said {
		s.state.said, s.state.since = clusterUID, now
	}
	if was := s.state.clusterUID; was != "" && clusterUID != was && before < beatEvery {
		return fmt.Errorf("it says that it is another physical cluster each time; first it was %s", was)
	}
	s.state.version, s.state.clusterUID = version, clusterUID
	return nil
}

// identity asks a physical cluster for its version, and for who it is: the UID of its namespace kube-system.
func identity(ctx context.Context, kube kube) (version, clusterUID string, err error) {
	answer, err := kube.paths.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", "", fmt.Errorf("ask for the version: %w", err)
	}
	var info apimachineryversion.Info
	if err := json.Unmarshal(answer, &info); err != nil {
		return "", "", fmt.Errorf("ask for the version: read the answer: %w", err)
	}
	system, err := kube.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("ask for namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return info.GitVersion, string(system.UID), nil
}
