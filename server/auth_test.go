package server

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kcp-dev/logicalcluster/v3"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// yes says yes to everything, and remembers in which logical cluster it was asked.
type yes struct{ asked logicalcluster.Name }

func (y *yes) Authorize(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	cluster, _ := lcctx.ClusterFrom(ctx)
	y.asked = cluster.Name
	return authorizer.DecisionAllow, "", nil
}

// over is the authorizer over roles.
func over(roles authorizer.Authorizer) *clusterAuthorizer {
	return &clusterAuthorizer{roles: roles, knownPath: few{}.KnownPath,
		initialized: func(context.Context, logicalcluster.Name) (bool, error) { return true, nil }}
}

func person(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

func resource(verb, group, resource, subresource string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Subresource: subresource, ResourceRequest: true}
}

func named(a authorizer.AttributesRecord, namespace, name string) authorizer.AttributesRecord {
	a.Namespace, a.Name = namespace, name
	return a
}

func nonResource(path string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{Verb: "get", Path: path}
}

// Roles say yes to everything here: what is refused is refused before them.
func TestClusterAuthorizer(t *testing.T) {
	in := func(c lcctx.Cluster) context.Context { return lcctx.WithCluster(context.Background(), c) }
	inShop := in(lcctx.Cluster{Name: shop})
	absent := context.WithValue(in(lcctx.Cluster{Name: "absent"}), absentKey{}, true)
	unresolved := context.WithValue(context.Background(), unresolvedKey{}, "root:nowhere")
	wildcard := in(lcctx.Cluster{Wildcard: true})
	nowhere := context.Background()
	asked := func(review string) context.Context {
		return request.WithRequestInfo(inShop, &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "authorization.k8s.io", Resource: review})
	}

	anybody := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	tenant := person("alice")
	master := person("root", user.SystemPrivilegedGroup)
	itself := person(user.APIServerUser, user.SystemPrivilegedGroup)
	pods := resource("list", "", "pods", "")
	impersonate := func(resource, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: "impersonate", Resource: resource, Name: name, ResourceRequest: true}
	}
	constrained := impersonate("users", "system:apiserver")
	constrained.Verb = "impersonate:user-info"

	tests := []struct {
		ctx    context.Context
		who    user.Info
		attrs  authorizer.AttributesRecord
		allow  bool
		asked  logicalcluster.Name // where roles were asked; empty if they were not
		reason string
	}{
		{inShop, tenant, pods, true, shop, "roles of the workspace decide"},
		{inShop, master, pods, true, shop, "of administrators too, who have a role everywhere"},
		{inShop, itself, pods, true, "", "the server itself asks nobody"},
		{inShop, anybody, pods, false, "", "strangers get nothing"},
		{inShop, anybody, nonResource("/healthz"), false, "", "nor would they learn which names exist"},
		{absent, tenant, pods, false, "", "what does not exist refuses"},
		{absent, master, pods, false, "", "also administrators"},
		{absent, itself, pods, true, "", "but the server makes logical clusters"},
		{absent, anybody, nonResource("/healthz"), false, "", "as where it exists"},
		{unresolved, tenant, pods, true, "root", "to be told 404, by who may look for it"},
		{unresolved, anybody, pods, false, "", "strangers are not told"},
		{unresolved, anybody, nonResource("/version"), false, "", "in no way"},
		{unresolved, tenant, impersonate("groups", user.SystemPrivilegedGroup), false, "", "404 needs no other identity"},
		{unresolved, master, pods, true, "", "administrators may know"},
		{wildcard, master, pods, true, "", "administrators read all at once"},
		{wildcard, tenant, pods, false, "", "nobody else"},
		{wildcard, tenant, nonResource("/api"), false, "", "not even discovery"},
		{wildcard, anybody, pods, false, "", "nobody"},
		{wildcard, tenant, impersonate("users", "root"), false, "", "nor as somebody else"},
		{nowhere, tenant, pods, false, "", "a resource is in a workspace"},
		{nowhere, master, pods, true, "", "to be told 404"},
		{nowhere, anybody, pods, false, "", "nothing"},
		{nowhere, tenant, impersonate("users", "root"), false, "", "roles of the installation do not apply to resources"},
		{nowhere, anybody, nonResource("/healthz"), true, SystemAdminCluster, "health is public, by the bootstrap roles"},
		{nowhere, tenant, nonResource("/metrics"), true, SystemAdminCluster, "metrics are for whom the installation's roles name"},
		{nowhere, tenant, nonResource(BackupPath), false, "", "no role gives away the keys to everything"},
		{nowhere, anybody, nonResource(BackupPath), false, "", "nor to strangers"},
		{nowhere, master, nonResource(BackupPath), true, SystemAdminCluster, "administrators take backups"},
		{inShop, tenant, nonResource(BackupPath), false, "", "a workspace has none"},
		{nowhere, tenant, nonResource(ExportPath), false, "", "nor does one give away a workspace"},
		{nowhere, tenant, nonResource(ImportPath), false, "", "or bring one in"},
		{nowhere, master, nonResource(ImportPath), true, SystemAdminCluster, "administrators import"},

		{inShop, tenant, nonResource("/metrics"), false, "", "metrics concern all workspaces"},
		{asked("selfsubjectaccessreviews"), tenant, nonResource("/metrics"), false, "", "so people are told"},
		{asked("subjectaccessreviews"), tenant, nonResource("/metrics"), true, shop, "an operator's own metrics do not"},
		{inShop, tenant, nonResource("/debug/pprof/heap"), false, "", "memory holds everybody's secrets"},
		{inShop, tenant, nonResource("/logs/x"), false, "", "logs too"},
		{inShop, tenant, nonResource("/flagz"), false, "", "flags too"},
		{inShop, tenant, nonResource("/clusters/bankname/api"), false, "", "a second prefix is nothing"},
		{inShop, tenant, nonResource("//metrics"), false, "", "whatever the slashes"},
		{inShop, tenant, nonResource("/../metrics"), false, "", "or dots"},
		{inShop, tenant, nonResource("/version"), true, shop, "version may be known"},
		{inShop, tenant, nonResource("/openapi/v3/apis/apps/v1"), true, shop, "discovery may"},
		{inShop, master, nonResource("/metrics"), true, shop, "administrators may"},
		{inShop, tenant, nonResource("/openid/v1/jwks"), true, shop, "the keys of a workspace's tokens are for whom its roles name"},
		{inShop, anybody, nonResource("/.well-known/openid-configuration"), true, shop, "strangers too, if a role says so"},
		{inShop, anybody, nonResource("/.well-known/other"), false, "", "for nothing else"},
		{inShop, anybody, resource("get", "", "openid", "v1"), false, "", "nor for a resource"},
		{absent, anybody, nonResource("/openid/v1/jwks"), false, "", "where there is a workspace"},
		{unresolved, anybody, nonResource("/openid/v1/jwks"), false, "", "that is found"},
		{wildcard, anybody, nonResource("/openid/v1/jwks"), false, "", "and one"},

		{inShop, tenant, resource("create", "placement.atoll.dev", "placements", ""), false, "", "decisions are the system's"},
		{inShop, tenant, resource("deletecollection", "placement.atoll.dev", "placements", ""), false, "", "all of them"},
		{inShop, tenant, resource("list", "placement.atoll.dev", "placements", ""), true, shop, "to be read"},
		{inShop, tenant, resource("create", "placement.atoll.dev", "placementpolicies", ""), true, shop, "policies are input"},
		{inShop, tenant, resource("create", "core.kcp.io", "logicalclusters", ""), false, "", "a Workspace makes them"},
		{inShop, tenant, resource("patch", "core.kcp.io", "logicalclusters", "status"), false, "", "status is the system's"},
		{inShop, tenant, resource("patch", "core.kcp.io", "logicalclusters", ""), true, shop, "annotations are input"},
		{inShop, tenant, resource("update", "workload.kcp.io", "synctargets", "status"), false, "", "status.mirror says which logical cluster is removed with it"},
		{inShop, tenant, resource("create", "workload.kcp.io", "synctargets", ""), true, shop, "clusters may be brought along"},
		{inShop, tenant, resource("patch", "tenancy.kcp.io", "workspaces", "status"), false, "", "status is the system's"},
		{inShop, tenant, resource("create", "tenancy.kcp.io", "workspaces", ""), true, shop, "workspaces are made by people"},
		{inShop, master, resource("update", "workload.kcp.io", "synctargets", "status"), true, shop, "administrators repair"},

		{inShop, tenant, impersonate("users", "bob"), true, shop, "roles decide, and end with the workspace"},
		{inShop, tenant, impersonate("users", "system:serviceaccount:default:default"), true, shop, "as in Kubernetes"},
		{inShop, tenant, impersonate("groups", user.SystemPrivilegedGroup), false, "", "administrators are nobody's to be"},
		{inShop, tenant, impersonate("users", user.APIServerUser), false, "", "nor the server"},
		{inShop, tenant, impersonate("users", "system:atoll:syncer:eastname"), false, "", "nor a syncer"},
		{inShop, tenant, impersonate("groups", "system:atoll:syncers"), false, "", "nor all syncers"},
		{inShop, tenant, impersonate("groups", "system:atoll:future"), false, "", "nor what is to come"},
		{inShop, tenant, impersonate("users", ""), false, "", "nor everybody at once"},
		{inShop, tenant, constrained, false, "", "in whichever mode"},
		{inShop, master, impersonate("users", "system:atoll:syncer:eastname"), true, shop, "administrators may; it gives them nothing"},
		{inShop, master, impersonate("users", user.APIServerUser), false, "", "but not be the server, which decides"},
		{inShop, master, constrained, false, "", "in no mode either"},
		{unresolved, master, impersonate("users", user.APIServerUser), false, "", "nowhere"},

		{in(lcctx.Cluster{Name: east, Mirror: true}), person("system:atoll:syncer:eastname", "system:atoll:syncers"), pods, true, east, "a name makes no syncer: roles decide, and mirrors have none"},
	}
	for _, test := range tests {
		roles := &yes{}
		test.attrs.User = test.who
		decision, _, err := over(roles).Authorize(test.ctx, test.attrs)
		if err != nil || (decision == authorizer.DecisionAllow) != test.allow || roles.asked != test.asked {
			t.Errorf("%s %s/%s %s %q as %s: %v (%v), roles asked in %q; want allowed %v, asked %q: %s", test.attrs.Verb, test.attrs.Resource,
				test.attrs.Subresource, test.attrs.Path, test.attrs.Name, test.who.GetName(), decision, err, roles.asked, test.allow, test.asked, test.reason)
		}
	}
}

