package builtin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	etcd "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/server/storage"
)

// bindings are pods/binding. Who binds a pod is a scheduler; the server's own binds it to a physical cluster: it is that cluster's to
// run from then on, and stays until it is gone there, whoever deletes it, and how.
type bindings struct {
	*podstore.BindingREST
	pods *podstore.REST
}

// Create binds a pod, to a physical cluster if the binding has the marks of one. Of anybody else's bindings admission refuses those.
func (b bindings) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*api.Binding)
	if !ok || !isServer(ctx) || inMirror(ctx) || binding.Labels[workloadv1alpha1.MirrorLabel] == "" {
		return b.BindingREST.Create(ctx, name, obj, validate, options)
	}
	if binding.Name != name || binding.UID == "" || binding.Target.Name == "" || binding.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a pod is bound to a physical cluster by its name, which is %q here, its UID, the cluster, and the mirror's namespace", name))
	}
	if err := validate(ctx, binding.DeepCopyObject()); err != nil {
		return nil, err
	}
	key, err := b.pods.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	conditions := etcd.Preconditions{UID: &binding.UID}
	if binding.ResourceVersion != "" {
		conditions.ResourceVersion = &binding.ResourceVersion
	}
	err = b.pods.Storage.GuaranteedUpdate(ctx, key, &api.Pod{}, false, &conditions, etcd.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		pod, ok := obj.(*api.Pod)
		if !ok {
			return nil, fmt.Errorf("a pod is a %T", obj)
		}
		return pod, bind(pod, binding)
	}), dryrun.IsDryRun(options.DryRun), nil)
	if err != nil {
		return nil, storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, api.Resource("pods"), name), api.Resource("pods"), name)
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// mostBoundBytes is how long a pod that is bound may be, of the 1.5 MiB that etcd takes: a status has to find room.
const mostBoundBytes = 1 << 20

// bind marks a pod as a physical cluster's to run, all in one. What is bound already, or may not be bound, it refuses.
func bind(pod *api.Pod, binding *api.Binding) error {
	refuse := func(why string) error {
		return apierrors.NewConflict(api.Resource("pods/binding"), pod.Name, errors.New(why))
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return refuse("the pod is being deleted")
	case pod.Labels[workloadv1alpha1.MirrorLabel] != "":
		return refuse("the pod runs already in " + pod.Spec.NodeName)
	case pod.Spec.NodeName != "":
		return refuse("the pod is bound already to " + pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return refuse("the pod has scheduling gates")
	}
	if err := within(pod, mostBoundBytes); err != nil {
		return err // it would run, and could not say so
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Labels[workloadv1alpha1.MirrorLabel] = binding.Labels[workloadv1alpha1.MirrorLabel]
	pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] = binding.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation]
	if access, ok := binding.Annotations[workloadv1alpha1.APIAccessAnnotation]; ok { // not of a leader of an earlier version
		pod.Annotations[workloadv1alpha1.APIAccessAnnotation] = access
	}
	delete(pod.Annotations, workloadv1alpha1.PodUIDAnnotation)
	delete(pod.Annotations, workloadv1alpha1.ResizedAnnotation)
	if !kinds.IsBound(pod) {
		pod.Finalizers = append(pod.Finalizers, workloadv1alpha1.SyncerFinalizer)
	}
	pod.Spec.NodeName = binding.Target.Name
	podutil.UpdatePodCondition(&pod.Status, &api.PodCondition{Type: api.PodScheduled, Status: api.ConditionTrue})
	return nil
}

