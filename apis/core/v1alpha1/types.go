package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LogicalClusterName is the name of the one LogicalCluster object that each logical cluster holds.
const LogicalClusterName = "cluster"

// LogicalClusterFinalizer keeps a LogicalCluster that is being deleted, and that others keep too, until everything in its
// logical cluster is gone.
const LogicalClusterFinalizer = "core.kcp.io/logicalcluster"

// Annotations of the LogicalCluster of a workspace that are its limits, instead of those of the server's flags. Administrators
// of the server alone may set them. Values are quantities: 5000, 512Mi.
const (
	LimitAnnotationPrefix = "limits.atoll.dev/"

	LimitObjectsAnnotation         = LimitAnnotationPrefix + "objects"          // 0 is no limit
	LimitBytesAnnotation           = LimitAnnotationPrefix + "bytes"            // 0 is no limit
	LimitWatchesAnnotation         = LimitAnnotationPrefix + "watches"          // at least 1
	LimitDefinitionsAnnotation     = LimitAnnotationPrefix + "definitions"      // 0 is none
	LimitDefinitionBytesAnnotation = LimitAnnotationPrefix + "definition-bytes" // of memory; 0 is none
)

// LimitAnnotations are all of them.
var LimitAnnotations = []string{LimitObjectsAnnotation, LimitBytesAnnotation, LimitWatchesAnnotation, LimitDefinitionsAnnotation, LimitDefinitionBytesAnnotation}

// LogicalClusterPhase says where a logical cluster is in its life. As in kcp.
type LogicalClusterPhase string

const (
	LogicalClusterPhaseScheduling   LogicalClusterPhase = "Scheduling"
	LogicalClusterPhaseInitializing LogicalClusterPhase = "Initializing"
	LogicalClusterPhaseReady        LogicalClusterPhase = "Ready"
	// LogicalClusterPhaseTerminating is that of one which is being deleted and waits for terminators.
	LogicalClusterPhaseTerminating LogicalClusterPhase = "Terminating"
	// LogicalClusterPhaseDeleting is that of one which is being deleted and has no terminators left.
	LogicalClusterPhaseDeleting LogicalClusterPhase = "Deleting"
)

// Ends says whether a logical cluster in this phase is being deleted: it can be read, but takes nothing new.
func (p LogicalClusterPhase) Ends() bool {
	return p == LogicalClusterPhaseTerminating || p == LogicalClusterPhaseDeleting
}

// LogicalClusterAttendant is the name of an initializer or of a terminator: that of the logical cluster which holds a
// WorkspaceType, a colon, and the name of the type. As in kcp.
type LogicalClusterAttendant string

// LogicalClusterUse says what a logical cluster is for. It is set at birth and never changes.
type LogicalClusterUse string

const (
	// LogicalClusterUseWorkspace holds what a tenant applied. It is the zero value's meaning.
	LogicalClusterUseWorkspace LogicalClusterUse = "Workspace"
	// LogicalClusterUseMirror holds what one physical cluster should run: no IP allocation, no default
	// ServiceAccounts, no bootstrap roles.
	LogicalClusterUseMirror LogicalClusterUse = "Mirror"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogicalCluster is the singleton, named "cluster", by which a logical cluster describes itself. The logical
// cluster exists as long as this object does. Its annotation kcp.io/path holds the workspace path, if it has one.
type LogicalCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec LogicalClusterSpec `json:"spec,omitempty"`
	// +optional
	Status LogicalClusterStatus `json:"status,omitempty"`
}

// LogicalClusterSpec is the wanted state of a logical cluster.
type LogicalClusterSpec struct {
	// directlyDeletable says that deleting this object deletes the logical cluster. Where it is false, the owner
	// (a Workspace or a SyncTarget) has to be deleted instead.
	// +optional
	DirectlyDeletable bool `json:"directlyDeletable,omitempty"`
	// owner is the object this logical cluster lives and dies with.
	// +optional
	Owner *LogicalClusterOwner `json:"owner,omitempty"`
	// use is what the logical cluster is for: Workspace (default) or Mirror. Immutable.
	// +optional
	Use LogicalClusterUse `json:"use,omitempty"`
	// initializers are those that the logical cluster had at birth, from the type of its workspace. Immutable.
	// +optional
	// +listType=set
	Initializers []LogicalClusterAttendant `json:"initializers,omitempty"`
	// terminators are those that the logical cluster had at birth, from the type of its workspace. Immutable.
	// +optional
	// +listType=set
	Terminators []LogicalClusterAttendant `json:"terminators,omitempty"`
}

// LogicalClusterOwner names an object in another logical cluster.
type LogicalClusterOwner struct {
	APIVersion string `json:"apiVersion"`
	// resource is the plural, lower-case name, e.g. workspaces.
	Resource string `json:"resource"`
	Name     string `json:"name"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// cluster is the logical cluster that holds the owner.
	Cluster string    `json:"cluster"`
	UID     types.UID `json:"uid"`
}

// LogicalClusterStatus is the observed state of a logical cluster.
type LogicalClusterStatus struct {
	// URL is the address of the logical cluster, ending in /clusters/<name>.
	// +optional
	URL string `json:"URL,omitempty"`
	// +optional
	Phase LogicalClusterPhase `json:"phase,omitempty"`
	// initializers are those that have not said yet that they are done, by removing themselves. While there are any the phase is
	// Initializing, and nobody but they can use the logical cluster.
	// +optional
	// +listType=set
	Initializers []LogicalClusterAttendant `json:"initializers,omitempty"`
	// terminators are those that have not said yet that they are done, by removing themselves, which they do once the phase is
	// Terminating. While there are any the content of the logical cluster stays, and then the phase is Deleting.
	// +optional
	// +listType=set
	Terminators []LogicalClusterAttendant `json:"terminators,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogicalClusterList is a list of LogicalClusters.
type LogicalClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LogicalCluster `json:"items"`
}
