package kinds

import (
	"fmt"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Goes says to which clusters an object of a kind goes.
type Goes string

const (
	// Divided kinds make pods: they go where their Placement says, with a share of the work.
	Divided Goes = "Divided"
	// Copied kinds make pods, too, and go whole to every cluster of their Placement.
	Copied Goes = "Copied"
	// Single kinds make pods, too, and run whole in one cluster of their Placement at a time: never in two.
	Single Goes = "Single"
	// Bound kinds are what runs: each is bound to one cluster of its Placement, for good, and has no leaf there but is one.
	Bound Goes = "Bound"
	// WithPlacement kinds go whole to every cluster of their Placement, and stay in a cluster until the last
	// workload of their namespace has left it.
	WithPlacement Goes = "WithPlacement"
	// WithNamespace kinds are about what runs in their namespace, and are nothing to run themselves: they go whole to every
	// cluster of any Placement of their namespace, before what makes pods there, and stay in a cluster until the last workload of their
	// namespace has left it.
	WithNamespace Goes = "WithNamespace"
	// WhereReferenced kinds go whole to the clusters of the workloads that refer to them, and leave after them.
	WhereReferenced Goes = "WhereReferenced"
	// WhereMounted kinds hold data: they go whole to one cluster, where the first workload that mounts them goes, and stay there until
	// their root is deleted, wherever workloads go.
	WhereMounted Goes = "WhereMounted"
)

// Doc is what people are told of a kind beside where it goes, in one or a few sentences each.
type Doc struct {
	// Down is what of a root goes down.
	Down string
	// Up is what comes up; empty for kinds without status.
	Up string
	// Not is what of a root, or which roots, do not go down; empty if there is nothing.
	Not string
}

// Kind is one kind of object that goes down, with its rules.
type Kind struct {
	GVK schema.GroupVersionKind
	GVR schema.GroupVersionResource
	// HasStatus says that the kind has a /status subresource, which travels up.
	HasStatus bool
	Goes      Goes
	// Doc is what docs/kinds.md says of the kind.
	Doc Doc
	// Given names what the server itself makes of the kind in every workspace, or in every namespace if it has none here. It
	// never goes down, and to have it is not to have something to run. Empty for most kinds.
	Given types.NamespacedName
	// MadeBelow says that physical clusters make objects of the kind, for others that go down, and that the workspace has them as well, shown or as
	// records of these. Whether one goes down itself, Holds says.
	MadeBelow bool
	// Unlabelled says that labels of the object itself do not go down: there they would be what a controller takes it over by.
	Unlabelled bool
	// New returns an empty object of the kind.
	New func() ctrlclient.Object
	// NewList returns an empty list of them; nil for kinds of which nobody asks what there is.
	NewList func() ctrlclient.ObjectList
	// Content returns what of a root goes down: a new object with spec or data and no metadata.
	Content func(root ctrlclient.Object) ctrlclient.Object
	// Withheld says in one sentence why this root never goes down; empty if it does. Nil means all of the kind do, but for
	// Given: ask WhyWithheld.
	Withheld func(root ctrlclient.Object) string
	// Dropped says, one sentence each, what of a root's content does not go down although the user wrote it; nil for
	// kinds of which everything goes. Of a template of pods, WhatIsDropped tells for all kinds.
	Dropped func(root ctrlclient.Object) []string
	// References returns what an object needs beside it, beyond what its pods do; nil for most kinds.
	References func(obj ctrlclient.Object) []Reference
	// Template returns the template of the pods an object makes; nil, as are those below, for kinds that make none.
	Template func(obj ctrlclient.Object) *corev1.PodTemplateSpec
	// PodClaims returns the claims that an object has for its pods, of one pod after the other; nil for kinds whose pods have none of their own.
	PodClaims func(obj ctrlclient.Object) []PodClaim
	// Stays says why a leaf does not leave its cluster, beside the claims that its pods mount, in words that end a sentence; nil if it may, as
	// all of most kinds: ask WhyStays.
	Stays func(leaf ctrlclient.Object) *Reason
	// Begun says that an object has begun what is done once: where it is gone it is not made again. Nil for most kinds.
	Begun func(obj ctrlclient.Object) bool
	// Fixed says that the pod template of a leaf cannot be changed any more. Nil for most kinds.
	Fixed func(leaf ctrlclient.Object) bool
	// Ended says that an object has ended what is done once: nothing changes any more, and nothing of it runs. Nil for most kinds.
	Ended func(obj ctrlclient.Object) bool
	// Fit makes of a status what the API server takes after another one; nil for most kinds.
	Fit func(before, now ctrlclient.Object)
	// Division returns what of an object each of its clusters has its own of, and what it says of that. Nil for kinds that are not Divided.
	Division func(obj ctrlclient.Object) Division
	// AsItSays says that how many pods there are to be only their cluster knows.
	AsItSays bool
	// Pods returns how many pods a leaf asks for, and how many of them are ready.
	Pods func(leaf ctrlclient.Object) (wanted, ready int32)
	// Observed says that its controller has seen a leaf as it is.
	Observed func(leaf ctrlclient.Object) bool
	// RolledOut says that every pod that a leaf should have is as it should be, and that there is no other.
	RolledOut func(leaf ctrlclient.Object) bool
	// Serves says that a leaf serves as well as it will without somebody's help, so that another cluster can be left for it. Nil: when
	// it is RolledOut.
	Serves func(leaf ctrlclient.Object) bool
	// Failing says why no pods can be made of a leaf, in its controller's words; empty if they can.
	Failing func(leaf ctrlclient.Object) (reason, message string)
	// History says how the revisions of an object's template are kept; nil for kinds of which none are.
	History func(obj ctrlclient.Object) History
	// NameRevision writes into root's status, in place and after Summarise, which revision of those that its workspace keeps its template
	// is, empty while that is not known; before is the root as it was, kept are the names of all. Nil for kinds whose status names none.
	NameRevision func(before, root ctrlclient.Object, view View, revision string, kept []string)
	// Summarise writes what the leaves say into root's status, in place. Nil for kinds without status.
	Summarise func(root ctrlclient.Object, view View)
}

// All kinds that go down, in the order in which they are written to a new cluster: what a workload needs comes first.
var All = []Kind{
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), GVR: corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		Goes:  WhereReferenced,
		Given: types.NamespacedName{Name: DefaultAccount},
		Doc: Doc{
			Down: "Its name, with `imagePullSecrets`, for what names it.",
			Not:  "Tokens and Secrets: no credential of the physical cluster is mounted. `default` does not go; what it pulls images with is written into the pods.",
		},
		New:     func() ctrlclient.Object { return &corev1.ServiceAccount{} },
		Content: serviceAccountContent,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GVR: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Goes:  WhereReferenced,
		Given: types.NamespacedName{Name: rootCAConfigMap},
		Doc: Doc{
			Down: "`data`, `binaryData`, `immutable`.",
			Not:  "`kube-root-ca.crt`: every physical cluster has its own.",
		},
		New:     func() ctrlclient.Object { return &corev1.ConfigMap{} },
		Content: configMapContent,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("Secret"), GVR: corev1.SchemeGroupVersion.WithResource("secrets"),
		Goes: WhereReferenced,
		Doc: Doc{
			Down: "`data`, `type`, `immutable`.",
			Not:  "Tokens of ServiceAccounts, bootstrap tokens, and Helm's records of releases.",
		},
		New:      func() ctrlclient.Object { return &corev1.Secret{} },
		Content:  secretContent,
		Withheld: secretWithheld,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind(ClaimKind), GVR: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		HasStatus: true,
		Goes:      WhereMounted,
		Doc: Doc{
			Down: "Its spec. What mounts it runs in that one cluster, whole, and does not leave it (`VolumesStay`).",
			Up:   "Its status, with `volumeName` and the class that the cluster gave it. `Lost` if its volume went with a cluster, or was deleted there: it is not made anew.",
			Not:  "`volumeName`; annotations of the volume controllers; one with a `dataSource`. The PersistentVolume stays below.",
		},
		New:       func() ctrlclient.Object { return &corev1.PersistentVolumeClaim{} },
		NewList:   func() ctrlclient.ObjectList { return &corev1.PersistentVolumeClaimList{} },
		Content:   claimContent,
		Withheld:  claimWithheld,
		Dropped:   claimDropped,
		Begun:     claimBegun,
		Summarise: summariseClaim,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("LimitRange"), GVR: corev1.SchemeGroupVersion.WithResource("limitranges"),
		Goes:    WithNamespace,
		Doc:     Doc{Down: "Its spec, whole: it holds for what is made in the workspace, and for the pods that physical clusters make."},
		New:     func() ctrlclient.Object { return &corev1.LimitRange{} },
		NewList: func() ctrlclient.ObjectList { return &corev1.LimitRangeList{} },
		Content: func(root ctrlclient.Object) ctrlclient.Object {
			return &corev1.LimitRange{Spec: *root.(*corev1.LimitRange).Spec.DeepCopy()}
		},
	},
	{
		GVK: networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), GVR: networkingv1.SchemeGroupVersion.WithResource("networkpolicies"),
		Goes: WithNamespace,
		Doc: Doc{
			Down: "Its spec. A `namespaceSelector`, and an ingress rule from everywhere, means namespaces of this workspace, by the labels they have in it, and those that the physical cluster has for itself, by theirs.",
			Not:  "What would let in other tenants. Names that begin with `atoll-tenant-isolation` are refused (`NameConflict`), as are policies whose selectors have too little in common (`TooManyPolicies`).",
		},
		New:     func() ctrlclient.Object { return &networkingv1.NetworkPolicy{} },
		NewList: func() ctrlclient.ObjectList { return &networkingv1.NetworkPolicyList{} },
		Content: networkPolicyContent,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("Service"), GVR: corev1.SchemeGroupVersion.WithResource("services"),
		HasStatus: true,
		Goes:      WithPlacement,
		Given:     types.NamespacedName{Namespace: corev1.NamespaceDefault, Name: "kubernetes"},
		Doc: Doc{
			Down: "All of its spec but what is under \"does not go\"; `clusterIP: None` stays.",
			Up:   "The addresses of load balancers of all clusters that are heard of and not being left, each once.",
			Not:  "What each cluster allocates by itself: cluster IPs and families, node ports, the health check's port. `externalIPs`. The Service `kubernetes`.",
		},
		New:       func() ctrlclient.Object { return &corev1.Service{} },
		Content:   serviceContent,
		Dropped:   serviceDropped,
		Summarise: summariseService,
	},
	{
		GVK: networkingv1.SchemeGroupVersion.WithKind("Ingress"), GVR: networkingv1.SchemeGroupVersion.WithResource("ingresses"),
		HasStatus: true,
		Goes:      WithPlacement,
		Doc: Doc{
			Down: "Its spec, whole; the Secrets of its `tls` follow it. `ingressClassName` and annotations mean what they mean in the physical cluster.",
			Up:   "As of a Service.",
		},
		New:        func() ctrlclient.Object { return &networkingv1.Ingress{} },
		NewList:    func() ctrlclient.ObjectList { return &networkingv1.IngressList{} },
		Content:    ingressContent,
		Dropped:    ingressDropped,
		References: ingressReferences,
		Summarise:  summariseIngress,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), GVR: appsv1.SchemeGroupVersion.WithResource("deployments"),
		HasStatus: true,
		Goes:      Divided,
		Doc: Doc{
			Down: "Its spec with the cluster's share of `replicas`, of `maxSurge` and of `maxUnavailable`.",
			Up:   "Counts add up; `Available` counts all clusters, `Progressing` is the worst of them; `observedGeneration` is that of the slowest. `Placed` and `Synced` say what is wrong where.",
			Not: "Of its pods: `nodeName`, system priority classes, tokens of the physical cluster, in place of which they have those of the workspace, and what names a Secret `atoll-token-…`. " +
				"Where the cluster's DNS knows workspaces: `metadata.namespace` of the downward API, in place of which they are told what their namespace is called in the workspace, and an annotation `workload.atoll.dev/namespace` of their own.",
		},
		New:       func() ctrlclient.Object { return &appsv1.Deployment{} },
		NewList:   func() ctrlclient.ObjectList { return &appsv1.DeploymentList{} },
		Content:   deploymentContent,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.Deployment).Spec.Template },
		Division:  deploymentDivision,
		Pods:      deploymentPods,
		Observed:  deploymentObserved,
		RolledOut: func(leaf ctrlclient.Object) bool { return rolledOut(leaf.(*appsv1.Deployment)) },
		Failing:   deploymentFailing,
		History:   deploymentHistory,
		Summarise: summariseDeployment,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), GVR: appsv1.SchemeGroupVersion.WithResource("replicasets"),
		HasStatus:  true,
		Goes:       Divided,
		MadeBelow:  true,
		Unlabelled: true,
		Doc: Doc{
			Down: "Its spec with the cluster's share of `replicas`. As in Kubernetes, another template is that of pods which are made later: those that run stay as they are.",
			Up:   "Counts add up; `observedGeneration` is that of the slowest; `ReplicaFailure`, `Placed` and `Synced` say what is wrong where.",
			Not: "Those that Deployments have for their history. Its own labels, by which a Deployment in the physical cluster would take it over: one that does so all the same, " +
				"since its selector asks for no label, keeps it, and the ReplicaSet says so (`TakenOver`). Of its pods, as of a Deployment's.",
		},
		New:       func() ctrlclient.Object { return &appsv1.ReplicaSet{} },
		NewList:   func() ctrlclient.ObjectList { return &appsv1.ReplicaSetList{} },
		Content:   replicaSetContent,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.ReplicaSet).Spec.Template },
		Division:  replicaSetDivision,
		Pods:      replicaSetPods,
		Observed:  replicaSetObserved,
		RolledOut: replicaSetRolledOut,
		Serves:    replicaSetServes,
		Failing:   replicaSetFailing,
		Summarise: summariseReplicaSet,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ReplicationController"), GVR: corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
		HasStatus:  true,
		Goes:       Divided,
		Unlabelled: true,
		Doc: Doc{
			Down: "As of a ReplicaSet.",
			Up:   "As of a ReplicaSet.",
			Not:  "Its own labels, by which a controller in the physical cluster would take it over, as a ReplicaSet's. Of its pods, as of a Deployment's. Another selector is refused while it has pods.",
		},
		New: func() ctrlclient.Object { // with a template to write to, as all that makes pods
			return &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Template: &corev1.PodTemplateSpec{}}}
		},
		NewList:   func() ctrlclient.ObjectList { return &corev1.ReplicationControllerList{} },
		Content:   replicationControllerContent,
		Template:  replicationControllerTemplate,
		Division:  replicationControllerDivision,
		Pods:      replicaSetPods,
		Observed:  replicaSetObserved,
		RolledOut: replicaSetRolledOut,
		Serves:    replicaSetServes,
		Failing:   replicaSetFailing,
		Summarise: summariseReplicationController,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), GVR: appsv1.SchemeGroupVersion.WithResource("daemonsets"),
		HasStatus: true,
		Goes:      Copied,
		Doc: Doc{
			Down: "Its spec, whole.",
			Up:   "Counts add up; `observedGeneration` is that of the slowest; `Placed` and `Synced` say what is wrong where.",
			Not:  "Of its pods, as of a Deployment's.",
		},
		New:       func() ctrlclient.Object { return &appsv1.DaemonSet{} },
		NewList:   func() ctrlclient.ObjectList { return &appsv1.DaemonSetList{} },
		Content:   daemonSetContent,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.DaemonSet).Spec.Template },
		Pods:      daemonSetPods,
		Observed:  daemonSetObserved,
		RolledOut: daemonSetRolledOut,
		Serves:    daemonSetServes,
		History:   daemonSetHistory,
		AsItSays:  true,
		Summarise: summariseDaemonSet,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), GVR: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
		HasStatus: true,
		Goes:      Single,
		Doc: Doc{
			Down: "Its spec, whole, after the Service that it names. The claims of its pods are made in the workspace, and go down before the pods that have them: it asks for as many pods as have theirs.",
			Up:   "What its leaf says, with the revisions' names of the workspace; `Placed` and `Synced` say what is wrong where.",
			Not:  "`volumeName` of its claims; `persistentVolumeClaimRetentionPolicy`, which the workspace carries out; of its pods, as of a Deployment's. With volumes it does not leave a cluster that it has run in. More than 1,000 claims.",
		},
		New:          func() ctrlclient.Object { return &appsv1.StatefulSet{} },
		NewList:      func() ctrlclient.ObjectList { return &appsv1.StatefulSetList{} },
		Content:      statefulSetContent,
		Dropped:      statefulSetDropped,
		Template:     func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.StatefulSet).Spec.Template },
		References:   statefulSetReferences,
		PodClaims:    statefulSetClaims,
		Stays:        statefulSetStays,
		Pods:         statefulSetPods,
		Observed:     statefulSetObserved,
		RolledOut:    statefulSetRolledOut,
		Serves:       statefulSetServes,
		History:      statefulSetHistory,
		NameRevision: nameStatefulSetRevision,
		Summarise:    summariseStatefulSet,
	},
	{
		GVK: batchv1.SchemeGroupVersion.WithKind("Job"), GVR: batchv1.SchemeGroupVersion.WithResource("jobs"),
		HasStatus: true,
		Goes:      Single,
		Doc: Doc{
			Down: "Its spec, whole, with the workspace's selector and labels (`manualSelector`).",
			Up:   "What its leaf says, until it has ended.",
			Not:  "`ttlSecondsAfterFinished`, which the workspace carries out; one that another controller manages (`managedBy`). What has begun does not move, and is not begun again.",
		},
		New:       func() ctrlclient.Object { return &batchv1.Job{} },
		NewList:   func() ctrlclient.ObjectList { return &batchv1.JobList{} },
		Content:   jobContent,
		Withheld:  jobWithheld,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*batchv1.Job).Spec.Template },
		Stays:     jobStays,
		Begun:     jobBegun,
		Fixed:     jobFixed,
		Ended:     jobEnded,
		Fit:       fitJob,
		AsItSays:  true,
		Pods:      jobPods,
		Observed:  jobObserved,
		RolledOut: jobRolledOut,
		Summarise: summariseJob,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("Pod"), GVR: corev1.SchemeGroupVersion.WithResource("pods"),
		HasStatus: true,
		Goes:      Bound,
		MadeBelow: true,
		Doc: Doc{
			Down: "One that somebody makes in the workspace, a person or a controller there: its spec, of which requests and limits may be changed while it runs, as of all pods that are shown (`pods/resize`).",
			Up:   "Its status, as it is below.",
			Not: "What is decided again below: priority, overhead, tolerations that each pod is given; `matchLabelKeys` and `mismatchLabelKeys`, whose labels its selectors have. `nodeName`, system priority classes, tokens of the physical cluster, in place of which it has those of the workspace, and what names a Secret `atoll-token-…`. " +
				"Where the cluster's DNS knows workspaces, `metadata.namespace` of the downward API, as of a Deployment's pods. " +
				"One whose controller makes its pods below. It does not move: one with a controller is deleted, for that to make another, and one without stays.",
		},
		New:       func() ctrlclient.Object { return &corev1.Pod{} },
		NewList:   func() ctrlclient.ObjectList { return &corev1.PodList{} },
		Content:   podContent,
		Template:  podTemplate,
		Stays:     podStays,
		Ended:     podEnded,
		Pods:      podPods,
		Observed:  func(ctrlclient.Object) bool { return true },
		RolledOut: func(obj ctrlclient.Object) bool { wanted, ready := podPods(obj); return wanted == ready },
	},
}

