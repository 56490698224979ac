package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Directory knows the workspaces. It is asked on every request and must not ask the server in turn about names: what
// Known does not know, the server looks up in its own storage.
type Directory interface {
	// Resolve returns the logical cluster at the end of a path such as root:org:team, or an error that wraps
	// logicalcluster.ErrNotFound.
	Resolve(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// Known returns the logical cluster of that name, and false if it is not known yet or does not exist.
	Known(name logicalcluster.Name) (lcctx.Cluster, bool)
	// Terminating says whether a logical cluster is being deleted and takes nothing new.
	Terminating(name logicalcluster.Name) bool
}

const (
	clustersPrefix = "/clusters/"
	// lookupTimeout is how long a request waits for etcd to say whether a logical cluster exists.
	lookupTimeout = 10 * time.Second
	// maxPathLength of the path of a workspace, in bytes: many times the deepest tree that people make.
	maxPathLength = 1024
)

var logicalClusters = schema.GroupResource{Group: corev1alpha1.GroupVersion.Group, Resource: "logicalclusters"}

// unresolvedKey marks a request whose path names no workspace. It is answered with 404 only after authentication, so
// that strangers learn nothing about which paths exist.
type unresolvedKey struct{}

// absentKey marks a request that names a logical cluster that does not exist; the authorizer refuses it.
type absentKey struct{}

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
		if !sameBorder(req.URL.RawPath, segment) {
			s.answer(w, req, apierrors.NewBadRequest(fmt.Sprintf("%q names no logical cluster: a name or path holds no slash, not even an escaped one", req.URL.EscapedPath())))
			return
		}
		ctx := req.Context()
		cluster, found, err := s.resolve(ctx, segment)
		switch {
		case errors.Is(err, lcctx.ErrNotFound):
			ctx = context.WithValue(ctx, unresolvedKey{}, segment)
		case apierrors.IsBadRequest(err):
			s.answer(w, req, err)
			return
		case err != nil:
			// Nobody is authenticated yet: what is wrong inside is for the log.
			klog.FromContext(ctx).Error(err, "Could not find the logical cluster of a request", "segment", segment)
			s.answer(w, req, apierrors.NewServiceUnavailable("workspaces cannot be looked up now, try again"))
			return
		default:
			ctx = lcctx.WithCluster(ctx, cluster)
			if !found {
				ctx = context.WithValue(ctx, absentKey{}, true)
			}
		}
		inner := req.Clone(ctx)
		// The audit log writes URL.RequestURI(), which is Opaque with the query: the address as the client sent it.
		inner.URL.Opaque = req.URL.EscapedPath()
		inner.URL.Path, inner.URL.RawPath = path, ""
		next.ServeHTTP(w, inner)
	})
}

// sameBorder says whether the escaped form of a path, empty where escapes say nothing, ends the name of the logical
// cluster where the plain form does. An escaped slash would move it from where proxies before us saw it.
func sameBorder(rawPath, segment string) bool {
	if rawPath == "" {
		return true
	}
	parts := strings.SplitN(rawPath, "/", 4) // "", "clusters", the segment, the rest
	if len(parts) < 3 {
		return false
	}
	first, err := url.PathUnescape(parts[1])
	if err != nil || "/"+first+"/" != clustersPrefix {
		return false
	}
	second, err := url.PathUnescape(parts[2])
	return err == nil && second == segment
}

// resolve returns the logical cluster that a URL's segment after /clusters/ means, and whether it exists.
func (s *Server) resolve(ctx context.Context, segment string) (_ lcctx.Cluster, found bool, err error) {
	if segment == "*" {
		return lcctx.Cluster{Wildcard: true}, true, nil
	}
	path := logicalcluster.NewPath(segment)
	name, isName := path.Name()
	if strings.HasPrefix(segment, "system:") {
		name, isName = logicalcluster.Name(segment), true
	}
	if !isName {
		if len(segment) > maxPathLength {
			return lcctx.Cluster{}, false, apierrors.NewBadRequest(fmt.Sprintf("a workspace path of %d characters is longer than %d", len(segment), maxPathLength))
		}
		if !path.IsValid() {
			return lcctx.Cluster{}, false, apierrors.NewBadRequest(fmt.Sprintf("%q is not a workspace path: want names of lower-case letters, digits and hyphens, joined by colons, such as root:org:team", segment))
		}
		if name, err = s.directory.Resolve(ctx, path); err != nil {
			return lcctx.Cluster{}, false, err
		}
	}
	if err := lcctx.ValidateName(string(name)); err != nil {
		return lcctx.Cluster{}, false, apierrors.NewBadRequest(err.Error())
	}
	return s.lookup(ctx, name)
}

// lookup returns the logical cluster of that name, and whether it exists.
func (s *Server) lookup(ctx context.Context, name logicalcluster.Name) (lcctx.Cluster, bool, error) {
	if cluster, ok := s.directory.Known(name); ok {
		return cluster, true, nil
	}
	// It may have been made a moment ago. The chain's own limit of time begins only after us.
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	cluster := lcctx.Cluster{Name: name}
	resource, ok := s.backend.Resource(logicalClusters)
	if !ok {
		return lcctx.Cluster{}, false, fmt.Errorf("look up logical cluster %q: LogicalClusters are not served", name)
	}
	found := &corev1alpha1.LogicalCluster{}
	err := resource.Storage.Get(lcctx.WithCluster(ctx, cluster), resource.Key("", corev1alpha1.LogicalClusterName), storage.GetOptions{}, found)
	switch {
	case storage.IsNotFound(err):
		return cluster, false, nil
	case err != nil:
		return lcctx.Cluster{}, false, fmt.Errorf("look up logical cluster %q: %w", name, err)
	}
	cluster.Mirror = found.Spec.Use == corev1alpha1.LogicalClusterUseMirror
	return cluster, true, nil
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