// may says yes to one verb.
type may string

func (m may) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetVerb() == string(m) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no role", nil
}

// Without the verb access on / nothing of a workspace is used; with it, what roles say.
func TestMayEnter(t *testing.T) {
	in := func(name logicalcluster.Name) context.Context {
		return lcctx.WithCluster(context.Background(), lcctx.Cluster{Name: name})
	}
	tenant, robot, master := person("alice"), person("system:serviceaccount:team:robot"), person("root", user.SystemPrivilegedGroup)
	pods, jwks := resource("list", "", "pods", ""), nonResource("/openid/v1/jwks")
	for _, tc := range []struct {
		reason string
		roles  may
		where  logicalcluster.Name
		who    user.Info
		attrs  authorizer.AttributesRecord
		want   authorizer.Decision
		says   string
	}{
		{"a role alone lets nobody in", "list", shop, tenant, pods, authorizer.DecisionDeny, noAccess},
		{"access alone gives no right", "access", shop, tenant, pods, authorizer.DecisionNoOpinion, "no role"},
		{"both do", "*", shop, tenant, pods, authorizer.DecisionAllow, ""},
		{"neither, and it is as if there were no workspace", "", shop, tenant, pods, authorizer.DecisionDeny, noAccess},
		{"nor what everybody may", "get", shop, tenant, nonResource("/version"), authorizer.DecisionDeny, noAccess},
		{"a ServiceAccount is at home", "list", shop, robot, pods, authorizer.DecisionAllow, ""},
		{"and is told what it lacks", "", shop, robot, pods, authorizer.DecisionNoOpinion, "no role"},
		{"an administrator of the server goes where he likes", "list", shop, master, pods, authorizer.DecisionAllow, ""},
		{"that root is there is no secret", "list", rootCluster, tenant, pods, authorizer.DecisionAllow, ""},
		{"of what there is one may know nothing", "", rootCluster, tenant, pods, authorizer.DecisionNoOpinion, "no role"},
		{"keys of tokens are for whom a role names", "get", shop, tenant, jwks, authorizer.DecisionAllow, ""},
		{"and for nobody else", "", shop, tenant, jwks, authorizer.DecisionDeny, noAccess},
	} {
		var roles authorizer.Authorizer = tc.roles
		if tc.roles == "*" {
			roles = &yes{}
		}
		tc.attrs.User = tc.who
		got, says, err := over(roles).Authorize(in(tc.where), tc.attrs)
		if err != nil || got != tc.want || says != tc.says {
			t.Errorf("%s: %v %q %v, want %v %q", tc.reason, got, says, err, tc.want, tc.says)
		}
	}
}

