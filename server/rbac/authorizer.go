package rbac

import (
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"

	rbacauthorizer "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// NewAuthorizer decides by the roles and bindings of the request's logical cluster, after members of system:masters,
// who may do anything anywhere. The resolver lists a user's rules for SelfSubjectRulesReview.
func NewAuthorizer(getters Getters) (authorizer.Authorizer, authorizer.RuleResolver) {
	byRoles := rbacauthorizer.New(getters, getters, getters, getters)
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	return union.New(masters, byRoles), byRoles
}