// ByKind returns the entry of a kind by its name, e.g. "ConfigMap", and whether there is one.
func ByKind(kind string) (Kind, bool) {
	return find(func(k Kind) bool { return k.GVK.Kind == kind })
}

// ByResource returns the entry of a kind by its group and resource, and whether there is one.
func ByResource(resource schema.GroupResource) (Kind, bool) {
	return find(func(k Kind) bool { return k.GVR.GroupResource() == resource })
}

// MakesPods says whether a resource is of a kind whose objects have a template of pods.
func MakesPods(resource schema.GroupResource) bool {
	k, ok := ByResource(resource)
	return ok && k.MakesPods()
}

// Of returns the entry of an object's kind, and whether there is one. There is none for what is held as metadata only.
func Of(obj ctrlclient.Object) (Kind, bool) {
	i, ok := byType[reflect.TypeOf(obj)]
	if !ok {
		return Kind{}, false
	}
	return All[i], true
}

// byType has the index in All of each type.
var byType = func() map[reflect.Type]int {
	types := map[reflect.Type]int{}
	for i, k := range All {
		types[reflect.TypeOf(k.New())] = i
	}
	return types
}()

func find(is func(Kind) bool) (Kind, bool) {
	if i := slices.IndexFunc(All, is); i >= 0 {
		return All[i], true
	}
	return Kind{}, false
}

