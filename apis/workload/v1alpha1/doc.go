// Package v1alpha1 holds the types of API group workload.kcp.io.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=workload.kcp.io
package v1alpha1
