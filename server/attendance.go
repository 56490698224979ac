package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// attending is what a request of an attendant asks for, in its context under attendingKey.
type attending struct {
	attendance.As
	holder   logicalcluster.Name // of the type
	typeName string
}

type attendingKey struct{}

// attendantUser is who asks for an attendant: somebody in the workspace that holds the type, whatever the request is for.
type attendantUser struct {
	user.Info
	asked *attending
}

const notWaiting = "there is no such workspace, or it does not wait for this initializer or terminator now"

// serveAttendant serves <path of an attendance><attendant>/clusters/<name or *>/...: what lies below it is asked of the logical
// cluster of that name, or of all that wait for the attendant. It stands where withLogicalCluster does.
func (s *Server) serveAttendant(w http.ResponseWriter, req *http.Request, a *attendance.Attendance, next http.Handler) {
	asked, cluster, path, err := attendantRequest(a, req.URL)
	if err != nil {
		s.answer(w, req, err)
		return
	}
	ctx := context.WithValue(lcctx.WithCluster(req.Context(), cluster), attendingKey{}, asked)
	ctx = attendance.With(ctx, asked.As)
	ctx = context.WithValue(ctx, impersonatingKey{}, true) // nobody outside of the workspace, whoever its owner is
	inner := req.Clone(ctx)
	inner.URL.Opaque = req.URL.EscapedPath() // for the audit log
	inner.URL.Path, inner.URL.RawPath = path, ""
	if cluster.Wildcard {
		inner.URL.RawQuery = onlyWaiting(req.URL.Query(), asked.As).Encode()
	}
	next.ServeHTTP(w, inner)
}

// attendantRequest reads a URL below the path of an attendance. What it answers depends on the URL alone: nobody is authenticated
// yet.
func attendantRequest(a *attendance.Attendance, u *url.URL) (*attending, lcctx.Cluster, string, error) {
	malformed := notFound("want %s<logical cluster of a workspace type>:<its name>/clusters/<name of a logical cluster, or *>/...", a.Path)
	const parts = 6 // "", "services", "initializingworkspaces", the attendant, "clusters", the logical cluster
	segments := strings.SplitN(u.Path, "/", parts+1)
	if len(segments) < parts || segments[4] != "clusters" {
		return nil, lcctx.Cluster{}, "", malformed
	}
	if u.RawPath != "" { // an escaped slash would move borders from where proxies before us saw them
		for i, raw := range strings.SplitN(u.RawPath, "/", parts+1)[:parts] {
			if plain, err := url.PathUnescape(raw); err != nil || plain != segments[i] {
				return nil, lcctx.Cluster{}, "", malformed
			}
		}
	}
	asked := &attending{As: attendance.As{Attendance: a, Name: attendance.Attendant(segments[3])}}
	holder, name, ok := attendance.TypeOf(asked.Name)
	if !ok || lcctx.ValidateName(holder) != nil {
		return nil, lcctx.Cluster{}, "", malformed
	}
	asked.holder, asked.typeName = logicalcluster.Name(holder), name
	path := "/"
	if len(segments) > parts {
		path += segments[parts]
	}
	if segments[5] == logicalcluster.Wildcard.String() {
		return asked, lcctx.Cluster{Wildcard: true}, path, nil
	}
	if lcctx.ValidateName(segments[5]) != nil {
		return nil, lcctx.Cluster{}, "", malformed
	}
	return asked, lcctx.Cluster{Name: logicalcluster.Name(segments[5])}, path, nil
}

// onlyWaiting narrows a list or watch of LogicalClusters to those that wait for an attendant. Requirements of a selector can only
// narrow each other, and who leaves the selection is deleted for who watches it.
func onlyWaiting(query url.Values, as attendance.As) url.Values {
	key, value := as.Label(as.Name)
	selector := labels.Set{tenancyv1alpha1.PhaseLabel: string(as.Phase), key: value}.String()
	if more := query.Get("labelSelector"); more != "" {
		selector += "," + more
	}
	query.Set("labelSelector", selector)
	return query
}

// attendants authenticates who asks for an attendant in the workspace that holds the type: a ServiceAccount or a certificate of
// that workspace is somebody there, and nowhere else.
type attendants struct{ authenticator.Request }

func (a attendants) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	asked, is := req.Context().Value(attendingKey{}).(*attending)
	if !is {
		return a.Request.AuthenticateRequest(req)
	}
	ctx := lcctx.WithCluster(req.Context(), lcctx.Cluster{Name: asked.holder})
	found, ok, err := a.Request.AuthenticateRequest(req.WithContext(ctx))
	if err != nil || !ok {
		return found, ok, err
	}
	return &authenticator.Response{Audiences: found.Audiences, User: &attendantUser{Info: found.User, asked: asked}}, true, nil
}

