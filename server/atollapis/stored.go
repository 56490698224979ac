package atollapis

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// Workspaces and LogicalClusters are stored in less words than they are served in, and in those of the first versions:
//
//	                                   stored        served, as in kcp
//	owner annotation                   ann           {"username":"ann"}
//	label tenancy.kcp.io/phase         -             the phase of a Workspace
//	condition WorkspaceScheduled       -             True, of a Workspace that has an address
//	condition WorkspaceInitialized     -             True, of a Workspace that is ready and never had initializers
//	phase of a LogicalCluster          Terminating   Deleting, once there are no terminators left
//
// So what versions before stored is served as what this one stores, without a migration; they find in what this one stores
// what they know, and may serve and lead beside it or after it; a workspace takes no byte more; and what follows from the rest
// of an object never contradicts it. A user may have any name, also one that reads like a UserInfo: what is stored is a name
// always, and is never guessed at.

// storedForms is a storage factory whose codecs of Workspaces and LogicalClusters know both forms.
type storedForms struct{ serverstorage.StorageFactory }

func (f storedForms) NewConfig(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	config, err := f.StorageFactory.NewConfig(gr, example)
	if err != nil || gr != workspaces().groupResource() && gr != logicalClusters().groupResource() {
		return config, err
	}
	config.Codec = formsCodec{inner: config.Codec, identifier: "served:" + config.Codec.Identifier()}
	return config, nil
}

// formsCodec encodes objects in their stored form and decodes them in the served one.
type formsCodec struct {
	inner      runtime.Codec
	identifier runtime.Identifier
}

func (c formsCodec) Identifier() runtime.Identifier { return c.identifier }

func (c formsCodec) Encode(obj runtime.Object, w io.Writer) error {
	stored, err := storedForm(obj)
	if err != nil {
		return err
	}
	return c.inner.Encode(stored, w)
}

func (c formsCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := c.inner.Decode(data, defaults, into)
	if err == nil {
		serve(obj)
	}
	return obj, gvk, err
}

// serve turns an object that was decoded, and that nobody else holds, from its stored form to the served one.
func serve(obj runtime.Object) {
	switch o := obj.(type) {
	case *tenancyv1alpha1.Workspace:
		serveOwner(o)
		o.Status.Conditions = append(impliedConditions(o), o.Status.Conditions...)
		showPhase(o)
	case *corev1alpha1.LogicalCluster:
		serveOwner(o)
		if o.Status.Phase == corev1alpha1.LogicalClusterPhaseTerminating && len(o.Status.Terminators) == 0 {
			o.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
		}
	}
}

func serveOwner(obj metav1.Object) {
	if annotations := obj.GetAnnotations(); annotations[tenancyv1alpha1.OwnerAnnotation] != "" {
		annotations[tenancyv1alpha1.OwnerAnnotation] = tenancyv1alpha1.OwnerValue(annotations[tenancyv1alpha1.OwnerAnnotation])
	}
}

// storedForm returns an object as it is stored. It does not change obj, of which others may hold parts.
func storedForm(obj runtime.Object) (runtime.Object, error) {
	switch o := obj.(type) {
	case *tenancyv1alpha1.Workspace:
		stored := *o
		if _, ok := o.Labels[tenancyv1alpha1.PhaseLabel]; ok {
			stored.Labels = maps.Clone(o.Labels)
			delete(stored.Labels, tenancyv1alpha1.PhaseLabel)
		}
		stored.Status.Conditions = withoutImplied(o)
		return &stored, storeOwner(&stored)
	case *corev1alpha1.LogicalCluster:
		stored := *o
		if o.Status.Phase == corev1alpha1.LogicalClusterPhaseDeleting {
			stored.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		}
		return &stored, storeOwner(&stored)
	}
	return obj, nil
}

func storeOwner(obj metav1.Object) error {
	value := obj.GetAnnotations()[tenancyv1alpha1.OwnerAnnotation]
	if value == "" {
		return nil
	}
	owner := tenancyv1alpha1.OwnerOf(obj)
	if owner == "" {
		return fmt.Errorf("store %T %q: its annotation %s is %.200q, want %s", obj, obj.GetName(), tenancyv1alpha1.OwnerAnnotation, value, tenancyv1alpha1.OwnerValue("NAME"))
	}
	annotations := maps.Clone(obj.GetAnnotations())
	annotations[tenancyv1alpha1.OwnerAnnotation] = owner
	obj.SetAnnotations(annotations)
	return nil
}

// showPhase gives a Workspace the label of its phase, whatever it has. Maps that others may hold stay as they are.
func showPhase(w *tenancyv1alpha1.Workspace) {
	phase := string(w.Status.Phase)
	if value, ok := w.Labels[tenancyv1alpha1.PhaseLabel]; ok == (phase != "") && value == phase {
		return
	}
	labels := make(map[string]string, len(w.Labels)+1)
	maps.Copy(labels, w.Labels)
	delete(labels, tenancyv1alpha1.PhaseLabel)
	if phase != "" {
		labels[tenancyv1alpha1.PhaseLabel] = phase
	}
	w.Labels = labels
}

// impliedConditions are those that the rest of a Workspace says and that it does not have.
func impliedConditions(w *tenancyv1alpha1.Workspace) (implied []metav1.Condition) {
	has := func(condition string) bool { return meta.FindStatusCondition(w.Status.Conditions, condition) != nil }
	if w.Spec.Cluster != "" && w.Spec.URL != "" && !has(tenancyv1alpha1.WorkspaceScheduled) {
		implied = append(implied, metav1.Condition{
			Type: tenancyv1alpha1.WorkspaceScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled", LastTransitionTime: w.CreationTimestamp,
		})
	}
	// Ready is never taken away, also while it is deleted.
	if ready := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceReady); ready != nil && ready.Status == metav1.ConditionTrue &&
		!has(tenancyv1alpha1.WorkspaceInitialized) {
		implied = append(implied, metav1.Condition{
			Type: tenancyv1alpha1.WorkspaceInitialized, Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: ready.LastTransitionTime,
		})
	}
	return implied
}

// withoutImplied returns the conditions of a Workspace without those that impliedConditions would give back.
func withoutImplied(w *tenancyv1alpha1.Workspace) []metav1.Condition {
	bare := *w
	bare.Status.Conditions = slices.DeleteFunc(slices.Clone(w.Status.Conditions), func(c metav1.Condition) bool {
		return c.Type == tenancyv1alpha1.WorkspaceScheduled || c.Type == tenancyv1alpha1.WorkspaceInitialized
	})
	implied := impliedConditions(&bare)
	return slices.DeleteFunc(slices.Clone(w.Status.Conditions), func(c metav1.Condition) bool {
		return slices.ContainsFunc(implied, func(i metav1.Condition) bool {
			i.LastTransitionTime, c.LastTransitionTime = i.LastTransitionTime.Rfc3339Copy(), c.LastTransitionTime.Rfc3339Copy()
			return i == c
		})
	})
}