func TestAuthorizeSyncer(t *testing.T) {
	mirror := lcctx.Cluster{Name: east, Mirror: true}
	of := &syncerUser{DefaultInfo: user.DefaultInfo{Name: workloadv1alpha1.SyncerUserPrefix + string(east), Groups: []string{syncersGroup, user.AllAuthenticated}}, mirror: east}
	lease := func(verb string) authorizer.AttributesRecord {
		return named(resource(verb, "coordination.k8s.io", "leases", ""), "atoll-system", "heartbeat")
	}
	tests := []struct {
		cluster lcctx.Cluster
		attrs   authorizer.AttributesRecord
		allow   bool
		reason  string
	}{
		// Every request that a syncer makes.
		{mirror, resource("list", "", "configmaps", ""), true, "leaves"},
		{mirror, resource("watch", "", "secrets", ""), true, "leaves"},
		{mirror, resource("list", "apps", "deployments", ""), true, "leaves"},
		{mirror, resource("watch", "", "serviceaccounts", ""), true, "leaves"},
		{mirror, resource("list", "", "namespaces", ""), true, "their namespaces"},
		{mirror, resource("patch", "", "namespaces", ""), true, "finalizer"},
		{mirror, resource("patch", "", "services", ""), true, "finalizer and annotations"},
		{mirror, resource("update", "apps", "deployments", "status"), true, "status"},
		{mirror, resource("update", "", "services", "status"), true, "status"},
		{mirror, resource("watch", "workload.kcp.io", "synctargets", ""), true, "its twin"},
		{mirror, resource("update", "workload.kcp.io", "synctargets", "status"), true, "its twin"},
		{mirror, lease("get"), true, "heartbeat"},
		{mirror, lease("create"), true, "heartbeat"},
		{mirror, lease("update"), true, "heartbeat"},
		{mirror, resource("create", "certificates.k8s.io", "certificatesigningrequests", ""), true, "its certificate"},
		{mirror, resource("watch", "certificates.k8s.io", "certificatesigningrequests", ""), true, "its certificate"},

		{mirror, resource("create", "", "pods", ""), true, "it shows what runs"},
		{mirror, resource("update", "", "pods", "status"), true, "and how"},

		// Elsewhere.
		{lcctx.Cluster{Name: west, Mirror: true}, resource("list", "", "configmaps", ""), false, "another's mirror"},
		{lcctx.Cluster{Name: east}, resource("list", "", "configmaps", ""), false, "no mirror, though of the same name"},
		{lcctx.Cluster{Name: shop}, resource("list", "", "configmaps", ""), false, "a workspace"},
		{lcctx.Cluster{Wildcard: true}, resource("list", "", "configmaps", ""), false, "all at once"},
		{lcctx.Cluster{Wildcard: true, Mirror: true, Name: east}, resource("list", "", "configmaps", ""), false, "all at once, whatever else is said"},
		{lcctx.Cluster{}, resource("list", "", "configmaps", ""), false, "nowhere"},
		{lcctx.Cluster{}, nonResource("/apis"), false, "discovery outside"},

		// Here, but more.
		{mirror, nonResource("/apis"), false, "it knows what it needs"},
		{mirror, nonResource("/metrics"), false, "the process is not its business"},
		{mirror, resource("update", "certificates.k8s.io", "certificatesigningrequests", "approval"), false, "others judge it"},
		{mirror, resource("update", "certificates.k8s.io", "certificatesigningrequests", "status"), false, "others sign"},
		{mirror, resource("create", "", "configmaps", ""), false, "leaves come from above"},
		{mirror, resource("delete", "", "configmaps", ""), false, "and go by it"},
		{mirror, resource("deletecollection", "apps", "deployments", ""), false, "all the more"},
		{mirror, resource("update", "apps", "deployments", ""), false, "it patches"},
		{mirror, resource("update", "apps", "deployments", "scale"), false, "replicas are decided above"},
		{mirror, resource("patch", "apps", "deployments", "scale"), false, "replicas are decided above"},
		{mirror, resource("patch", "apps", "deployments", "status"), false, "it updates"},
		{mirror, resource("create", "", "namespaces", ""), false, "the Manager makes the heartbeat's"},
		{mirror, resource("update", "", "namespaces", "finalize"), false, "ends a namespace with content"},
		{mirror, resource("delete", "", "namespaces", ""), false, "namespaces go from above"},
		{mirror, resource("create", "", "serviceaccounts", "token"), true, "of what it runs: the registry says which"},
		{mirror, resource("create", "", "serviceaccounts", ""), false, "they come from above"},
		{mirror, resource("update", "", "serviceaccounts", "token"), false, "it asks for new ones"},
		{lcctx.Cluster{Name: west, Mirror: true}, resource("create", "", "serviceaccounts", "token"), false, "another's mirror"},
		{lcctx.Cluster{Name: shop}, resource("create", "", "serviceaccounts", "token"), false, "a workspace gives it none"},
		{mirror, resource("update", "", "pods", ""), false, "of a pod it tells the status"},
		{mirror, resource("patch", "", "pods", "status"), false, "it updates"},
		{mirror, resource("deletecollection", "", "pods", ""), false, "it knows each"},
		{mirror, resource("create", "", "pods", "exec"), false, "nothing to enter"},
		{mirror, resource("create", "", "events", ""), true, "what goes on there"},
		{mirror, resource("update", "", "events", ""), true, "what goes on there"},
		{mirror, resource("get", "", "events", ""), false, "it reads none"},
		{mirror, resource("list", "", "events", ""), false, "it reads none"},
		{mirror, resource("delete", "", "events", ""), false, "they end by themselves"},
		{mirror, resource("create", "events.k8s.io", "events", ""), false, "it writes none"},
		{mirror, resource("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""), false, "gives itself nothing"},
		{mirror, resource("escalate", "rbac.authorization.k8s.io", "clusterroles", ""), false, "gives itself nothing"},
		{mirror, resource("patch", "core.kcp.io", "logicalclusters", ""), false, "describes no logical cluster"},
		{mirror, resource("patch", "workload.kcp.io", "synctargets", ""), false, "confirms nothing by itself"},
		{mirror, resource("create", "authentication.k8s.io", "tokenreviews", ""), false, "tests no tokens"},
		{mirror, resource("create", "authorization.k8s.io", "subjectaccessreviews", ""), false, "asks about nobody"},
		{mirror, named(resource("impersonate", "", "groups", ""), "", user.SystemPrivilegedGroup), false, "is nobody else"},
		{mirror, named(resource("impersonate", "", "users", ""), "", "system:atoll:syncer:westname"), false, "is nobody else"},
		{mirror, named(resource("update", "coordination.k8s.io", "leases", ""), "default", "heartbeat"), false, "its heartbeat alone"},
		{mirror, resource("list", "coordination.k8s.io", "leases", ""), false, "its heartbeat alone"},
		{mirror, lease("delete"), false, "a heartbeat never goes back"},
		{mirror, lease("deletecollection"), false, "a heartbeat never goes back"},
	}
	for _, test := range tests {
		ctx := context.Background()
		if test.cluster != (lcctx.Cluster{}) {
			ctx = lcctx.WithCluster(ctx, test.cluster)
		}
		roles := &yes{}
		test.attrs.User = of
		decision, reason, err := over(roles).Authorize(ctx, test.attrs)
		if err != nil || (decision == authorizer.DecisionAllow) != test.allow || roles.asked != "" {
			t.Errorf("%s %s/%s %s in %s: %v %q (%v), roles asked in %q; want allowed %v: %s", test.attrs.Verb, test.attrs.Resource, test.attrs.Subresource,
				test.attrs.Path, test.cluster, decision, reason, err, roles.asked, test.allow, test.reason)
		}
	}
	unresolved := context.WithValue(context.Background(), unresolvedKey{}, "root:nowhere")
	attrs := resource("list", "", "configmaps", "")
	attrs.User = of
	if decision, _, _ := over(&yes{}).Authorize(unresolved, attrs); decision == authorizer.DecisionAllow {
		t.Error("a syncer is told which paths exist")
	}
}

func TestSyncerTokens(t *testing.T) {
	var tokens syncerTokens
	mirror := func(token string) logicalcluster.Name {
		t.Helper()
		response, ok, err := tokens.AuthenticateToken(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return ""
		}
		who, is := response.User.(*syncerUser)
		if !is || who.GetName() != "system:atoll:syncer:"+string(who.mirror) || !slices.Contains(who.GetGroups(), user.AllAuthenticated) {
			t.Fatalf("identity %+v", response.User)
		}
		return who.mirror
	}
	if mirror("") != "" || mirror("guess") != "" {
		t.Error("a token that nobody issued is taken")
	}
	first, other := tokens.issue(east), tokens.issue(west)
	if mirror(first) != east || mirror(other) != west || first == other || len(first) < 64 {
		t.Errorf("tokens %q, %q are of %q, %q", first, other, mirror(first), mirror(other))
	}
	second := tokens.issue(east)
	if mirror(first) != "" || mirror(second) != east || mirror(other) != west {
		t.Errorf("after a second token of one mirror: first %q, second %q, other mirror's %q", mirror(first), mirror(second), mirror(other))
	}
	if tokens.end(east); mirror(second) != "" || mirror(other) != west || len(tokens.mirrors) != 1 {
		t.Errorf("after the end of the first: %q, other mirror's %q; %d are known", mirror(second), mirror(other), len(tokens.mirrors))
	}
}

func TestOutsiders(t *testing.T) {
	tests := map[string]struct {
		who    user.Info
		ok     bool
		reason string
	}{
		"person":         {who: person("alice", "team"), ok: true},
		"administrator":  {who: person("root", user.SystemPrivilegedGroup), ok: true, reason: "authorities and token files may name administrators"},
		"anybody":        {who: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, ok: true},
		"the server":     {who: person(user.APIServerUser), reason: "admission trusts the name"},
		"a syncer":       {who: person("system:atoll:syncer:eastname"), reason: "logs and audit would name it"},
		"syncers":        {who: person("carol", "system:atoll:syncers"), reason: "a reserved group"},
		"some of ours":   {who: person("carol", "system:atoll:x"), reason: "a reserved prefix"},
		"similar prefix": {who: person("system:atolls"), ok: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, ok, err := outsiders{authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: test.who}, true, nil
			})}.AuthenticateRequest(nil)
			if ok != test.ok || (err == nil) != test.ok {
				t.Errorf("ok %v, %v; want %v: %s", ok, err, test.ok, test.reason)
			}
		})
	}
}

