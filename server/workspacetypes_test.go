package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const tenancy = "/apis/tenancy.kcp.io/v1alpha1/"

// make creates an object of the system's, as JSON, in a logical cluster.
func (r *running) make(t *testing.T, cluster logicalcluster.Name, path, body string) {
	t.Helper()
	if got := r.ask(t, asked{method: http.MethodPost, path: clustersPrefix + string(cluster) + path, token: root, body: body}); got.code != http.StatusCreated {
		t.Fatalf("%s in %s: %v", body, cluster, got)
	}
}

// describe makes the LogicalCluster of one that the tests have by name.
func (r *running) describe(t *testing.T, cluster logicalcluster.Name, path, kind string) {
	t.Helper()
	annotations := map[string]string{lcctx.PathAnnotation: path}
	if kind != "" {
		annotations[tenancyv1alpha1.TypeAnnotation] = kind
	}
	body, err := json.Marshal(annotations)
	must(t, err)
	r.forgetCluster(t, cluster)
	r.make(t, cluster, "/apis/core.kcp.io/v1alpha1/logicalclusters",
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","annotations":`+string(body)+`}}`)
}

func (r *running) makeType(t *testing.T, cluster logicalcluster.Name, name, spec string) {
	t.Helper()
	r.make(t, cluster, tenancy+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"`+name+`"},"spec":`+spec+`}`)
}

// allowUse lets somebody use types of a logical cluster.
func (r *running) allowUse(t *testing.T, cluster logicalcluster.Name, name string, subject rbacv1.Subject, types ...string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"use"}, APIGroups: []string{tenancyv1alpha1.GroupVersion.Group}, Resources: []string{"workspacetypes"}, ResourceNames: types}}}
	rights := r.in(t, cluster).RbacV1()
	_, err := rights.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	must(t, err)
	_, err = rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: []rbacv1.Subject{subject}}, metav1.CreateOptions{})
	must(t, err)
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

var workspacesMade int

// newWorkspace asks for one, of a type if kind is not "".
func newWorkspace(cluster logicalcluster.Name, kind, token string) asked {
	workspacesMade++
	spec := "{}"
	if kind != "" {
		path, name := "", kind
		if i := strings.LastIndexByte(kind, ':'); i >= 0 {
			path, name = kind[:i], kind[i+1:]
		}
		spec = fmt.Sprintf(`{"type":{"name":%q,"path":%q}}`, name, path)
	}
	return asked{method: http.MethodPost, path: clustersPrefix + string(cluster) + tenancy + "workspaces", token: token,
		body: fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"w%d"},"spec":%s}`, workspacesMade, spec)}
}

// waitForAnswer waits until a new workspace is answered so: what somebody may do is known a moment after it is written.
func (r *running) waitForAnswer(t *testing.T, cluster logicalcluster.Name, kind, token string, code int, part string) answer {
	t.Helper()
	var got answer
	waitFor(t, 20*time.Second, fmt.Sprintf("a workspace of type %q in %s is answered %d %q", kind, cluster, code, part), func() (string, bool) {
		got = r.ask(t, newWorkspace(cluster, kind, token))
		return fmt.Sprint(got), got.code == code && strings.Contains(got.body, part)
	})
	return got
}

