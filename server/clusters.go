package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ErrNoWorkspace is what Directory.Resolve returns, wrapped or not, for a path that leads nowhere.
var ErrNoWorkspace = errors.New("no such workspace")

// Directory knows which logical clusters there are. It is asked on every request.
type Directory interface {
	// Resolve returns the logical cluster at the end of a path such as root:org:team, or ErrNoWorkspace.
	Resolve(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// Lookup returns the logical cluster of that name, and false if there is none.
	Lookup(ctx context.Context, name logicalcluster.Name) (lcctx.Cluster, bool, error)
}

const clustersPrefix = "/clusters/"

// clusterPath returns the part of a server's URL from /clusters/ on, and whether it has one or nothing after the host.
func clusterPath(url string) (string, bool) {
	_, rest, ok := strings.Cut(url, "://")
	if !ok {
		return "", false
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return "", true
	}
	return rest[slash:], strings.HasPrefix(rest[slash:], clustersPrefix)
}

// unresolvedKey marks a request whose path names no workspace. It is answered with 404 only after authentication, so
// that strangers learn nothing about which paths exist.
type unresolvedKey struct{}

// withLogicalCluster takes /clusters/<name, path or *> off the request's path and puts the logical cluster into its context.
// It stands before every other filter, which then see an ordinary Kubernetes request.
func (s *Server) withLogicalCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rest, ok := strings.CutPrefix(req.URL.Path, clustersPrefix)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		segment, path := rest, "/"
		if slash := strings.IndexByte(rest, '/'); slash >= 0 {
			segment, path = rest[:slash], rest[slash:]
		}
		// An escaped slash would move the border between name and path from where routers and proxies saw it.
		if raw := req.URL.RawPath; raw != "" {
			rawRest := strings.TrimPrefix(raw, clustersPrefix)
			rawSegment, _, _ := strings.Cut(rawRest, "/")
			if strings.Contains(strings.ToLower(rawSegment), "%2f") {
				s.answer(w, req, apierrors.NewBadRequest(fmt.Sprintf("%q is no logical cluster: a name or path holds no slash", rawSegment)))
				return
			}
		}
		ctx := req.Context()
		cluster, err := s.resolve(ctx, segment)
		switch {
		case errors.Is(err, ErrNoWorkspace):
			ctx = context.WithValue(ctx, unresolvedKey{}, segment)
		case err != nil:
			s.answer(w, req, err)
			return
		default:
			ctx = lcctx.WithCluster(ctx, cluster)
		}
		inner := req.Clone(ctx)
		inner.URL.Path, inner.URL.RawPath = path, ""
		inner.RequestURI = inner.URL.RequestURI()
		next.ServeHTTP(w, inner)
	})
}

// resolve returns the logical cluster that a URL's segment after /clusters/ means.
func (s *Server) resolve(ctx context.Context, segment string) (lcctx.Cluster, error) {
	if segment == "*" {
		return lcctx.Cluster{Wildcard: true}, nil
	}
	path := logicalcluster.NewPath(segment)
	name, isName := path.Name()
	if !isName {
		if strings.HasPrefix(segment, "system:") {
			name, isName = logicalcluster.Name(segment), true
		} else if !path.IsValid() {
			return lcctx.Cluster{}, apierrors.NewBadRequest(fmt.Sprintf("%q is not a workspace path: want names of lower-case letters, digits and hyphens, joined by colons, such as root:org:team", segment))
		}
	}
	if !isName {
		var err error
		if name, err = s.directory.Resolve(ctx, path); err != nil {
			return lcctx.Cluster{}, err
		}
	}
	if err := lcctx.ValidateName(string(name)); err != nil {
		return lcctx.Cluster{}, apierrors.NewBadRequest(err.Error())
	}
	cluster, found, err := s.directory.Lookup(ctx, name)
	if err != nil {
		return lcctx.Cluster{}, fmt.Errorf("look up logical cluster %q: %w", name, err)
	}
	if !found {
		// Whether it exists is the authorizer's to say, once it is known who asks.
		return lcctx.Cluster{Name: name}, nil
	}
	return cluster, nil
}

// withNoCluster answers, after authorisation, requests for resources that name no workspace, or one that is not there.
func (s *Server) withNoCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if segment, ok := req.Context().Value(unresolvedKey{}).(string); ok {
			s.answer(w, req, notFound("there is no workspace %q: `atoll workspace tree` lists those you may see", segment))
			return
		}
		info, _ := request.RequestInfoFrom(req.Context())
		cluster, ok := lcctx.ClusterFrom(req.Context())
		switch {
		case info == nil || !info.IsResourceRequest:
		case !ok:
			s.answer(w, req, notFound("the request names no workspace: put /clusters/<path>, such as /clusters/root, before %s", req.URL.Path))
			return
		case cluster.Wildcard && info.Verb != "list" && info.Verb != "watch":
			err := apierrors.NewMethodNotSupported(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Verb)
			err.ErrStatus.Message = fmt.Sprintf("%s on /clusters/* is not possible, only list and watch are: name one workspace, as in /clusters/root", info.Verb)
			s.answer(w, req, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func notFound(format string, args ...any) error {
	err := apierrors.NewNotFound(schema.GroupResource{}, "")
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return err
}

func (s *Server) answer(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, s.serializer, schema.GroupVersion{Version: "v1"}, w, req)
}
