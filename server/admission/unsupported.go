package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/logicalcluster"
)

// Unsupported warns who applies what is accepted and has no effect, so that nobody relies on it: kinds that are not
// carried out yet, or not everywhere, fields that do not go down, and annotations of placement that are misspelt or not where they count.
// Deleting a workload and keeping its pods it refuses, since the pods would go, and warns who may believe that he keeps them; and what would leave
// pods running that nobody is shown.
type Unsupported struct {
	*admission.Handler
	missing MissingClasses
	refused RefusedPods
}

// MissingClasses says, in sentences, which classes that an object names are missing in physical clusters that it is placed on.
type MissingClasses func(cluster lc.Name, resource schema.GroupResource, namespace string, object client.Object) []string

// RefusedPods says, in sentences, which physical clusters refuse the pods of an object: of those that it is placed on or, of a pod, runs in; or all that its
// workspace may use.
type RefusedPods func(cluster lc.Name, resource schema.GroupResource, namespace string, object client.Object) ([]string, error)

// NewUnsupported returns the plugin.
func NewUnsupported(missing MissingClasses, refused RefusedPods) *Unsupported {
	return &Unsupported{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), missing: missing, refused: refused}
}

// Validate adds the warnings.
func (u *Unsupported) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || cluster.Mirror || a.GetSubresource() != "" {
		return nil
	}
	if isRevision(a) {
		return nil // a record: nothing is to be carried out, and nothing runs of it
	}
	if a.GetOperation() == admission.Delete {
		resource := a.GetResource().GroupResource()
		if !kinds.MakesPods(resource) || resource == pods {
			return nil
		}
		switch policy := propagation(a.GetOperationOptions(), a.GetOldObject()); {
		case policy == metav1.DeletePropagationOrphan:
			return admission.NewForbidden(a, errors.New("its pods cannot be kept yet (--cascade=orphan, or the finalizer orphan): what runs in the physical clusters goes with it"))
		case policy == "" && slices.Contains(keptElsewhere, resource):
			warning.AddWarning(ctx, "", fmt.Sprintf("pods of %s go with them, although the deletion does not say so: propagationPolicy=Background does", resource))
		}
		return nil
	}
	if why := losesPods(a.GetObject(), a.GetOldObject()); a.GetOperation() == admission.Update && why != "" {
		return admission.NewForbidden(a, errors.New(why))
	}
	if a.GetOperation() == admission.Create && slices.Contains(kinds.Kept, a.GetResource().GroupResource()) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s are kept but have no effect yet: they do not go to physical clusters, and nothing carries them out here", a.GetResource().GroupResource()))
	}
	if a.GetResource().Group == flowcontrol.GroupName && a.GetOperation() == admission.Create {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s have no effect: requests are divided between workspaces, and between the users of one, by what the administrators of the server have set", a.GetResource().GroupResource()))
	}
	if here := kinds.CarriedOutHere[a.GetResource().GroupResource()]; here.Lacks != "" && a.GetOperation() == admission.Create {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s %s", a.GetResource().GroupResource(), here))
	}
	if scaler, ok := a.GetObject().(*autoscaling.HorizontalPodAutoscaler); ok {
		unserved := slices.DeleteFunc(slices.Clone(scaler.Spec.Metrics), func(m autoscaling.MetricSpec) bool {
			return m.Type == autoscaling.ResourceMetricSourceType || m.Type == autoscaling.ContainerResourceMetricSourceType
		})
		if n := len(scaler.Spec.Metrics); n > kinds.MostMetrics {
			warning.AddWarning(ctx, "", fmt.Sprintf("there are %d metrics: nothing is scaled by more than %d", n, kinds.MostMetrics))
		}
		if len(unserved) > 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("no API of a workspace has metrics of type %s: nothing is scaled by these", unserved[0].Type))
		}
	}
	if _, ok := classes.ByResource(a.GetResource().GroupResource()); ok && a.GetOperation() == admission.Create {
		// Those of a workspace have their effect on what is made there, and a physical cluster goes by its own.
		warning.AddWarning(ctx, "", fmt.Sprintf("%s do not go to physical clusters: there the class has to be known by this name, or what names it is refused", a.GetResource().GroupResource()))
	}
	if secret, ok := a.GetObject().(*core.Secret); ok && a.GetOperation() == admission.Create && secret.Type == core.SecretTypeServiceAccountToken {
		warning.AddWarning(ctx, "", "no token is ever put into a Secret: `kubectl create token` gives one that ends")
	}
	for _, kind := range kinds.All {
		if kind.Dropped == nil && !classes.MayName(kind) || kind.GVR.GroupResource() != a.GetResource().GroupResource() {
			continue
		}
		root := kind.New()
		if err := legacyscheme.Scheme.Convert(a.GetObject(), root, nil); err != nil {
			return fmt.Errorf("look for what of a %s does not go down: %w", kind.GVK.Kind, err)
		}
		if kind.Goes == kinds.Bound && kinds.IsBound(root) {
			continue // its node is the cluster that it was bound to
		}
		for _, dropped := range kind.WhatIsDropped(root) {
			warning.AddWarning(ctx, "", "does not go to physical clusters: "+dropped)
		}
		if classes.MayName(kind) {
			root.SetName(a.GetName())
			for _, why := range u.missing(cluster.Name, a.GetResource().GroupResource(), a.GetNamespace(), root) {
				warning.AddWarning(ctx, "", why)
			}
		}
		if kind.MakesPods() && root.GetLabels()[workloadv1alpha1.MirrorLabel] == "" { // a pod that is shown was taken
			refused, err := u.refused(cluster.Name, a.GetResource().GroupResource(), a.GetNamespace(), root)
			if err != nil {
				return fmt.Errorf("look for who refuses the pods of a %s: %w", kind.GVK.Kind, err)
			}
			for _, why := range refused {
				warning.AddWarning(ctx, "", "its pods are "+why)
			}
		}
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil // a request that is no object, such as an access review, has no annotations
	}
	for key := range object.GetAnnotations() {
		if !strings.HasPrefix(key, placementv1alpha1.GroupVersion.Group+"/") {
			continue
		}
		if !slices.Contains(placementv1alpha1.WishAnnotations, key) {
			warning.AddWarning(ctx, "", fmt.Sprintf("the annotation %s means nothing: known are %s", key, strings.Join(placementv1alpha1.WishAnnotations, ", ")))
		} else if why := heedless(a.GetResource().GroupResource()); why != "" {
			warning.AddWarning(ctx, "", fmt.Sprintf("the annotation %s has no effect on %s", key, why))
		}
	}
	return nil
}

