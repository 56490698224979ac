package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// syncersGroup holds every syncer.
const syncersGroup = reservedPrefix + "syncers"

// syncerUser is the identity of a syncer. Decisions look at the type and its mirror, which only this file makes; name
// and groups are for logs and audit. So no static token, impersonation or certificate of another authority makes a syncer.
type syncerUser struct {
	user.DefaultInfo
	mirror logicalcluster.Name
	// credential is the id of the bootstrap token that the certificate of a syncer outside this process goes back to, empty for
	// those in it.
	credential string
}

func newSyncerUser(mirror logicalcluster.Name) *syncerUser {
	return &syncerUser{
		DefaultInfo: user.DefaultInfo{Name: workloadv1alpha1.SyncerUserPrefix + string(mirror), Groups: []string{syncersGroup, user.AllAuthenticated}},
		mirror:      mirror,
	}
}

// syncerRequest is what a syncer may ask for, apart from names.
type syncerRequest struct{ group, resource, subresource, verb string }

// syncerRequests is every request that a syncer makes in its mirror: it lists and watches what it should run, writes
// status, patches its bookkeeping into metadata, keeps a Lease, shows the pods there are, tells the events, asks for tokens of what it runs, and
// opens a tunnel. What a patch may change is admission.Mirror's, and which tokens there are the registry's (builtin, createForPods).
var syncerRequests = func() sets.Set[syncerRequest] {
	all := sets.New[syncerRequest]()
	add := func(group, resource, subresource string, verbs ...string) {
		for _, verb := range verbs {
			all.Insert(syncerRequest{group, resource, subresource, verb})
		}
	}
	for _, kind := range kinds.All {
		if !kind.HasLeaves() {
			continue
		}
		add(kind.GVR.Group, kind.GVR.Resource, "", "list", "watch", "patch")
		if kind.HasStatus {
			add(kind.GVR.Group, kind.GVR.Resource, "status", "update")
		}
	}
	add("", "namespaces", "", "list", "watch", "patch")
	add("", "pods", "", "get", "list", "watch", "create", "delete") // those that it shows, and runs
	add("", "pods", "status", "update")
	add("", "events", "", "create", "update") // one request asks for both: it is put
	add("", "serviceaccounts", "token", "create")
	add(workloadv1alpha1.GroupVersion.Group, "synctargets", "", "list", "watch")
	add(workloadv1alpha1.GroupVersion.Group, "synctargets", "status", "update")
	add(workloadv1alpha1.GroupVersion.Group, "synctargets", workloadv1alpha1.TunnelSubresource, "create")
	add(coordinationv1.GroupName, "leases", "", "get", "create", "update")
	add(certificatesv1.GroupName, "certificatesigningrequests", "", certificateVerbs...)
	return all
}()

// authorizeSyncer lets a syncer work in its own mirror alone, and there make no other request than it needs. It never
// creates or deletes a leaf; the pods of its mirror are a view, in which the server says what it may change (builtin.shownPods), and so
// are the events (builtin.shownEvents).
func authorizeSyncer(syncer *syncerUser, cluster lcctx.Cluster, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if cluster.Wildcard || !cluster.Mirror || cluster.Name != syncer.mirror {
		return authorizer.DecisionDeny, "a syncer may work in the mirror of its own physical cluster only", nil
	}
	asked := syncerRequest{attrs.GetAPIGroup(), attrs.GetResource(), attrs.GetSubresource(), attrs.GetVerb()}
	allowed := attrs.IsResourceRequest() && syncerRequests.Has(asked)
	if asked.resource == "leases" && attrs.GetNamespace() != workloadv1alpha1.HeartbeatNamespace {
		allowed = false
	}
	if !allowed {
		return authorizer.DecisionDeny, "a syncer reads leaves, writes their status, shows pods and events, asks for the tokens of what it runs, answers for logs, keeps its heartbeat and its certificate, and does nothing else", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// syncerTokens authenticates the syncers that run in this process. Tokens live in memory only and end with the process, or with
// their mirror.
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
	t.drop(mirror)
	t.mirrors[sha256.Sum256([]byte(token))] = mirror
	return token
}

// end ends the token of a mirror's syncer.
func (t *syncerTokens) end(mirror logicalcluster.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(mirror)
}

// drop forgets the tokens of a mirror. The caller has mu.
func (t *syncerTokens) drop(mirror logicalcluster.Name) {
	maps.DeleteFunc(t.mirrors, func(_ [sha256.Size]byte, of logicalcluster.Name) bool { return of == mirror })
}

// AuthenticateToken implements authenticator.Token.
func (t *syncerTokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	t.mu.RLock()
	mirror, ok := t.mirrors[sha256.Sum256([]byte(token))]
	t.mu.RUnlock()
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: newSyncerUser(mirror)}, true, nil
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
