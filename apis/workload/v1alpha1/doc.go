// Package v1alpha1 holds the types of API group workload.kcp.io.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.kcp.workload.v1alpha1
// +groupName=workload.kcp.io
package v1alpha1
