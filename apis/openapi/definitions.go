package openapi

import (
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Definitions returns the definitions of our types by model name. It is what servers merge with Kubernetes' own.
//
// The generator cannot see that the packages of Kubernetes name their models, unless it generates their 17,000 lines
// again, so it refers to their types by Go path; Definitions turns these into the model names they are defined under.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	definitions := GetOpenAPIDefinitions(func(path string) spec.Ref { return ref(modelName(path)) })
	for name, definition := range definitions {
		for i, dependency := range definition.Dependencies {
			definition.Dependencies[i] = modelName(dependency)
		}
		definitions[name] = definition
	}
	return definitions
}

func modelName(path string) string {
	if strings.HasPrefix(path, "k8s.io/") {
		return util.ToRESTFriendlyName(path)
	}
	return path
}
