package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Mirror keeps syncers from changing what they are told: of a leaf a syncer writes status, what it applied or could
// not, and the finalizers that end with its work. A role cannot say so, since finalizers are patched with the rest of
// an object. It is to mirrors what NodeRestriction is to Nodes. What syncers may make there is bounded in number here, since mirrors
// have no limits: the rest of what they hold follows from what workspaces hold.
type Mirror struct {
	*admission.Handler
	objects  Objects
	isSyncer func(user.Info) bool
}

// maxSyncerRequests is how many CertificateSigningRequests a mirror holds at most if syncers ask for one more. They go an hour after
// they were answered, and a syncer asks for one in weeks: so many are the work of one that starts over and over.
const maxSyncerRequests = 100

// NewMirror returns the plugin. isSyncer says whether a user is a syncer, or asks for the
// certificate of one.
func NewMirror(objects Objects, isSyncer func(user.Info) bool) *Mirror {
	return &Mirror{Handler: admission.NewHandler(admission.Create, admission.Update), objects: objects, isSyncer: isSyncer}
}

var errNotTheSyncers = errors.New("a syncer may change only the status of what is in its mirror, its own annotations, and its own finalizer")

var errOtherLease = errors.New("a syncer keeps one Lease in its mirror, " + workloadv1alpha1.HeartbeatName)

var errOtherSigner = errors.New("a syncer may ask for certificates of the signer " + workloadv1alpha1.SyncerSigner + " only")

// Validate refuses what changes more.
func (m *Mirror) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !m.isSyncer(a.GetUserInfo()) {
		return nil
	}
	if a.GetResource().Resource == "leases" {
		if a.GetName() != workloadv1alpha1.HeartbeatName {
			return admission.NewForbidden(a, errOtherLease)
		}
		return nil
	}
	if r := a.GetResource().GroupResource(); (r == pods || r == events) && a.GetOperation() == admission.Create && a.GetSubresource() == "" {
		return nil // the registry says which it may show
	}
	if a.GetResource().GroupResource() == accounts && a.GetSubresource() == "token" && a.GetOperation() == admission.Create {
		return nil // the registry says whose token it gets
	}
	if request, ok := a.GetObject().(*certificates.CertificateSigningRequest); ok && a.GetOperation() == admission.Create {
		if request.Spec.SignerName != workloadv1alpha1.SyncerSigner {
			return admission.NewForbidden(a, errOtherSigner)
		}
		there, err := m.objects.List(ctx, signingRequests, "", true)
		if err != nil {
			return err
		}
		if len(there) >= maxSyncerRequests {
			return admission.NewForbidden(a, fmt.Errorf("the mirror has %d CertificateSigningRequests, and syncers may make no more: those that are answered go within an hour, others within a day", len(there)))
		}
		return nil
	}
	if a.GetOperation() != admission.Update || !onlyBookkeeping(a.GetOldObject(), a.GetObject(), a.GetSubresource() == "status") {
		return admission.NewForbidden(a, errNotTheSyncers)
	}
	return nil
}

// onlyBookkeeping says whether an update changes nothing but a syncer's bookkeeping; of a status update, the registry
// takes from the object itself only metadata.
func onlyBookkeeping(before, after runtime.Object, status bool) bool {
	want := before.DeepCopyObject()
	old, err := meta.Accessor(want)
	if err != nil {
		return false
	}
	now, err := meta.Accessor(after)
	if err != nil {
		return false
	}
	// What the server counts and keeps by itself.
	old.SetResourceVersion(now.GetResourceVersion())
	old.SetManagedFields(now.GetManagedFields())
	old.SetGeneration(now.GetGeneration())
	if mayChangeFinalizers(old.GetFinalizers(), now.GetFinalizers()) {
		old.SetFinalizers(now.GetFinalizers())
	}
	writes := workloadv1alpha1.SyncerAnnotations
	if _, ok := after.(*core.Pod); ok {
		writes = append(slices.Clone(writes), workloadv1alpha1.PodUIDAnnotation) // which it is below: the registry takes that once
		if status {
			// Of which the registry takes nothing. Who tells a status of a pod that has been resized since he read it meets a conflict, and one
			// that reads at a server of another version, which does not show it, is taken.
			writes = append(writes, workloadv1alpha1.ResizedAnnotation)
		}
	}
	old.SetAnnotations(withThese(writes, old.GetAnnotations(), now.GetAnnotations()))
	if status {
		return equality.Semantic.DeepEqual(objectMeta(want), objectMeta(after))
	}
	return equality.Semantic.DeepEqual(want, after)
}

func objectMeta(obj runtime.Object) metav1.Object {
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		return o.GetObjectMeta()
	}
	return nil
}

// mayChangeFinalizers says whether a syncer may turn old into now: it adds and removes its own finalizer, and removes
// those of the garbage collector when that of the physical cluster has done its work.
func mayChangeFinalizers(old, now []string) bool {
	own := sets.New(workloadv1alpha1.SyncerFinalizer)
	removable := own.Union(sets.New(metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents))
	before, after := sets.New(old...), sets.New(now...)
	return own.IsSuperset(after.Difference(before)) && removable.IsSuperset(before.Difference(after))
}

// withThese returns annotations with those of the keys taken from now.
func withThese(keys []string, annotations, now map[string]string) map[string]string {
	merged := maps.Clone(annotations)
	if merged == nil {
		merged = map[string]string{}
	}
	for _, key := range keys {
		delete(merged, key)
		if value, ok := now[key]; ok {
			merged[key] = value
		}
	}
	return merged
}
