package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

// WorkspaceFinalizer keeps a Workspace until everything in its logical cluster, and below it, is gone.
const WorkspaceFinalizer = "tenancy.kcp.io/logicalcluster"

// OwnerAnnotation says who created a Workspace, as OwnerValue makes it; the server sets it, whatever the client sent. A
// LogicalCluster that has initializers or terminators has it with the name of the owner in there. As in kcp.
const OwnerAnnotation = "experimental.tenancy.kcp.io/owner"

// ImportingAnnotation is on a Workspace as long as an import fills its logical cluster: it does not become Ready, and has no
// binding of anybody. One that stays was cut; the Workspace can be deleted and imported again. It is on the LogicalCluster from its
// birth until then, too: what is being deleted in there waits.
const ImportingAnnotation = "tenancy.atoll.dev/importing"

// TypeAnnotation holds, on a LogicalCluster, the type of its workspace as root:org:team: where the WorkspaceType is, and its
// name. The system sets it. As in kcp.
const TypeAnnotation = "internal.tenancy.kcp.io/type"

// InitializersAnnotation and TerminatorsAnnotation hold, on a Workspace whose type or what that extends has such, their names,
// joined by commas. The system sets them when the Workspace is made.
const (
	InitializersAnnotation = "tenancy.atoll.dev/initializers"
	TerminatorsAnnotation  = "tenancy.atoll.dev/terminators"
)

const (
	// PhaseLabel is on every Workspace, with its phase. It and labels that begin with one of the prefixes are on LogicalClusters
	// that wait for initializers or terminators, with the phase and for each that is left: by them they are found. The system sets
	// them, and nobody else. As in kcp, but there each LogicalCluster has the first.
	PhaseLabel             = "tenancy.kcp.io/phase"
	InitializerLabelPrefix = "initializer.internal.kcp.io/"
	TerminatorLabelPrefix  = "terminator.internal.kcp.io/"
)

// InitializeVerb and TerminateVerb are what it takes, on a WorkspaceType, to initialize and terminate workspaces of that type. As
// in kcp.
const (
	InitializeVerb = "initialize"
	TerminateVerb  = "terminate"
)

// InitializingPath and TerminatingPath, with the name of an initializer or terminator, are the paths below which it finds the
// workspaces that wait for it. As in kcp.
const (
	InitializingPath = "/services/initializingworkspaces/"
	TerminatingPath  = "/services/terminatingworkspaces/"
)