// boundView makes of what a mirror shows of a pod what it shows of one that it is to run: a leaf like others, with what goes down of it,
// and no more of who owns it.
func boundView(pod, shown *api.Pod) *api.Pod {
	shown.Finalizers = []string{workloadv1alpha1.SyncerFinalizer}
	labels, annotations := kinds.Metadata(pod)
	maps.Copy(shown.Annotations, annotations)
	shown.Annotations[workloadv1alpha1.RootAnnotation] = pod.Namespace + "/" + pod.Name
	if access := pod.Annotations[workloadv1alpha1.APIAccessAnnotation]; access != "" {
		shown.Annotations[workloadv1alpha1.APIAccessAnnotation] = access
	}
	if kinds.IsToldNamespace(pod) { // which its spec, below, reads
		shown.Annotations[workloadv1alpha1.NamespaceAnnotation] = pod.Namespace
	}
	labels[workloadv1alpha1.WorkspaceLabel] = string(logicalcluster.From(pod))
	labels[workloadv1alpha1.RootUIDLabel] = string(pod.UID)
	shown.Labels = labels
	shown.Spec = below(pod)
	if shown.Annotations[workloadv1alpha1.PodUIDAnnotation] == "" { // it does not run yet
		delete(shown.Annotations, workloadv1alpha1.PodUIDAnnotation)
		shown.Spec.EphemeralContainers = nil // no pod is made with them: they are added to one that is there
	}
	return shown
}

// below returns what of a pod's spec goes down, by the table of kinds. It shares nothing with the pod.
func below(pod *api.Pod) api.PodSpec {
	kind, _ := kinds.ByKind("Pod")
	return converted(&pod.Spec, func(external *corev1.PodSpec) *corev1.PodSpec {
		return &kind.Content(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}, Spec: *external}).(*corev1.Pod).Spec
	})
}

// converted returns what a function of the table of kinds makes of a pod's spec. It shares nothing with that.
func converted(spec *api.PodSpec, by func(*corev1.PodSpec) *corev1.PodSpec) api.PodSpec {
	var internal api.PodSpec
	if err := corev1conversion.Convert_v1_PodSpec_To_core_PodSpec(by(external(spec)), &internal, nil); err != nil {
		panic(fmt.Sprintf("convert the spec of a pod: %v", err))
	}
	return internal
}

// external is a pod's spec in the API's type. It shares nothing with the pod.
func external(spec *api.PodSpec) *corev1.PodSpec {
	out := &corev1.PodSpec{}
	// The conversions of the registry's own type fail for nothing that it has stored, or has read.
	if err := corev1conversion.Convert_core_PodSpec_To_v1_PodSpec(spec.DeepCopy(), out, nil); err != nil {
		panic(fmt.Sprintf("convert the spec of a pod: %v", err))
	}
	return out
}

// runs takes from a syncer, with the first status of a pod that it is to run, which pod below is that. It says so once: by that UID
// it is asked for logs, and deletes what it runs.
func (at *space) runs(next, after *api.Pod) error {
	uid := after.Annotations[workloadv1alpha1.PodUIDAnnotation]
	before := next.Annotations[workloadv1alpha1.PodUIDAnnotation]
	switch {
	case !kinds.IsBound(next) || uid == before:
		return nil
	case before != "":
		return apierrors.NewForbidden(api.Resource("pods"), next.Name, errors.New("the pod that it is below does not change"))
	}
	next.Annotations = maps.Clone(next.Annotations)
	next.Annotations[workloadv1alpha1.PodUIDAnnotation] = uid
	return nil
}

// mayEnd refuses the end of a pod that a mirror is to run and has not begun to, unless it is deleted: it is no news of what is below.
func mayEnd(ctx context.Context, pod *api.Pod) error {
	if kinds.IsBound(pod) && pod.DeletionTimestamp == nil && pod.Annotations[workloadv1alpha1.PodUIDAnnotation] == "" && !isServer(ctx) {
		return apierrors.NewForbidden(api.Resource("pods"), pod.Name, errors.New("it is to run here, and has not run yet"))
	}
	return nil
}

// release lets a pod go that has ended below. Somebody else's finalizers keep it.
func (s shownPods) release(at *space, ended *api.Pod) (runtime.Object, bool, error) {
	let := storage.ChangeOf(ended.UID, func(old runtime.Object) (runtime.Object, error) {
		pod, ok := old.(*api.Pod)
		if !ok || !at.shows(pod) {
			return nil, apierrors.NewNotFound(api.Resource("pods"), ended.Name)
		}
		pod = pod.DeepCopy()
		pod.Finalizers = slices.DeleteFunc(pod.Finalizers, func(f string) bool { return f == workloadv1alpha1.SyncerFinalizer })
		return pod, nil
	})
	released, _, err := s.pods.Update(at.inWorkspace("", "pods"), ended.Name, let, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, true, nil // it went, or another has its name
	}
	return released, false, err
}
