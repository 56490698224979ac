package rbac

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	kcp "github.com/kcp-dev/logicalcluster/v3"

	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// asked counts what is asked of it.
type asked struct {
	Getters
	lists, roles int
	looked       int    // beside what there is
	before       func() // each role
}

func (a *asked) RoleBindings(ctx context.Context, namespace string, concerns func(*rbac.Subject) bool) ([]*rbacv1.RoleBinding, int, error) {
	a.lists++
	found, looked, err := a.Getters.RoleBindings(ctx, namespace, concerns)
	return found, looked + a.looked, err
}

func (a *asked) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	a.roles++
	if a.before != nil {
		a.before()
	}
	return a.Getters.GetClusterRole(ctx, name)
}

// manyRules allow nothing that anybody asks for.
func manyRules(n int) []rbacv1.PolicyRule {
	rules := make([]rbacv1.PolicyRule, n)
	for i := range rules {
		rules[i] = rbacv1.PolicyRule{Verbs: []string{"x"}, APIGroups: []string{""}, Resources: []string{"x"}}
	}
	return rules
}

// boundTo has so many bindings of bob in aa, in turn to so many ClusterRoles of so many rules each, or to one each that is not there.
func boundTo(bindings, roles, rules int) *fakeGetters {
	same := manyRules(rules)
	g := &fakeGetters{
		clusterRoles: map[kcp.Name]map[string]*rbacv1.ClusterRole{"aa": {}},
		roleBindings: map[kcp.Name][]*rbacv1.RoleBinding{},
	}
	for i := range roles {
		name := fmt.Sprint("role", i)
		g.clusterRoles["aa"][name] = &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: same}
	}
	for i := range bindings {
		role := i
		if roles > 0 {
			role %= roles
		}
		g.roleBindings["aa"] = append(g.roleBindings["aa"], &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("binding", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: fmt.Sprint("role", role)},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbac.GroupName, Name: "bob"}},
		})
	}
	return g
}

func ofBob() authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "bob"}, Verb: "get", Resource: "pods", Namespace: "default", ResourceRequest: true,
	}
}

// However many bindings lead to a role, a decision reads it once: fifty thousand bindings to fifty thousand rules would take a CPU
// for a minute.
func TestARoleIsLookedAtOnce(t *testing.T) {
	g := &asked{Getters: boundTo(50_000, 2, 50_000)}
	authz, _ := NewAuthorizer(g)
	decision, why, err := authz.Authorize(in(t.Context(), "aa"), ofBob())
	if decision != authorizer.DecisionNoOpinion || why != "" || err != nil || g.roles != 2 {
		t.Errorf("decision %v (%s), error %v, after %d reads of roles; want no opinion after 2", decision, why, err, g.roles)
	}
}

func TestDecisionsEnd(t *testing.T) {
	const roles = 1000
	for name, tc := range map[string]struct {
		getters  Getters
		looked   int
		want     string // part of the reason
		mostRead int
		reason   string
	}{
		"rules without number": {
			boundTo(roles, roles, mostVisits/100), 0, "delete RoleBindings", 100, "rules are counted, and their words",
		},
		"bindings without number": {boundTo(1, 1, 1), mostVisits, "delete RoleBindings", 0, "bindings are counted"},
		"roles that are not there": {
			boundTo(roles, 0, 0), 0, `"role0" not found`, roles, "the reason names the role",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &asked{Getters: tc.getters, looked: tc.looked}
			authz, rules := NewAuthorizer(g)
			decision, why, err := authz.Authorize(in(t.Context(), "aa"), ofBob())
			if decision != authorizer.DecisionNoOpinion || err != nil || !strings.Contains(why, tc.want) || len(why) > 1000 || g.roles > tc.mostRead {
				t.Errorf("decision %v, error %v, after %d reads of roles, for %d letters: %.1000s; want no opinion after %d, with %q: %s",
					decision, err, g.roles, len(why), why, tc.mostRead, tc.want, tc.reason)
			}
			g.roles = 0
			_, _, incomplete, err := rules.RulesFor(in(t.Context(), "aa"), &user.DefaultInfo{Name: "bob"}, "default")
			if err == nil || !strings.Contains(err.Error(), tc.want) || g.roles > tc.mostRead || incomplete != (tc.want == "delete RoleBindings") {
				t.Errorf("all rules: %.1000v, incomplete %v, after %d reads of roles; want %q: %s", err, incomplete, g.roles, tc.want, tc.reason)
			}
		})
	}
}

