package builtin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	appsapi "k8s.io/kubernetes/pkg/apis/apps"
	batchapi "k8s.io/kubernetes/pkg/apis/batch"
	api "k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	registrypod "k8s.io/kubernetes/pkg/registry/core/pod"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// Objects reads what the logical cluster in ctx has, in the registries' internal types: what the watch cache holds if cached is
// true, else what etcd holds now. What is read is shared.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error)
	List(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error)
}

// ownMetadata begins the labels and annotations that Atoll alone writes.
const ownMetadata = "workload.atoll.dev/"

// mostShownBytes is how long a pod may be that a physical cluster shows, in bytes of JSON: many times a real one.
const mostShownBytes = 256 << 10

// shownPods are the pods of a mirror: a view of those pods of workspaces that run in its physical cluster. There is one row of each,
// in its workspace. Who asks in the mirror sees what the physical cluster has shown of it, or is to run, and its deletion; nothing else
// of the workspace, and none of its other pods (docs/design/0007-pods.md).
type shownPods struct {
	objects Objects
	pods    *podstore.REST
	// admitted makes rows of pods, as pods does, of what an API server has admitted already.
	admitted *genericregistry.Store
	status   *podstore.StatusREST
	watches  *openWatches
	tallies  *tallies
}

// newAdmitted returns a store of the same rows as pods.
func newAdmitted(pods *podstore.REST) *genericregistry.Store {
	store := *pods.Store
	store.CreateStrategy = admittedBelow{registrypod.Strategy}
	return &store
}

// admittedBelow is upstream's strategy for a pod that is there: an API server has admitted it, by its own version and features, and made of
// it what that makes of a new one. What upstream allows an object only since it was there already is allowed here, above all in selectors
// and values of labels, which nothing in the server reads.
type admittedBelow struct{ rest.RESTCreateStrategy }

// PrepareForCreate leaves the selectors of a pod as they are. Into those that have matchLabelKeys or mismatchLabelKeys beside them upstream
// merges what these select by. Where that was done below, a second time makes the pod invalid; where it was not, as before v1.34, it is not
// what the pod runs by.
func (s admittedBelow) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	pod, ok := obj.(*api.Pod)
	if !ok {
		s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
		return
	}
	var kept []*metav1.LabelSelector
	for _, selector := range selectorsOf(&pod.Spec) {
		kept = append(kept, (*selector).DeepCopy())
	}
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	for i, selector := range selectorsOf(&pod.Spec) {
		*selector = kept[i]
	}
}

// selectorsOf returns where the selectors of other pods are in a spec, always in the same order.
func selectorsOf(spec *api.PodSpec) (selectors []**metav1.LabelSelector) {
	for i := range spec.TopologySpreadConstraints {
		selectors = append(selectors, &spec.TopologySpreadConstraints[i].LabelSelector)
	}
	of := func(required []api.PodAffinityTerm, preferred []api.WeightedPodAffinityTerm) {
		for i := range required {
			selectors = append(selectors, &required[i].LabelSelector)
		}
		for i := range preferred {
			selectors = append(selectors, &preferred[i].PodAffinityTerm.LabelSelector)
		}
	}
	if affinity := spec.Affinity; affinity != nil && affinity.PodAffinity != nil {
		of(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if affinity := spec.Affinity; affinity != nil && affinity.PodAntiAffinity != nil {
		of(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return selectors
}

// Validate takes what upstream takes of a pod that has been there: of another version, or with other features, an API server takes what this one
// takes of nobody who makes a pod, such as matchLabelKeys beside a selector that they are merged into.
func (admittedBelow) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	pod, ok := obj.(*api.Pod)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("a pod is a %T", obj))}
	}
	opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, &pod.Spec, &pod.ObjectMeta, &pod.ObjectMeta)
	opts.ResourceIsPod = true
	return corevalidation.ValidatePodCreate(pod, opts)
}

