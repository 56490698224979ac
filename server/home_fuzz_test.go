package server

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// FuzzNameOfHome: whatever somebody is called, his home has a name that a Workspace can have, that is nobody else's, and that cannot
// be read as a path or as "~"; and who is called as a part of the system, or as nobody, has none.
func FuzzNameOfHome(f *testing.F) {
	for _, pair := range [][2]string{
		{"olga", "Olga"}, {"olga", "olga "}, {"olga@example.com", "olga"}, {"", "~"}, {"system:admin", "system:serviceaccount:default:robot"}, {"../olga", "olga/../olga"}, {"users", "root:users"},
		{"a\x00", "a"}, {"oidc:https://issuer#1", "oidc:https://issuer#2"}, {"the home of olga", "olga"}, {"ölga", "o\u0308lga"},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, who, other string) {
		name := nameOfHome(who)
		if !lcctx.IsNewName(name) || name != nameOfHome(who) {
			t.Errorf("the home of %q is called %q", who, name)
		}
		if who != other && name == nameOfHome(other) {
			t.Errorf("%q and %q have one home, %q", who, other, name)
		}
		if name == homesName || isHome(rootCluster, "get", tenancyv1alpha1.GroupVersion.Group, workspaceResource.Resource, "", name) {
			t.Errorf("the home of %q is called as something else: %q", who, name)
		}
		// "~" is somebody's home in one place alone, and asked for by one name.
		if is, want := isHome(logicalcluster.Name(who), "get", tenancyv1alpha1.GroupVersion.Group, workspaceResource.Resource, "", other), who == "root" && other == "~"; is != want {
			t.Errorf("%q in %q is a home: %v", other, who, is)
		}
		why := whyNoHome(&user.DefaultInfo{Name: who, Groups: []string{user.AllAuthenticated}}, false, []string{user.AllAuthenticated})
		if none := who == "" || strings.HasPrefix(who, "system:"); (why != "") != none {
			t.Errorf("%q has no home because %q", who, why)
		}
	})
}
