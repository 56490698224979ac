package v1alpha1

import (
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What people write: annotations on an object, a namespace, or the LogicalCluster "cluster"; the most specific wins
// as a whole (an object that has any of them takes none from its namespace).
const (
	// ClustersAnnotation: names of SyncTargets, comma separated, or "*" for all that may be used.
	ClustersAnnotation = "placement.atoll.dev/clusters"
	// SelectorAnnotation: a label selector over SyncTargets.
	SelectorAnnotation = "placement.atoll.dev/selector"
	// MaxClustersAnnotation: at most so many of those that match, a positive integer.
	MaxClustersAnnotation = "placement.atoll.dev/max-clusters"
	// SplitAnnotation: Even (default), Weighted:east=3,west=1, Duplicate.
	SplitAnnotation = "placement.atoll.dev/split"
)

// WishAnnotations are the four that make a wish.
var WishAnnotations = []string{ClustersAnnotation, SelectorAnnotation, MaxClustersAnnotation, SplitAnnotation}

// HasWish says whether annotations hold any of the four.
func HasWish(annotations map[string]string) bool {
	return slices.ContainsFunc(WishAnnotations, func(a string) bool { _, ok := annotations[a]; return ok })
}

// SplitPolicy says how the replicas of a root are divided over its clusters.
type SplitPolicy string

const (
	// SplitEven divides replicas evenly.
	SplitEven SplitPolicy = "Even"
	// SplitWeighted divides replicas in proportion to the clusters' weights.
	SplitWeighted SplitPolicy = "Weighted"
	// SplitDuplicate gives every cluster the full number of replicas.
	SplitDuplicate SplitPolicy = "Duplicate"
)

// Condition types and reasons of a Placement. The same type and reason stand on the root object while it is not placed.
const (
	// PlacementPlaced is True when every wanted cluster is known, allowed and assigned.
	PlacementPlaced = "Placed"

	ReasonPlaced         = "Placed"
	ReasonNotPlaced      = "NotPlaced"        // nothing may run it: no usable cluster
	ReasonUnknownCluster = "UnknownCluster"   // the annotation names a cluster nobody registered
	ReasonNotAllowed     = "NotAllowed"       // a policy from above forbids it, whether it exists or not
	ReasonInvalid        = "InvalidPlacement" // the annotation cannot be read
	// ReasonNowhere says that somebody asked for no cluster. It alone lets what runs go at once: what a policy excludes
	// is subject to the brake, and whatever else leaves a Placement without a cluster lets everything stay.
	ReasonNowhere = "Nowhere"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Placement is the decision to which physical clusters one namespace, or one object that overrides its namespace,
// goes. The system alone writes it. Its name is "<namespace>" or "<namespace>.<resource>.<name>".
type Placement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec PlacementSpec `json:"spec,omitempty"`
	// +optional
	Status PlacementStatus `json:"status,omitempty"`
}

// PlacementSpec is the decision.
type PlacementSpec struct {
	// namespace that is placed, or that holds the object.
	Namespace string `json:"namespace"`
	// object is set where the decision is for one object.
	// +optional
	Object *PlacedObject `json:"object,omitempty"`
	// +optional
	Split SplitPolicy `json:"split,omitempty"`
	// clusters by name; empty means placed nowhere, and the condition Placed says why.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []PlacedCluster `json:"clusters,omitempty"`
}

// PlacedObject names an object of the placement's namespace.
type PlacedObject struct {
	// group of the API, empty for the core group.
	// +optional
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	Name     string `json:"name"`
}

// PlacedCluster is one physical cluster of a decision.
type PlacedCluster struct {
	// name of the SyncTarget when it was chosen.
	Name string `json:"name"`
	// uid of the SyncTarget; a name is resolved once, a new SyncTarget of that name is another cluster.
	UID types.UID `json:"uid"`
	// workspace is the logical cluster that holds the SyncTarget.
	Workspace string `json:"workspace"`
	// mirror is the SyncTarget's mirror.
	Mirror string `json:"mirror"`
	// weight of the cluster's share, >= 0; 1 for Even and Duplicate.
	Weight int64 `json:"weight"`
}

// PlacementStatus is how far the decision is carried out.
type PlacementStatus struct {
	// observedGeneration is that of the decision which clusters is about; all that it places has been planned for by then.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// clusters that run something of the placement, those that are being left included.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []PlacedClusterStatus `json:"clusters,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PlacedClusterPhase is derived from the leaves in a cluster's mirror: the least advanced of them.
type PlacedClusterPhase string

const (
	PhasePending  PlacedClusterPhase = "Pending"  // no leaf yet
	PhaseApplying PlacedClusterPhase = "Applying" // leaf written, not applied; or nothing is known for certain
	PhaseSynced   PlacedClusterPhase = "Synced"   // applied, not ready or not yet what it is to be in the end
	PhaseReady    PlacedClusterPhase = "Ready"    // what it comes to by itself in the end, and ready
	PhaseRefused  PlacedClusterPhase = "Refused"  // the physical cluster would not take it
	PhaseDraining PlacedClusterPhase = "Draining" // left by the decision, waits for the replacement
	PhaseDeleting PlacedClusterPhase = "Deleting" // tombstone: goes when it is gone downstream
	PhaseStaying  PlacedClusterPhase = "Staying"  // left by the decision, and what has its volumes there does not move
)

// PlacedClusterStatus is the state of one cluster of a placement.
type PlacedClusterStatus struct {
	Name  string             `json:"name"`
	Phase PlacedClusterPhase `json:"phase"`
	// replicas rendered for the cluster, summed over workloads.
	Replicas int32 `json:"replicas"`
	// readyReplicas as last seen there.
	ReadyReplicas int32 `json:"readyReplicas"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PlacementList is a list of Placements.
type PlacementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Placement `json:"items"`
}

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PlacementPolicy bounds and defaults the placement of the workspace that holds it and of that workspace's descendants.
type PlacementPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PlacementPolicySpec `json:"spec"`
}

// PlacementPolicySpec is what a policy says.
type PlacementPolicySpec struct {
	// allow lists the clusters that may be used; policies intersect from the root downward, so that nobody below
	// can widen what was allowed above. Absent allows every cluster.
	// +optional
	Allow *ClusterSelection `json:"allow,omitempty"`
	// default is what a namespace gets that asks for nothing; the nearest ancestor's wins.
	// +optional
	Default *PlacementDefault `json:"default,omitempty"`
}

// ClusterSelection matches clusters by name or by label; a cluster that either matches is selected.
type ClusterSelection struct {
	// +optional
	// +listType=set
	Names []string `json:"names,omitempty"`
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// PlacementDefault has the annotations' fields with their syntax.
type PlacementDefault struct {
	// +optional
	Clusters string `json:"clusters,omitempty"`
	// +optional
	Selector string `json:"selector,omitempty"`
	// +optional
	MaxClusters int32 `json:"maxClusters,omitempty"`
	// +optional
	Split string `json:"split,omitempty"`
}

// Annotations are those that a namespace would wish the same with.
func (d *PlacementDefault) Annotations() map[string]string {
	annotations := map[string]string{}
	for annotation, value := range map[string]string{ClustersAnnotation: d.Clusters, SelectorAnnotation: d.Selector, SplitAnnotation: d.Split} {
		if value != "" {
			annotations[annotation] = value
		}
	}
	if d.MaxClusters != 0 {
		annotations[MaxClustersAnnotation] = strconv.Itoa(int(d.MaxClusters))
	}
	return annotations
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PlacementPolicyList is a list of PlacementPolicies.
type PlacementPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlacementPolicy `json:"items"`
}