func TestAuthorizeBootstrap(t *testing.T) {
	who := &bootstrapUser{DefaultInfo: user.DefaultInfo{Name: workloadv1alpha1.BootstrapUserPrefix + string(east), Groups: []string{bootstrapGroup, user.AllAuthenticated}}, mirror: east}
	mirror := lcctx.Cluster{Name: east, Mirror: true}
	request := func(verb, subresource string) authorizer.AttributesRecord {
		return resource(verb, "certificates.k8s.io", "certificatesigningrequests", subresource)
	}
	for _, test := range []struct {
		cluster lcctx.Cluster
		attrs   authorizer.AttributesRecord
		allow   bool
		reason  string
	}{
		{mirror, request("create", ""), true, "to ask"},
		{mirror, request("list", ""), true, "for the answer"},
		{mirror, request("watch", ""), true, "for the answer"},
		{mirror, request("get", ""), true, "for the answer"},
		{mirror, request("delete", ""), false, "what was asked stays"},
		{mirror, request("update", "approval"), false, "others judge it"},
		{mirror, request("update", "status"), false, "others sign"},
		{mirror, resource("list", "", "secrets", ""), false, "that takes the certificate"},
		{mirror, resource("get", "coordination.k8s.io", "leases", ""), false, "that takes the certificate"},
		{mirror, nonResource("/metrics"), false, "nothing else"},
		{lcctx.Cluster{Name: west, Mirror: true}, request("create", ""), false, "another's mirror"},
		{lcctx.Cluster{Name: east}, request("create", ""), false, "no mirror, though of the same name"},
		{lcctx.Cluster{Wildcard: true, Mirror: true, Name: east}, request("list", ""), false, "all at once"},
	} {
		roles := &yes{}
		test.attrs.User = who
		decision, _, err := over(roles).Authorize(lcctx.WithCluster(t.Context(), test.cluster), test.attrs)
		if err != nil || (decision == authorizer.DecisionAllow) != test.allow || roles.asked != "" {
			t.Errorf("%s %s/%s: %v (%v), roles asked in %q; want allowed %v: %s", test.attrs.Verb, test.attrs.Resource, test.attrs.Subresource, decision, err, roles.asked, test.allow, test.reason)
		}
	}
}
