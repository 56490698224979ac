package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/serviceaccount"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// reservedPrefix begins the names of users and groups that this process alone gives out.
const reservedPrefix = "system:atoll:"

const (
	// serviceAccountsPrefix begins the names and groups of ServiceAccounts.
	serviceAccountsPrefix = "system:serviceaccount"
	// foreignAccountsPrefix begins the name that roles of a workspace have for a ServiceAccount of another, such as the one
	// that created the workspace; kcp's.
	foreignAccountsPrefix = "system:kcp:serviceaccount:"
)

// clusterAuthorizer decides whether a user may do something in the logical cluster of the request, before and besides
// the roles of that logical cluster.
type clusterAuthorizer struct {
	roles authorizer.Authorizer
	// knownPath is the Directory's.
	knownPath func(logicalcluster.Path) (logicalcluster.Name, bool)
	// homes are the groups whose members have a home workspace.
	homes []string
	// initialized says whether a logical cluster has no initializers left, and waiting returns it if it waits for an attendant.
	initialized func(ctx context.Context, name logicalcluster.Name) (bool, error)
	waiting     func(ctx context.Context, name logicalcluster.Name, as attendance.As) (*corev1alpha1.LogicalCluster, error)
}

// accessVerb on the path / is what it takes to use anything of a workspace; kcp's.
const accessVerb = "access"

// noAccess is what strangers are told of a workspace, whether there is one or not.
const noAccess = "there is no such workspace, or you have no access to it"

func (a *clusterAuthorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	who := attrs.GetUser()
	groups := sets.New(who.GetGroups()...)
	cluster, named := lcctx.ClusterFrom(ctx)
	if named {
		audit.AddAuditAnnotation(ctx, lcctx.Annotation, cluster.String())
		trace.SpanFromContext(ctx).SetAttributes(attribute.String(lcctx.Annotation, cluster.String()))
	}
	switch who := who.(type) {
	case *syncerUser:
		return authorizeSyncer(who, cluster, attrs)
	case *bootstrapUser:
		return authorizeBootstrap(who, cluster, attrs)
	case *attendantUser:
		return a.authorizeAttendant(ctx, who, cluster, attrs)
	}
	master := groups.Has(user.SystemPrivilegedGroup)
	if master && who.GetName() == user.APIServerUser {
		return authorizer.DecisionAllow, "", nil // the server itself
	}
	if impersonates(attrs) && attrs.GetResource() == "users" && attrs.GetName() == user.APIServerUser {
		return authorizer.DecisionDeny, "the server itself cannot be impersonated", nil // what it alone may do, its administrators may not
	}
	segment, unresolved := ctx.Value(unresolvedKey{}).(string)
	anonymous := groups.Has(user.AllUnauthenticated)
	// Before anything that depends on whether the workspace is there.
	if !master && !anonymous && (unresolved || named && !cluster.Wildcard) {
		if reason := refusedAnywhere(ctx, attrs, cluster); reason != "" {
			return authorizer.DecisionDeny, reason, nil
		}
	}
	switch {
	case unresolved:
		if tell, err := a.mayKnow(ctx, segment, who, master); !tell || err != nil || impersonates(attrs) {
			return authorizer.DecisionDeny, noAccess, err
		}
		return authorizer.DecisionAllow, "", nil // to be told 404 by withNoCluster
	case named && anonymous && !describesIssuer(attrs):
		// Not even what everybody may read, such as health: its absence would tell which logical clusters exist. What a
		// workspace says of its tokens it may open to strangers, by a role, to be found by who is told its name.
		return authorizer.DecisionDeny, noAccess, nil
	case !named && attrs.GetPath() == BackupPath && !master:
		// Not by any role, such as one for all paths that are no resources: the answer has the keys to everything.
		return authorizer.DecisionDeny, "only administrators of the server may take a backup", nil
	case !named && (attrs.GetPath() == ExportPath || attrs.GetPath() == ImportPath) && !master:
		// Nor these: what an import writes is checked by nobody's roles or quota.
		return authorizer.DecisionDeny, "only administrators of the server may export and import workspaces", nil
	case !named && attrs.IsResourceRequest():
		if master {
			return authorizer.DecisionAllow, "", nil // to be told 404 by withNoCluster
		}
		return authorizer.DecisionDeny, "the request names no workspace: put /clusters/<path> before its path", nil
	case !named:
		// Health, version and discovery outside of logical clusters follow the bootstrap roles.
		ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Name: SystemAdminCluster})
		return a.roles.Authorize(ctx, attrs)
	case cluster.Wildcard:
		if master {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "only administrators of the server may read all logical clusters at once", nil
	case ctx.Value(absentKey{}) != nil:
		return authorizer.DecisionDeny, noAccess, nil
	case attrs.IsResourceRequest() && isHome(cluster.Name, attrs.GetVerb(), attrs.GetAPIGroup(), attrs.GetResource(), attrs.GetSubresource(), attrs.GetName()):
		// It is his own, so no role is asked for, nor would one make him another.
		if why := whyNoHome(who, ctx.Value(impersonatingKey{}) != nil, a.homes); why != "" {
			return authorizer.DecisionDeny, why, nil
		}
		return authorizer.DecisionAllow, "", nil
	}
	decision, reason, err := a.within(ctx, cluster.Name, who, attrs)
	if err != nil || decision != authorizer.DecisionAllow || master {
		return decision, reason, err
	}
	if _, is := attendance.From(ctx); is {
		return decision, reason, nil // admission asks what the owner may, as whom an attendant works
	}
	// Who may enter is told why he cannot yet.
	if initialized, err := a.initialized(ctx, cluster.Name); !initialized || err != nil {
		return authorizer.DecisionDeny, "the workspace is not ready: it is being initialized", err
	}
	return decision, reason, nil
}

