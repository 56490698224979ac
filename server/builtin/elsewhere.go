package builtin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	registrypod "k8s.io/kubernetes/pkg/registry/core/pod"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/logicalcluster"
)

// errElsewhere answers what would need a way from this server to what no physical cluster shows: a Node, or a pod that somebody made up.
// Upstream's handlers would dial the addresses in the statuses of pods, endpoints and nodes, which a tenant can write: from here that is
// a way into the server's own network. So nobody dials these. What a physical cluster shows is reached by way of that (streams.go, proxies.go).
func errElsewhere() error {
	return NewNotImplemented("this needs a way to where a pod runs, which the workspace has for logs, streams and proxies of the pods that a physical cluster shows")
}

// NewNotImplemented returns an API's error of what this server does not do.
func NewNotImplemented(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: "NotImplemented", Message: message,
	}}
}

// podsElsewhere are the pods of a workspace, and of a mirror those that it shows of workspaces.
type podsElsewhere struct {
	*podstore.REST
	shown shownPods
	clock clock.PassiveClock
}

func inMirror(ctx context.Context) bool {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	return ok && cluster.Mirror
}

// errShown refuses what a mirror does not do with pods: what runs in its physical cluster is decided by leaves.
func errShown(verb string) error {
	return apierrors.NewMethodNotSupported(api.Resource("pods"), verb)
}

func (p podsElsewhere) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return p.shown.create(ctx, obj, validate, options)
	}
	return p.REST.Create(ctx, obj, validate, options)
}

func (p podsElsewhere) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return p.shown.get(ctx, name, options)
	}
	return p.REST.Get(ctx, name, options)
}

func (p podsElsewhere) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if inMirror(ctx) {
		return nil, false, errShown("update")
	}
	return p.REST.Update(ctx, name, info, create, validate, force, options)
}

// Delete ends a pod that a physical cluster shows at once where the server itself deletes it: its owner or its workspace is gone, and what
// ends it below are the leaves, which wait for as long as the cluster is away. Somebody else's request is carried out below first, and so is
// each for a pod that is bound: nothing but its row ends that. One that nobody runs, such as one that names its node itself, goes at once.
func (p podsElsewhere) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if inMirror(ctx) {
		return p.shown.delete(ctx, name, validate, options)
	}
	found, err := p.REST.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	if pod, ok := found.(*api.Pod); ok && pod.Labels[workloadv1alpha1.MirrorLabel] != "" && (!isServer(ctx) || kinds.IsBound(pod)) {
		if options == nil {
			options = metav1.NewDeleteOptions(0) // as upstream reads it
		}
		return p.REST.Delete(ctx, name, func(ctx context.Context, obj runtime.Object) error {
			if pod, ok := obj.(*api.Pod); ok && isForced(options) && awaitsItsEnd(pod, p.clock) {
				options.GracePeriodSeconds = ptr.To(int64(1)) // here, since upstream asks no strategy about what is to go already
			}
			return validate(ctx, obj)
		}, options)
	}
	return p.REST.Delete(ctx, name, validate, atOnce(options))
}

func (p podsElsewhere) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return nil, errShown("deletecollection")
	}
	if !isServer(ctx) && !isForced(options) {
		return p.REST.DeleteCollection(ctx, validate, options, list)
	}
	found, err := p.REST.List(ctx, list)
	if err != nil {
		return nil, err
	}
	all, ok := found.(*api.PodList)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a list of pods is a %T", found))
	}
	for i := range all.Items {
		one := &metav1.DeleteOptions{}
		if options != nil {
			one = options.DeepCopy()
		}
		if _, _, err := p.Delete(ctx, all.Items[i].Name, validate, one); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return all, nil
}

func isServer(ctx context.Context) bool {
	who, ok := genericapirequest.UserFrom(ctx)
	return ok && who.GetName() == user.APIServerUser
}

// atOnce leaves no time for a graceful end. Pods that nobody runs have none either.
func atOnce(options *metav1.DeleteOptions) *metav1.DeleteOptions {
	now := &metav1.DeleteOptions{}
	if options != nil {
		now = options.DeepCopy()
	}
	now.GracePeriodSeconds = ptr.To(int64(0))
	return now
}

// podDeletion is upstream's way to delete pods, which takes a pod without a Node, that has ended, or whose spec wants so, away at once.
type podDeletion struct {
	rest.RESTDeleteStrategy
	rest.RESTGracefulDeleteStrategy
}

func newPodDeletion() podDeletion { return podDeletion{registrypod.Strategy, registrypod.Strategy} }

// forceAfter is how long after its time a pod that is to go has to be there for a deletion without grace to take its row away: its cluster does not
// carry the deletion out, and whoever asks once more wants it gone all the same.
const forceAfter = 30 * time.Second

func isForced(options *metav1.DeleteOptions) bool {
	return options == nil || options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0
}

// awaitsItsEnd says of a pod that a physical cluster shows that its cluster has to be given time to end it, also if who deletes it in the workspace asks for
// none: the deletion would not go down, and the pod be shown again.
func awaitsItsEnd(pod *api.Pod, now clock.PassiveClock) bool {
	return pod.Labels[workloadv1alpha1.MirrorLabel] != "" && !kinds.IsBound(pod) && (pod.DeletionTimestamp == nil || now.Since(pod.DeletionTimestamp.Time) <= forceAfter)
}

// CheckGracefulDelete keeps what a physical cluster shows until its syncer has seen it end there, unless whoever deletes it asks for no
// grace: the deletion would not go down, and the pod be shown again.
func (d podDeletion) CheckGracefulDelete(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	forced := isForced(options)
	graceful := d.RESTGracefulDeleteStrategy.CheckGracefulDelete(ctx, obj, options)
	if pod, ok := obj.(*api.Pod); ok && graceful && !forced && pod.Labels[workloadv1alpha1.MirrorLabel] != "" {
		options.GracePeriodSeconds = ptr.To(max(1, *options.GracePeriodSeconds))
	}
	return graceful
}

func (p podsElsewhere) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return p.shown.list(ctx, options)
	}
	return p.REST.List(ctx, options)
}

func (p podsElsewhere) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if inMirror(ctx) {
		return p.shown.watch(ctx, options)
	}
	return p.REST.Watch(ctx, options)
}

// podStatuses are pods/status, of what podsElsewhere shows.
type podStatuses struct {
	*podstore.StatusREST
	shown shownPods
}

func (p podStatuses) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return p.shown.get(ctx, name, options)
	}
	return p.StatusREST.Get(ctx, name, options)
}

func (p podStatuses) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if inMirror(ctx) {
		return p.shown.updateStatus(ctx, name, info, validate, options)
	}
	return p.StatusREST.Update(ctx, name, info, create, validate, force, options)
}

// connecter is a subresource that hands the connection to a handler: such as a proxy.
type connecter interface {
	rest.Storage
	rest.Connecter
}

// proxyElsewhere shows a proxy in discovery and refuses to connect.
type proxyElsewhere struct {
	connecter
}

func (proxyElsewhere) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return nil, errElsewhere()
}