// authorizeAttendant decides what somebody may do for an attendant: nothing without the verb on the type. Then he lists and
// watches LogicalClusters that wait for the attendant, and in each of those removes the attendant and may do what its owner may,
// as long as it waits.
func (a *clusterAuthorizer) authorizeAttendant(ctx context.Context, who *attendantUser, cluster lcctx.Cluster, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if may, err := a.mayAttend(ctx, who); !may || err != nil {
		return authorizer.DecisionDeny, fmt.Sprintf("there is no such workspace type, or you lack the verb %q on it", who.asked.Verb), err
	}
	ofLogicalClusters := attrs.IsResourceRequest() && attrs.GetAPIGroup() == logicalClusters.Group && attrs.GetResource() == logicalClusters.Resource
	if cluster.Wildcard {
		if ofLogicalClusters && attrs.GetSubresource() == "" && slices.Contains([]string{"list", "watch"}, attrs.GetVerb()) ||
			attrs.IsReadOnly() && !attrs.IsResourceRequest() && !concernsProcess(attrs) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "of all workspaces that wait for an initializer or terminator, LogicalClusters can be listed and watched", nil
	}
	target, err := a.waiting(ctx, cluster.Name, who.asked.As)
	switch {
	case err != nil || target == nil:
		return authorizer.DecisionDeny, notWaiting, err
	case impersonates(attrs):
		return authorizer.DecisionDeny, "initializers and terminators impersonate nobody", nil
	case ofLogicalClusters:
		if attrs.GetVerb() == "get" || attrs.GetSubresource() == "status" && slices.Contains([]string{"update", "patch"}, attrs.GetVerb()) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "initializers and terminators read the LogicalCluster and remove themselves from its status", nil
	}
	owner := ownerOf(target)
	if owner == nil {
		return authorizer.DecisionDeny, "the workspace has no owner, whose rights an initializer or terminator would have", nil
	}
	attrs = attributesOf{attrs, owner}
	if reason := refusedAnywhere(ctx, attrs, cluster); reason != "" {
		return authorizer.DecisionDeny, reason, nil
	}
	return a.within(ctx, cluster.Name, owner, attrs)
}

// mayAttend says whether somebody has the verb of the attendance on the type, where that is.
func (a *clusterAuthorizer) mayAttend(ctx context.Context, who *attendantUser) (bool, error) {
	switch who.Info.(type) {
	case *syncerUser, *bootstrapUser:
		return false, nil
	}
	groups := who.GetGroups()
	if slices.Contains(groups, user.SystemPrivilegedGroup) {
		return true, nil
	}
	if slices.Contains(groups, user.AllUnauthenticated) {
		return false, nil
	}
	decision, _, err := a.roles.Authorize(lcctx.WithCluster(ctx, lcctx.Cluster{Name: who.asked.holder}), authorizer.AttributesRecord{
		User: who.Info, Verb: who.asked.Verb, ResourceRequest: true, Name: who.asked.typeName,
		APIGroup: tenancyv1alpha1.GroupVersion.Group, APIVersion: tenancyv1alpha1.GroupVersion.Version, Resource: "workspacetypes",
	})
	return decision == authorizer.DecisionAllow, err
}

// attributesOf are those of a request as if somebody else had made it.
type attributesOf struct {
	authorizer.Attributes
	who user.Info
}

func (a attributesOf) GetUser() user.Info { return a.who }

// ownerOf is the owner of a workspace within it, nil if nobody is: by name alone, with none of his groups. The server itself owns
// the workspace that holds home workspaces, and nobody acts as the server.
func ownerOf(c *corev1alpha1.LogicalCluster) user.Info {
	name := tenancyv1alpha1.OwnerOf(c)
	if name == "" || reserved(name) {
		return nil
	}
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
}

// initialized says whether a logical cluster that there is has no initializers left.
func (s *Server) initialized(ctx context.Context, name logicalcluster.Name) (bool, error) {
	if _, known := s.directory.Known(name); known {
		return s.directory.Initialized(name), nil
	}
	found := &corev1alpha1.LogicalCluster{} // made a moment ago
	_, err := s.Read(ctx, name, "", corev1alpha1.LogicalClusterName, "", found)
	return attendance.Initialized(found), err
}

