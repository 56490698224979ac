package rbac

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"k8s.io/kubernetes/pkg/apis/rbac"
)

// IsMember says whether a binding that the logical cluster of ctx has itself, in whatever namespace and of whatever role,
// names a user or a group of his. The bindings that all logical clusters share make nobody a member.
func (s *Stores) IsMember(ctx context.Context, who user.Info) (bool, error) {
	g := storeGetters{s}
	everywhere, _, err := g.scope(ctx, aboutClusterRoleBindings, metav1.NamespaceNone)
	if err != nil {
		return false, err
	}
	bindings, err := list[*rbac.ClusterRoleBindingList](everywhere, s.ClusterRoleBindings)
	if err != nil {
		return false, err
	}
	for i := range bindings.Items {
		if named(who, bindings.Items[i].Subjects, "") {
			return true, nil
		}
	}
	inNamespaces, _, err := g.scope(ctx, aboutRoleBindings, metav1.NamespaceAll)
	if err != nil {
		return false, err
	}
	roleBindings, err := list[*rbac.RoleBindingList](inNamespaces, s.RoleBindings)
	if err != nil {
		return false, err
	}
	for i := range roleBindings.Items {
		if named(who, roleBindings.Items[i].Subjects, roleBindings.Items[i].Namespace) {
			return true, nil
		}
	}
	return false, nil
}

// named says whether one of the subjects of a binding in a namespace is a user or a group of his.
func named(who user.Info, subjects []rbac.Subject, namespace string) bool {
	return slices.ContainsFunc(subjects, func(subject rbac.Subject) bool {
		switch subject.Kind {
		case rbac.UserKind:
			return who.GetName() == subject.Name
		case rbac.GroupKind:
			return slices.Contains(who.GetGroups(), subject.Name)
		case rbac.ServiceAccountKind:
			in := subject.Namespace
			if in == "" {
				in = namespace
			}
			return in != "" && serviceaccount.MatchesUsername(in, subject.Name, who.GetName())
		}
		return false
	})
}