// Who makes a workspace may use its type and what that extends, wherever they are; the rest is as if it were not there.
func TestTypesOfWorkspaces(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, rootCluster, "root", "")
	r.describe(t, shop, "root:shop", "root:universal")
	r.describe(t, bank, "root:bank", "root:team")
	r.describe(t, SystemAdminCluster, "", "")
	r.bindAdmin(t, "alice", shop, bank)
	r.bindAdmin(t, "bob", shop)
	r.makeType(t, rootCluster, "base", `{}`)
	r.makeType(t, rootCluster, "team", `{"extend":{"with":[{"name":"base"}]},"additionalWorkspaceLabels":{"tier":"gold"},"defaultChildWorkspaceType":{"name":"leaf"},"limitAllowedChildren":{"types":[{"name":"leaf"}]}}`)
	r.makeType(t, rootCluster, "leaf", `{"limitAllowedChildren":{"none":true},"limitAllowedParents":{"types":[{"name":"base"}]}}`)
	r.makeType(t, bank, "own", `{}`)
	const refused = "unable to use workspace type "

	if got := r.waitForAnswer(t, shop, "", alice, http.StatusCreated, `"type":{"name":"universal","path":"root"}`); got.code != http.StatusCreated {
		t.Fatal(got)
	}
	// What one may not use is not told from what is not there, be it a type or the workspace of one.
	hide := func(kind string) string {
		got := r.ask(t, newWorkspace(shop, kind, alice))
		if got.code != http.StatusForbidden {
			t.Errorf("%s: %v", kind, got)
		}
		var status metav1.Status
		must(t, json.Unmarshal([]byte(got.body), &status))
		_, message, _ := strings.Cut(status.Message, refused)
		return strings.TrimPrefix(message, kind)
	}
	want := hide("root:nothere")
	if !strings.HasPrefix(want, ": there is none, or you lack") {
		t.Errorf("of a type that is not there alice is told %q", want)
	}
	for _, kind := range []string{"root:team", "team", "nothere", "root:nothere:team", "root:bank:nothere", "system:admin:x"} {
		if got := hide(kind); got != want {
			t.Errorf("of %s alice is told %q, want %q", kind, got, want)
		}
	}

	if got := r.ask(t, newWorkspace(SystemAdminCluster, "nothere", root)); got.code != http.StatusForbidden {
		t.Errorf("a type that is neither in a logical cluster outside of the tree nor in root: %v", got)
	}

	// One by one: the type, then what it extends.
	r.allowUse(t, rootCluster, "team", userSubject("alice"), "team")
	r.waitForAnswer(t, shop, "root:team", alice, http.StatusForbidden, "extends another: "+refused+"root:base")
	r.allowUse(t, rootCluster, "base", userSubject("alice"), "base", "leaf")
	made := r.waitForAnswer(t, shop, "team", alice, http.StatusCreated, `"type":{"name":"team","path":"root"}`)
	if !strings.Contains(made.body, `"tier":"gold"`) {
		t.Errorf("a team has not the labels of its type: %s", made.body)
	}

	// Parents and children.
	r.waitForAnswer(t, shop, "leaf", alice, http.StatusForbidden, "only allows [root:base] parent workspaces, but parent type root:universal only implements [root:universal]")
	r.waitForAnswer(t, bank, "", alice, http.StatusCreated, `"type":{"name":"leaf","path":"root"}`)
	r.waitForAnswer(t, bank, "own", alice, http.StatusForbidden, "workspace type root:team only allows [root:leaf] child workspaces, but child type root:bank:own only implements [root:bank:own]")

	// Who is somebody in a workspace by its word alone is nobody for types of others.
	robotToken := r.makeRobot(t, shop)
	r.makeRobot(t, bank)
	r.bindAdmin(t, serviceAccountsPrefix+":"+team+":"+robot, shop)
	r.allowUse(t, bank, "robot", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: team, Name: robot}, "own")
	r.waitForAnswer(t, shop, "", robotToken, http.StatusCreated, "universal")
	bobs := func(token, as string) asked {
		a := newWorkspace(shop, "root:bank:own", token)
		if as != "" {
			a.header = map[string]string{"Impersonate-User": as}
		}
		return a
	}
	r.allowUse(t, bank, "bob", userSubject("bob"), "own")
	r.waitForAnswer(t, shop, "root:bank:own", bob, http.StatusCreated, `"path":"root:bank"`)
	if got := r.ask(t, bobs(robotToken, "")); got.code != http.StatusForbidden || !strings.Contains(got.body, refused) {
		t.Errorf("a ServiceAccount of shop uses what bank allows its own of that name: %v", got)
	}
	if got := r.ask(t, bobs(bob, "bob")); got.code != http.StatusForbidden || !strings.Contains(got.body, refused) {
		t.Errorf("who may impersonate in shop uses what bob may in bank: %v", got)
	}
	r.allowUse(t, bank, "foreign", userSubject(foreignAccountsPrefix+string(shop)+":"+team+":"+robot), "own")
	r.waitForAnswer(t, shop, "root:bank:own", robotToken, http.StatusCreated, `"path":"root:bank"`)
}