// waiting returns the LogicalCluster of that name, as etcd has it now, if it waits for an attendant; else nil.
func (s *Server) waiting(ctx context.Context, name logicalcluster.Name, as attendance.As) (*corev1alpha1.LogicalCluster, error) {
	found := &corev1alpha1.LogicalCluster{}
	ok, err := s.Read(ctx, name, "", corev1alpha1.LogicalClusterName, "", found)
	if !ok || err != nil || !waits(found, as) {
		return nil, err
	}
	return found, nil
}

// waits says whether a workspace waits for an attendant now.
func waits(c *corev1alpha1.LogicalCluster, as attendance.As) bool {
	return slices.Contains(as.WaitsFor(c), as.Name)
}

// asAttendant serves what authorizeAttendant allowed, as whom it allowed it: the owner of the workspace, or, where the request is
// for the LogicalCluster, nobody with rights of his own, who may remove the attendant. The audit log has who asked. What runs
// long ends when the workspace does not wait any more.
func (s *Server) asAttendant(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		found, _ := request.UserFrom(ctx)
		who, is := found.(*attendantUser)
		cluster, _ := lcctx.ClusterFrom(ctx)
		if !is {
			next.ServeHTTP(w, req)
			return
		}
		as := user.Info(&user.DefaultInfo{Name: who.GetName(), Groups: []string{user.AllAuthenticated}})
		if cluster.Wildcard {
			next.ServeHTTP(w, req.WithContext(request.WithUser(ctx, as)))
			return
		}
		info, ok := request.RequestInfoFrom(ctx)
		if !ok {
			s.answer(w, req, apierrors.NewInternalError(fmt.Errorf("the request has no description")))
			return
		}
		ctx, end := context.WithCancel(ctx)
		defer end()
		var target *corev1alpha1.LogicalCluster
		var err error
		if longRunning(req, info) {
			err = s.endWhenLeft(ctx, end, cluster, who.asked.As)
		}
		if err == nil {
			target, err = s.waiting(ctx, cluster.Name, who.asked.As)
		}
		if err == nil && target == nil {
			err = apierrors.NewForbidden(logicalClusters, corev1alpha1.LogicalClusterName, errors.New(notWaiting))
		}
		if err != nil {
			s.answer(w, req, err)
			return
		}
		if info.APIGroup != logicalClusters.Group || info.Resource != logicalClusters.Resource {
			if as = ownerOf(target); as == nil {
				s.answer(w, req, apierrors.NewForbidden(logicalClusters, corev1alpha1.LogicalClusterName, errors.New(notWaiting)))
				return
			}
		}
		ctx = request.WithUser(ctx, as)
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// endWhenLeft calls end when a workspace that waits for an attendant does not any more, or that cannot be seen. Whether it waits
// is for the caller to read, afterwards: nothing in between is missed. It watches as long as ctx lasts, from now on and not from
// the version of the LogicalCluster, which may be from before all that the watch cache remembers.
func (s *Server) endWhenLeft(ctx context.Context, end func(), cluster lcctx.Cluster, as attendance.As) error {
	r, ok := s.backend.Resource(logicalClusters)
	if !ok {
		return fmt.Errorf("watch logical cluster %q: LogicalClusters are not served", cluster)
	}
	ctx = lcctx.WithCluster(ctx, cluster)
	now, err := r.Storage.GetCurrentResourceVersion(ctx)
	if err != nil {
		return fmt.Errorf("watch logical cluster %q: %w", cluster, err)
	}
	events, err := r.Storage.Watch(ctx, r.Key("", corev1alpha1.LogicalClusterName),
		storage.ListOptions{ResourceVersion: strconv.FormatUint(now, 10), Predicate: storage.Everything})
	if err != nil {
		return fmt.Errorf("watch logical cluster %q: %w", cluster, err)
	}
	go func() {
		defer end()
		defer events.Stop()
		for e := range events.ResultChan() {
			if e.Type == watch.Bookmark {
				continue
			}
			if e.Type == watch.Deleted || !waits(logicalClusterIn(e.Object), as) {
				return
			}
		}
	}()
	return nil
}

// logicalClusterIn is the LogicalCluster of an event; one that waits for nothing if there is none.
func logicalClusterIn(obj runtime.Object) *corev1alpha1.LogicalCluster {
	if shared, ok := obj.(runtime.CacheableObject); ok {
		obj = shared.GetObject()
	}
	if c, ok := obj.(*corev1alpha1.LogicalCluster); ok {
		return c
	}
	return &corev1alpha1.LogicalCluster{}
}