// mostWatches is how many watches of its pods a mirror may have open: each costs a look at every event of any pod. A syncer has one,
// and one more for a while when it connects anew.
const mostWatches = 8

// openWatches counts them.
type openWatches struct {
	mu sync.Mutex
	of map[logicalcluster.Name]int
}

func (o *openWatches) begin(mirror logicalcluster.Name) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[mirror] >= mostWatches {
		return false
	}
	o.of[mirror]++
	return true
}

func (o *openWatches) end(mirror logicalcluster.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[mirror]--; o.of[mirror] == 0 {
		delete(o.of, mirror)
	}
}

// space is a namespace of a mirror, and what it is for.
type space struct {
	mirror    context.Context // of the request, in the mirror
	cluster   logicalcluster.Name
	namespace string // of the mirror

	workspace          logicalcluster.Name
	workspaceNamespace string
}

// space returns that of a request in a mirror. Nobody but the server makes the namespaces of a mirror and says what they are for:
// of a syncer, admission takes nothing but its finalizer.
func (s shownPods) space(ctx context.Context) (*space, error) {
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok || !cluster.Mirror {
		return nil, apierrors.NewInternalError(fmt.Errorf("what physical clusters show is in mirrors, and %q is none", cluster))
	}
	at := &space{mirror: ctx, cluster: cluster.Name, namespace: genericapirequest.NamespaceValue(ctx)}
	found, err := s.objects.Get(ctx, corev1.Resource("namespaces"), "", at.namespace, false)
	if err != nil {
		return nil, err
	}
	namespace, err := meta.Accessor(found)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	root, isFor := strings.CutPrefix(namespace.GetAnnotations()[workloadv1alpha1.RootAnnotation], "/")
	at.workspace, at.workspaceNamespace = logicalcluster.Name(namespace.GetLabels()[workloadv1alpha1.WorkspaceLabel]), root
	if !isFor || root == "" || lcctx.ValidateName(string(at.workspace)) != nil {
		return nil, apierrors.NewForbidden(api.Resource("namespaces"), at.namespace, errors.New("it is for no workspace"))
	}
	return at, nil
}

// inWorkspace returns the context of a request for a resource of the space's workspace.
func (at *space) inWorkspace(group, resource string) context.Context {
	return about(lcctx.WithCluster(at.mirror, lcctx.Cluster{Name: at.workspace}), group, resource, at.workspaceNamespace)
}

// isLeaf says whether an object of the mirror's namespace is a leaf of the workspace's namespace that this is for.
func (at *space) isLeaf(o metav1.Object) bool {
	namespace, _, _ := strings.Cut(o.GetAnnotations()[workloadv1alpha1.RootAnnotation], "/")
	return o.GetLabels()[workloadv1alpha1.WorkspaceLabel] == string(at.workspace) && namespace == at.workspaceNamespace
}

// shows says whether a pod of the workspace is one of the space's.
func (at *space) shows(pod *api.Pod) bool {
	return pod.Labels[workloadv1alpha1.MirrorLabel] == string(at.cluster) && pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] == at.namespace
}

// view is what a mirror shows of a pod of a workspace. It shares all but the metadata with it.
func view(pod *api.Pod, mirror logicalcluster.Name) *api.Pod {
	shown := &api.Pod{Spec: pod.Spec, Status: pod.Status, ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation], Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		Generation: pod.Generation, CreationTimestamp: pod.CreationTimestamp,
		DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		Labels: maps.Clone(pod.Labels),
		Annotations: map[string]string{
			lcctx.Annotation:                  string(mirror),
			workloadv1alpha1.PodUIDAnnotation: pod.Annotations[workloadv1alpha1.PodUIDAnnotation],
		},
	}}
	delete(shown.Labels, workloadv1alpha1.MirrorLabel)
	if resized := resizedOf(pod); resized != "" {
		shown.Annotations[workloadv1alpha1.ResizedAnnotation] = resized
	}
	if !kinds.IsBound(pod) {
		return shown
	}
	return boundView(pod, shown)
}

