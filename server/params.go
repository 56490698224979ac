package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
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
)

const (
	// convertersBytes is how much memory the converters may take that are kept for all logical clusters, by estimate: those of
	// built-in kinds, and of custom ones that are in use.
	convertersBytes = 128 << 20
	// converterTimes is how many times what its document has one takes.
	converterTimes = 8
)

// requesterTimeout bounds requests of this process to itself; upstream makes some with contexts that do not end.
const requesterTimeout = 10 * time.Second

// requester reads by requests, over connections in memory, what admission policies need of a logical cluster. They know every
// kind that it serves in every version. Lists and gets pass no admission, so nothing waits for itself.
type requester struct {
	config     *rest.Config
	http       *http.Client
	converters *converters
}

func newRequester(config *rest.Config) (*requester, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for what admission policies need: %w", err)
	}
	return &requester{config: config, http: client, converters: &converters{most: convertersBytes, of: map[string]*keptConverter{}}}, nil
}

// to is how one logical cluster is reached, and no other, whatever path is asked for there.
func (a *requester) to(cluster logicalcluster.Name) (*rest.Config, *http.Client) {
	config := dynamic.ConfigFor(a.config)
	config.Host += clustersPrefix + string(cluster)
	config.GroupVersion = &schema.GroupVersion{}
	config.Timeout = requesterTimeout
	client := *a.http
	client.Transport = within{clustersPrefix + string(cluster) + "/", cmp.Or(client.Transport, http.DefaultTransport)}
	return config, &client
}

// requests are those to one logical cluster.
func (a *requester) requests(cluster logicalcluster.Name) (rest.Interface, error) {
	return rest.RESTClientForConfigAndClient(a.to(cluster))
}

// within sends what is for paths that begin so, and nothing else: clients clean paths as they join them, so `..` in one leads
// elsewhere, and this process may read everything everywhere.
type within struct {
	prefix string
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w within) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(path.Clean(req.URL.Path), w.prefix) {
		if req.Body != nil {
			_ = req.Body.Close() // of what is not sent
		}
		return nil, fmt.Errorf("a request for a path that is not below %s", w.prefix)
	}
	return w.RoundTripper.RoundTrip(req)
}

// resources are those that a logical cluster serves in a version.
func (a *requester) resources(ctx context.Context, cluster logicalcluster.Name, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	client, err := a.requests(cluster)
	if err != nil {
		return nil, err
	}
	at, err := pathOf(gv)
	if err != nil {
		return nil, err
	}
	body, err := client.Get().AbsPath(at).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	found := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, found); err != nil {
		return nil, fmt.Errorf("read what %s has: %w", at, err)
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

// Get implements admission.Params. What the watch cache has will do.
func (a *requester) Get(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace, name string, weigh func([]byte) error) (*unstructured.Unstructured, error) {
	found := &unstructured.Unstructured{}
	return found, a.read(ctx, cluster, resource, namespace, []string{name}, "", weigh, found)
}

// List implements admission.Params.
func (a *requester) List(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace string, selector labels.Selector, weigh func([]byte) error) ([]*unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	if err := a.read(ctx, cluster, resource, namespace, nil, selector.String(), weigh, list); err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// pathOf is where a version of a group is, and what is in it by such segments. Any of them is somebody's word: it may be no path.
func pathOf(gv schema.GroupVersion, segments ...string) (string, error) {
	root := []string{"/apis", gv.Group, gv.Version}
	if gv.Group == "" {
		root = []string{"/api", gv.Version}
	}
	all := append(root, segments...)
	for _, segment := range all[1:] {
		if segment == "" {
			return "", fmt.Errorf("the path %q has an empty segment", strings.Join(all, "/"))
		}
		if invalid := content.IsPathSegmentName(segment); len(invalid) > 0 {
			return "", fmt.Errorf("%q in a path: %s", segment, strings.Join(invalid, ", "))
		}
	}
	return strings.Join(all, "/"), nil
}

// read reads objects of a resource, all or that of a name, as they come in, so that weigh can end it.
func (a *requester) read(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, namespace string, name []string, selector string, weigh func([]byte) error, into runtime.Unstructured) error {
	client, err := a.requests(cluster)
	if err != nil {
		return err
	}
	segments := append([]string{resource.Resource}, name...)
	if namespace != "" {
		segments = append([]string{"namespaces", namespace}, segments...)
	}
	at, err := pathOf(resource.GroupVersion(), segments...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of what is not read to its end
	request := client.Get().AbsPath(at).Param("resourceVersion", "0").SetHeader("Accept", runtime.ContentTypeJSON)
	if selector != "" {
		request = request.Param("labelSelector", selector)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(weighed{body, weigh})
	if err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	if err := runtime.DecodeInto(unstructured.UnstructuredJSONScheme, text, into); err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	return nil
}

// weighed tells of what is read.
type weighed struct {
	io.Reader
	tell func([]byte) error
}

// Read implements io.Reader.
func (w weighed) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if why := w.tell(p[:n]); why != nil {
		return 0, why
	}
	return n, err
}

// Converter implements admission.Schemas.
func (a *requester) Converter(ctx context.Context, cluster logicalcluster.Name, gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	client, err := a.requests(cluster)
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
	at, err := pathOf(gv)
	if err != nil {
		return nil, err
	}
	document, ok := documents.Paths[strings.TrimPrefix(at, "/")]
	if !ok {
		return nil, fmt.Errorf("no document describes %s", gv)
	}
	// With its hash; what comes before is the logical cluster, of which the document says nothing.
	_, address, _ := strings.Cut(document.ServerRelativeURL, "/openapi/v3/")
	if found := a.converters.get(address); found != nil {
		return found, nil
	}
	if body, err = client.Get().AbsPath("/openapi/v3"+at).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx); err != nil {
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
	a.converters.add(address, &keptConverter{TypeConverter: made, bytes: converterTimes * len(body), by: cluster})
	return made, nil
}

// Checker implements admission.PolicyStatuses.
func (a *requester) Checker(cluster logicalcluster.Name) (*validating.TypeChecker, error) {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(a.to(cluster))
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
	client, err := admissionregistrationclient.NewForConfigAndClient(a.to(cluster))
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