// IsPlaced says whether Placements decide for single objects of the kind: they are something to run.
func (k Kind) IsPlaced() bool {
	return k.Goes != WhereReferenced && k.Goes != WithNamespace && k.Goes != WhereMounted
}

// HasLeaves says whether what goes down of the kind has a row in the mirrors that it goes to.
func (k Kind) HasLeaves() bool { return k.Goes != Bound }

// Carried is what a syncer that carries the kind says it carries: see SyncTarget, status.carriedResources.
func (k Kind) Carried() string {
	if k.Goes == Bound {
		return workloadv1alpha1.CarriedBindings
	}
	return k.GVR.GroupResource().String()
}

// CarriedAs is what a syncer says it carries that carries a resource.
func CarriedAs(resource schema.GroupResource) string {
	if k, ok := ByResource(resource); ok {
		return k.Carried()
	}
	return resource.String()
}

// MakesPods says whether objects of the kind have a template of pods.
func (k Kind) MakesPods() bool { return k.Template != nil }

// Refers says whether objects of the kind may need others beside them.
func (k Kind) Refers() bool { return k.References != nil || k.MakesPods() }

// ReferencesOf returns what a root or a leaf, and its pods, need beside it.
func (k Kind) ReferencesOf(obj ctrlclient.Object) []Reference {
	var needs []Reference
	if k.MakesPods() {
		needs = References(k.Template(obj))
	}
	if k.References != nil {
		needs = append(needs, k.References(obj)...)
	}
	for _, c := range k.PodClaimsOf(obj) {
		needs = append(needs, Reference{ClaimKind, c.Name})
	}
	return needs
}

