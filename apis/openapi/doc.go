// Package openapi holds the OpenAPI definitions of every type of ours, generated from their Go types and comments. They
// refer to definitions of Kubernetes' own types (metadata, conditions), which whoever serves them has to merge in.
//
// Names of definitions are the API group reversed, as Kubernetes names those of CRDs: io.kcp.core.v1alpha1.LogicalCluster.
package openapi
