package workspaces

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// FuzzOwnerSubject: whoever owns a workspace, all rights in it are given to one user; never to a ServiceAccount of the workspace
// itself, and to one of the parent by a name that says all of it.
func FuzzOwnerSubject(f *testing.F) {
	for _, owner := range []string{
		"olga", "", "system:admin", "system:serviceaccount:default:robot", "system:serviceaccount:default:", "system:serviceaccount::robot", "system:serviceaccount:a:b:c", "system:serviceaccount:a.b:c",
		"system:serviceaccounts:default", "system:kcp:serviceaccount:shopname:default:robot", "SYSTEM:serviceaccount:default:robot", "system:serviceaccount:de fault:robot", " system:serviceaccount:default:robot",
	} {
		f.Add(owner, "shopname")
	}
	f.Fuzz(func(t *testing.T, owner, parent string) {
		if lcctx.ValidateName(parent) != nil {
			return
		}
		got := ownerSubject(owner, logicalcluster.Name(parent))
		if got.Kind != rbacv1.UserKind || got.APIGroup != rbacv1.GroupName || got.Namespace != "" {
			t.Errorf("%q is %+v", owner, got)
		}
		if _, _, err := serviceaccount.SplitUsername(got.Name); err == nil {
			t.Errorf("%q is %q, a ServiceAccount of the workspace", owner, got.Name)
		}
		if rest, is := strings.CutPrefix(got.Name, "system:kcp:serviceaccount:"+parent+":"); got.Name != owner && (!is || "system:serviceaccount:"+rest != owner) {
			t.Errorf("%q is %q", owner, got.Name)
		}
	})
}
