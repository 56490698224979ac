package rbac

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"

	rbacauthorizer "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// NewAuthorizer decides by the roles and bindings of the request's logical cluster, after members of system:masters,
// who may do anything anywhere. Rules are what it decides by.
func NewAuthorizer(getters Getters) (authorizer.Authorizer, *Rules) {
	rules := &Rules{getters: getters, bounds: newBounds()}
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	return union.New(masters, byRoles{rules}), rules
}

// Rules are what users may do by the roles and bindings of a logical cluster. What it takes to find that out is bounded, as whoever
// may write roles there says how many there are, and a request that is refused waits for nobody's turn in server/fairness.
type Rules struct {
	getters Getters
	bounds  *bounds
}

var _ authorizer.RuleResolver = &Rules{}

// RulesFor lists a user's rules for SelfSubjectRulesReview.
func (r *Rules) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	d := r.decide(ctx, who, 1)
	defer d.end()
	resources, others, incomplete, err := rbacauthorizer.New(d, d, d, d).RulesFor(ctx, who, namespace)
	return resources, others, incomplete || d.over != nil, err
}

type byRoles struct{ *Rules }

// Authorize implements authorizer.Authorizer.
func (b byRoles) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	d := b.decide(ctx, attrs.GetUser(), 1)
	defer d.end()
	return rbacauthorizer.New(d, d, d, d).Authorize(ctx, attrs)
}
