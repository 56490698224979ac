package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Directory knows the workspaces. It is asked on every request and must not ask the server in turn about names: what
// Known does not know, the server looks up in its own storage.
type Directory interface {
	// Known returns the logical cluster of that name, and false if it is not known yet or does not exist.
	Known(name logicalcluster.Name) (lcctx.Cluster, bool)
	// Annotation returns an annotation of the LogicalCluster of a logical cluster that is known, "" if there is none.
	Annotation(name logicalcluster.Name, key string) string
	// KnownPath returns the logical cluster at the end of a path such as root:org:team, and false if it is not known yet
	// or does not exist.
	KnownPath(path logicalcluster.Path) (logicalcluster.Name, bool)
	// Resolve searches for what KnownPath does not know. If there is none, the error wraps logicalcluster.ErrNotFound.
	Resolve(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// OnImported tells of each logical cluster when it is first known that no import fills it, or none any more.
	OnImported(tell func(logicalcluster.Name))
	// OnGone tells of each logical cluster that has gone, with all that was in it.
	OnGone(tell func(logicalcluster.Name))
	// Terminating says whether a logical cluster is being deleted and takes nothing new.
	Terminating(name logicalcluster.Name) bool
	// Initialized says whether a logical cluster has no initializers left. Before, nobody but attendants can use it.
	Initialized(name logicalcluster.Name) bool
}

const (
	clustersPrefix = "/clusters/"
	// lookupTimeout is how long a request waits for etcd to say whether a logical cluster exists.
	lookupTimeout = 10 * time.Second
	// lookupsAtOnce is how many requests ask etcd at once whether there is what they name. They are in nobody's turn yet, and whoever
	// may log in makes up names.
	lookupsAtOnce = 4
)

var logicalClusters = schema.GroupResource{Group: corev1alpha1.GroupVersion.Group, Resource: "logicalclusters"}

// unresolvedKey marks a request whose path names no workspace. It is answered with 404 only after authentication, so
// that strangers learn nothing about which paths exist.
type unresolvedKey struct{}

// absentKey marks a request that names a logical cluster that does not exist; the authorizer refuses it.
type absentKey struct{}

// impersonatingKey marks a request of one who asks to be somebody else, and is so by the word of a workspace alone.
type impersonatingKey struct{}

// withLogicalCluster takes /clusters/<name, path or *> off the request's path and puts the logical cluster into its context.
// It stands before every other filter, which then see an ordinary Kubernetes request. Authentication is among them, so
// it asks who the client is by itself where it would have to search: whom nobody knows is refused whatever there is, and
// must not keep etcd busy by making up names.
func (s *Server) withLogicalCluster(next http.Handler, who authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for _, a := range attendance.All {
			if strings.HasPrefix(req.URL.Path, a.Path) {
				s.serveAttendant(w, req, a, next)
				return
			}
		}
		rest, ok := strings.CutPrefix(req.URL.Path, clustersPrefix)
		if !ok {
			s.serveAtHome(w, req, next)
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
		cluster, found, err := s.resolve(ctx, segment, func() bool { return s.isStranger(who, req) })
		switch {
		case errors.Is(err, lcctx.ErrNotFound):
			ctx = context.WithValue(ctx, unresolvedKey{}, segment)
		case apierrors.IsBadRequest(err):
			s.answer(w, req, err)
			return
		case err != nil:
			s.cannotLookUp(w, req, segment, err)
			return
		default:
			ctx = atCluster(req, cluster, found)
		}
		inner := req.Clone(ctx)
		// The audit log writes URL.RequestURI(), which is Opaque with the query: the address as the client sent it.
		inner.URL.Opaque = req.URL.EscapedPath()
		inner.URL.Path, inner.URL.RawPath = path, ""
		next.ServeHTTP(w, inner)
	})
}

