package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// homeName names, in root, the Workspace that is the home of whoever asks; kcp's. No Workspace can have this name.
	homeName = "~"
	// homesName is the Workspace in root that holds the homes.
	homesName = "users"
	// homeWithin is how long a request waits for a home that is being made, which takes some milliseconds.
	homeWithin = 2 * time.Second
)

// withHome answers who asks for the Workspace "~" in root with his own, and makes it when he asks first. It stands behind
// authorisation.
func (s *Server) withHome(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		cluster, _ := lcctx.ClusterFrom(ctx)
		info, ok := request.RequestInfoFrom(ctx)
		if !ok || !info.IsResourceRequest || !isHome(cluster.Name, info.Verb, info.APIGroup, info.Resource, info.Subresource, info.Name) {
			next.ServeHTTP(w, req)
			return
		}
		who, ok := request.UserFrom(ctx)
		if !ok {
			s.answer(w, req, apierrors.NewInternalError(fmt.Errorf("%s: nobody is authenticated", req.URL.Path)))
			return
		}
		holder, name, err := s.home(ctx, who)
		if err != nil {
			s.answer(w, req, err)
			return
		}
		// From here on it is a request for that Workspace where it is, as anybody's who may read it.
		there := *info
		there.Name, there.Path = name, strings.TrimSuffix(info.Path, homeName)+name
		inner := req.Clone(request.WithRequestInfo(lcctx.WithCluster(ctx, lcctx.Cluster{Name: holder}), &there))
		inner.URL.Path, inner.URL.RawPath = there.Path, ""
		next.ServeHTTP(w, inner)
	})
}

// isHome says whether a request to a logical cluster is for the home of who asks.
func isHome(cluster logicalcluster.Name, verb, group, resource, subresource, name string) bool {
	return cluster == rootCluster && verb == "get" && group == tenancyv1alpha1.GroupVersion.Group &&
		resource == workspaceResource.Resource && subresource == "" && name == homeName
}

// whyNoHome is why somebody has no home workspace, and "" if he has one, where members of groups do. Who owns one is known by
// his name alone, so it is for those whose name is theirs in all workspaces, and who show a credential themselves.
func whyNoHome(who user.Info, impersonated bool, groups []string) string {
	name := who.GetName()
	switch {
	case len(groups) == 0:
		return "this server makes no home workspaces: see --home-workspaces of \"atoll start\""
	case impersonated:
		return "who is impersonated has no home workspace: only he himself is let in"
	case strings.HasPrefix(name, serviceAccountsPrefix+":"):
		return "a ServiceAccount has no home workspace but the one that it is in"
	case len(who.GetExtra()[lcctx.UserExtra]) > 0:
		return "who is somebody in one workspace alone, by its certificate, has no home workspace"
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return "an administrator of the server has no home workspace: he may enter all"
	case name == "" || strings.HasPrefix(name, "system:") || slices.Contains(who.GetGroups(), user.AllUnauthenticated):
		return "parts of the system have no home workspace"
	case !slices.ContainsFunc(who.GetGroups(), func(group string) bool { return slices.Contains(groups, group) }):
		return "no home workspace is made for you: ask who administers the server for one of the groups of --home-workspaces"
	}
	return ""
}

// nameOfHome is the name of the Workspace that is the home of a user: another for every user, and as any name can be a user's,
// one that says nothing.
func nameOfHome(who string) string { return string(lcctx.NameOf(types.UID("the home of " + who))) }

// home returns the Workspace that is somebody's home: its name, and the logical cluster that holds it. What is missing is made.
func (s *Server) home(ctx context.Context, who user.Info) (holder logicalcluster.Name, name string, err error) {
	if why := whyNoHome(who, ctx.Value(impersonatingKey{}) != nil, s.options.HomeWorkspaces); why != "" {
		return "", "", apierrors.NewForbidden(workspaceResource, homeName, fmt.Errorf("%s", why))
	}
	// Its name says that the server made it: who could have made another would be over all homes.
	homes, err := s.workspaceOf(ctx, rootCluster, homesName, user.APIServerUser)
	if err != nil {
		return "", "", err
	}
	holder, name = logicalcluster.Name(homes.Spec.Cluster), nameOfHome(who.GetName())
	_, err = s.workspaceOf(ctx, holder, name, who.GetName())
	return holder, name, err
}

// workspaceOf returns the Workspace of that name in a logical cluster, which is owner's and ready. It is made if it is missing.
func (s *Server) workspaceOf(ctx context.Context, holder logicalcluster.Name, name, owner string) (*tenancyv1alpha1.Workspace, error) {
	w := &tenancyv1alpha1.Workspace{}
	found, err := s.Read(ctx, holder, "", name, "0", w)
	if err != nil {
		return nil, s.cannotMakeHome(ctx, name, owner, err)
	}
	if !found {
		clients, err := client.New(s.LoopbackConfig())
		if err != nil {
			return nil, s.cannotMakeHome(ctx, name, owner, err)
		}
		made := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: tenancyv1alpha1.OwnerValue(owner)}}}
		if err := clients.Objects.Create(client.In(ctx, holder), made); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, s.cannotMakeHome(ctx, name, owner, err)
		}
	}
	refusal := notReady(nil, name, owner)
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, homeWithin, true, func(ctx context.Context) (bool, error) {
		now := &tenancyv1alpha1.Workspace{}
		found, err := s.Read(ctx, holder, "", name, "0", now)
		if err != nil || !found {
			return false, err
		}
		w, refusal = now, notReady(now, name, owner)
		return refusal == nil || !apierrors.IsTooManyRequests(refusal), nil
	})
	if err != nil && !wait.Interrupted(err) {
		return nil, s.cannotMakeHome(ctx, name, owner, err)
	}
	if refusal != nil {
		return nil, refusal
	}
	return w, nil
}

// notReady is why a Workspace, which is nil if there is none yet, is not one in which owner can be at home; nil if it is. Who is
// answered TooManyRequests tries again by himself.
func notReady(w *tenancyv1alpha1.Workspace, name, owner string) error {
	const soon = 1 // second
	switch {
	case w == nil:
		return apierrors.NewTooManyRequests(fmt.Sprintf("workspace %q, of home workspaces, is being made", name), soon)
	case tenancyv1alpha1.OwnerOf(w) != owner:
		return apierrors.NewConflict(workspaceResource, homeName, fmt.Errorf("workspace %q was not made by the server for %q: who administers the server has to delete it", name, owner))
	case w.DeletionTimestamp != nil:
		return apierrors.NewConflict(workspaceResource, homeName, fmt.Errorf("workspace %q, of home workspaces, is being deleted: try again when it is gone", name))
	case w.Status.Phase != corev1alpha1.LogicalClusterPhaseReady:
		return apierrors.NewTooManyRequests(fmt.Sprintf("workspace %q, of home workspaces, is not ready yet: it is %s", name, w.Status.Phase), soon)
	}
	return nil
}

// cannotMakeHome is what a user is told of an error that is none of his.
func (s *Server) cannotMakeHome(ctx context.Context, name, owner string, err error) error {
	klog.FromContext(ctx).Error(err, "Could not look up or make a workspace for home workspaces", "workspace", name, "owner", owner)
	return apierrors.NewServiceUnavailable("home workspaces cannot be looked up or made now: the log of the server says why")
}
