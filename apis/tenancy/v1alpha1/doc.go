// Package v1alpha1 holds the types of API group tenancy.kcp.io.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=tenancy.kcp.io
package v1alpha1