// isRevision says that what is written or deleted is a ReplicaSet of a Deployment, a record of one of its templates.
func isRevision(a admission.Attributes) bool {
	if a.GetResource().GroupResource() != (schema.GroupResource{Group: "apps", Resource: "replicasets"}) {
		return false
	}
	written := a.GetObject()
	if a.GetOperation() == admission.Delete {
		written = a.GetOldObject()
	}
	object, err := meta.Accessor(written)
	return err == nil && kinds.IsRevision(object)
}

// losesPods says why an update is refused that would leave pods in physical clusters that nobody is shown any more; "" if it may be. Only of a
// ReplicationController can the selector be changed: its controller lets go the pods that it selects no more, and makes others.
func losesPods(updated, old runtime.Object) string {
	now, ok := updated.(*core.ReplicationController)
	if !ok {
		return ""
	}
	was, ok := old.(*core.ReplicationController)
	if !ok || maps.Equal(now.Spec.Selector, was.Spec.Selector) {
		return ""
	}
	if ptr.Deref(was.Spec.Replicas, 1) == 0 && was.Status.Replicas == 0 && was.Status.ObservedGeneration == was.Generation {
		return "" // it has none
	}
	return "spec.selector cannot be changed while there are pods: those in physical clusters would run on, of nobody. Scale it to 0 first, or make another ReplicationController"
}

// heedless says of a resource that annotations of placement do not count on it, and where they do; "" if they do.
func heedless(resource schema.GroupResource) string {
	heed, follows := []string{}, ""
	for _, kind := range kinds.All {
		switch gr := kind.GVR.GroupResource(); {
		case kind.IsPlaced():
			heed = append(heed, gr.String())
		case gr != resource:
		case kind.Goes == kinds.WhereReferenced:
			follows = ", which follow what refers to them"
		case kind.Goes == kinds.WhereMounted:
			follows = ", which follow the first that mounts them"
		default:
			follows = ", which go wherever something of their namespace goes"
		}
	}
	for _, holder := range holders {
		heed = append(heed, holder.String())
	}
	if slices.Contains(heed, resource.String()) {
		return ""
	}
	return fmt.Sprintf("%s%s: it counts on %s", resource, follows, strings.Join(heed, ", "))
}

// keptElsewhere are of what Kubernetes keeps the pods where a deletion says nothing of them; here they go (builtin, podsGo).
var keptElsewhere = []schema.GroupResource{{Resource: "replicationcontrollers"}, {Group: "batch", Resource: "jobs"}}

// propagation is what a deletion says of the dependents, or a finalizer of the object where it says nothing; "" if neither does.
func propagation(options, old runtime.Object) metav1.DeletionPropagation {
	o, ok := options.(*metav1.DeleteOptions)
	if !ok {
		return ""
	}
	if o.PropagationPolicy != nil {
		return *o.PropagationPolicy
	}
	//lint:ignore SA1019 clients may still send it
	if orphan := o.OrphanDependents; orphan != nil && *orphan {
		return metav1.DeletePropagationOrphan
	} else if orphan != nil {
		return metav1.DeletePropagationBackground
	}
	object, err := meta.Accessor(old)
	switch {
	case err != nil:
	case slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(object.GetFinalizers(), metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return ""
}
