package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	kapihelper "k8s.io/kubernetes/pkg/apis/core/helper"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
)

const (
	// mostRights bounds what a role may give if it is compared with what its giver holds: upstream writes down each verb on each
	// resource of each group with each name, and a role of a few KB may mean more of these than memory holds.
	mostRights = 100_000
	// mostCompared bounds that comparison: each right is held against each word of each rule that the giver holds. It takes about half a second.
	mostCompared = 10_000_000
)

// grant is what a request would give.
type grant struct{ rights int }

type grantKey struct{}

// granting is the store of a kind with upstream's check that nobody grants what they do not hold, and bounds on what that takes.
type granting struct {
	checked
	authorizer authorizer.Authorizer
}

// checked is what upstream's stores with the check are.
type checked interface {
	rest.StandardStorage
	rest.Scoper
	rest.SingularNameProvider
	rest.StorageVersionProvider
}

// Create implements rest.Creater.
func (s *granting) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	ctx, g := withGrant(ctx)
	if err := s.measure(ctx, g, obj); err != nil {
		return nil, err
	}
	return s.checked.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater.
func (s *granting) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateNew rest.ValidateObjectFunc,
	validate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	ctx, g := withGrant(ctx)
	info = rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if rbacregistry.IsOnlyMutatingGCFields(obj, old, kapihelper.Semantic) {
			return obj, nil // upstream does not check it
		}
		return obj, s.measure(ctx, g, obj)
	})
	return s.checked.Update(ctx, name, info, validateNew, validate, forceAllowCreate, options)
}

func withGrant(ctx context.Context) (context.Context, *grant) {
	g := &grant{}
	return context.WithValue(ctx, grantKey{}, g), g
}

// measure refuses a role that would be checked and gives too much. What a binding gives is measured by the resolver.
func (s *granting) measure(ctx context.Context, g *grant, obj runtime.Object) error {
	var resource schema.GroupResource
	var name string
	var rules []rbac.PolicyRule
	switch o := obj.(type) {
	case *rbac.Role:
		resource, name, rules = rbac.Resource("roles"), o.Name, o.Rules
	case *rbac.ClusterRole:
		resource, name, rules = rbac.Resource("clusterroles"), o.Name, o.Rules
	default:
		return nil
	}
	versioned := &rbacv1.ClusterRole{}
	if err := rbacv1helpers.Convert_rbac_ClusterRole_To_v1_ClusterRole(&rbac.ClusterRole{Rules: rules}, versioned, nil); err != nil {
		return err
	}
	g.rights = rights(versioned.Rules)
	if g.rights <= mostRights || rbacregistry.EscalationAllowed(ctx) || rbacregistry.RoleEscalationAuthorized(ctx, s.authorizer) {
		return nil
	}
	return tooManyRights(resource, name, `let somebody write it whom a role gives the verb "escalate" on it`)
}

func tooManyRights(resource schema.GroupResource, name, or string) error {
	return apierrors.NewForbidden(resource, name, fmt.Errorf("it gives more than %d rights, one for each verb on each resource of each group with each name, "+
		`which are too many to compare with those that you hold: make several roles of it, write "*" for what it lists, or %s`, mostRights, or))
}

// rights is how many rights rules give, and mostRights + 1 for all that is more.
func rights(rules []rbacv1.PolicyRule) int {
	n := 0
	for i := range rules {
		r := &rules[i]
		each := len(r.APIGroups)
		for _, choices := range []int{len(r.Resources), len(r.Verbs), max(1, len(r.ResourceNames))} {
			each = min(each*choices, mostRights+1)
		}
		n = min(n+each+len(r.NonResourceURLs)*len(r.Verbs), mostRights+1)
	}
	return n
}

// resolver is what the check compares by.
type resolver struct{ *Rules }

var _ rbacregistryvalidation.AuthorizationRuleResolver = resolver{}

// GetRoleReferenceRules returns the rules that a binding gives.
func (r resolver) GetRoleReferenceRules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		who = &user.DefaultInfo{}
	}
	d := r.decide(ctx, who, 1)
	defer d.end()
	rules, err := d.resolver().GetRoleReferenceRules(ctx, ref, namespace)
	if err != nil {
		return nil, err
	}
	n := rights(rules)
	if n > mostRights {
		return nil, tooManyRights(rbac.Resource(resourceOf(ref)), ref.Name, `let somebody bind it whom a role gives the verb "bind" on it`)
	}
	if g, ok := ctx.Value(grantKey{}).(*grant); ok {
		g.rights = n
	}
	return rules, nil
}

func resourceOf(ref rbacv1.RoleRef) string {
	if ref.Kind == "Role" {
		return "roles"
	}
	return "clusterroles"
}

// RulesFor returns the rules of who gives something, as many as can be compared with what he gives.
func (r resolver) RulesFor(ctx context.Context, who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	d := r.compare(ctx, who)
	defer d.end()
	return d.resolver().RulesFor(ctx, who, namespace)
}

// VisitRulesFor is RulesFor, one by one.
func (r resolver) VisitRulesFor(ctx context.Context, who user.Info, namespace string, visit func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool) {
	d := r.compare(ctx, who)
	defer d.end()
	d.resolver().VisitRulesFor(ctx, who, namespace, visit)
}

func (r resolver) compare(ctx context.Context, who user.Info) *decision {
	each := 1
	if g, ok := ctx.Value(grantKey{}).(*grant); ok {
		each = max(each, g.rights)
	}
	d := r.decide(ctx, who, each)
	d.most = mostCompared
	return d
}