// serveAtHome serves a request without /clusters/ in its path. A client in a cluster knows the server's address and its own
// token only: its request is for the workspace whose ServiceAccount it is, if the token is genuine. Who it is, and whether
// that ServiceAccount is still there, is authentication's to say, as for every request.
func (s *Server) serveAtHome(w http.ResponseWriter, req *http.Request, next http.Handler) {
	home, ok := s.tokens.Home(req)
	if !ok {
		next.ServeHTTP(w, req)
		return
	}
	cluster, found, err := s.resolve(req.Context(), home.String(), func() bool { return false })
	if err != nil {
		s.cannotLookUp(w, req, home.String(), err)
		return
	}
	next.ServeHTTP(w, req.WithContext(atCluster(req, cluster, found)))
}

// atCluster returns the context of a request to a logical cluster, which may be absent.
func atCluster(req *http.Request, cluster lcctx.Cluster, found bool) context.Context {
	ctx := lcctx.WithCluster(req.Context(), cluster)
	// Over a connection in memory it is the server that asks for somebody whom it has authenticated.
	if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" && ctx.Value(insideKey{}) == nil {
		ctx = context.WithValue(ctx, impersonatingKey{}, true)
	}
	if !found {
		ctx = context.WithValue(ctx, absentKey{}, true)
	}
	return ctx
}

// cannotLookUp answers where the logical cluster of a request cannot be found out. Nobody is authenticated yet: what is
// wrong inside is for the log.
func (s *Server) cannotLookUp(w http.ResponseWriter, req *http.Request, segment string, err error) {
	klog.FromContext(req.Context()).Error(err, "Could not find the logical cluster of a request", "segment", segment)
	s.answer(w, req, apierrors.NewServiceUnavailable("workspaces cannot be looked up now, try again"))
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

// isStranger says whether nobody knows who sends a request, or cannot say so in time. A ServiceAccount is known only in its
// own workspace, and which one the request is for is just being asked: its token is taken there, if it is genuine. That is
// not enough, since a genuine token may be of a ServiceAccount or workspace that is gone.
func (s *Server) isStranger(who authenticator.Request, req *http.Request) bool {
	// The chain's own limit of time begins only after us, and a webhook may be asked.
	ctx, cancel := context.WithTimeout(req.Context(), lookupTimeout)
	defer cancel()
	if home, genuine := s.tokens.Home(req.WithContext(ctx)); genuine {
		ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Name: home})
	}
	// Authenticators take a credential that they accept off the request.
	found, ok, err := who.AuthenticateRequest(req.Clone(ctx))
	return err != nil || !ok || slices.Contains(found.User.GetGroups(), user.AllUnauthenticated)
}

// resolve returns the logical cluster that a URL's segment after /clusters/ means, and whether it exists. For strangers
// it does not search: to them, what is not known does not exist.
func (s *Server) resolve(ctx context.Context, segment string, stranger func() bool) (_ lcctx.Cluster, found bool, err error) {
	if segment == "*" {
		return lcctx.Cluster{Wildcard: true}, true, nil
	}
	path := logicalcluster.NewPath(segment)
	name, isName := path.Name()
	if strings.HasPrefix(segment, "system:") {
		name, isName = logicalcluster.Name(segment), true
	}
	if !isName {
		if len(segment) > lcctx.MaxPathLength {
			return lcctx.Cluster{}, false, apierrors.NewBadRequest(fmt.Sprintf("a workspace path of %d characters is longer than %d", len(segment), lcctx.MaxPathLength))
		}
		if !path.IsValid() {
			return lcctx.Cluster{}, false, apierrors.NewBadRequest(fmt.Sprintf("%q is not a workspace path: want names of lower-case letters, digits and hyphens, joined by colons, such as root:org:team", segment))
		}
		known := false
		if name, known = s.directory.KnownPath(path); !known {
			if stranger() {
				return lcctx.Cluster{}, false, lcctx.ErrNotFound
			}
			// As for lookup: the chain's own limit of time begins only after us.
			search, cancel := context.WithTimeout(ctx, lookupTimeout)
			name, err = lookUp(search, s, func() (logicalcluster.Name, error) { return s.directory.Resolve(search, path) })
			cancel()
			if err != nil {
				return lcctx.Cluster{}, false, err
			}
		}
	}
	if err := lcctx.ValidateName(string(name)); err != nil {
		return lcctx.Cluster{}, false, apierrors.NewBadRequest(err.Error())
	}
	if cluster, ok := s.directory.Known(name); ok {
		// Its syncer would be refused, and take that for the server's word.
		if cluster.Mirror && !s.knowAll(ctx) {
			return lcctx.Cluster{}, false, errStarting
		}
		return cluster, true, nil
	}
	if !stranger() {
		return s.lookup(ctx, name)
	}
	// A server that starts knows nobody yet: the token of a syncer is looked for in its mirror.
	if !s.knowAll(ctx) {
		return lcctx.Cluster{}, false, errStarting
	}
	cluster, ok := s.directory.Known(name)
	if !ok {
		cluster = lcctx.Cluster{Name: name}
	}
	return cluster, ok, nil
}

