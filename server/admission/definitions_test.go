package admission

import (
	"context"
	"fmt"
	"strings"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
)

var admin = &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}

func definitionsTest() *Definitions {
	return NewDefinitions(func(name lc.Name) (int, customresources.Weight) {
		return map[lc.Name]int{"full": 3, "roomy": 2, "raised": 3}[name], customresources.Weight{Bytes: 3 << 20, Rules: 10, Compiled: customresources.Compiled(10, 0)}
	}, func(name lc.Name) (int, int64) {
		return map[lc.Name]int{"full": 3, "roomy": 3, "raised": 4}[name], map[lc.Name]int64{"full": 4 << 20, "roomy": 100 << 20}[name]
	}, func(name lc.Name) string { return "root:" + name.String() })
}

func TestDefinitions(t *testing.T) {
	d := definitionsTest()
	for _, test := range []struct {
		reason, cluster, resource, subresource string
		who                                    user.Info
		refused                                bool
	}{
		{"there is room", "roomy", "customresourcedefinitions", "", alice, false},
		{"it has more room than others", "raised", "customresourcedefinitions", "", alice, false},
		{"there is none", "full", "customresourcedefinitions", "", alice, true},
		{"administrators may make more", "full", "customresourcedefinitions", "", admin, false},
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
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "widgets.shop.example", resource, "", admission.Update, nil, false, alice)
	if err := d.Validate(logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "full"}), a, nil); err != nil || d.Handles(admission.Delete) {
		t.Errorf("what is there can neither be changed nor deleted: %v", err)
	}
}

// weighing is a definition of so many schemas and rules.
func weighing(schemas, rules int) *apiextensions.CustomResourceDefinition {
	crd := &apiextensions.CustomResourceDefinition{}
	crd.Spec.Versions = []apiextensions.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensions.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
			AllOf: make([]apiextensions.JSONSchemaProps, schemas), XValidations: make(apiextensions.ValidationRules, rules),
		},
	}}}
	return crd
}

// TestDefinitionsThatWeighMuch: one is refused that weighs too much, whoever writes it, and one that is too much for its
// workspace; what is there can be changed to what weighs no more.
func TestDefinitionsThatWeighMuch(t *testing.T) {
	d := definitionsTest()
	for _, test := range []struct {
		reason      string
		cluster     string
		old, new    *apiextensions.CustomResourceDefinition
		subresource string
		who         user.Info
		says        string
	}{
		{"there is room", "roomy", nil, weighing(10_000, 10), "", alice, ""},
		{"too many schemas", "roomy", nil, weighing(50_000, 0), "", alice, "one may take 16 MiB of memory"},
		{"too many expressions", "roomy", nil, weighing(1, 1001), "", alice, "1001 expressions in x-kubernetes-validations: one may have 1000"},
		{"too many of an administrator", "roomy", nil, weighing(50_000, 0), "", admin, "one may take 16 MiB of memory"},
		{"it becomes too many", "roomy", weighing(1, 0), weighing(50_000, 0), "", alice, "one may take 16 MiB of memory"},
		{"it was too many, and is no more", "roomy", weighing(50_000, 2000), weighing(50_000, 2000), "", alice, ""},
		{"it was too many, and is less", "roomy", weighing(50_000, 2000), weighing(49_000, 1500), "", alice, ""},
		{"fewer schemas, and more expressions", "roomy", weighing(50_000, 0), weighing(49_000, 1), "", alice, "one may take 16 MiB of memory"},
		{"a status that is too large", "roomy", weighing(1, 0), func() *apiextensions.CustomResourceDefinition {
			crd := weighing(1, 0)
			crd.Status.Conditions = make([]apiextensions.CustomResourceDefinitionCondition, 200_000)
			return crd
		}(), "status", alice, "one may take 16 MiB of memory"},
		{"too much for the workspace", "full", nil, weighing(4_000, 1), "", alice, `workspace "root:full" would take 6 MiB of memory, and may take 4 MiB: this one takes 3 MiB, with 1 expressions;`},
		{"rules that are too much for it", "full", nil, weighing(1, 20), "", alice, "with 20 expressions"},
		{"administrators may make more", "full", nil, weighing(4_000, 0), "", admin, ""},
		{"it becomes too much for it", "full", weighing(1_000, 0), weighing(4_000, 0), "", alice, "would take 5 MiB of memory, and may take 4 MiB"},
		{"it becomes less, and all are still too much", "full", weighing(4_000, 10), weighing(3_999, 10), "", alice, ""},
	} {
		t.Run(test.reason, func(t *testing.T) {
			operation, old := admission.Create, runtime.Object(nil)
			if test.old != nil {
				operation, old = admission.Update, test.old
			}
			resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
			a := admission.NewAttributesRecord(test.new, old, schema.GroupVersionKind{}, "", "widgets.shop.example", resource, test.subresource, operation, nil, true, test.who)
			ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: lc.Name(test.cluster)})
			err := admitted(ctx, d, a)
			if (err == nil) != (test.says == "") || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%v, want %q", err, test.says)
			}
			if strings.Contains(fmt.Sprint(err), "root:full") && !strings.Contains(err.Error(), "--max-definition-bytes-per-workspace, or limits.atoll.dev/definition-bytes") {
				t.Errorf("%v; want what an administrator can do", err)
			}
		})
	}
}

func admitted(ctx context.Context, d *Definitions, a admission.Attributes) error {
	if !d.Handles(a.GetOperation()) {
		return nil
	}
	return d.Admit(ctx, a, nil)
}
