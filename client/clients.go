package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Scheme knows the built-in types of Kubernetes and every type of ours.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme,
		corev1alpha1.AddToScheme,
		tenancyv1alpha1.AddToScheme,
		workloadv1alpha1.AddToScheme,
		placementv1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// In returns a context whose requests go to the logical cluster of that name.
func In(ctx context.Context, cluster logicalcluster.Name) context.Context {
	return lcctx.WithCluster(ctx, lcctx.Cluster{Name: cluster})
}

// Everywhere returns a context whose requests go to all logical clusters at once; only list and watch work there.
func Everywhere(ctx context.Context) context.Context {
	return lcctx.WithCluster(ctx, lcctx.Cluster{Wildcard: true})
}

type agentKey struct{}

// As returns a context whose requests are those of a part of this process: the server keeps the name (such as atoll-splitter) as
// the manager of the fields that they write, unless the request names one, and in its audit log.
func As(ctx context.Context, part string) context.Context {
	return context.WithValue(ctx, agentKey{}, part)
}

// Clients reach every logical cluster of one server. Which one, the context says: see In and Everywhere.
type Clients struct {
	// Objects reads and writes any type in Scheme, and unstructured.Unstructured, uncached.
	Objects ctrlclient.WithWatch
	// Kube has the typed built-in API, subresources such as /scale included.
	Kube kubernetes.Interface
	// Dynamic reads and writes by resource name.
	Dynamic dynamic.Interface
	// Metadata reads, patches and deletes by resource name, and answers with the metadata alone.
	Metadata metadata.Interface

	config *rest.Config
}

// New returns clients for the server at cfg.Host, which has no /clusters path. Who they say they are, where the context does not
// (As), is cfg.UserAgent, or else this program.
func New(cfg *rest.Config) (*Clients, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.UserAgent == "" {
		cfg.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if cfg.WarningHandler == nil && cfg.WarningHandlerWithContext == nil {
		cfg.WarningHandler = rest.NoWarnings{} // they are for people: of a Job that a controller makes, who made its CronJob was told
	}
	base := rest.CopyConfig(cfg)
	// No limit on our side: the server's limit of requests in flight, for the whole process, is the one place that decides.
	cfg.QPS = -1
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return clusterRoundTripper{rt} })

	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make an HTTP client for %s: %w", cfg.Host, err)
	}
	kube, err := kubernetes.NewForConfigAndClient(protobufConfig(cfg), httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", cfg.Host, err)
	}
	dyn, err := dynamic.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a dynamic client for %s: %w", cfg.Host, err)
	}
	meta, err := metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client of metadata for %s: %w", cfg.Host, err)
	}
	objects, err := ctrlclient.NewWithWatch(cfg, ctrlclient.Options{
		HTTPClient: httpClient, Scheme: Scheme, Mapper: mapper,
	})
	if err != nil {
		return nil, fmt.Errorf("make an object client for %s: %w", cfg.Host, err)
	}
	return &Clients{Objects: objects, Kube: kube, Dynamic: dyn, Metadata: meta, config: base}, nil
}

// ConfigFor returns a configuration bound to one logical cluster, for clients that know nothing of logical clusters.
func (c *Clients) ConfigFor(cluster logicalcluster.Name) *rest.Config {
	cfg := rest.CopyConfig(c.config)
	cfg.Host += "/clusters/" + string(cluster)
	return cfg
}

func protobufConfig(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return cfg
}

var errNoCluster = errors.New("the context names no logical cluster (client.In or client.Everywhere)")

// clusterRoundTripper puts /clusters/<name> of the request's context before its path, and says who asks if the context does.
type clusterRoundTripper struct{ next http.RoundTripper }

func (rt clusterRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	cluster, ok := lcctx.ClusterFrom(req.Context())
	if !ok {
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, errNoCluster)
	}
	name := string(cluster.Name)
	if cluster.Wildcard {
		name = "*"
	}
	prefix := "/clusters/" + name
	req = req.Clone(req.Context())
	if req.URL.RawPath != "" {
		req.URL.RawPath = prefix + req.URL.RawPath
	}
	req.URL.Path = prefix + req.URL.Path
	if part, ok := req.Context().Value(agentKey{}).(string); ok {
		req.Header.Set("User-Agent", part)
	}
	return rt.next.RoundTrip(req)
}

// mapper is the staticMapper of Scheme.
var mapper = staticMapper(Scheme)

// staticMapper knows resource names and scopes without discovery, which would cost a request per logical cluster.
// Plurals are guessed by Kubernetes' rule, which fits every type here.
func staticMapper(s *runtime.Scheme) meta.RESTMapper {
	clusterScoped := map[schema.GroupKind]bool{}
	for group, kinds := range map[string][]string{
		"":                             {"Namespace", "Node", "PersistentVolume", "ComponentStatus"},
		"admissionregistration.k8s.io": {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"},
		"authentication.k8s.io":        {"SelfSubjectReview", "TokenReview"},
		"authorization.k8s.io":         {"SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"},
		"certificates.k8s.io":          {"CertificateSigningRequest", "ClusterTrustBundle"},
		"flowcontrol.apiserver.k8s.io": {"FlowSchema", "PriorityLevelConfiguration"},
		"networking.k8s.io":            {"IPAddress", "IngressClass", "ServiceCIDR"},
		"node.k8s.io":                  {"RuntimeClass"},
		"rbac.authorization.k8s.io":    {"ClusterRole", "ClusterRoleBinding"},
		"resource.k8s.io":              {"DeviceClass", "ResourceSlice"},
		"scheduling.k8s.io":            {"PriorityClass"},
		"storage.k8s.io":               {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"},
		"core.kcp.io":                  {"LogicalCluster"},
		"placement.atoll.dev":          {"Placement", "PlacementPolicy"},
		"tenancy.kcp.io":               {"Workspace", "WorkspaceType"},
		"workload.kcp.io":              {"SyncTarget"},
	} {
		for _, kind := range kinds {
			clusterScoped[schema.GroupKind{Group: group, Kind: kind}] = true
		}
	}
	m := meta.NewDefaultRESTMapper(s.PrioritizedVersionsAllGroups())
	for gvk := range s.AllKnownTypes() {
		scope := meta.RESTScope(meta.RESTScopeNamespace)
		if clusterScoped[gvk.GroupKind()] {
			scope = meta.RESTScopeRoot
		}
		m.Add(gvk, scope)
	}
	return m
}
