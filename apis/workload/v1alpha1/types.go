package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a SyncTarget.
const (
	// SyncTargetReady is True while the syncer's heartbeat is younger than 40 s and the physical cluster answers.
	SyncTargetReady = "Ready"
	// SyncTargetObserveOnly is True while the syncer writes nothing because the hub or the physical cluster was
	// restored from an older state, and an administrator has to confirm (annotation ConfirmAnnotation).
	SyncTargetObserveOnly = "ObserveOnly"
	// SyncTargetFrozen is True while so many leaves would go that nobody was seen to give up, since their roots vanished or
	// no cluster is left for them, that no leaf is deleted until an administrator confirms.
	SyncTargetFrozen = "Frozen"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// SyncTarget registers a physical cluster. It can be used from the workspace that holds it and from that
// workspace's descendants.
type SyncTarget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SyncTargetSpec `json:"spec,omitempty"`
	// +optional
	Status SyncTargetStatus `json:"status,omitempty"`
}

// SyncTargetSpec is the wanted state of a SyncTarget.
type SyncTargetSpec struct {
	// kubeconfigSecretRef makes the server run the syncer (push): key "kubeconfig" of a Secret in the same logical
	// cluster. Without it a syncer in the physical cluster is expected (pull), see bootstrapTokenSecretRef.
	// +optional
	KubeconfigSecretRef *corev1.SecretReference `json:"kubeconfigSecretRef,omitempty"`
	// bootstrapTokenSecretRef is what a syncer in the physical cluster (pull) first identifies itself with: a Secret of
	// type BootstrapTokenSecretType in the same logical cluster. Its token is good for one client certificate.
	// +optional
	BootstrapTokenSecretRef *corev1.SecretReference `json:"bootstrapTokenSecretRef,omitempty"`
	// unschedulable cordons the physical cluster: what it runs stays, nothing new comes.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// dedicatedTo is the path of the one workspace this physical cluster serves; its namespaces keep their names there.
	// +optional
	DedicatedTo string `json:"dedicatedTo,omitempty"`
	// podSecurity is the least strict Pod Security level a namespace may have there: privileged, baseline (default) or restricted.
	// +optional
	PodSecurity string `json:"podSecurity,omitempty"`
	// dnsKnowsWorkspaces says that the DNS of the physical cluster finds what is of a workspace by the names that namespaces have in it, as contrib/dns
	// does. Pods of templates that are written from then on, and pods that are made from then on, are told by the downward API what their
	// namespace is called in the workspace, and not there; what runs stays as it is.
	// +optional
	DNSKnowsWorkspaces bool `json:"dnsKnowsWorkspaces,omitempty"`
}

// SyncTargetStatus is the observed state of a SyncTarget.
type SyncTargetStatus struct {
	// mirror is the name of the logical cluster that holds what the physical cluster should run.
	// +optional
	Mirror string `json:"mirror,omitempty"`
	// credential is what a syncer in the physical cluster identifies itself with now: "<id>/<uid>" of the bootstrap token
	// that its certificates go back to and of the request that the token was spent on. Certificates that go back to
	// another token are refused.
	// +optional
	Credential string `json:"credential,omitempty"`
	// version is the Kubernetes version of the physical cluster, e.g. v1.36.3.
	// +optional
	Version string `json:"version,omitempty"`
	// clusterUID is the UID of the physical cluster's namespace kube-system; two SyncTargets with one clusterUID
	// are one physical cluster added twice.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// capacity sums the nodes' allocatable resources.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodes is the number of Ready nodes.
	// +optional
	Nodes int32 `json:"nodes,omitempty"`
	// carriedResources are what the syncer carries, "<resource>.<group>", sorted: what its version knows, and the physical cluster serves and
	// lets it list and watch. A syncer of the first version does not say so; see CarriedByAll. "pods" are those that it shows in workspaces.
	// +optional
	// +listType=set
	CarriedResources []string `json:"carriedResources,omitempty"`
	// classes are what the physical cluster has of each kind of class that it lets its syncer list and watch: workspaces that may use it
	// are shown them. Of a kind that is not there nothing is known. Parameters are left out: they may name Secrets and addresses.
	// +optional
	// +listType=map
	// +listMapKey=resource
	Classes []ClassesOf `json:"classes,omitempty"`
	// lastHeartbeat is when the syncer was last heard of, as of the last change of any other field: the running
	// heartbeat is the Lease in the mirror.
	// +optional
	LastHeartbeat *metav1.Time `json:"lastHeartbeat,omitempty"`
	// difference is set while ObserveOnly is True: what a confirmation would do in the physical cluster.
	// +optional
	Difference *Difference `json:"difference,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClassesOf are the classes of one kind.
type ClassesOf struct {
	// resource is "<resource>.<group>", e.g. storageclasses.storage.k8s.io.
	Resource string `json:"resource"`
	// items are sorted by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	Items []Class `json:"items,omitempty"`
	// omitted counts those that are not in items, since there are too many, or they are too large.
	// +optional
	Omitted int32 `json:"omitted,omitempty"`
}

// Class is a StorageClass, IngressClass, PriorityClass or RuntimeClass of a physical cluster. Fields of the other kinds are empty.
type Class struct {
	Name string `json:"name"`
	// default says that the physical cluster takes it where none is named.
	// +optional
	Default bool `json:"default,omitempty"`
	// description is that of a PriorityClass.
	// +optional
	Description string `json:"description,omitempty"`
	// provisioner, reclaimPolicy, volumeBindingMode and allowVolumeExpansion are those of a StorageClass.
	// +optional
	Provisioner string `json:"provisioner,omitempty"`
	// +optional
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`
	// +optional
	VolumeBindingMode string `json:"volumeBindingMode,omitempty"`
	// +optional
	AllowVolumeExpansion bool `json:"allowVolumeExpansion,omitempty"`
	// controller is that of an IngressClass.
	// +optional
	Controller string `json:"controller,omitempty"`
	// value and preemptionPolicy are those of a PriorityClass.
	// +optional
	Value int32 `json:"value,omitempty"`
	// +optional
	PreemptionPolicy string `json:"preemptionPolicy,omitempty"`
	// handler and overhead are those of a RuntimeClass.
	// +optional
	Handler string `json:"handler,omitempty"`
	// +optional
	Overhead corev1.ResourceList `json:"overhead,omitempty"`
}

// Difference is what a physical cluster has otherwise than its mirror says: leaves and their namespaces, counted.
type Difference struct {
	// create counts what the physical cluster does not have.
	Create int32 `json:"create"`
	// change counts what it has otherwise.
	Change int32 `json:"change"`
	// delete counts what it has and the hub has seen deleted.
	Delete int32 `json:"delete"`
	// orphans counts what it has and the hub knows nothing of: no confirmation deletes it.
	Orphans int32 `json:"orphans"`
	// sample names the first few of each, deletions first: "delete deployments default-1a2b3c4d5e/web".
	// +optional
	// +listType=atomic
	Sample []string `json:"sample,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// SyncTargetList is a list of SyncTargets.
type SyncTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncTarget `json:"items"`
}