// stored returns the pod of the workspace for one that a physical cluster shows: its owner and its Node are what the server knows
// them to be, and it marks whose it is.
func (at *space) stored(shown *api.Pod, of above, node string) *api.Pod {
	theirs := func(all map[string]string) map[string]string {
		kept := map[string]string{}
		for k, v := range all {
			if !strings.HasPrefix(k, ownMetadata) {
				kept[k] = v
			}
		}
		return kept
	}
	spec := *shown.Spec.DeepCopy()
	if shown.Annotations[workloadv1alpha1.NamespaceAnnotation] == at.workspaceNamespace { // as it was written, since it is that here
		spec = converted(&shown.Spec, func(external *corev1.PodSpec) *corev1.PodSpec {
			kinds.ReadOwn(external)
			return external
		})
	}
	pod := &api.Pod{Spec: spec, ObjectMeta: metav1.ObjectMeta{
		Namespace: at.workspaceNamespace, Name: shown.Name,
		Labels: theirs(shown.Labels), Annotations: theirs(shown.Annotations),
		OwnerReferences: of.owners,
	}}
	relabel(pod, of.labels)
	pod.Labels[workloadv1alpha1.MirrorLabel] = string(at.cluster)
	pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] = at.namespace
	pod.Annotations[workloadv1alpha1.PodUIDAnnotation] = shown.Annotations[workloadv1alpha1.PodUIDAnnotation]
	pod.Spec.NodeName = node
	// No pod is born with either in a cluster that it is bound in.
	pod.Spec.SchedulingGates, pod.Spec.EphemeralContainers = nil, nil
	return pod
}

// relabel gives a pod other labels. What selects pods like it by those that it had, as its API server merged them from matchLabelKeys, selects by these: in
// the workspace no pod has the others.
func relabel(pod *api.Pod, labels map[string]string) {
	for _, selector := range selectorsOf(&pod.Spec) {
		if *selector == nil {
			continue
		}
		for i := range (*selector).MatchExpressions {
			e := &(*selector).MatchExpressions[i]
			was, had := pod.Labels[e.Key]
			if is, ok := labels[e.Key]; ok && had && slices.Equal(e.Values, []string{was}) {
				e.Values = []string{is}
			}
		}
	}
	maps.Copy(pod.Labels, labels)
}

// owners are those that a pod has in the workspace, given the root of the leaf that it has below, and the ReplicaSet of that, nil for
// none. A ReplicaSet may go while pods of it still run, as the root's history has no room for it: then the root stays their owner. Who
// is deleted does not wait for them, since a cluster that is away must not hold that up.
func owners(kind kinds.Kind, root metav1.Object, set *appsapi.ReplicaSet) []metav1.OwnerReference {
	of := metav1.OwnerReference{APIVersion: kind.GVK.GroupVersion().String(), Kind: kind.GVK.Kind, Name: root.GetName(), UID: root.GetUID()}
	if set == nil {
		of.Controller = ptr.To(true)
		return []metav1.OwnerReference{of}
	}
	return []metav1.OwnerReference{{APIVersion: of.APIVersion, Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}, of}
}

// replicaSet returns that of a root with the hash of a revision, as a syncer says it; nil if it says none, or there is none that is the
// root's. One that is not there yet is an error, by which its syncer tries again: owners are not changed later.
func (s shownPods) replicaSet(at *space, root metav1.Object, hash string) (*appsapi.ReplicaSet, error) {
	if _, isDeployment := root.(*appsapi.Deployment); hash == "" || !isDeployment {
		return nil, nil
	}
	resource := appsapi.Resource("replicasets")
	found, err := s.objects.Get(at.inWorkspace(resource.Group, resource.Resource), resource, at.workspaceNamespace, kinds.RevisionName(root.GetName(), hash), false)
	if apierrors.IsNotFound(err) && !hasObserved(root) {
		return nil, err
	} else if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	set, ok := found.(*appsapi.ReplicaSet)
	if !ok || !metav1.IsControlledBy(set, root) || set.DeletionTimestamp != nil || set.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash {
		return nil, nil
	}
	return set, nil
}