// PodClaimsOf returns the claims that a root or a leaf has for its pods, of one pod after the other.
func (k Kind) PodClaimsOf(obj ctrlclient.Object) []PodClaim {
	if k.PodClaims == nil {
		return nil
	}
	return k.PodClaims(obj)
}

// IsGiven says whether the object of that name is of the server's own making.
func (k Kind) IsGiven(namespace, name string) bool {
	return k.Given.Name != "" && k.Given.Name == name && (k.Given.Namespace == "" || k.Given.Namespace == namespace)
}

// WhatIsDropped says, one sentence each, what of a root does not go down although the user wrote it.
func (k Kind) WhatIsDropped(root ctrlclient.Object) (dropped []string) {
	if k.Dropped != nil {
		dropped = k.Dropped(root)
	}
	if k.MakesPods() {
		// As it will be rendered: what was before the splitter gave any access keeps what it has.
		dropped = append(dropped, podsContent(k.Template(root).Spec.DeepCopy(), ProjectedAPIAccess)...)
		if _, own := k.Template(root).Annotations[workloadv1alpha1.NamespaceAnnotation]; own {
			dropped = append(dropped, "annotation "+workloadv1alpha1.NamespaceAnnotation+" of its pods, where the cluster's DNS knows workspaces: there it says what their namespace is called here")
		}
	}
	return dropped
}