var errStarting = errors.New("the workspaces are not known yet")

// knowAll waits for a server that starts to know what it had when it stopped, and says whether it does.
func (s *Server) knowAll(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return s.credentials.WaitSynced(ctx) == nil
}

// lookup returns the logical cluster of that name as storage has it, and whether it exists.
func (s *Server) lookup(ctx context.Context, name logicalcluster.Name) (lcctx.Cluster, bool, error) {
	// It may have been made a moment ago. The chain's own limit of time begins only after us.
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	cluster := lcctx.Cluster{Name: name}
	found := &corev1alpha1.LogicalCluster{}
	ok, err := lookUp(ctx, s, func() (bool, error) { return s.Read(ctx, name, "", corev1alpha1.LogicalClusterName, "", found) })
	if !ok || err != nil {
		return cluster, false, err
	}
	cluster.Mirror = found.Spec.Use == corev1alpha1.LogicalClusterUseMirror
	return cluster, true, nil
}

// lookUp asks etcd by read, when few others do. What the server asks in turn, to answer one of these, does not wait.
func lookUp[T any](ctx context.Context, s *Server, read func() (T, error)) (T, error) {
	if ctx.Value(insideKey{}) != nil {
		return read()
	}
	select {
	case s.lookups <- struct{}{}:
		defer func() { <-s.lookups }()
		return read()
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%d others are looked up: %w", lookupsAtOnce, context.Cause(ctx))
	}
}

// withNoCluster answers, after authorisation, requests for resources that name no workspace, or one that is not there, or
// that cannot be answered for what they name.
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
		case cluster.Wildcard && collectsInitialEvents(req.URL.Query()):
			s.answer(w, req, apierrors.NewBadRequest("sendInitialEvents with allowWatchBookmarks is not possible on /clusters/*: list and then watch"))
			return
		default:
			// Upstream checks names alone; a namespace of dots would fail as an invalid key of storage.
			for _, name := range []string{info.Namespace, info.Name} {
				if problems := content.IsPathSegmentName(name); len(problems) > 0 {
					s.answer(w, req, apierrors.NewBadRequest(fmt.Sprintf("%q is no name of an object or namespace: it %s", name, strings.Join(problems, " and "))))
					return
				}
			}
		}
		next.ServeHTTP(w, req)
	})
}

// collectsInitialEvents says whether a client will collect the events of a watch until a bookmark says that it has seen
// all there is. client-go does so by namespace and name, and of objects with one name in several logical clusters would
// keep the last without a word; on an error it lists and then watches, as it has always done. A watch that names no
// position starts with the same events, but there clients take each as it comes.
func collectsInitialEvents(query url.Values) bool {
	options := &metainternalversion.ListOptions{}
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, options); err != nil {
		return false // the handler says what is wrong
	}
	return ptr.Deref(options.SendInitialEvents, false) && options.AllowWatchBookmarks
}

func notFound(format string, args ...any) error {
	err := apierrors.NewNotFound(schema.GroupResource{}, "")
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return err
}

func (s *Server) answer(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, s.serializer, schema.GroupVersion{Version: "v1"}, w, req)
}