// hasObserved says whether the splitter has seen a Deployment as it is, and by then tried to make its ReplicaSet.
func hasObserved(root metav1.Object) bool {
	d, ok := root.(*appsapi.Deployment)
	return !ok || d.Status.ObservedGeneration >= d.Generation
}

// mostPodsOfAll is how many pods of one leaf may be shown at once, whatever it asks for: twice as many as Kubernetes has nodes at most.
const mostPodsOfAll = 2 * 5000

// mostPods is how many pods of a leaf may be shown at once: what it asks for, what replaces that, and what is on its way out. How
// many nodes a physical cluster has, it says itself; and the pods of a Job stay when they have ended, whether well or not.
func mostPods(leaf runtime.Object) int {
	most := int64(mostPodsOfAll)
	switch o := leaf.(type) {
	case *appsapi.Deployment:
		most = 3*int64(o.Spec.Replicas) + 20
	case *appsapi.ReplicaSet:
		most = 3*int64(o.Spec.Replicas) + 20
	case *api.ReplicationController:
		most = 3*int64(ptr.Deref(o.Spec.Replicas, 1)) + 20
	case *appsapi.StatefulSet:
		most = 3*int64(o.Spec.Replicas) + 20
	case *batchapi.Job:
		runs := int64(max(ptr.Deref(o.Spec.Completions, 1), ptr.Deref(o.Spec.Parallelism, 1)))
		fails := min(int64(ptr.Deref(o.Spec.BackoffLimit, 6)), runs*int64(ptr.Deref(o.Spec.BackoffLimitPerIndex, math.MaxInt32)))
		most = 3*runs + fails + 20
	}
	return int(min(most, mostPodsOfAll))
}

// above is whose a pod is in the workspace, and by which labels that knows it.
type above struct {
	owners []metav1.OwnerReference
	labels map[string]string
	// root is of what it is, and kind its kind; leaf is what the pod names as its controller.
	root metav1.Object
	kind kinds.Kind
	leaf runtime.Object
}

// above finds the owners of a pod that is shown: the root of the leaf that it names as its controller, if that is in the space, and
// the root is still there.
func (s shownPods) above(at *space, shown *api.Pod) (above, error) {
	refuse := func(format string, args ...any) (above, error) {
		return above{}, apierrors.NewForbidden(api.Resource("pods"), shown.Name, fmt.Errorf(format, args...))
	}
	ref := metav1.GetControllerOfNoCopy(shown)
	if ref == nil {
		return refuse("it has no controller: only pods of what was asked for are shown")
	}
	kind, ok := kinds.ByKind(ref.Kind)
	if !ok || !kind.MakesPods() || !kind.HasLeaves() || ref.APIVersion != kind.GVK.GroupVersion().String() {
		return refuse("its controller is a %s of %s, whose pods are not shown", ref.Kind, ref.APIVersion)
	}
	resource := kind.GVR.GroupResource()
	found, err := s.objects.Get(at.mirror, resource, at.namespace, ref.Name, false)
	if err != nil {
		return above{}, err
	}
	leaf, err := meta.Accessor(found)
	if err != nil {
		return above{}, apierrors.NewInternalError(err)
	}
	if leaf.GetUID() != ref.UID || !at.isLeaf(leaf) {
		return refuse("its controller %s %s is not asked for here", ref.Kind, ref.Name)
	}
	root, err := s.root(at, kind, leaf)
	if errors.Is(err, errGoing) {
		return refuse("%w", err)
	} else if err != nil {
		return above{}, err
	}
	set, err := s.replicaSet(at, root, shown.Annotations[workloadv1alpha1.RevisionAnnotation])
	if err != nil {
		return above{}, err
	}
	of := above{owners: owners(kind, root, set), root: root, kind: kind, leaf: found}
	if set != nil {
		// That of the cluster is of the template as it is there.
		of.labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: set.Labels[appsv1.DefaultDeploymentUniqueLabelKey]}
	}
	return of, nil
}

