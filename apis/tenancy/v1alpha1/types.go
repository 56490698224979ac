package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

// WorkspaceFinalizer keeps a Workspace until everything in its logical cluster, and below it, is gone.
const WorkspaceFinalizer = "tenancy.kcp.io/logicalcluster"

// OwnerAnnotation holds the user name of who created a Workspace; the server sets it, whatever the client sent.
const OwnerAnnotation = "experimental.tenancy.kcp.io/owner"

// ImportingAnnotation is on a Workspace as long as an import fills its logical cluster: it does not become Ready, and has no
// binding of anybody. One that stays was cut; the Workspace can be deleted and imported again.
const ImportingAnnotation = "tenancy.atoll.dev/importing"

const (
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
	// type is the WorkspaceType; it is kept as given, and defaults to universal in root.
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
