package builtin

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	jobstore "k8s.io/kubernetes/pkg/registry/batch/job/storage"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
)

// podsGo is the strategy of Jobs and ReplicationControllers. Where nobody says what is to become of the pods, Kubernetes keeps them, for its first
// clients, until the garbage collector has taken the owner off them. Here they run in physical clusters, where they go with their owner whatever is
// asked for: so they go in the background, as with kubectl. Admission warns who says nothing.
type podsGo struct{ rest.RESTDeleteStrategy }

// DefaultGarbageCollectionPolicy holds where neither the deletion nor a finalizer says anything.
func (podsGo) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// batchProvider is upstream's, with that strategy.
type batchProvider struct{ batchrest.RESTStorageProvider }

func (p batchProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(enabled, getter)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	storage := info.VersionedResourcesStorageMap[batchv1.SchemeGroupVersion.Version]
	store, ok := storage["jobs"].(*jobstore.REST)
	if !ok {
		return genericapiserver.APIGroupInfo{}, fmt.Errorf("batch/v1 has no store of jobs: their pods would be orphaned")
	}
	store.DeleteStrategy = podsGo{store.DeleteStrategy}
	storage["jobs"] = jobs{store}
	return info, nil
}

// jobs is upstream's store without its warning that pods are kept.
type jobs struct{ *jobstore.REST }

// Delete is the store's.
func (j jobs) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return j.Store.Delete(ctx, name, validate, options)
}

// DeleteCollection is the store's.
func (j jobs) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	return j.Store.DeleteCollection(ctx, validate, options, list)
}
