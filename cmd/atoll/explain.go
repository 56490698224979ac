package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/internal/kinds"
)

func newExplainCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var kubeconfig string
	open := func() (*cli.Hub, error) { return cli.Open(kubeconfig) }
	cmd := explainCommand(open, streams)
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig of the Atoll (default: KUBECONFIG, else .atoll/admin.kubeconfig here, else your own).")
	asksAtoll(cmd, open)
	return cmd
}

func explainCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var namespace, output string
	cmd := &cobra.Command{
		Use:   "explain TYPE/NAME",
		Short: "Explain where something runs, why there, how far each cluster is, and what is in the way",
		Long: `Explain on one screen where a workload, a Service or an Ingress of the current workspace runs: in which physical clusters
and who wished so, how far each of them is, how many pods it shows and whether it is heard of, which pods are not ready and why, and what
a cluster refused. What you may not read is left out, and said. As json or yaml it has all pods and warnings.

It is not "kubectl explain", which describes the fields of a kind.`,
		Example: `  atoll explain deploy/web
  atoll explain statefulset/db -n shop
  atoll explain deploy/web -o json`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, objectFormats); err != nil {
				return err
			}
			kind, name, err := parsePlaced(args[0])
			if err != nil {
				return err
			}
			hub, err := open()
			if err != nil {
				return err
			}
			x, err := readExplanation(cmd.Context(), hub, kind, cmp.Or(namespace, hub.Namespace, metav1.NamespaceDefault), name)
			if err != nil {
				return err
			}
			return x.explained().print(streams.Out, output)
		},
	}
	outputFlag(cmd, &output, objectFormats)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "The namespace of the object (default: that of the kubeconfig's context).")
	return cmd
}

// shortNames are those of kubectl, by resource.
var shortNames = map[string]string{"deployments": "deploy", "replicasets": "rs", "replicationcontrollers": "rc", "daemonsets": "ds", "statefulsets": "sts", "services": "svc", "ingresses": "ing", "pods": "po"}

// parsePlaced reads TYPE/NAME, where the type is written as for kubectl and of a kind that has a Placement.
func parsePlaced(arg string) (kinds.Kind, string, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok || kind == "" || name == "" {
		return kinds.Kind{}, "", fmt.Errorf("%q: want TYPE/NAME, as deploy/web", arg)
	}
	// deploy, deployment.apps or deployments.v1.apps: what kubectl prints names the group.
	versioned, grouped := schema.ParseResourceArg(strings.ToLower(kind))
	var placed []string
	for _, k := range kinds.All {
		names := []string{strings.ToLower(k.GVK.Kind), k.GVR.Resource, shortNames[k.GVR.Resource]}
		is := slices.Contains(names, grouped.Resource) && (grouped.Group == "" || grouped.Group == k.GVR.Group) ||
			versioned != nil && slices.Contains(names, versioned.Resource) && versioned.GroupVersion() == k.GVR.GroupVersion()
		switch {
		case is && k.IsPlaced():
			return k, name, nil
		case is:
			return kinds.Kind{}, "", fmt.Errorf("a %s has no place of its own: it goes where what it belongs to goes; explain that", k.GVK.Kind)
		case k.IsPlaced():
			placed = append(placed, strings.ToLower(k.GVK.Kind))
		}
	}
	return kinds.Kind{}, "", fmt.Errorf("%q: want one of %s", kind, strings.Join(placed, ", "))
}

// explanation is what is known in a workspace of something that is placed.
type explanation struct {
	kind       kinds.Kind
	object     ctrlclient.Object
	conditions []metav1.Condition // of the object
	wish       string             // where it is written
	placement  *placementv1alpha1.Placement
	pods       []corev1.Pod
	nodes      map[string]corev1.Node
	events     []corev1.Event // warnings of the object, the latest first
	hidden     []string       // what may not be read
}

func readExplanation(ctx context.Context, hub *cli.Hub, kind kinds.Kind, namespace, name string) (*explanation, error) {
	path, err := hub.Current(ctx)
	if err != nil {
		return nil, err
	}
	ctx = cli.In(ctx, path)
	x := &explanation{kind: kind, object: kind.New(), nodes: map[string]corev1.Node{}}
	if err := hub.Objects.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, x.object); err != nil {
		return nil, fmt.Errorf("read %s %s/%s in %s: %w", kind.GVK.Kind, namespace, name, path, err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(x.object)
	if err != nil {
		return nil, err
	}
	if x.conditions, err = conditionsIn(content); err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", kind.GVK.Kind, namespace, name, err)
	}
	if x.wish, err = x.readWish(ctx, hub); err != nil {
		return nil, err
	}
	if x.placement, err = x.readPlacement(ctx, hub); err != nil {
		return nil, err
	}
	if err := x.readPods(ctx, hub, content); err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := x.mayRead("nodes", hub.Objects.List(ctx, &nodes)); err != nil {
		return nil, err
	}
	for _, node := range nodes.Items {
		x.nodes[node.Name] = node
	}
	var events corev1.EventList
	if err := x.mayRead("events", hub.Objects.List(ctx, &events, ctrlclient.InNamespace(namespace),
		ctrlclient.MatchingFields{"involvedObject.uid": string(x.object.GetUID())})); err != nil {
		return nil, err
	}
	x.events = slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return e.Type != corev1.EventTypeWarning })
	slices.SortStableFunc(x.events, func(a, b corev1.Event) int { return lastSeen(b).Compare(lastSeen(a).Time) })
	return x, nil
}

