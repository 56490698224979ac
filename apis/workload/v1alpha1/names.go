package v1alpha1

// What splitter and syncer agree on. A leaf is the rendering of a root object for one physical cluster, held by
// that cluster's mirror; the object the syncer makes of it downstream carries the same labels and annotations
// under this prefix, and no others of ours.
const (
	// WorkspaceLabel, on leaves, their namespaces and downstream objects: the root's logical cluster.
	WorkspaceLabel = "workload.atoll.dev/workspace"
	// RootUIDLabel, on leaves and downstream objects: the root's UID.
	RootUIDLabel = "workload.atoll.dev/root-uid"
	// SyncTargetLabel, on downstream objects and namespaces: the UID of the SyncTarget whose syncer owns them. An
	// object without this label and value is never changed or deleted downstream.
	SyncTargetLabel = "workload.atoll.dev/synctarget"

	// ServiceAccountAnnotation, on the Secrets downstream with what pods talk to the API of their workspace with: whose pods.
	ServiceAccountAnnotation = "workload.atoll.dev/service-account"

	// RootAnnotation, on leaves and their namespaces: "<namespace>/<name>" of the root ("/<namespace>" on namespaces).
	RootAnnotation = "workload.atoll.dev/root"
	// RootGenerationAnnotation, on leaves: metadata.generation of the root (0 for kinds without) that was rendered.
	RootGenerationAnnotation = "workload.atoll.dev/root-generation"
	// RenderedAnnotation, on leaves: hash of what the splitter rendered (spec, data, labels, annotations).
	RenderedAnnotation = "workload.atoll.dev/rendered"
	// RevisionAnnotation, on leaves of Deployments and what is made of them: the pod-template-hash of the workspace's ReplicaSet with that
	// template. On a pod or an Event, in the request of a syncer that shows or tells it: of the one that it is of.
	RevisionAnnotation = "workload.atoll.dev/revision"
	// APIAccessAnnotation, on leaves that make pods, and on pods that are bound: how pods talk to the API of their workspace, as was decided when the
	// template was rendered, or the pod bound; and whether they have NamespaceAnnotation. The server alone writes it, and issues tokens for nothing without it.
	APIAccessAnnotation = "workload.atoll.dev/api-access"
	// NamespaceAnnotation, on pods downstream whose cluster's DNS knows workspaces, and in the templates of such: what their namespace is called in the
	// workspace. There a pod that asks for its namespace is told this; of the workspace's own pods nobody reads it.
	NamespaceAnnotation = "workload.atoll.dev/namespace"
	// TemplateAnnotation, on leaves that make pods: digest of the root's pod template, as somebody wrote it, that was rendered.
	TemplateAnnotation = "workload.atoll.dev/template"
	// EarlierTemplateAnnotation, on leaves whose pods nobody replaces (ReplicaSets, ReplicationControllers): present while some may be of an earlier template than the leaf's.
	EarlierTemplateAnnotation = "workload.atoll.dev/earlier-template"
	// DrainingAnnotation, on leaves: present while their cluster leaves the placement and the leaf waits for its replacement.
	DrainingAnnotation = "workload.atoll.dev/draining"

	// AppliedAnnotation, on leaves, by the syncer: the RenderedAnnotation's value of what it last applied downstream.
	AppliedAnnotation = "workload.atoll.dev/applied"
	// RefusedAnnotation, on leaves, by the syncer: JSON of a Refusal while the physical cluster refuses the leaf.
	RefusedAnnotation = "workload.atoll.dev/refused"
	// UnshownAnnotation, on leaves, by the syncer: JSON of a Refusal while pods of the leaf are not shown in the workspace.
	UnshownAnnotation = "workload.atoll.dev/unshown"
	// VolumeAnnotation, on leaves of claims, by the syncer: JSON of a Volume once the claim has one.
	VolumeAnnotation = "workload.atoll.dev/volume"

	// MirrorLabel, on the pods of a workspace that run in a physical cluster: its mirror. The server alone writes it, and the two
	// annotations that go with it.
	MirrorLabel = "workload.atoll.dev/mirror"
	// MirrorNamespaceAnnotation, on such pods: the namespace of the mirror, and of the physical cluster, that they are in.
	MirrorNamespaceAnnotation = "workload.atoll.dev/mirror-namespace"
	// PodUIDAnnotation, on such pods: the UID of the pod in the physical cluster.
	PodUIDAnnotation = "workload.atoll.dev/pod-uid"
	// ResizedAnnotation, on such pods: what of their resources was changed in the workspace since they are there (pods/resize),
	// as JSON of that part of a pod's spec (kinds.Resized). The server alone writes it.
	ResizedAnnotation = "workload.atoll.dev/resized"
	// PodUnheard and PodUnseen are reasons why such pods are not Ready that their physical cluster does not tell of: it is away, or its syncer sees no pods.
	PodUnheard = "ClusterNotReady"
	PodUnseen  = "PodsNotCarried"

	// ClassClustersAnnotation, on a class that a workspace is shown, names the physical clusters that have it: "east,west". The next say of
	// which of them it is not the same as what is shown, and in which it is the default.
	ClassClustersAnnotation  = "workload.atoll.dev/clusters"
	ClassDiffersAnnotation   = "workload.atoll.dev/differs-in"
	ClassDefaultInAnnotation = "workload.atoll.dev/default-in"
	// SyncerFinalizer, on leaves and their namespaces in the mirror: kept until the object is gone downstream.
	SyncerFinalizer = "workload.atoll.dev/syncer"
	// SplitterFinalizer, on tombstones of what is done once: kept until their roots tell what became of them.
	SplitterFinalizer = "workload.atoll.dev/splitter"
	// FieldManager of the syncer downstream and in the mirror.
	FieldManager = "atoll-syncer"

	// ConfirmAnnotation, on a SyncTarget, by an administrator: "restored" or "deletions" ends ObserveOnly or Frozen.
	ConfirmAnnotation = "workload.atoll.dev/confirm"

	// LetInAnnotation, on a SyncTarget's twin: status.clusterUID of the physical cluster that it was let in to, since no other
	// SyncTarget is the same; empty for none. A server from before this annotation writes none.
	LetInAnnotation = "workload.atoll.dev/let-in"

	// HeartbeatNamespace and HeartbeatName are the Lease in the mirror that the syncer renews; the counter below
	// rises with every renewal, in the mirror first and then in the physical cluster's object of the same name.
	HeartbeatNamespace         = "atoll-system"
	HeartbeatName              = "heartbeat"
	HeartbeatCounterAnnotation = "workload.atoll.dev/heartbeat"
	// HeartbeatWrittenAnnotation, on the mirror's Lease: the highest counter that the physical cluster is known to have
	// stored. It is one behind the Lease's own as long as the physical cluster answers.
	HeartbeatWrittenAnnotation = "workload.atoll.dev/heartbeat-written"
	// HeartbeatAnsweredAnnotation, on the mirror's Lease: when the physical cluster last answered, by the syncer's clock, as
	// RFC 3339 writes it. It is at most one heartbeat behind.
	HeartbeatAnsweredAnnotation = "workload.atoll.dev/heartbeat-answered"
	// HeartbeatAddressAnnotation, on the mirror's Lease: the address at which the physical cluster last answered.
	HeartbeatAddressAnnotation = "workload.atoll.dev/heartbeat-address"
	// HeartbeatAskedAnnotation, on the mirror's Lease, while a restored side waits for a confirmation: the physical cluster's counter
	// that it is asked for at. A confirmation that is there already when it is to be asked came with what was restored;
	// it is HeartbeatAskedNothing until that is taken away.
	HeartbeatAskedAnnotation = "workload.atoll.dev/heartbeat-asked"
	HeartbeatAskedNothing    = "nothing"
	// HeartbeatUnansweredAnnotation, on the mirror's Lease: "true" while the physical cluster does not answer. The
	// counter rests meanwhile: a hub that was restored would catch up with the one it is to be compared with.
	HeartbeatUnansweredAnnotation = "workload.atoll.dev/heartbeat-unanswered"
)

