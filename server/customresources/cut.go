package customresources

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Admission refuses what weighs too much (Weight.Over). What etcd holds from before it did, or from somebody who wrote it
// there, would be decoded whenever it is listed and at every start, all of it. So it is read without its schemas: it says that
// it is not served, and why, and it can be deleted, with its objects, or written anew.
const (
	cutReason = "TooLarge"
	// cutDescription is that of the schema which stands for those that were not read.
	cutDescription = "Too large to be read by the API server, see the condition Established."
)

// mendCut says what to do. Who applies it server-side is told of a conflict otherwise: it is read without its managedFields, as what
// somebody else has written.
const mendCut = "apply all of it anew with fewer (with --force-conflicts where that is server-side), or delete it"

var errCut = errors.New("it is too large to be read, and would lose its schemas: " + mendCut)

// cutting is the codec of stored definitions. It decodes those that are too large without their schemas, and encodes none of
// these but to delete it.
type cutting struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (c cutting) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	why := tooLarge(data)
	if why == "" {
		return c.Codec.Decode(data, defaults, into)
	}
	crd, err := decodeCut(data, why)
	if err != nil {
		return nil, nil, err
	}
	out, ok := into.(*apiextensions.CustomResourceDefinition)
	if !ok {
		out = &apiextensions.CustomResourceDefinition{}
	}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, out, nil); err != nil {
		return nil, nil, fmt.Errorf("read CustomResourceDefinition %q without its schemas: %w", crd.Name, err)
	}
	return out, new(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")), nil
}

// Encode implements runtime.Encoder.
func (c cutting) Encode(obj runtime.Object, w io.Writer) error {
	if crd, ok := obj.(*apiextensions.CustomResourceDefinition); ok {
		if err := WhyCut(crd); err != nil {
			return apierrors.NewForbidden(apiextensions.Resource(definitions), crd.Name, err)
		}
	}
	return c.Codec.Encode(obj, w)
}

// WhyCut says why a definition may not be written that was read without its schemas; nil for all others, and for what goes.
func WhyCut(crd *apiextensions.CustomResourceDefinition) error {
	if crd.DeletionTimestamp != nil {
		return nil
	}
	isCut := func(v *apiextensions.CustomResourceValidation) bool {
		return v != nil && v.OpenAPIV3Schema != nil && v.OpenAPIV3Schema.Description == cutDescription
	}
	if isCut(crd.Spec.Validation) {
		return errCut
	}
	for i := range crd.Spec.Versions {
		if isCut(crd.Spec.Versions[i].Schema) {
			return errCut
		}
	}
	return nil
}

// isCut says whether a definition was read without its schemas.
func (d *Definition) isCut() bool {
	for i := range d.Spec.Versions {
		if v := d.Spec.Versions[i].Schema; v != nil && v.OpenAPIV3Schema != nil && v.OpenAPIV3Schema.Description == cutDescription {
			return true
		}
	}
	return false
}

// cutDefinition is what is read of a definition that is too large: what it takes to show and to delete it.
type cutDefinition struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group      string                                        `json:"group"`
		Names      apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
		Scope      apiextensionsv1.ResourceScope                 `json:"scope"`
		Conversion *apiextensionsv1.CustomResourceConversion     `json:"conversion"`
		Versions   []struct {
			Name    string `json:"name"`
			Served  bool   `json:"served"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		AcceptedNames  apiextensionsv1.CustomResourceDefinitionNames `json:"acceptedNames"`
		StoredVersions []string                                      `json:"storedVersions"`
	} `json:"status"`
}

func decodeCut(data []byte, why string) (*apiextensionsv1.CustomResourceDefinition, error) {
	var read cutDefinition
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("read a CustomResourceDefinition that is too large: %w", err)
	}
	read.ManagedFields = nil // of fields that were not read
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: read.ObjectMeta}
	crd.Spec.Group, crd.Spec.Names, crd.Spec.Scope, crd.Spec.Conversion = read.Spec.Group, read.Spec.Names, read.Spec.Scope, read.Spec.Conversion
	for _, v := range read.Spec.Versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v.Name, Served: v.Served, Storage: v.Storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Description: cutDescription, XPreserveUnknownFields: new(true),
			}},
		})
	}
	crd.Status.AcceptedNames, crd.Status.StoredVersions = read.Status.AcceptedNames, read.Status.StoredVersions
	crd.Status.Conditions = []condition{{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, LastTransitionTime: crd.CreationTimestamp,
		Reason: cutReason, Message: why + "; it is read without its schemas, and not served: " + mendCut,
	}}
	return crd, nil
}

// schemaBytes is what a schema takes at least.
var schemaBytes = int(reflect.TypeFor[apiextensions.JSONSchemaProps]().Size())

// tooLarge says why a stored definition is not decoded, and is empty for those that admission lets pass: it counts what alone
// makes a short text large, and no other bytes.
func tooLarge(text []byte) string {
	// Nearly all are short of both, which takes microseconds to find out.
	if bytes.Count(text, []byte("{"))*schemaBytes <= MostBytes &&
		bytes.Count(text, []byte(`"rule":`))+bytes.Count(text, []byte(`"messageExpression":`)) <= MostRules {
		return ""
	}
	switch schemas, rules := contents(text); {
	case schemas*schemaBytes > MostBytes:
		return fmt.Sprintf("it has %d schemas (each property, item and alternative is one), and one CustomResourceDefinition may have some %d, of %s of memory", schemas, MostBytes/schemaBytes, MiB(MostBytes))
	case rules > MostRules:
		return fmt.Sprintf("it has %d expressions in x-kubernetes-validations, and one CustomResourceDefinition may have %d", rules, MostRules)
	}
	return ""
}

// place is what a value of a definition's JSON is.
type place byte

const (
	other   place = iota
	aSchema       // a schema
	schemas       // an object or array of schemas
	ruled         // an array of rules
	aRule
	data // a value that only looks like one of the others: a default, an example
)

// contents counts the schemas and the expressions in the JSON of a stored definition. It allocates as much as values are nested.
func contents(text []byte) (found, expressions int) {
	type container struct {
		place
		isObject bool
	}
	var stack []container
	top := container{}
	var key []byte
	keyNext := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if keyNext {
				key, keyNext = text[i+1:min(end, len(text))], false
				if top.place == aRule && string(key) == "messageExpression" {
					expressions++
				}
			}
			i = end
		case '{', '[':
			next := container{inside(top.place, key, c == '{'), c == '{'}
			switch next.place {
			case aSchema:
				found++
			case aRule:
				expressions++
			}
			stack = append(stack, top)
			top, keyNext = next, next.isObject
		case '}', ']':
			if len(stack) > 0 {
				top, stack = stack[len(stack)-1], stack[:len(stack)-1]
			}
			keyNext = false
		case ',':
			keyNext = top.isObject
		}
	}
	return found, expressions
}

// inside is what an object or array is that stands in another one, by a key if that is an object.
func inside(outer place, key []byte, object bool) place {
	switch outer {
	case other:
		if string(key) == "openAPIV3Schema" {
			return aSchema
		}
		return other
	case schemas:
		if object {
			return aSchema
		}
	case ruled:
		return aRule
	case aSchema:
		switch string(key) {
		case "properties", "patternProperties", "definitions", "dependencies", "allOf", "oneOf", "anyOf":
			return schemas
		case "items":
			if object {
				return aSchema
			}
			return schemas
		case "additionalProperties", "additionalItems", "not":
			return aSchema
		case "x-kubernetes-validations":
			return ruled
		}
	}
	return data
}
