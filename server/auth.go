package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// syncerUserPrefix and the mirror's name make the user of a syncer.
	syncerUserPrefix = "system:atoll:syncer:"
	// syncersGroup holds every syncer.
	syncersGroup = "system:atoll:syncers"
)

// clusterAuthorizer decides whether a user may do something in the logical cluster of the request, before and besides
// the roles of that logical cluster.
type clusterAuthorizer struct {
	roles authorizer.Authorizer
}

func (a *clusterAuthorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	who := attrs.GetUser()
	groups := sets.New(who.GetGroups()...)
	master := groups.Has(user.SystemPrivilegedGroup)
	if master && who.GetName() == user.APIServerUser {
		return authorizer.DecisionAllow, "", nil // the server itself
	}
	if segment := ctx.Value(unresolvedKey{}); segment != nil {
		if groups.Has(user.AllAuthenticated) {
			return authorizer.DecisionAllow, "", nil // to be told 404 by withNoCluster
		}
		return authorizer.DecisionDeny, "", nil
	}
	cluster, named := lcctx.ClusterFrom(ctx)
	if groups.Has(syncersGroup) {
		return authorizeSyncer(cluster, attrs)
	}
	switch {
	case !named && attrs.IsResourceRequest():
		if master {
			return authorizer.DecisionAllow, "", nil // to be told 404 by withNoCluster
		}
		return authorizer.DecisionDeny, "the request names no workspace: put /clusters/<path> before its path", nil
	case !named:
		// Health, version and discovery outside of logical clusters follow the bootstrap roles.
		ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Name: SystemAdminCluster})
	case cluster.Wildcard:
		if master {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "only administrators of the server may read all logical clusters at once", nil
	case ctx.Value(absentKey{}) != nil:
		// No reason: it would tell a logical cluster that does not exist from one that refuses a stranger.
		return authorizer.DecisionDeny, "", nil
	}
	if !master {
		switch {
		case writesSystemState(attrs):
			return authorizer.DecisionDeny, "the system alone writes these: annotate the namespace or the object instead", nil
		case impersonatesSystem(attrs):
			return authorizer.DecisionDeny, "the server's own identities and its administrators cannot be impersonated", nil
		case named && cluster.Name != SystemAdminCluster && concernsProcess(attrs):
			return authorizer.DecisionDeny, "this concerns the whole server: ask without /clusters/<path> before the path", nil
		}
	}
	return a.roles.Authorize(ctx, attrs)
}

// writesSystemState says whether a request would change what only the server's controllers may: the description of a
// logical cluster, and decisions of placement. Annotations of a LogicalCluster are input, so it can be patched.
func writesSystemState(attrs authorizer.Attributes) bool {
	if attrs.IsReadOnly() || !attrs.IsResourceRequest() {
		return false
	}
	switch attrs.GetAPIGroup() {
	case placementv1alpha1.GroupVersion.Group:
		return attrs.GetResource() == "placements"
	case corev1alpha1.GroupVersion.Group:
		return attrs.GetVerb() == "create" || attrs.GetSubresource() != ""
	}
	return false
}

// impersonatesSystem says whether a request would take on an identity that is more than a user of the request's logical
// cluster. The admin of a workspace may impersonate anybody by his role, and roles end at the workspace; what these
// identities may do does not come from roles.
func impersonatesSystem(attrs authorizer.Attributes) bool {
	if !strings.HasPrefix(attrs.GetVerb(), "impersonate") {
		return false
	}
	name := attrs.GetName()
	return name == "" || name == user.SystemPrivilegedGroup || name == user.APIServerUser ||
		name == syncersGroup || strings.HasPrefix(name, syncerUserPrefix)
}

// concernsProcess says whether a request is for what all workspaces share, such as metrics and profiles: not for health,
// version or discovery.
func concernsProcess(attrs authorizer.Attributes) bool {
	if attrs.IsResourceRequest() {
		return false
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(attrs.GetPath(), "/"), "/")
	switch first {
	case "", "api", "apis", "openapi", "version", "healthz", "livez", "readyz":
		return false
	}
	return true
}

// authorizeSyncer lets a syncer work in its own mirror alone: read what is there, write status and bookkeeping, finish
// deletions, keep its heartbeat. It never creates or deletes a leaf.
func authorizeSyncer(cluster lcctx.Cluster, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	const reason = "a syncer may work in the mirror of its own physical cluster only"
	if !cluster.Mirror || attrs.GetUser().GetName() != syncerUserPrefix+string(cluster.Name) {
		return authorizer.DecisionDeny, reason, nil
	}
	if attrs.IsReadOnly() {
		return authorizer.DecisionAllow, "", nil
	}
	heartbeat := attrs.GetAPIGroup() == "coordination.k8s.io" && attrs.GetResource() == "leases" &&
		attrs.GetNamespace() == workloadv1alpha1.HeartbeatNamespace
	switch attrs.GetVerb() {
	case "update", "patch":
		return authorizer.DecisionAllow, "", nil
	case "create":
		if heartbeat || attrs.GetResource() == "events" {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionDeny, reason + ", and never creates or deletes there", nil
}

// syncerTokens authenticates the syncers that run in this process. Tokens live in memory only and end with the process.
type syncerTokens struct {
	mu      sync.RWMutex
	mirrors map[[sha256.Size]byte]logicalcluster.Name // by the token's hash
}

// issue returns a new token for the syncer of a mirror; earlier ones of that mirror stop working.
func (t *syncerTokens) issue(mirror logicalcluster.Name) string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	token := hex.EncodeToString(secret)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mirrors == nil {
		t.mirrors = map[[sha256.Size]byte]logicalcluster.Name{}
	}
	for hash, of := range t.mirrors {
		if of == mirror {
			delete(t.mirrors, hash)
		}
	}
	t.mirrors[sha256.Sum256([]byte(token))] = mirror
	return token
}

// AuthenticateToken implements authenticator.Token.
func (t *syncerTokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	t.mu.RLock()
	mirror, ok := t.mirrors[sha256.Sum256([]byte(token))]
	t.mu.RUnlock()
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   syncerUserPrefix + string(mirror),
		Groups: []string{syncersGroup, user.AllAuthenticated},
	}}, true, nil
}

// MirrorConfig returns what the syncer of a mirror, in this process, talks to the server with: an identity valid in
// that mirror alone. A later call for the same mirror ends the earlier identity.
func (s *Server) MirrorConfig(mirror logicalcluster.Name) *rest.Config {
	cfg := rest.AnonymousClientConfig(s.loopback.config)
	cfg.Dial = s.loopback.config.Dial
	cfg.Host += clustersPrefix + string(mirror)
	cfg.BearerToken = s.syncers.issue(mirror)
	return cfg
}