// errGoing is why nothing is added to a namespace of a workspace that is on its way out.
var errGoing = errors.New("its workspace has no place for it any more")

// root returns that of a leaf of the space, as etcd has it. Another one of its name, as in a namespace that was made anew, is not found; and
// none is in a namespace that goes, of which the mirror's admission sees the mirror's own alone.
func (s shownPods) root(at *space, kind kinds.Kind, leaf metav1.Object) (metav1.Object, error) {
	space, err := s.objects.Get(at.inWorkspace("", "namespaces"), corev1.Resource("namespaces"), "", at.workspaceNamespace, false)
	if err != nil {
		return nil, err
	}
	if n, ok := space.(*api.Namespace); !ok || n.DeletionTimestamp != nil {
		return nil, errGoing
	}
	resource := kind.GVR.GroupResource()
	_, name, _ := strings.Cut(leaf.GetAnnotations()[workloadv1alpha1.RootAnnotation], "/")
	found, err := s.objects.Get(at.inWorkspace(resource.Group, resource.Resource), resource, at.workspaceNamespace, name, false)
	if err != nil {
		return nil, err
	}
	root, err := meta.Accessor(found)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if string(root.GetUID()) != leaf.GetLabels()[workloadv1alpha1.RootUIDLabel] {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return root, nil
}

// room makes room for a pod, until end. It refuses one where as many of its leaf are shown already as there may be: a physical cluster may
// show what it likes, and must not fill the workspace with it.
func (s shownPods) room(at *space, of above, name string) (end func(), err error) {
	most := mostPods(of.leaf)
	isRoot := func(ref metav1.OwnerReference) bool { return ref.UID == of.root.GetUID() }
	end, shown, err := s.tallies.get(tallyKey{at.cluster, of.root.GetUID()}).take(most, func() (int, error) {
		all, err := s.objects.List(at.inWorkspace("", "pods"), corev1.Resource("pods"), at.workspaceNamespace, false)
		if err != nil {
			return 0, err
		}
		n := 0
		for _, o := range all {
			if pod, ok := o.(*api.Pod); ok && at.shows(pod) && slices.ContainsFunc(pod.OwnerReferences, isRoot) {
				n++
			}
		}
		return n, nil
	})
	if err == nil && end == nil {
		err = apierrors.NewForbidden(api.Resource("pods"), name, fmt.Errorf("%d pods of %s %s are shown, and no more than %d may be", shown, of.kind.GVK.Kind, of.root.GetName(), most))
	}
	return end, err
}

// short refuses what is longer than any pod needs to be.
func short(pod *api.Pod) error { return within(pod, mostShownBytes) }

// within refuses a pod of more than so many bytes.
func within(pod *api.Pod, most int) error {
	text, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), pod)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if len(text) > most {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("pod %s is %d bytes long, and one that is shown may have %d", pod.Name, len(text), most))
	}
	return nil
}

// untold is an error of a workspace's store as a mirror is told it: what the workspace is called, and how much it has, is not for
// who runs a physical cluster.
func untold(resource string, err error, name string) error {
	switch {
	case apierrors.HasStatusCause(err, storage.CauseNoRoom):
		return apierrors.NewForbidden(api.Resource(resource), name, fmt.Errorf("its workspace has no room for more %s", resource))
	case apierrors.IsTooManyRequests(err):
		return apierrors.NewTooManyRequests("its workspace takes nothing now", 1)
	}
	return err
}