// What may be hidden.
const (
	itsNamespace      = "its namespace"
	itsLogicalCluster = "the LogicalCluster"
	itsPods           = "pods"
	itsReplicaSets    = "replicasets"
	itsPlacement      = "placements"
)

func (x *explanation) isHidden(what string) bool { return slices.Contains(x.hidden, what) }

// mayRead takes a refusal for nothing to be seen.
func (x *explanation) mayRead(what string, err error) error {
	if apierrors.IsForbidden(err) {
		x.hidden = append(x.hidden, what)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

// conditionsIn returns the conditions of any kind's status.
func conditionsIn(content map[string]any) (conditions []metav1.Condition, err error) {
	list, _, err := unstructured.NestedSlice(content, "status", "conditions")
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		var condition metav1.Condition
		if fields, ok := c.(map[string]any); ok {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &condition); err != nil {
				return nil, fmt.Errorf("read condition %v: %w", fields["type"], err)
			}
			conditions = append(conditions, condition)
		}
	}
	return conditions, nil
}

// readWish finds the annotations that count, from the object up.
func (x *explanation) readWish(ctx context.Context, hub *cli.Hub) (string, error) {
	if placementv1alpha1.HasWish(x.object.GetAnnotations()) {
		return "its own annotations", nil
	}
	namespace, cluster := &corev1.Namespace{}, &corev1alpha1.LogicalCluster{}
	if err := x.mayRead(itsNamespace, hub.Objects.Get(ctx, ctrlclient.ObjectKey{Name: x.object.GetNamespace()}, namespace)); err != nil {
		return "", err
	}
	switch {
	case x.isHidden(itsNamespace):
		return "not its own annotations", nil // what is above counts only where the namespace says nothing
	case placementv1alpha1.HasWish(namespace.Annotations):
		return fmt.Sprintf("the annotations of namespace %q", namespace.Name), nil
	}
	if err := x.mayRead(itsLogicalCluster, hub.Objects.Get(ctx, ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, cluster)); err != nil {
		return "", err
	}
	if placementv1alpha1.HasWish(cluster.Annotations) {
		return "the annotations of LogicalCluster cluster", nil
	}
	if x.isHidden(itsLogicalCluster) {
		return "no annotations of its own or of its namespace", nil
	}
	return "nobody: by the default of a PlacementPolicy, or the cluster that was used least", nil
}

// readPlacement returns the object's own Placement, else its namespace's, nil if there is neither.
func (x *explanation) readPlacement(ctx context.Context, hub *cli.Hub) (*placementv1alpha1.Placement, error) {
	namespace := x.object.GetNamespace()
	own := &placementv1alpha1.PlacedObject{Group: x.kind.GVR.Group, Resource: x.kind.GVR.Resource, Name: x.object.GetName()}
	for _, name := range []string{placementv1alpha1.NameFor(namespace, own), placementv1alpha1.NameFor(namespace, nil)} {
		p := &placementv1alpha1.Placement{}
		switch err := hub.Objects.Get(ctx, ctrlclient.ObjectKey{Name: name}, p); {
		case err == nil:
			return p, nil
		case apierrors.IsForbidden(err):
			return nil, x.mayRead(itsPlacement, err)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read Placement %q: %w", name, err)
		}
	}
	return nil, nil
}

// readPods reads the pods that the object makes, or is.
func (x *explanation) readPods(ctx context.Context, hub *cli.Hub, content map[string]any) error {
	if !x.kind.MakesPods() {
		return nil
	}
	if pod, ok := x.object.(*corev1.Pod); ok { // it is one itself
		x.pods = []corev1.Pod{*pod}
		return nil
	}
	fields, _, err := unstructured.NestedMap(content, "spec", "selector")
	if err != nil {
		return err
	}
	var wanted metav1.LabelSelector
	if set := kinds.AsReplicaSet(x.object); set != nil && set.Spec.Selector != nil { // which of a ReplicationController is a map
		wanted = *set.Spec.Selector
	} else if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &wanted); err != nil {
		return fmt.Errorf("read the selector: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&wanted)
	if err != nil {
		return fmt.Errorf("read the selector: %w", err)
	}
	selected := []ctrlclient.ListOption{ctrlclient.InNamespace(x.object.GetNamespace()), ctrlclient.MatchingLabelsSelector{Selector: selector}}
	var revisions appsv1.ReplicaSetList
	if x.kind.GVK.Kind == "Deployment" {
		if err := x.mayRead(itsReplicaSets, hub.Objects.List(ctx, &revisions, selected...)); err != nil {
			return err
		}
	}
	owners := map[types.UID]bool{x.object.GetUID(): true}
	for i := range revisions.Items {
		if metav1.IsControlledBy(&revisions.Items[i], x.object) {
			owners[revisions.Items[i].UID] = true
		}
	}
	var pods corev1.PodList
	if err := x.mayRead(itsPods, hub.Objects.List(ctx, &pods, selected...)); err != nil {
		return err
	}
	x.pods = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOf(&p)
		return owner == nil || !owners[owner.UID]
	})
	return nil
}

func lastSeen(e corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.Time(e.Series.LastObservedTime)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	}
	return metav1.Time(e.EventTime)
}
