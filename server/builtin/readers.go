package builtin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/discovery"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// namespaceReader is the client with which the registries of resource.k8s.io read a namespace's labels: in the logical
// cluster of the context that they pass. They call Get alone; any other method of the embedded nil interface panics.
type namespaceReader struct {
	corev1client.NamespaceInterface
	core *coreProvider
}

func (r namespaceReader) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Namespace, error) {
	namespaces := r.core.namespaces.Load()
	if namespaces == nil {
		return nil, fmt.Errorf("read namespace %q: namespaces are not served yet", name)
	}
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Resource: "namespaces"})
	obj, err := (*namespaces).Get(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), name, &options)
	if err != nil {
		return nil, err
	}
	out := &corev1.Namespace{}
	if err := legacyscheme.Scheme.Convert(obj, out, nil); err != nil {
		return nil, fmt.Errorf("convert namespace %q: %w", name, err)
	}
	return out, nil
}

// builtinKinds is the discovery with which admission policies look up the resource of their parameters' kind, to ask
// whether their author may read it. Upstream calls it without a context, so it knows built-in kinds only. For others
// upstream falls back to asking for all resources of the kind's group, which is stricter (docs/operations/security.md). It calls
// ServerResourcesForGroupVersion alone; any other method of the embedded nil interface panics.
type builtinKinds struct {
	discovery.DiscoveryInterface
}

func (builtinKinds) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	gv, err := schema.ParseGroupVersion(groupVersion)
	if err != nil {
		return nil, err
	}
	if !legacyscheme.Scheme.IsVersionRegistered(gv) {
		return nil, fmt.Errorf("%s is not a built-in API version", groupVersion)
	}
	list := &metav1.APIResourceList{GroupVersion: groupVersion}
	for kind := range legacyscheme.Scheme.KnownTypes(gv) {
		plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: plural.Resource, Kind: kind})
	}
	return list, nil
}