// within decides by the roles of a logical cluster, which is that of ctx.
func (a *clusterAuthorizer) within(ctx context.Context, cluster logicalcluster.Name, who user.Info, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	enters, err := a.mayEnter(ctx, cluster, who)
	// What a workspace says of its tokens is for whom a role names, wherever he is at home.
	if err != nil || !enters && !describesIssuer(attrs) {
		return authorizer.DecisionDeny, noAccess, err
	}
	decision, reason, err := a.roles.Authorize(ctx, attrs)
	if !enters && decision != authorizer.DecisionAllow {
		return authorizer.DecisionDeny, noAccess, err
	}
	return decision, reason, err
}

// mayEnter says whether somebody may use anything of a logical cluster, which is that of ctx. As in kcp that takes the verb
// access on the path / there, whatever else a role allows; for ServiceAccounts, who are nobody elsewhere, and for
// administrators of the server it does not. Nor for root and system:admin: that these two exist is no secret.
func (a *clusterAuthorizer) mayEnter(ctx context.Context, cluster logicalcluster.Name, who user.Info) (bool, error) {
	if cluster == rootCluster || cluster == SystemAdminCluster || strings.HasPrefix(who.GetName(), serviceAccountsPrefix+":") ||
		slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return true, nil
	}
	decision, _, err := a.roles.Authorize(ctx, authorizer.AttributesRecord{User: who, Verb: accessVerb, Path: "/"})
	return decision == authorizer.DecisionAllow, err
}

// mayKnow says whether somebody may be told that there is no workspace at the end of a path: who may enter and look for it
// where it would be, or for the nearest above it that is missing, too.
func (a *clusterAuthorizer) mayKnow(ctx context.Context, segment string, who user.Info, master bool) (bool, error) {
	if master || slices.Contains(who.GetGroups(), user.AllUnauthenticated) {
		return master, nil
	}
	path := logicalcluster.NewPath(segment)
	for {
		parent, missing := path.Split()
		holder, ok := a.knownPath(parent)
		if name, isName := parent.Name(); isName {
			holder, ok = name, true
		}
		if !ok {
			if path = parent; path.Empty() {
				return false, nil
			}
			continue
		}
		ctx := lcctx.WithCluster(ctx, lcctx.Cluster{Name: holder})
		if enters, err := a.mayEnter(ctx, holder, who); !enters || err != nil {
			return false, err
		}
		decision, _, err := a.roles.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: "get", ResourceRequest: true, Name: missing,
			APIGroup: tenancyv1alpha1.GroupVersion.Group, APIVersion: tenancyv1alpha1.GroupVersion.Version, Resource: "workspaces",
		})
		return decision == authorizer.DecisionAllow, err
	}
}

// mayUseType says whether a user of the logical cluster in ctx may use a WorkspaceType that another, or the same one, holds.
func (a *clusterAuthorizer) mayUseType(ctx context.Context, who user.Info, holder logicalcluster.Name, name string) (bool, error) {
	if cluster, _ := lcctx.ClusterFrom(ctx); cluster.Name != holder {
		who = abroad(ctx, who, cluster.Name)
	}
	decision, _, err := a.roles.Authorize(lcctx.WithCluster(ctx, lcctx.Cluster{Name: holder}), authorizer.AttributesRecord{
		User: who, Verb: "use", ResourceRequest: true, Name: name,
		APIGroup: tenancyv1alpha1.GroupVersion.Group, APIVersion: tenancyv1alpha1.GroupVersion.Version, Resource: "workspacetypes",
	})
	return decision == authorizer.DecisionAllow, err
}

// abroad is who a user of a logical cluster is in others. Its ServiceAccounts have a name of their own there. Who is somebody
// by its word alone, by a certificate that it signed or since one of its users may impersonate him, is just authenticated.
func abroad(ctx context.Context, who user.Info, from logicalcluster.Name) user.Info {
	stranger := &user.DefaultInfo{Groups: []string{user.AllAuthenticated}}
	if ctx.Value(impersonatingKey{}) != nil || len(who.GetExtra()[lcctx.UserExtra]) > 0 {
		return stranger
	}
	account, is := strings.CutPrefix(who.GetName(), serviceAccountsPrefix+":")
	if !is {
		return who
	}
	stranger.Name = foreignAccountsPrefix + string(from) + ":" + account
	return stranger
}

