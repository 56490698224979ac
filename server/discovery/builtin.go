package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpoints "k8s.io/apiserver/pkg/endpoints/discovery"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// builtin reads what the generic server says of the built-in types, which is the same for all logical clusters and does
// not change while it runs. Each document is read when it is needed first.
type builtin struct {
	generic *genericapiserver.GenericAPIServer
	swagger func() (*spec.Swagger, error) // the document of OpenAPI v2, which is shared

	versions   func() versions
	aggregated func() (aggregated, error)
	openAPI    func() (map[string]handler3.OpenAPIV3DiscoveryGroupVersion, error)
}

// versions are the built-in groups, and the versions of each. The core group is not among them.
type versions map[string]map[string]bool

func (v versions) has(gv schema.GroupVersion) bool { return v[gv.Group][gv.Version] }

// aggregated is the document of all built-in groups, versions and resources.
type aggregated struct {
	groups []apidiscoveryv2.APIGroupDiscovery
	etag   string
}

func newBuiltin(generic *genericapiserver.GenericAPIServer, swagger func() (*spec.Swagger, error)) builtin {
	b := builtin{generic: generic, swagger: swagger}
	b.versions = sync.OnceValue(b.readVersions)
	b.aggregated = sync.OnceValues(b.readAggregated)
	b.openAPI = sync.OnceValues(b.readOpenAPI)
	return b
}

func (b builtin) codecs() runtime.NegotiatedSerializer { return b.generic.Serializer }

// groups are the built-in groups, as the client of req is told of them.
func (b builtin) groups(req *http.Request) ([]metav1.APIGroup, error) {
	groups, err := b.generic.DiscoveryGroupManager.Groups(req.Context(), req)
	if err != nil {
		return nil, fmt.Errorf("list the built-in groups: %w", err)
	}
	return groups, nil
}

// readVersions looks at the paths that the generic server takes for its own.
func (b builtin) readVersions() versions {
	found := versions{}
	for _, service := range b.generic.Handler.GoRestfulContainer.RegisteredWebServices() {
		path, ok := strings.CutPrefix(service.RootPath(), endpoints.APIGroupPrefix+"/")
		group, version, isVersion := strings.Cut(path, "/")
		if !ok || !isVersion {
			continue
		}
		if found[group] == nil {
			found[group] = map[string]bool{}
		}
		found[group][version] = true
	}
	return found
}

func (b builtin) readAggregated() (aggregated, error) {
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	etag, err := read(b.generic.AggregatedDiscoveryGroupManager, endpoints.APIGroupPrefix, aggregatedMediaType, list)
	return aggregated{list.Items, etag}, err
}

// readOpenAPI returns the index of OpenAPI v3, by path below /openapi/v3/.
func (b builtin) readOpenAPI() (map[string]handler3.OpenAPIV3DiscoveryGroupVersion, error) {
	index := &handler3.OpenAPIV3Discovery{}
	_, err := read(http.HandlerFunc(b.generic.OpenAPIV3VersionedService.HandleDiscovery), indexPath, runtime.ContentTypeJSON, index)
	return index.Paths, err
}

// read asks a handler for a document, and returns its ETag.
func read(from http.Handler, path, accept string, into any) (etag string, err error) {
	// Not in the context of whoever asks first: what is read is for all.
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
	if err != nil {
		return "", fmt.Errorf("read what is built in at %s: %w", path, err)
	}
	req.Header.Set("Accept", accept)
	answer := &recorded{header: http.Header{}, code: http.StatusOK}
	from.ServeHTTP(answer, req)
	if answer.code != http.StatusOK {
		return "", fmt.Errorf("read what is built in at %s: answered %d: %s", path, answer.code, answer.body.Bytes())
	}
	if err := json.Unmarshal(answer.body.Bytes(), into); err != nil {
		return "", fmt.Errorf("read what is built in at %s: %w", path, err)
	}
	return answer.header.Get("ETag"), nil
}

// recorded is an answer kept in memory.
type recorded struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header               { return r.header }
func (r *recorded) WriteHeader(code int)              { r.code = code }
func (r *recorded) Write(b []byte) (n int, err error) { return r.body.Write(b) }