// A review may say that somebody is in any number of groups.
func TestGroupsAreCounted(t *testing.T) {
	g := boundTo(100, 1, 1)
	for _, b := range g.roleBindings["aa"] {
		b.Subjects = nil
		for i := range 1000 {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "Group", APIGroup: rbac.GroupName, Name: fmt.Sprint("other", i)})
		}
	}
	authz, _ := NewAuthorizer(g)
	groups := make([]string, 1000)
	for i := range groups {
		groups[i] = fmt.Sprint("group", i)
	}
	attrs := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "bob", Groups: groups}, Verb: "get", Resource: "pods", Namespace: "default", ResourceRequest: true}
	decided, why, err := authz.Authorize(in(t.Context(), "aa"), attrs)
	if decided != authorizer.DecisionNoOpinion || err != nil || !strings.Contains(why, "delete RoleBindings") {
		t.Errorf("decision %v (%s), error %v, want that it is given up", decided, why, err)
	}
	d := &decision{of: attrs.User}
	for name, want := range map[string]bool{"group0": true, "group999": true, "other0": false} {
		if got := d.mayConcern(&rbac.Subject{Kind: "Group", Name: name}); got != want {
			t.Errorf("may concern a member of group0 to group999 by %s: %v", name, got)
		}
	}
}

// What comes first still allows.
func TestWhatWasFoundCounts(t *testing.T) {
	g := boundTo(1000, 1000, mostVisits/100)
	g.clusterRoles["aa"]["role0"] = everything()
	g.clusterRoles["aa"]["role999"] = everything()
	authz, _ := NewAuthorizer(g)
	if decision, why, err := authz.Authorize(in(t.Context(), "aa"), ofBob()); decision != authorizer.DecisionAllow {
		t.Errorf("allowed by the first binding: decision %v (%s), error %v", decision, why, err)
	}
	g.clusterRoles["aa"]["role0"] = &rbacv1.ClusterRole{}
	if decision, why, err := authz.Authorize(in(t.Context(), "aa"), ofBob()); decision != authorizer.DecisionNoOpinion {
		t.Errorf("allowed by what is beyond the bound: decision %v (%s), error %v", decision, why, err)
	}
}

func TestADecisionEndsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := &asked{Getters: boundTo(1000, 1000, 1), before: cancel}
	authz, _ := NewAuthorizer(g)
	decision, why, err := authz.Authorize(in(ctx, "aa"), ofBob())
	if decision != authorizer.DecisionNoOpinion || err != nil || !strings.Contains(why, "request ended") || g.roles != 1 {
		t.Errorf("decision %v (%s), error %v, %d roles read; want no opinion after one", decision, why, err, g.roles)
	}
	if _, _, err := authz.Authorize(in(ctx, "aa"), ofBob()); err != nil || g.lists != 1 {
		t.Errorf("bindings are read %d times (%v); want none after the end", g.lists, err)
	}
}

