package server

import (
	"strings"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// TypeName is how people write a type of workspaces, as root:org:team; of one that is looked for by its name alone, that; ""
// of none. It is how a type stands in exports and in TypeParameter.
func TypeName(t *tenancyv1alpha1.WorkspaceTypeReference) string {
	switch {
	case t == nil:
		return ""
	case t.Path == "":
		return t.Name
	}
	return t.Path + ":" + t.Name
}

// TypeReference is the type of a TypeName.
func TypeReference(name string) *tenancyv1alpha1.WorkspaceTypeReference {
	if name == "" {
		return nil
	}
	i := strings.LastIndexByte(name, ':')
	return &tenancyv1alpha1.WorkspaceTypeReference{Path: name[:max(i, 0)], Name: name[i+1:]}
}
