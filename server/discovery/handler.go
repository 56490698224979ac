package discovery

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpoints "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/validation/spec"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
)

// Handler answers for the logical clusters that have definitions.
type Handler struct {
	definitions Definitions
	builtin     builtin
	openAPI     *openAPI
}

// Definitions are those of all logical clusters.
type Definitions interface {
	// Served returns the definitions that a logical cluster serves, ordered by name. They are shared.
	Served(cluster logicalcluster.Name) []customresources.Definition
	// WaitSynced blocks until Served returns all that there are, or ctx ends.
	WaitSynced(ctx context.Context) error
}

// New returns a handler for the logical clusters of definitions. By the first request generic must be prepared to run, with
// all built-in types. Their document of OpenAPI v2 is swagger.
func New(definitions Definitions, generic *genericapiserver.GenericAPIServer, swagger func() (*spec.Swagger, error)) *Handler {
	return &Handler{definitions: definitions, builtin: newBuiltin(generic, swagger), openAPI: newOpenAPI()}
}

// Around returns a handler that passes on to next what is not for this one to answer. To custom it passes the requests for
// custom resources that next, the generic server, would refuse without asking who else serves them: those in other versions
// of built-in groups.
func (h *Handler) Around(next, custom http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer := h.route(req, custom)
		cluster, ok := lcctx.ClusterFrom(req.Context())
		if answer == nil || !ok || cluster.Wildcard {
			next.ServeHTTP(w, req)
			return
		}
		// Who is told of a part takes it for the whole: the rest of a namespace would outlive it.
		if err := h.definitions.WaitSynced(req.Context()); err != nil {
			h.fail(w, req, apierrors.NewServiceUnavailable("the custom resources are not known yet, try again"))
			return
		}
		definitions := h.definitions.Served(cluster.Name)
		if len(definitions) == 0 || !answer(w, req, byVersion(definitions, h.builtin.versions())) {
			next.ServeHTTP(w, req)
		}
	})
}

// surface is what definitions add to what a logical cluster serves, ordered by group, the preferred version of each first.
type surface []groupVersion

// version returns what definitions add at gv.
func (s surface) version(gv schema.GroupVersion) (groupVersion, bool) {
	for _, v := range s {
		if v.GroupVersion == gv {
			return v, true
		}
	}
	return groupVersion{}, false
}

// answerFunc answers a request, or returns false, having done nothing, if it is about built-in types alone.
type answerFunc func(http.ResponseWriter, *http.Request, surface) bool

// route returns what answers a request, and nil for the most part of them.
func (h *Handler) route(req *http.Request, custom http.Handler) answerFunc {
	if info, ok := request.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if beside := h.builtin.versions()[gv.Group]; beside == nil || beside[gv.Version] {
			return nil
		}
		return func(w http.ResponseWriter, req *http.Request, s surface) bool {
			if _, ok := s.version(gv); !ok {
				return false
			}
			custom.ServeHTTP(w, req)
			return true
		}
	}
	get := req.Method == http.MethodGet
	if path, ok := strings.CutPrefix(req.URL.Path, "/openapi/"); ok && (get || req.Method == http.MethodHead) {
		if path == "v2" {
			return h.serveV2
		}
		if path == "v3" {
			return h.serveV3Index
		}
		if gv, ok := strings.CutPrefix(path, "v3/apis/"); ok {
			group, version, ok := strings.Cut(gv, "/")
			if ok {
				return h.serveV3(schema.GroupVersion{Group: group, Version: version})
			}
		}
		return nil
	}
	if !get || !strings.HasPrefix(req.URL.Path, endpoints.APIGroupPrefix) {
		return nil
	}
	switch parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/"); {
	case "/"+parts[0] != endpoints.APIGroupPrefix:
	case len(parts) == 1:
		return h.serveGroups
	case len(parts) == 2:
		return h.serveGroup(parts[1])
	case len(parts) == 3:
		return h.serveVersion(schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	return nil
}

// serveGroups answers /apis, with the groups alone or with all that is in them.
func (h *Handler) serveGroups(w http.ResponseWriter, req *http.Request, s surface) bool {
	if wantsAggregated(req) {
		h.serveAggregated(w, req, s)
		return true
	}
	known, err := h.builtin.groups(req)
	if err != nil {
		h.fail(w, req, err)
		return true
	}
	root := endpoints.NewRootAPIsHandler(addressesOf(known), h.builtin.codecs())
	for _, group := range allGroups(known, s) {
		root.AddGroup(group)
	}
	root.ServeHTTP(w, req)
	return true
}

// serveGroup answers /apis/<group>.
func (h *Handler) serveGroup(name string) answerFunc {
	return func(w http.ResponseWriter, req *http.Request, s surface) bool {
		custom := groupOf(name, s)
		if len(custom.Versions) == 0 {
			return false
		}
		known, err := h.builtin.groups(req)
		if err != nil {
			h.fail(w, req, err)
			return true
		}
		for _, group := range known {
			if group.Name == name {
				// As in the answers of the built-in types, addresses are told with all groups only.
				group.ServerAddressByClientCIDRs = nil
				custom = mergedGroup(group, custom)
			}
		}
		endpoints.NewAPIGroupHandler(h.builtin.codecs(), custom).ServeHTTP(w, req)
		return true
	}
}

// serveVersion answers /apis/<group>/<version>.
func (h *Handler) serveVersion(gv schema.GroupVersion) answerFunc {
	return func(w http.ResponseWriter, req *http.Request, s surface) bool {
		version, ok := s.version(gv)
		if !ok {
			return false
		}
		lister := endpoints.APIResourceListerFunc(version.resources)
		endpoints.NewAPIVersionHandler(h.builtin.codecs(), gv, lister).ServeHTTP(w, req)
		return true
	}
}

// addresses are those that the server told of with its own groups.
type addresses []metav1.ServerAddressByClientCIDR

func addressesOf(groups []metav1.APIGroup) addresses {
	if len(groups) == 0 {
		return nil
	}
	return groups[0].ServerAddressByClientCIDRs
}

func (a addresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return a }

func (h *Handler) fail(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, h.builtin.codecs(), schema.GroupVersion{Version: "v1"}, w, req)
}
