package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Goes says to which clusters an object of a kind goes.
type Goes string

const (
	// Placed kinds make pods: they go where their Placement says, with a share of the work.
	Placed Goes = "Placed"
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
	// New returns an empty object of the kind.
	New func() ctrlclient.Object
	// Content returns what of a root goes down: a new object with spec or data and no metadata.
	Content func(root ctrlclient.Object) ctrlclient.Object
	// Withheld says in one sentence why this root never goes down; empty if it does. Nil means all of the kind do.
	Withheld func(root ctrlclient.Object) string
	// Dropped says, one sentence each, what of a root's content does not go down although the user wrote it; nil for
	// kinds of which everything goes.
	Dropped func(root ctrlclient.Object) []string
	// Template returns the template of the pods an object makes; nil for kinds that make none.
	Template func(obj ctrlclient.Object) *corev1.PodTemplateSpec
	// Summarise writes what the leaves say into root's status, in place. Nil for kinds without status.
	Summarise func(root ctrlclient.Object, view View)
}

// All kinds that go down, in the order in which they are written to a new cluster: what a workload needs comes first.
var All = []Kind{
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), GVR: corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		Goes:     WhereReferenced,
		New:      func() ctrlclient.Object { return &corev1.ServiceAccount{} },
		Content:  serviceAccountContent,
		Withheld: serviceAccountWithheld,
	},
	{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GVR: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Goes:     WhereReferenced,
		New:      func() ctrlclient.Object { return &corev1.ConfigMap{} },
		Content:  configMapContent,
		Withheld: configMapWithheld,
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
		New:       func() ctrlclient.Object { return &corev1.Service{} },
		Content:   serviceContent,
		Withheld:  serviceWithheld,
		Dropped:   serviceDropped,
		Summarise: summariseService,
	},
	{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), GVR: appsv1.SchemeGroupVersion.WithResource("deployments"),
		HasStatus: true,
		Goes:      Placed,
		New:       func() ctrlclient.Object { return &appsv1.Deployment{} },
		Content:   deploymentContent,
		Dropped:   deploymentDropped,
		Template:  func(obj ctrlclient.Object) *corev1.PodTemplateSpec { return &obj.(*appsv1.Deployment).Spec.Template },
		Summarise: summariseDeployment,
	},
}

// ByKind returns the entry of a kind by its name, e.g. "ConfigMap", and whether there is one.
func ByKind(kind string) (Kind, bool) {
	for _, k := range All {
		if k.GVK.Kind == kind {
			return k, true
		}
	}
	return Kind{}, false
}