// refusedAnywhere is why a request is refused in all logical clusters, whether they exist or not, to who is no administrator
// of the server; "" if it is not.
func refusedAnywhere(ctx context.Context, attrs authorizer.Attributes, cluster lcctx.Cluster) string {
	switch {
	case writesSystemState(attrs):
		return "the system alone writes these: annotate the namespace or the object instead"
	case impersonatesSystem(attrs):
		return "the server's own identities and its administrators cannot be impersonated"
	case cluster.Name != SystemAdminCluster && concernsProcess(attrs) && !reviewed(ctx):
		return "this concerns the whole server: ask without /clusters/<path> before the path"
	}
	return ""
}

// writesSystemState says whether a request would change what only the server's controllers may: the description of a
// logical cluster, decisions of placement, and every status of Atoll's own kinds, which say for instance which logical
// cluster mirrors a SyncTarget. Annotations of a LogicalCluster are input, so it can be patched.
func writesSystemState(attrs authorizer.Attributes) bool {
	if attrs.IsReadOnly() || !attrs.IsResourceRequest() {
		return false
	}
	switch attrs.GetAPIGroup() {
	case placementv1alpha1.GroupVersion.Group:
		return attrs.GetResource() == "placements" || attrs.GetSubresource() != ""
	case corev1alpha1.GroupVersion.Group:
		return attrs.GetVerb() == "create" || attrs.GetSubresource() != ""
	case tenancyv1alpha1.GroupVersion.Group, workloadv1alpha1.GroupVersion.Group:
		return attrs.GetSubresource() != ""
	}
	return false
}

// impersonates says whether this is one of the questions whether a user may impersonate another.
func impersonates(attrs authorizer.Attributes) bool {
	return strings.HasPrefix(attrs.GetVerb(), "impersonate")
}

// impersonatesSystem says whether a request would take on an identity that is more than a user of the request's logical
// cluster. The admin of a workspace may impersonate anybody by his role, and roles end at the workspace; what these
// identities may do does not come from roles.
func impersonatesSystem(attrs authorizer.Attributes) bool {
	name := attrs.GetName()
	return impersonates(attrs) && (name == "" || name == user.SystemPrivilegedGroup || reserved(name))
}

// reserved says whether a user or group may come from this process alone.
func reserved(name string) bool {
	return name == user.APIServerUser || strings.HasPrefix(name, reservedPrefix)
}

// outsiders authenticates who is not part of this process, and refuses those whose credential claims a name of the
// server's own: whoever signs client certificates or lists tokens is trusted with users, not with the server's parts. Nor
// with ServiceAccounts, which are somebody in one workspace, while these are the same in all.
type outsiders struct{ authenticator.Request }

func (o outsiders) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	found, ok, err := o.Request.AuthenticateRequest(req)
	if err != nil || !ok {
		return found, ok, err
	}
	for _, name := range append([]string{found.User.GetName()}, found.User.GetGroups()...) {
		if reserved(name) {
			return nil, false, fmt.Errorf("a client certificate or token claims to be %q, which only the server itself may be", name)
		}
		if strings.HasPrefix(name, serviceAccountsPrefix) || strings.HasPrefix(name, foreignAccountsPrefix) {
			return nil, false, fmt.Errorf("a client certificate or token claims to be %q, which only a token of a workspace may say", name)
		}
	}
	return found, true, nil
}

// concernsProcess says whether a request is for what all workspaces share, such as metrics and profiles: not for health,
// version or discovery.
func concernsProcess(attrs authorizer.Attributes) bool {
	if attrs.IsResourceRequest() {
		return false
	}
	first, _, _ := strings.Cut(strings.TrimLeft(attrs.GetPath(), "/"), "/")
	switch first {
	case "", "api", "apis", "openapi", "version", "healthz", "livez", "readyz":
		return false
	}
	return !describesIssuer(attrs)
}

// reviewed says whether a SubjectAccessReview asks: another server, such as an operator with metrics of its own, wants to
// know whom the workspace's roles let in there. That it is told yes opens nothing here.
func reviewed(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.IsResourceRequest && info.APIGroup == authorizationv1.GroupName && info.Resource == "subjectaccessreviews"
}

// describesIssuer says whether a request is for what others verify tokens of the workspace's ServiceAccounts with.
func describesIssuer(attrs authorizer.Attributes) bool {
	path := attrs.GetPath()
	return !attrs.IsResourceRequest() && (path == serviceaccount.OpenIDConfigPath || path == serviceaccount.JWKSPath)
}