const (
	// WorkspaceScheduled is the condition that a workspace has a logical cluster and an address. As in kcp.
	WorkspaceScheduled = "WorkspaceScheduled"
	// WorkspaceInitialized is the condition that tells which initializers a workspace waits for. As in kcp.
	WorkspaceInitialized = "WorkspaceInitialized"
	// WorkspaceReady is the condition that a workspace can be used.
	WorkspaceReady = "Ready"
	// WorkspaceContentDeleted is the condition that tells what a deletion waits for.
	WorkspaceContentDeleted = "WorkspaceContentDeleted"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Workspace is the user's handle on a logical cluster, held by the logical cluster above it in the tree.
type Workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec WorkspaceSpec `json:"spec,omitempty"`
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceSpec is the wanted state of a workspace.
type WorkspaceSpec struct {
	// type is the WorkspaceType. Without one it is the defaultChildWorkspaceType of the type of the workspace that holds this
	// one; without a path it is looked for there and in the workspaces above. Immutable.
	// +optional
	Type *WorkspaceTypeReference `json:"type,omitempty"`
	// cluster is the name of the workspace's logical cluster; set by the server, immutable once set.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// URL is the address of the workspace, ending in /clusters/<path>; set by the server.
	// +optional
	URL string `json:"URL,omitempty"`
}

// WorkspaceTypeReference names a WorkspaceType by the path of its workspace and its name.
type WorkspaceTypeReference struct {
	Name string `json:"name"`
	// +optional
	Path string `json:"path,omitempty"`
}

// WorkspaceStatus is the observed state of a workspace.
type WorkspaceStatus struct {
	// +optional
	Phase corev1alpha1.LogicalClusterPhase `json:"phase,omitempty"`
	// initializers are those that the workspace waits for before it is ready, as its LogicalCluster has them.
	// +optional
	// +listType=set
	Initializers []corev1alpha1.LogicalClusterAttendant `json:"initializers,omitempty"`
	// terminators are those that the workspace waits for before its content goes when it is deleted, as its LogicalCluster has them.
	// +optional
	// +listType=set
	Terminators []corev1alpha1.LogicalClusterAttendant `json:"terminators,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkspaceList is a list of Workspaces.
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Workspace `json:"items"`
}

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkspaceType says how workspaces of this type are made, and where. To make one takes the verb use on it, and on those
// that it extends, each in the workspace that holds it.
type WorkspaceType struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec WorkspaceTypeSpec `json:"spec,omitempty"`
	// +optional
	Status WorkspaceTypeStatus `json:"status,omitempty"`
}

// WorkspaceTypeStatus says what the server makes of a type.
type WorkspaceTypeStatus struct {
	// virtualWorkspaces are where initializers and terminators of the type find the workspaces that wait for them; none without.
	// +optional
	// +listType=atomic
	VirtualWorkspaces []VirtualWorkspace `json:"virtualWorkspaces,omitempty"`
}

// VirtualWorkspace is an address that shows some workspaces as if they were all there is.
type VirtualWorkspace struct {
	// url ends before /clusters/.
	URL string `json:"url"`
	// type is initializing or terminating.
	// +optional
	Type VirtualWorkspaceType `json:"type,omitempty"`
}

// VirtualWorkspaceType says for whom an address is. As in kcp.
type VirtualWorkspaceType string

const (
	// VirtualWorkspaceInitializing is for initializers.
	VirtualWorkspaceInitializing VirtualWorkspaceType = "initializing"
	// VirtualWorkspaceTerminating is for terminators.
	VirtualWorkspaceTerminating VirtualWorkspaceType = "terminating"
)

// WorkspaceTypeSpec is what holds for workspaces of a type. A reference without a path is to the workspace that holds the type.
type WorkspaceTypeSpec struct {
	// initializer says that somebody has to initialize workspaces of this type, and of those that extend it, before they are
	// ready: who has the verb initialize on this type.
	// +optional
	Initializer bool `json:"initializer,omitempty"`
	// terminator says that somebody has to clean up after workspaces of this type, and of those that extend it, before their
	// content goes: who has the verb terminate on this type.
	// +optional
	Terminator bool `json:"terminator,omitempty"`
	// extend makes the type one of other types, too, with their limits.
	// +optional
	Extend WorkspaceTypeExtension `json:"extend,omitempty"`
	// additionalWorkspaceLabels are put on Workspaces of this type when they are made, where they have no such label.
	// +optional
	AdditionalWorkspaceLabels map[string]string `json:"additionalWorkspaceLabels,omitempty"`
	// defaultChildWorkspaceType is the type of workspaces made in one of this type that name none. Without it they have to.
	// It is not inherited from types that this one extends.
	// +optional
	DefaultChildWorkspaceType *WorkspaceTypeReference `json:"defaultChildWorkspaceType,omitempty"`
	// limitAllowedChildren says which workspaces may be made in one of this type.
	// +optional
	LimitAllowedChildren *WorkspaceTypeSelector `json:"limitAllowedChildren,omitempty"`
	// limitAllowedParents says in which workspaces those of this type may be made.
	// +optional
	LimitAllowedParents *WorkspaceTypeSelector `json:"limitAllowedParents,omitempty"`
}

// WorkspaceTypeExtension names the types that a type extends.
type WorkspaceTypeExtension struct {
	// +optional
	// +listType=atomic
	With []WorkspaceTypeReference `json:"with,omitempty"`
}

// WorkspaceTypeSelector is a set of types.
type WorkspaceTypeSelector struct {
	// none means that no type matches.
	// +optional
	None bool `json:"none,omitempty"`
	// types match, and what extends one of them. An empty list matches all types.
	// +optional
	// +listType=atomic
	Types []WorkspaceTypeReference `json:"types,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkspaceTypeList is a list of WorkspaceTypes.
type WorkspaceTypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkspaceType `json:"items"`
}
