package customresources

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
)

// BenchmarkDefine is what a server does at its start for each definition there is, of about 60 kB of JSON.
func BenchmarkDefine(b *testing.B) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "widgets.shop.example"
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for n := range 300 {
		properties[fmt.Sprintf("p%d", n)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("what this is for; ", 8)}
	}
	crd.Spec.Group = "shop.example"
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties},
	}}}
	codec := apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	row, err := runtime.Encode(codec, crd)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(row)))
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := runtime.Decode(codec, row); err != nil {
				b.Fatal(err)
			}
		}
	})
	stored, err := runtime.Decode(codec, row)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("define", func(b *testing.B) {
		s := &specs{}
		for b.Loop() {
			if _, err := s.define(stored.(*apiextensions.CustomResourceDefinition)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