// A type that extends itself, by itself or through others, is refused when it is written, as far as its writer can see others; who
// makes a workspace of one that came about is told.
func TestTypesThatExtendThemselves(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, rootCluster, "root", "")
	r.describe(t, shop, "root:shop", "root:universal")
	r.describe(t, bank, "root:bank", "root:universal")
	r.bindAdmin(t, "alice", shop, bank)
	r.bindAdmin(t, "bob", shop)
	type refs = []tenancyv1alpha1.WorkspaceTypeReference
	write := func(token string, cluster logicalcluster.Name, name string, with refs) asked {
		return asked{method: http.MethodPost, path: clustersPrefix + string(cluster) + tenancy + "workspacetypes", token: token, body: mustJSON(t, &tenancyv1alpha1.WorkspaceType{
			TypeMeta:   metav1.TypeMeta{APIVersion: tenancyv1alpha1.GroupVersion.String(), Kind: "WorkspaceType"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceTypeSpec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: with}},
		})}
	}
	for _, test := range []struct {
		reason, name string
		cluster      logicalcluster.Name
		with         refs
		way          string // in the refusal, "" if there is none
	}{
		{"beside itself", "self", shop, refs{{Name: "self"}}, "root:shop:self -> root:shop:self"},
		{"by its path", "self", shop, refs{{Name: "other"}, {Name: "self", Path: "root:shop"}}, "spec.extend.with[1]"},
		{"by the name of the logical cluster", "self", shop, refs{{Name: "self", Path: string(shop)}}, "root:shop:self -> root:shop:self"},
		{"one of the name elsewhere", "same", shop, refs{{Name: "same", Path: "root:bank"}}, ""},
		{"what is not there yet", "one", rootCluster, refs{{Name: "two"}}, ""},
		{"two of them", "two", rootCluster, refs{{Name: "one", Path: "root"}}, "root:two -> root:one -> root:two"},
		{"not a circle", "two", rootCluster, refs{{Name: "three"}, {Name: "four"}}, ""},
		{"three of them", "three", rootCluster, refs{{Name: "two"}, {Name: "one"}}, "root:three -> root:two -> root:three"},
		{"through another workspace", "away", shop, refs{{Name: "four", Path: "root"}}, ""},
		{"and back", "four", rootCluster, refs{{Name: "leaf"}, {Name: "away", Path: "root:shop"}}, "root:four -> root:shop:away -> root:four"},
		{"two ways to one", "three", rootCluster, refs{{Name: "leaf"}}, ""},
		{"are no circle", "four", rootCluster, refs{{Name: "leaf"}}, ""},
		{"the default is a type like others", "universal", rootCluster, refs{{Name: "one"}, {Name: "universal"}}, "root:universal -> root:universal"},
	} {
		got := r.ask(t, write(root, test.cluster, test.name, test.with))
		if test.way == "" {
			if got.code != http.StatusCreated {
				t.Errorf("%s: %v, want it made", test.reason, got)
			}
			continue
		}
		var status metav1.Status
		must(t, json.Unmarshal([]byte(got.body), &status))
		if got.code != http.StatusUnprocessableEntity || !strings.Contains(status.Message, "a type cannot extend itself: ") || !strings.Contains(status.Message, test.way) {
			t.Errorf("%s: %v, want 422 with %q", test.reason, got, test.way)
		}
	}

	// A change is looked at as far as it is one.
	change := asked{method: http.MethodPatch, path: clustersPrefix + string(rootCluster) + tenancy + "workspacetypes/three", token: root,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}}
	for patch, code := range map[string]int{
		`{"spec":{"extend":{"with":[{"name":"one"}]}}}`:       http.StatusUnprocessableEntity, // which extends two, which extends three
		`{"spec":{"additionalWorkspaceLabels":{"a":"b"}}}`:    http.StatusOK,
		`{"spec":{"extend":{"with":[{"name":"universal"}]}}}`: http.StatusOK,
	} {
		change.body = patch
		if got := r.ask(t, change); got.code != code {
			t.Errorf("%s: %v, want %d", patch, got, code)
		}
	}

	// What bob may not use is nothing to him: he learns not even that it would lead back.
	waitForCode(t, r, asked{path: clustersPrefix + string(bank) + tenancy + "workspacetypes", token: alice}, http.StatusOK)
	if got := r.ask(t, write(alice, bank, "far", refs{{Name: "near", Path: "root:shop"}})); got.code != http.StatusCreated {
		t.Errorf("alice extends what is not there yet: %v", got)
	}
	waitForCode(t, r, asked{path: clustersPrefix + string(shop) + tenancy + "workspacetypes", token: bob}, http.StatusOK)
	if got := r.ask(t, write(bob, shop, "near", refs{{Name: "far", Path: "root:bank"}})); got.code != http.StatusCreated {
		t.Errorf("bob extends what he may not use: %v", got)
	}
	r.waitForAnswer(t, shop, "root:shop:near", alice, http.StatusForbidden, "circular dependency detected in workspace type root:shop:near")
	// And it can be repaired, by who sees it, too.
	change.path, change.token = clustersPrefix+string(shop)+tenancy+"workspacetypes/near", alice
	for patch, code := range map[string]int{`{"metadata":{"labels":{"a":"b"}}}`: http.StatusOK, `{"spec":{"extend":{"with":[{"name":"far","path":"root:bank"},{"name":"x"}]}}}`: http.StatusUnprocessableEntity} {
		change.body = patch
		if got := r.ask(t, change); got.code != code {
			t.Errorf("alice sends %s: %v, want %d", patch, got, code)
		}
	}
	change.body = `{"spec":{"extend":null}}`
	if got := r.ask(t, change); got.code != http.StatusOK {
		t.Errorf("alice opens the circle: %v", got)
	}
	r.waitForAnswer(t, shop, "root:shop:near", alice, http.StatusCreated, `"name":"near"`)
}

