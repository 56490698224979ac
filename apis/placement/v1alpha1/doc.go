// Package v1alpha1 holds the types of API group placement.atoll.dev.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.atoll.placement.v1alpha1
// +groupName=placement.atoll.dev
package v1alpha1
