package server

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// FuzzOwnerOf: whatever the annotation says, nobody works as the server, one of its parts, an administrator or a member of a group.
func FuzzOwnerOf(f *testing.F) {
	for _, owner := range []string{
		"olga", "", user.APIServerUser, reservedPrefix + "syncer", "system:kcp:serviceaccount:shopname:default:robot", "system:serviceaccount:default:robot", "system:masters", "system:anonymous",
		"\x00", "{\"username\":\"olga\"}", "{\"username\":\"olga\",\"groups\":[\"system:masters\"]}",
	} {
		f.Add(owner)
	}
	f.Fuzz(func(t *testing.T, owner string) {
		who := ownerOf(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: owner}}})
		if who == nil {
			return
		}
		name := who.GetName()
		if name == "" || name == user.APIServerUser || strings.HasPrefix(name, reservedPrefix) || reserved(name) {
			t.Errorf("what %q owns is worked in as %q", owner, name)
		}
		if groups := who.GetGroups(); len(groups) != 1 || groups[0] != user.AllAuthenticated || len(who.GetExtra()) > 0 || who.GetUID() != "" {
			t.Errorf("what %q owns is worked in as %+v", owner, who)
		}
	})
}