// The tenant of a workspace cannot give it another type, which limits what may be in it.
func TestTypeOfAWorkspaceIsKept(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, shop, "root:shop", "root:team")
	r.bindAdmin(t, "alice", shop)
	change := asked{method: http.MethodPatch, path: clustersPrefix + string(shop) + "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", token: alice,
		header: map[string]string{"Content-Type": "application/merge-patch+json"},
		body:   `{"metadata":{"annotations":{"mine":"yes","` + tenancyv1alpha1.TypeAnnotation + `":"root:universal"}}}`}
	waitForCode(t, r, change, http.StatusOK)
	if got := r.ask(t, change); !strings.Contains(got.body, `"mine":"yes"`) || !strings.Contains(got.body, `"`+tenancyv1alpha1.TypeAnnotation+`":"root:team"`) {
		t.Errorf("after alice annotated it: %s", got.body)
	}
	// A slip of an administrator's hand does not lose the workspace.
	for patch, code := range map[string]int{
		`{"metadata":{"annotations":{"kcp.io/path":null,"internal.tenancy.kcp.io/type":null}}}`: http.StatusOK,
		`{"metadata":{"annotations":null}}`:                                                     http.StatusOK,
		`{"metadata":{"annotations":{"kcp.io/path":"root:bank"}}}`:                              http.StatusUnprocessableEntity,
		`{"metadata":{"annotations":{"internal.tenancy.kcp.io/type":"root:other"}}}`:            http.StatusUnprocessableEntity,
	} {
		change.token, change.body = root, patch
		if got := r.ask(t, change); got.code != code || !strings.Contains(got.body, "root:shop") && !strings.Contains(got.body, "root:team") {
			t.Errorf("an administrator sends %s: %v", patch, got)
		}
		kept := r.ask(t, asked{path: change.path, token: root})
		if !strings.Contains(kept.body, `"kcp.io/path":"root:shop"`) || !strings.Contains(kept.body, `"`+tenancyv1alpha1.TypeAnnotation+`":"root:team"`) {
			t.Errorf("after an administrator sent %s: %s", patch, kept.body)
		}
	}
}

// A policy of the workspace above takes the path of the type away when everything has looked at it: of which type the new one is
// nobody would know, and its limits hold nobody below.
func TestTypeKeepsItsPath(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, rootCluster, "root", "")
	r.describe(t, shop, "root:shop", "root:universal")
	r.bindAdmin(t, "alice", shop)
	r.place(t, shop).bindMutating(t, `
metadata: {name: strip}
spec:
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
    - {apiGroups: [tenancy.kcp.io], apiVersions: ["*"], operations: [CREATE], resources: [workspaces]}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: 'has(object.spec.type) && has(object.spec.type.path) ? [JSONPatch{op: "remove", path: "/spec/type/path"}] : []'
`)
	waitFor(t, 30*time.Second, "a workspace whose type lost its path is refused", func() (string, bool) {
		got := r.ask(t, asked{method: http.MethodPost, path: clustersPrefix + string(shop) + tenancy + "workspaces?dryRun=All", token: alice,
			body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"team"}}`})
		return fmt.Sprint(got), got.code == http.StatusForbidden && strings.Contains(got.body, "a webhook or a policy changed spec.type")
	})
}