// owner names the mirror's physical cluster, as whose Node its pods are shown.
func (s shownPods) owner(at *space) (*corev1alpha1.LogicalClusterOwner, error) {
	resource := schema.GroupResource{Group: corev1alpha1.GroupVersion.Group, Resource: "logicalclusters"}
	found, err := s.objects.Get(at.mirror, resource, "", corev1alpha1.LogicalClusterName, true)
	if apierrors.IsNotFound(err) { // the cache may be behind: a mirror is new once, and at each server
		found, err = s.objects.Get(at.mirror, resource, "", corev1alpha1.LogicalClusterName, false)
	}
	if err != nil {
		return nil, err
	}
	if lc, ok := found.(*corev1alpha1.LogicalCluster); ok && lc.Spec.Owner != nil {
		return lc.Spec.Owner, nil
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("mirror %s does not say whose it is", at.cluster))
}

func (s shownPods) create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	at, err := s.space(ctx)
	if err != nil {
		return nil, err
	}
	shown, ok := obj.(*api.Pod)
	if !ok || shown.Name == "" || shown.Annotations[workloadv1alpha1.PodUIDAnnotation] == "" {
		return nil, apierrors.NewBadRequest("a pod that is shown has its name, and its UID in the annotation " + workloadv1alpha1.PodUIDAnnotation)
	}
	if err := validate(ctx, shown.DeepCopy()); err != nil {
		return nil, err
	}
	of, err := s.above(at, shown)
	if err != nil {
		return nil, err
	}
	owner, err := s.owner(at)
	if err != nil {
		return nil, err
	}
	pod := at.stored(shown, of, owner.Name)
	if err := short(pod); err != nil {
		return nil, err
	}
	end, err := s.room(at, of, pod.Name)
	if err != nil {
		return nil, err
	}
	defer end()
	created, err := s.admitted.Create(at.inWorkspace("", "pods"), pod, rest.ValidateAllObjectFunc, options)
	if err != nil {
		return nil, untold("pods", err, pod.Name)
	}
	return view(created.(*api.Pod), at.cluster), nil
}

// read returns a pod of the space as it is stored.
func (s shownPods) read(at *space, name string, options *metav1.GetOptions) (*api.Pod, error) {
	found, err := s.pods.Get(at.inWorkspace("", "pods"), name, options)
	if err != nil {
		return nil, err
	}
	if pod, ok := found.(*api.Pod); ok && at.shows(pod) {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(api.Resource("pods"), name) // as if it were not there, which for the mirror it is not
}

func (s shownPods) get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	at, err := s.space(ctx)
	if err != nil {
		return nil, err
	}
	pod, err := s.read(at, name, options)
	if err != nil {
		return nil, err
	}
	return view(pod, at.cluster), nil
}

func (s shownPods) updateStatus(ctx context.Context, name string, info rest.UpdatedObjectInfo, validate rest.ValidateObjectUpdateFunc, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	at, err := s.space(ctx)
	if err != nil {
		return nil, false, err
	}
	// Before preconditions are looked at, whose errors say how it is.
	if _, err := s.read(at, name, &metav1.GetOptions{}); err != nil {
		return nil, false, err
	}
	updated, _, err := s.status.Update(at.inWorkspace("", "pods"), name, shownStatus{info, at, validate}, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, options)
	if err != nil {
		return nil, false, untold("pods", err, name)
	}
	return view(updated.(*api.Pod), at.cluster), false, nil
}

// shownStatus puts the status that a mirror's request makes of the view of a pod into the pod.
type shownStatus struct {
	rest.UpdatedObjectInfo
	at       *space
	validate rest.ValidateObjectUpdateFunc
}

func (u shownStatus) UpdatedObject(_ context.Context, old runtime.Object) (runtime.Object, error) {
	stored, ok := old.(*api.Pod)
	if !ok || !u.at.shows(stored) {
		return nil, apierrors.NewNotFound(api.Resource("pods"), "")
	}
	before := view(stored, u.at.cluster)
	obj, err := u.UpdatedObjectInfo.UpdatedObject(u.at.mirror, before.DeepCopy())
	if err != nil {
		return nil, err
	}
	if err := u.validate(u.at.mirror, obj, before); err != nil {
		return nil, err
	}
	after, ok := obj.(*api.Pod)
	if !ok {
		return nil, apierrors.NewBadRequest("this is no pod")
	}
	next := stored.DeepCopy()
	next.Status, next.ResourceVersion = after.Status, after.ResourceVersion
	if err := u.at.runs(next, after); err != nil {
		return nil, err
	}
	if isServer(u.at.mirror) {
		return next, nil // which says that it is not Ready, however long it is
	}
	if kinds.IsBound(next) {
		return next, short(&api.Pod{ObjectMeta: metav1.ObjectMeta{Name: next.Name}, Status: next.Status}) // the rest is its author's
	}
	return next, short(next)
}

