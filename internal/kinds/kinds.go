package kinds

import (
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Goes says to which clusters an object of a kind goes.
type Goes string

const (
	// Divided kinds make pods: they go where their Placement says, with a share of the work.
	Divided Goes = "Divided"
	// Copied kinds make pods, too, and go whole to every cluster of their Placement.
	Copied Goes = "Copied"
	// WithPlacement kinds go whole to every cluster of their Placement, and stay in a cluster until the last
	// workload of their namespace has left it.
	WithPlacement Goes = "WithPlacement"
	// WhereReferenced kinds go whole to the clusters of the workloads that refer to them, and leave after them.
	WhereReferenced Goes = "WhereReferenced"
)

// Kind is one kind of object that goes down, with its rules.
type Kind struct {
	GVK schema.GroupVersionKind
	GVR schema.GroupVersionResource
	// HasStatus says that the kind has a /status subresource, which travels up.
	HasStatus bool
	Goes      Goes
	// Given names what the server itself makes of the kind in every workspace, or in every namespace if it has none here. It
	// never goes down, and to have it is not to have something to run. Empty for most kinds.
	Given types.NamespacedName
	// New returns an empty object of the kind.
	New func() ctrlclient.Object
	// NewList returns an empty list of them; nil for kinds that make no pods.
	NewList func() ctrlclient.ObjectList
	// Content returns what of a root goes down: a new object with spec or data and no metadata.
	Content func(root ctrlclient.Object) ctrlclient.Object
	// Withheld says in one sentence why this root never goes down; empty if it does. Nil means all of the kind do, but for
	// Given: ask WhyWithheld.
	Withheld func(root ctrlclient.Object) string
	// Dropped says, one sentence each, what of a root's content does not go down although the user wrote it; nil for
	// kinds of which everything goes. Of a template of pods, WhatIsDropped tells for all kinds.
	Dropped func(root ctrlclient.Object) []string
	// Template returns the template of the pods an object makes; nil, as are those below, for kinds that make none.
	Template func(obj ctrlclient.Object) *corev1.PodTemplateSpec
	// Pods returns how many pods a leaf asks for, and how many of them are ready.
	Pods func(leaf ctrlclient.Object) (wanted, ready int32)
	// Observed says that its controller has seen a leaf as it is.
	Observed func(leaf ctrlclient.Object) bool
	// RolledOut says that every pod that a leaf should have is as it should be, and that there is no other.
	RolledOut func(leaf ctrlclient.Object) bool
	// Failing says why no pods can be made of a leaf, in its controller's words; empty if they can.
	Failing func(leaf ctrlclient.Object) (reason, message string)
	// History says how the revisions of an object's template are kept; nil for kinds of which none are.
	History func(obj ctrlclient.Object) History
	// Summarise writes what the leaves say into root's status, in place. Nil for kinds without status.
	Summarise func(root ctrlclient.Object, view View)
}

// All kinds that go down, in the order in which they are written to a new cluster: what a workload needs comes first.
var All = []Kind{
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), GVR: corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		Goes:    WhereReferenced,
		Given:   types.NamespacedName{Name: "default"},
		New:     func() ctrlclient.Object { return &corev1.ServiceAccount{} },
		Content: serviceAccountContent,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GVR: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Goes:    WhereReferenced,
		Given:   types.NamespacedName{Name: "kube-root-ca.crt"},
		New:     func() ctrlclient.Object { return &corev1.ConfigMap{} },
		Content: configMapContent,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("Secret"), GVR: corev1.SchemeGroupVersion.WithResource("secrets"),
		Goes:     WhereReferenced,
		New:      func() ctrlclient.Object { return &corev1.Secret{} },
		Content:  secretContent,
		Withheld: secretWithheld,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("Service"), GVR: corev1.SchemeGroupVersion.WithResource("services"),
		HasStatus: true,
		Goes:      WithPlacement,
		Given:     types.NamespacedName{Namespace: corev1.NamespaceDefault, Name: "kubernetes"},
		New:       func() ctrlclient.Object { return &corev1.Service{} },
		Content:   serviceContent,
		Dropped:   serviceDropped,
		Summarise: summariseService,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), GVR: appsv1.SchemeGroupVersion.WithResource("deployments"),
		HasStatus: true,
		Goes:      Divided,
		New:       func() ctrlclient.Object { return &appsv1.Deployment{} },
		NewList:   func() ctrlclient.ObjectList { return &appsv1.DeploymentList{} },
		Content:   deploymentContent,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.Deployment).Spec.Template },
		Pods:      deploymentPods,
		Observed:  deploymentObserved,
		RolledOut: func(leaf ctrlclient.Object) bool { return rolledOut(leaf.(*appsv1.Deployment)) },
		Failing:   deploymentFailing,
		History:   deploymentHistory,
		Summarise: summariseDeployment,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), GVR: appsv1.SchemeGroupVersion.WithResource("daemonsets"),
		HasStatus: true,
		Goes:      Copied,
		New:       func() ctrlclient.Object { return &appsv1.DaemonSet{} },
		NewList:   func() ctrlclient.ObjectList { return &appsv1.DaemonSetList{} },
		Content:   daemonSetContent,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.DaemonSet).Spec.Template },
		Pods:      daemonSetPods,
		Observed:  daemonSetObserved,
		RolledOut: daemonSetRolledOut,
		History:   daemonSetHistory,
		Summarise: summariseDaemonSet,
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

// MakesPods says whether objects of the kind have a template of pods.
func (k Kind) MakesPods() bool { return k.Template != nil }

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
		dropped = append(dropped, withinFloor(k.Template(root).Spec.DeepCopy())...)
	}
	return dropped
}

// WhyWithheld says in one sentence why a root never goes down; empty if it does.
func (k Kind) WhyWithheld(root ctrlclient.Object) string {
	switch {
	case k.IsGiven(root.GetNamespace(), root.GetName()):
		return "every physical cluster has its own"
	case k.Withheld != nil:
		return k.Withheld(root)
	}
	return ""
}