// What a syncer outside the server identifies itself with. It shows its bootstrap token in its mirror once, for a
// CertificateSigningRequest, and has the certificate renewed by further ones.
const (
	// SyncerSigner is the signer of those requests.
	SyncerSigner = "workload.atoll.dev/syncer"
	// SyncerUserPrefix and the name of the mirror are the user, and the common name, of every syncer; the serial number
	// in the subject of a certificate is the id of the bootstrap token it goes back to.
	SyncerUserPrefix = "system:atoll:syncer:"
	// BootstrapUserPrefix and the name of the mirror are the user of who shows the bootstrap token.
	BootstrapUserPrefix = "system:atoll:bootstrap:"
	// CredentialExtra is the key, among the extra attributes of both users, of the same id.
	CredentialExtra = "workload.atoll.dev/credential"

	// BootstrapTokenSecretType is the type of a Secret with the keys below.
	BootstrapTokenSecretType = "workload.atoll.dev/bootstrap-token"
	// BootstrapTokenID is what stands before the dot of a token such as abcdef.0123456789abcdef.
	BootstrapTokenID = "id"
	// BootstrapTokenHash is the SHA-256 of the whole token, in hexadecimal digits: nobody who reads the Secret can use it.
	BootstrapTokenHash = "sha256"
	// BootstrapTokenExpiration is when the token ends, as RFC 3339 writes it.
	BootstrapTokenExpiration = "expiration"
)

// How a syncer outside the server opens a tunnel: a connection on which the server asks it for logs and streams of pods. It asks for the
// TunnelSubresource of the SyncTarget in its mirror, to be upgraded to the TunnelProtocol.
const (
	TunnelSubresource = "tunnel"
	// TunnelProtocol is HTTP/2 in which the server asks, and the syncer answers.
	TunnelProtocol = "atoll-tunnel/1"
	// TunnelServerHeader, of the answer, tells apart the servers that are at one address, of which each needs a tunnel of its own. It
	// is not there where there is one server alone.
	TunnelServerHeader = "Atoll-Server"
	// TunnelHeldHeader, of the request, has those to which the syncer has a tunnel. One of these answers 409 if it has it, too.
	TunnelHeldHeader = "Atoll-Tunnels-Held"
)

// SyncerAnnotations are those of leaves that the syncer writes.
var SyncerAnnotations = []string{AppliedAnnotation, RefusedAnnotation, UnshownAnnotation, VolumeAnnotation}

// Volume is what a physical cluster bound a claim to. It stands in the claim's spec there, which is no syncer's to write here.
type Volume struct {
	// Name is that of the PersistentVolume, StorageClassName the claim's class, empty if it has none.
	Name             string `json:"name"`
	StorageClassName string `json:"storageClassName,omitempty"`
}
