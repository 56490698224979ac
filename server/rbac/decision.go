package rbac

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	kcp "github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"

	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/turns"
)

const (
	// mostVisits bounds what one decision looks at: a step for each binding, each subject of one, each rule of a role, and each
	// word of a rule. It is a hundred times what large workspaces have, and takes some 50 ms. What is beyond it allows nothing.
	mostVisits = 1_000_000
	// roleVisits are the steps that it takes to find a role.
	roleVisits = 20
	// shortVisits are what decisions take that need not wait. A decision that takes more waits for a turn.
	shortVisits = 50_000
	// decisionWaiters is how many decisions of one logical cluster have their turn or wait for it.
	decisionWaiters = 1000
	// fewGroups of a user are looked through for each subject in one step.
	fewGroups = 16
	// mostErrors is how many roles that are not there are named.
	mostErrors = 10
)

// bounds are what the decisions of all logical clusters share.
type bounds struct {
	// long lets decisions go on that are long: one at a time of a logical cluster, and half as many as there are CPUs of all.
	long *turns.Few[kcp.Name]
	last lastLong
}

func newBounds() *bounds {
	return &bounds{
		long: turns.NewFew[kcp.Name](max(1, runtime.GOMAXPROCS(0)/2), decisionWaiters),
		last: lastLong{seed: maphash.MakeSeed()},
	}
}

// scope is where bindings are: in a namespace, or with namespace "" for all of a logical cluster.
type scope struct {
	cluster   kcp.Name
	namespace string
}

// lastLong remembers in which scopes there were many bindings when they were last read, so that who reads them again waits for his
// turn before. It may forget one for another, and takes no lock.
type lastLong struct {
	seed   maphash.Seed
	scopes [1 << 12]atomic.Uint64 // their hashes, each at the place that it leads to
}

func (l *lastLong) place(s scope) (at *atomic.Uint64, hash uint64) {
	hash = maphash.Comparable(l.seed, s)
	return &l.scopes[hash%uint64(len(l.scopes))], hash
}

func (l *lastLong) has(s scope) bool {
	at, hash := l.place(s)
	return at.Load() == hash
}

func (l *lastLong) set(s scope, long bool) {
	at, hash := l.place(s)
	switch was := at.Load(); {
	case long && was != hash:
		at.Store(hash)
	case !long && was == hash:
		at.CompareAndSwap(hash, 0)
	}
}

// decision is the view that upstream's rule resolver has of roles and bindings for one decision. It leaves out what cannot matter:
// bindings of others, and a role that it has shown already. It ends with the request, and when it has looked at too much.
type decision struct {
	getters Getters
	bounds  *bounds
	cluster kcp.Name
	of      user.Info
	each    int
	most    int

	spent  int
	over   error // why it looks no further
	seen   map[roleName]bool
	groups sets.Set[string] // of the user, nil while nobody had to look through them or they are few
	wrong  int              // roles that could not be read
	turn   func()           // ends the turn of the logical cluster, nil without one
}

// roleName is that of a ClusterRole without a namespace.
type roleName struct{ namespace, name string }

// decide begins a decision, which its caller ends. Each is how many steps one step at a rule counts for.
func (r *Rules) decide(ctx context.Context, of user.Info, each int) *decision {
	c, _ := logicalcluster.ClusterFrom(ctx) // getters refuse a context without one
	return &decision{getters: r.getters, bounds: r.bounds, cluster: c.Name, of: of, each: each, most: mostVisits}
}

// spend counts steps. Its error is told once: what is asked afterwards has nothing in it.
func (d *decision) spend(ctx context.Context, steps int) error {
	if d.over != nil {
		return nil
	}
	d.spent += steps
	switch {
	case d.spent > d.most:
		d.over = fmt.Errorf("what %q may do was not found in the first %d bindings, subjects and words of rules that had to be looked at, and no more are: "+
			"delete RoleBindings, ClusterRoleBindings or rules that nobody needs, or let bindings name groups in place of many users", d.of.GetName(), d.most)
	case ctx.Err() != nil:
		d.over = fmt.Errorf("the request ended before it was known what %q may do: %w", d.of.GetName(), context.Cause(ctx))
	case d.spent > shortVisits:
		d.over = d.wait(ctx)
	}
	return d.over
}

// wait waits for the turn of the logical cluster, unless the decision has it.
func (d *decision) wait(ctx context.Context) error {
	if d.turn != nil {
		return nil
	}
	end, err := d.bounds.long.Take(ctx, d.cluster)
	if err != nil {
		return fmt.Errorf("what %q may do takes long to find out here, and others wait for the same (%w): try again, or "+
			"delete RoleBindings, ClusterRoleBindings or rules that nobody needs", d.of.GetName(), err)
	}
	d.turn = end
	return nil
}