// WhyStays says why a leaf does not leave its cluster, in words that end a sentence; nil if it may.
func (k Kind) WhyStays(leaf ctrlclient.Object) *Reason {
	switch {
	case k.Goes == Bound && len(ClaimsOf(leaf)) > 0:
		return &volumesStay // another one could run nowhere else
	case k.MakesPods():
		if why := claimsStay(leaf); why != nil {
			return why
		}
	}
	if k.Stays == nil {
		return nil
	}
	return k.Stays(leaf)
}

// MayStay says whether there can be a leaf of the kind that does not leave its cluster.
func (k Kind) MayStay() bool { return k.Stays != nil || k.MakesPods() }

// KeepsTemplate says that the pod template of a leaf cannot be changed any more.
func (k Kind) KeepsTemplate(leaf ctrlclient.Object) bool { return k.Fixed != nil && k.Fixed(leaf) }

// HasBegun says that an object has begun what is done once.
func (k Kind) HasBegun(obj ctrlclient.Object) bool { return k.Begun != nil && k.Begun(obj) }

// HasEnded says that an object has ended what is done once.
func (k Kind) HasEnded(obj ctrlclient.Object) bool { return k.Ended != nil && k.Ended(obj) }

// WhyWithheld says in one sentence why a root never goes down; empty if it does.
func (k Kind) WhyWithheld(root ctrlclient.Object) string {
	switch {
	case k.IsGiven(root.GetNamespace(), root.GetName()):
		return "every physical cluster has its own"
	case k.HasLeaves() && !k.Holds(root):
		owner := metav1.GetControllerOfNoCopy(root)
		return fmt.Sprintf("its controller does, %s %s, and physical clusters make of that what it needs", owner.Kind, owner.Name)
	case k.Withheld != nil:
		return k.Withheld(root)
	}
	return ""
}