// Long decisions of one logical cluster wait for each other, short ones and those of others do not. Where there were many bindings
// they wait before they read them.
func TestLongDecisionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &asked{Getters: boundTo(shortVisits+1, 1, 1)}
		authz, rules := NewAuthorizer(g)
		end, err := rules.bounds.long.Take(t.Context(), "aa")
		if err != nil {
			t.Fatal(err)
		}
		decided := make(chan string, 2)
		decide := func() {
			_, why, err := authz.Authorize(in(t.Context(), "aa"), ofBob())
			decided <- fmt.Sprint(why, err)
		}
		go decide()
		synctest.Wait()
		if g.lists != 1 || g.roles != 0 || len(decided) != 0 {
			t.Errorf("the first: %d lists, %d roles, %d decided while another has the turn; want that it waits after its list", g.lists, g.roles, len(decided))
		}
		go decide()
		synctest.Wait()
		if g.lists != 1 || len(decided) != 0 {
			t.Errorf("the second: %d lists, %d decided; want that it waits before its list", g.lists-1, len(decided))
		}
		short := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "bob"}, Verb: "get", Path: "/x"}
		if _, why, err := authz.Authorize(in(t.Context(), "aa"), short); why != "" || err != nil {
			t.Errorf("one that reads no RoleBindings: %s, %v", why, err)
		}
		end()
		for range 2 {
			if got := <-decided; got != "<nil>" {
				t.Errorf("after the turn: %s", got)
			}
		}
		if n := rules.bounds.long.Len(); n != 0 {
			t.Errorf("%d have a turn with nobody left", n)
		}
		g.Getters = boundTo(1, 1, 1)
		decide()
		if rules.bounds.last.has(scope{"aa", "default"}) {
			t.Error("a scope that is small again is still taken for large")
		}
	})
}

func TestRights(t *testing.T) {
	many := make([]string, 3000)
	for name, tc := range map[string]struct {
		rule rbacv1.PolicyRule
		want int
	}{
		"nothing":   {rbacv1.PolicyRule{}, 0},
		"names":     {rbacv1.PolicyRule{Verbs: many[:2], APIGroups: many[:3], Resources: many[:5], ResourceNames: many[:7]}, 210},
		"all names": {rbacv1.PolicyRule{Verbs: many[:2], APIGroups: many[:3], Resources: many[:5]}, 30},
		"paths":     {rbacv1.PolicyRule{Verbs: many[:2], NonResourceURLs: many[:4]}, 8},
		"too many":  {rbacv1.PolicyRule{Verbs: many, APIGroups: many, Resources: many, ResourceNames: many}, mostRights + 1},
	} {
		if got := rights([]rbacv1.PolicyRule{tc.rule}); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// Who gives something has it compared with what he holds, which is bounded by both.
func TestGrantsAreBounded(t *testing.T) {
	g := &asked{Getters: boundTo(1000, 1000, 100)}
	_, rules := NewAuthorizer(g)
	resolver := resolver{rules}
	ctx, given := withGrant(in(t.Context(), "aa"))
	bob := &user.DefaultInfo{Name: "bob"}
	ctx = genericapirequest.WithNamespace(genericapirequest.WithUser(ctx, bob), "default")

	held, err := resolver.RulesFor(ctx, bob, "default")
	if err != nil || len(held) != 1000*100 {
		t.Fatalf("%d rules are held (%v), want all", len(held), err)
	}
	given.rights = mostRights
	held, err = resolver.RulesFor(ctx, bob, "default")
	if err == nil || len(held)*given.rights > mostCompared {
		t.Errorf("%d rights are compared with %d rules (%v)", given.rights, len(held), err)
	}
	if err := rbacregistryvalidation.ConfirmNoEscalation(ctx, resolver, everything().Rules); err == nil || !strings.Contains(err.Error(), "delete RoleBindings") {
		t.Errorf("who cannot be compared gives: %.1000v; want to be told why", err)
	}

	words := strings.Split(strings.Repeat("x ", 3000), " ")
	g.Getters.(*fakeGetters).clusterRoles["aa"]["role0"].Rules = []rbacv1.PolicyRule{{Verbs: words, APIGroups: words, Resources: words}}
	_, err = resolver.GetRoleReferenceRules(ctx, rbacv1.RoleRef{Kind: "ClusterRole", Name: "role0"}, "default")
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"bind"`) {
		t.Errorf("a binding to what gives without number: %v, want forbidden and what to do", err)
	}
	if _, err := resolver.GetRoleReferenceRules(ctx, rbacv1.RoleRef{Kind: "ClusterRole", Name: "role1"}, "default"); err != nil || given.rights != 100 {
		t.Errorf("a binding to a hundred rules: %d rights, %v", given.rights, err)
	}
}
