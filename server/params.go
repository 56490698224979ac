package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/utils/lru"
)

// maxConverters are kept for all logical clusters: those of built-in kinds, and of custom ones that are in use.
const maxConverters = 16

// requesterTimeout bounds requests of this process to itself; upstream makes some with contexts that do not end.
const requesterTimeout = 10 * time.Second

// requester reads by requests, over connections in memory, what admission policies need of a logical cluster. They know every
// kind that it serves in every version. Lists and gets pass no admission, so nothing waits for itself.
type requester struct {
	config     *rest.Config
	http       *http.Client
	converters *lru.Cache // managedfields.TypeConverter by the path of a document, which has its hash
}

func newRequester(config *rest.Config) (*requester, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for what admission policies need: %w", err)
	}
	return &requester{config: config, http: client, converters: lru.New(maxConverters)}, nil
}

// requests are those to one logical cluster.
func (a *requester) requests(cluster logicalcluster.Name) (rest.Interface, *rest.Config, error) {
	config := dynamic.ConfigFor(a.config)
	config.Host += clustersPrefix + string(cluster)
	config.GroupVersion = &schema.GroupVersion{}
	config.Timeout = requesterTimeout
	client, err := rest.RESTClientForConfigAndClient(config, a.http)
	return client, config, err
}

// resources are those that a logical cluster serves in a version.
func (a *requester) resources(ctx context.Context, cluster logicalcluster.Name, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	client, _, err := a.requests(cluster)
	if err != nil {
		return nil, err
	}
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	body, err := client.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	found := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, found); err != nil {
		return nil, fmt.Errorf("read what %s has: %w", path, err)
	}
	return found.APIResources, nil
}

// Find implements admission.Params.
func (a *requester) Find(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (schema.GroupVersionResource, bool, error) {
	resources, err := a.resources(ctx, cluster, kind.GroupVersion())
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	for _, r := range resources {
		if r.Kind == kind.Kind && !strings.Contains(r.Name, "/") {
			return kind.GroupVersion().WithResource(r.Name), r.Namespaced, nil
		}
	}
	return schema.GroupVersionResource{}, false, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, "")
}

func (a *requester) objects(cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace string) (dynamic.ResourceInterface, error) {
	_, config, err := a.requests(cluster)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfigAndClient(config, a.http)
	if err != nil {
		return nil, err
	}
	if namespace == "" {
		return client.Resource(resource), nil
	}
	return client.Resource(resource).Namespace(namespace), nil
}

// Get implements admission.Params. What the watch cache has will do.
func (a *requester) Get(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	objects, err := a.objects(cluster, resource, namespace)
	if err != nil {
		return nil, err
	}
	return objects.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}

// List implements admission.Params.
func (a *requester) List(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	objects, err := a.objects(cluster, resource, namespace)
	if err != nil {
		return nil, err
	}
	list, err := objects.List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// Converter implements admission.Schemas.
func (a *requester) Converter(ctx context.Context, cluster logicalcluster.Name, gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	client, _, err := a.requests(cluster)
	if err != nil {
		return nil, err
	}
	body, err := client.Get().AbsPath("/openapi/v3").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which documents describe what is served: %w", err)
	}
	documents := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(body, documents); err != nil {
		return nil, fmt.Errorf("read which documents describe what is served: %w", err)
	}
	path := "apis/" + gv.String()
	if gv.Group == "" {
		path = "api/" + gv.Version
	}
	document, ok := documents.Paths[path]
	if !ok {
		return nil, fmt.Errorf("no document describes %s", gv)
	}
	// With its hash; what comes before is the logical cluster, of which the document says nothing.
	_, address, _ := strings.Cut(document.ServerRelativeURL, "/openapi/v3/")
	if found, ok := a.converters.Get(address); ok {
		return found.(managedfields.TypeConverter), nil
	}
	if body, err = client.Get().AbsPath("/openapi/v3/"+path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx); err != nil {
		return nil, fmt.Errorf("read the document of %s: %w", gv, err)
	}
	described := &spec3.OpenAPI{}
	if err := json.Unmarshal(body, described); err != nil {
		return nil, fmt.Errorf("read the document of %s: %w", gv, err)
	}
	if described.Components == nil {
		return nil, fmt.Errorf("the document of %s has no types", gv)
	}
	made, err := managedfields.NewTypeConverter(described.Components.Schemas, false)
	if err != nil {
		return nil, fmt.Errorf("understand the document of %s: %w", gv, err)
	}
	a.converters.Add(address, made)
	return made, nil
}

// Checker implements admission.PolicyStatuses.
func (a *requester) Checker(cluster logicalcluster.Name) (*validating.TypeChecker, error) {
	_, config, err := a.requests(cluster)
	if err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(config, a.http)
	if err != nil {
		return nil, err
	}
	return &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client},
		RestMapper:     kindsOf{requester: a, cluster: cluster},
	}, nil
}

// Apply implements admission.PolicyStatuses, as the controller of kube-controller-manager.
func (a *requester) Apply(ctx context.Context, cluster logicalcluster.Name, policy *applyv1.ValidatingAdmissionPolicyApplyConfiguration) error {
	_, config, err := a.requests(cluster)
	if err != nil {
		return err
	}
	client, err := admissionregistrationclient.NewForConfigAndClient(config, a.http)
	if err != nil {
		return err
	}
	_, err = client.ValidatingAdmissionPolicies().ApplyStatus(ctx, policy, metav1.ApplyOptions{FieldManager: "validatingadmissionpolicy-status-controller", Force: true})
	return err
}

// kindsOf says which kind a resource is, and nothing else.
type kindsOf struct {
	meta.RESTMapper
	*requester
	cluster logicalcluster.Name
}

// KindsFor implements meta.RESTMapper.
func (k kindsOf) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requesterTimeout)
	defer cancel()
	resources, err := k.resources(ctx, k.cluster, resource.GroupVersion())
	if err != nil {
		return nil, err
	}
	for _, r := range resources {
		if r.Name == resource.Resource {
			return []schema.GroupVersionKind{resource.GroupVersion().WithKind(r.Kind)}, nil
		}
	}
	return nil, &meta.NoResourceMatchError{PartialResource: resource}
}
