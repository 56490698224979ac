// Package v1alpha1 holds the types of API group core.kcp.io.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.kcp.core.v1alpha1
// +groupName=core.kcp.io
package v1alpha1