// resolver is upstream's, of this decision.
func (d *decision) resolver() *rbacregistryvalidation.DefaultRuleResolver {
	return rbacregistryvalidation.NewDefaultRuleResolver(d, d, d, d)
}

// end gives up the turn.
func (d *decision) end() {
	if d.turn != nil {
		d.turn()
	}
}

// ListRoleBindings implements upstream's RoleBindingLister, as the others do their interfaces.
func (d *decision) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return look(ctx, d, namespace, func() ([]*rbacv1.RoleBinding, int, error) {
		found, looked, err := d.getters.RoleBindings(ctx, namespace, d.mayConcern)
		for _, b := range found {
			looked += d.comparisons(b.Subjects)
		}
		return found, looked, err
	})
}

func (d *decision) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return look(ctx, d, metav1.NamespaceNone, func() ([]*rbacv1.ClusterRoleBinding, int, error) {
		found, looked, err := d.getters.ClusterRoleBindings(ctx, d.mayConcern)
		for _, b := range found {
			looked += d.comparisons(b.Subjects)
		}
		return found, looked, err
	})
}

// look reads bindings. Where there were many it waits before it reads them again.
func look[T any](ctx context.Context, d *decision, namespace string, read func() ([]*T, int, error)) ([]*T, error) {
	where, ahead := scope{d.cluster, namespace}, 0
	if d.bounds.last.has(where) {
		ahead = shortVisits + 1
	}
	if err := d.spend(ctx, ahead); err != nil || d.over != nil {
		return nil, err
	}
	found, steps, err := read()
	if err != nil {
		return nil, err
	}
	d.bounds.last.set(where, steps > shortVisits)
	return found, d.spend(ctx, steps)
}

func (d *decision) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	return once(ctx, d, roleName{namespace, name}, func() (*rbacv1.Role, int, error) {
		role, err := d.getters.GetRole(ctx, namespace, name)
		if err != nil {
			return nil, 0, err
		}
		return role, visits(role.Rules), nil
	})
}

func (d *decision) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	return once(ctx, d, roleName{name: name}, func() (*rbacv1.ClusterRole, int, error) {
		role, err := d.getters.GetClusterRole(ctx, name)
		if err != nil {
			return nil, 0, err
		}
		return role, visits(role.Rules), nil
	})
}

// once reads a role. The second time it is empty: what its rules allow does not depend on the binding that leads to it.
func once[T any](ctx context.Context, d *decision, name roleName, read func() (*T, int, error)) (*T, error) {
	if d.seen[name] {
		return new(T), nil
	}
	if err := d.spend(ctx, roleVisits); err != nil || d.over != nil {
		return new(T), err
	}
	if d.seen == nil {
		d.seen = map[roleName]bool{}
	}
	d.seen[name] = true
	role, steps, err := read()
	if err != nil {
		if d.wrong++; d.wrong > mostErrors {
			return new(T), nil
		}
		return nil, err
	}
	return role, d.spend(ctx, steps*d.each)
}

// visits is how many steps it takes to look at rules.
func visits(rules []rbacv1.PolicyRule) int {
	n := len(rules)
	for i := range rules {
		r := &rules[i]
		n += len(r.Verbs) + len(r.APIGroups) + len(r.Resources) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	return n
}

// mayConcern says whether a subject of a binding may mean the user. The rule resolver says whether it does.
func (d *decision) mayConcern(subject *rbac.Subject) bool {
	switch subject.Kind {
	case rbac.UserKind:
		return subject.Name == d.of.GetName()
	case rbac.GroupKind:
		return d.inGroup(subject.Name)
	case rbac.ServiceAccountKind:
		return strings.HasSuffix(d.of.GetName(), subject.Name)
	}
	return false
}

func (d *decision) inGroup(name string) bool {
	groups := d.of.GetGroups()
	if len(groups) <= fewGroups {
		return slices.Contains(groups, name)
	}
	if d.groups == nil {
		d.groups = sets.New(groups...)
	}
	return d.groups.Has(name)
}

// comparisons are the steps that it takes the rule resolver to compare subjects with the user's groups, one by one: a
// SubjectAccessReview may say that he is in any number of them.
func (d *decision) comparisons(subjects []rbacv1.Subject) int {
	return len(subjects) * (len(d.of.GetGroups()) / fewGroups)
}
