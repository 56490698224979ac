package admission

import (
	"strings"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"atoll.dev/atoll/internal/logicalcluster"
)

func TestDefinitions(t *testing.T) {
	d := NewDefinitions(func(name lc.Name) int { return map[lc.Name]int{"full": 3, "roomy": 2, "raised": 3}[name] },
		func(name lc.Name) int { return map[lc.Name]int{"full": 3, "roomy": 3, "raised": 4}[name] },
		func(name lc.Name) string { return "root:" + name.String() })
	alice := &user.DefaultInfo{Name: "alice"}
	for _, test := range []struct {
		reason, cluster, resource, subresource string
		who                                    user.Info
		refused                                bool
	}{
		{"there is room", "roomy", "customresourcedefinitions", "", alice, false},
		{"it has more room than others", "raised", "customresourcedefinitions", "", alice, false},
		{"there is none", "full", "customresourcedefinitions", "", alice, true},
		{"administrators may make more", "full", "customresourcedefinitions", "", &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, false},
		{"others are no definitions", "full", "others", "", alice, false},
		{"a status is none", "full", "customresourcedefinitions", "status", alice, false},
	} {
		resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: test.resource}
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "widgets.shop.example", resource, test.subresource, admission.Create, nil, false, test.who)
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: lc.Name(test.cluster)})
		err := d.Validate(ctx, a, nil)
		if apierrors.IsForbidden(err) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %v, want a refusal: %v", test.reason, err, test.refused)
		}
		if test.refused && !strings.Contains(err.Error(), `workspace "root:full" has 3 CustomResourceDefinitions, and may have 3`) {
			t.Errorf("%s: %v; want the workspace and its numbers", test.reason, err)
		}
	}
	if d.Handles(admission.Update) || d.Handles(admission.Delete) {
		t.Error("what is there can neither be changed nor deleted")
	}
}