func (s shownPods) delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	at, err := s.space(ctx)
	if err != nil {
		return nil, false, err
	}
	if _, err := s.read(at, name, &metav1.GetOptions{}); err != nil {
		return nil, false, err
	}
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if options.GracePeriodSeconds == nil {
		options.GracePeriodSeconds = ptr.To(int64(0)) // it is gone below; who sees it end there says how long that may take
	}
	deleted, now, err := s.pods.Delete(at.inWorkspace("", "pods"), name, func(_ context.Context, obj runtime.Object) error {
		pod, ok := obj.(*api.Pod)
		if !ok || !at.shows(pod) {
			return apierrors.NewNotFound(api.Resource("pods"), name)
		}
		if err := mayEnd(ctx, pod); err != nil {
			return err
		}
		return validate(ctx, view(pod, at.cluster))
	}, options)
	if ended, ok := deleted.(*api.Pod); ok && err == nil && !now && *options.GracePeriodSeconds == 0 {
		deleted, now, err = s.release(at, ended)
	}
	if err != nil {
		return nil, false, untold("pods", err, name)
	}
	if pod, ok := deleted.(*api.Pod); ok {
		deleted = view(pod, at.cluster)
	}
	return deleted, now, nil
}

// selection is what a list or watch in a mirror asks for.
type selection struct {
	mirror    logicalcluster.Name
	namespace string // empty for all
	labels    labels.Selector
	fields    fields.Selector
	isFor     func(pod *api.Pod) (forIt, gone bool, err error)
	attrs     func(runtime.Object) (labels.Set, fields.Set, error)
}

func (s shownPods) selection(ctx context.Context, options *metainternalversion.ListOptions) selection {
	cluster, _ := lcctx.ClusterFrom(ctx)
	byLabels, byFields := Selectors(options)
	return selection{cluster.Name, genericapirequest.NamespaceValue(ctx), byLabels, byFields, func(pod *api.Pod) (bool, bool, error) { return s.isFor(ctx, pod) }, s.pods.PredicateFunc(nil, nil).GetAttrs}
}

// Selectors are those of a list or watch, which select everything where it names none.
func Selectors(options *metainternalversion.ListOptions) (byLabels labels.Selector, byFields fields.Selector) {
	byLabels, byFields = labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		byLabels = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		byFields = options.FieldSelector
	}
	return byLabels, byFields
}

// isFor says whether the mirror's namespace that a marked pod names is that of the pod's own namespace: whatever got the marks into a
// pod, a mirror shows it nowhere else. The namespace may be gone already, which the end of its pods is told after.
func (s shownPods) isFor(mirror context.Context, pod *api.Pod) (forIt, gone bool, err error) {
	name := pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation]
	if name == "" {
		return false, false, nil
	}
	var found runtime.Object
	for _, cached := range []bool{true, false} { // the cache may be behind
		if found, err = s.objects.Get(mirror, corev1.Resource("namespaces"), "", name, cached); err == nil {
			break
		} else if !cached && apierrors.IsNotFound(err) {
			return false, true, nil
		} else if !cached {
			return false, false, fmt.Errorf("read what namespace %s is for: %w", name, err)
		}
	}
	namespace, err := meta.Accessor(found)
	if err != nil {
		return false, false, err
	}
	return namespace.GetLabels()[workloadv1alpha1.WorkspaceLabel] == string(logicalcluster.From(pod)) &&
		namespace.GetAnnotations()[workloadv1alpha1.RootAnnotation] == "/"+pod.Namespace, false, nil
}

