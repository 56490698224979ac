package discovery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/atoll/server/customresources"
)

// known are definitions by logical cluster.
type known map[logicalcluster.Name][]customresources.Definition

func (k known) Served(cluster logicalcluster.Name) []customresources.Definition { return k[cluster] }
func (known) WaitSynced(context.Context) error                                  { return nil }

// served returns definitions as they are once their names are accepted.
func served(t *testing.T, definitions ...*apiextensionsv1.CustomResourceDefinition) []customresources.Definition {
	t.Helper()
	var all []customresources.Definition
	for _, d := range definitions {
		raw, err := json.Marshal([]any{d.Spec, d.Status.AcceptedNames})
		if err != nil {
			t.Fatal(err)
		}
		hash := sha256.Sum256(raw)
		all = append(all, customresources.Definition{CustomResourceDefinition: d, Hash: hex.EncodeToString(hash[:])})
	}
	return all
}

// define returns an established definition of a namespaced resource such as widgets.stable.example.com, whose objects
// have one field in spec. Versions are served and the first is stored, unless one is named with "-" before it.
func define(name, field string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	plural, group, _ := strings.Cut(name, ".")
	singular := strings.TrimSuffix(plural, "s")
	kind := strings.ToUpper(singular[:1]) + singular[1:]
	names := apiextensionsv1.CustomResourceDefinitionNames{
		Plural: plural, Singular: singular, Kind: kind, ListKind: kind + "List",
		ShortNames: []string{singular[:2]}, Categories: []string{"all"},
	}
	d := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Generation: 1},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped, Names: names,
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
	for _, of := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		d.Status.Conditions = append(d.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: of, Status: apiextensionsv1.ConditionTrue})
	}
	for i, version := range versions {
		version, hidden := strings.CutPrefix(version, "-")
		d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: !hidden, Storage: i == 0, Schema: schemaOf(field),
		})
	}
	return d
}

func schemaOf(field string) *apiextensionsv1.CustomResourceValidation {
	return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: fmt.Sprintf("has %s", field),
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				field: {Type: "string", Description: "is a field", Pattern: "^[a-z]+$", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}},
				"any": {XPreserveUnknownFields: new(true), Type: "object"},
				"in":  {XEmbeddedResource: true, XPreserveUnknownFields: new(true), Type: "object"},
				"int": {XIntOrString: true},
			}},
			"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"replicas": {Type: "integer", Nullable: true}}},
		},
	}}
}

// withSubresources gives the first version status and scale, and a field to select by.
func withSubresources(d *apiextensionsv1.CustomResourceDefinition, field string) *apiextensionsv1.CustomResourceDefinition {
	d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		Scale: &apiextensionsv1.CustomResourceSubresourceScale{
			SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
		},
	}
	d.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec." + field}}
	return d
}

func clusterScoped(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Spec.Scope = apiextensionsv1.ClusterScoped
	return d
}

func terminating(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Status.Conditions = append(d.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue,
	})
	return d
}

// sample are definitions of all sorts, ordered by name.
func sample() []*apiextensionsv1.CustomResourceDefinition {
	return []*apiextensionsv1.CustomResourceDefinition{
		clusterScoped(define("gadgets.stable.example.com", "size", "v1", "v1beta1", "-v1alpha1")),
		terminating(define("goners.stable.example.com", "end", "v1")),
		define("hidden.stable.example.com", "none", "-v3"),
		define("things.apiextensions.k8s.io", "more", "v2alpha1", "v2"),
		withSubresources(define("widgets.stable.example.com", "colour", "v2beta1", "v1", "v10", "foo"), "colour"),
		define("zebras.zoo.example.com", "stripes", "v1"),
	}
}
