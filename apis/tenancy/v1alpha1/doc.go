// Package v1alpha1 holds the types of API group tenancy.kcp.io.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.kcp.tenancy.v1alpha1
// +groupName=tenancy.kcp.io
package v1alpha1