// has says whether a view is among what is asked for.
func (c selection) has(shown *api.Pod) bool {
	l, f, err := c.attrs(shown)
	return err == nil && (c.namespace == "" || shown.Namespace == c.namespace) && c.labels.Matches(l) && c.fields.Matches(f)
}

// marked asks for the pods that are marked as the mirror's, in all workspaces. There is no part of a list: what continues one
// names an object of a workspace.
func marked(ctx context.Context, options *metainternalversion.ListOptions) (context.Context, *metainternalversion.ListOptions) {
	cluster, _ := lcctx.ClusterFrom(ctx)
	all := &metainternalversion.ListOptions{}
	if options != nil {
		all = options.DeepCopy()
	}
	all.LabelSelector = labels.SelectorFromSet(labels.Set{workloadv1alpha1.MirrorLabel: string(cluster.Name)})
	all.FieldSelector, all.Limit, all.Continue = nil, 0, ""
	return about(lcctx.WithCluster(ctx, lcctx.Cluster{Wildcard: true}), "", "pods", ""), all
}

func (s shownPods) list(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if options != nil && options.Continue != "" {
		return nil, apierrors.NewResourceExpired("lists of the pods of a mirror have no further pages: list anew")
	}
	if options != nil && options.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		// It would read the pods of all workspaces from etcd.
		return nil, apierrors.NewResourceExpired("lists of the pods of a mirror are of no earlier version: list anew")
	}
	chosen := s.selection(ctx, options)
	found, err := s.pods.List(marked(ctx, options))
	if err != nil {
		return nil, err
	}
	list, ok := found.(*api.PodList)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a list of pods is a %T", found))
	}
	shown := &api.PodList{ListMeta: metav1.ListMeta{ResourceVersion: list.ResourceVersion}}
	for i := range list.Items {
		forIt, _, err := chosen.isFor(&list.Items[i])
		if err != nil {
			return nil, apierrors.NewInternalError(err) // a list without it would say that it is not shown
		}
		if !forIt {
			continue
		}
		if pod := view(&list.Items[i], chosen.mirror); chosen.has(pod) {
			shown.Items = append(shown.Items, *pod)
		}
	}
	return shown, nil
}

func (s shownPods) watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	chosen := s.selection(ctx, options)
	if !s.watches.begin(chosen.mirror) {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d watches of the pods of a mirror are open, and no more may be", mostWatches), 1)
	}
	context.AfterFunc(ctx, func() { s.watches.end(chosen.mirror) }) // a request's context ends with it
	events, err := s.pods.Watch(marked(ctx, options))
	if err != nil {
		return nil, err
	}
	return storage.Translated(ctx, events, chosen.event), nil
}

// event makes an event of a workspace's pod one of the mirror's. What cannot be told ends the watch, since one that went on would have
// a gap that nobody sees.
func (c selection) event(e watch.Event) (watch.Event, bool) {
	if e.Type != watch.Added && e.Type != watch.Modified && e.Type != watch.Deleted {
		return e, true
	}
	obj := e.Object
	if cached, ok := obj.(runtime.CacheableObject); ok {
		obj = cached.GetObject()
	}
	pod, ok := obj.(*api.Pod)
	if !ok {
		return failed(fmt.Errorf("an event of pods is of a %T", obj)), true
	}
	forIt, gone, err := c.isFor(pod)
	if err != nil {
		return failed(err), true
	}
	if !forIt && !(gone && e.Type == watch.Deleted) {
		return e, false
	}
	shown := view(pod, c.mirror)
	e.Object = shown
	switch {
	case c.has(shown):
		return e, true
	case e.Type == watch.Modified: // it may have been until now
		e.Type = watch.Deleted
		return e, c.namespace == "" || shown.Namespace == c.namespace
	}
	return e, false
}

func failed(err error) watch.Event {
	return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}
}
