package atollapis

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Registries and the storage factory look types up in this one scheme when they are built, which is after init.
func init() { utilruntime.Must(AddToScheme(legacyscheme.Scheme)) }

// AddToScheme adds our types to a scheme, each under its version and under the internal one.
func AddToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		corev1alpha1.AddToScheme,
		tenancyv1alpha1.AddToScheme,
		workloadv1alpha1.AddToScheme,
		placementv1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return err
		}
	}
	for _, gv := range GroupVersions() {
		if err := s.SetVersionPriority(gv); err != nil {
			return err
		}
	}
	for group, types := range map[string][]runtime.Object{
		corev1alpha1.GroupVersion.Group: {&corev1alpha1.LogicalCluster{}, &corev1alpha1.LogicalClusterList{}},
		tenancyv1alpha1.GroupVersion.Group: {
			&tenancyv1alpha1.Workspace{}, &tenancyv1alpha1.WorkspaceList{},
			&tenancyv1alpha1.WorkspaceType{}, &tenancyv1alpha1.WorkspaceTypeList{},
		},
		workloadv1alpha1.GroupVersion.Group: {&workloadv1alpha1.SyncTarget{}, &workloadv1alpha1.SyncTargetList{}},
		placementv1alpha1.GroupVersion.Group: {
			&placementv1alpha1.Placement{}, &placementv1alpha1.PlacementList{},
			&placementv1alpha1.PlacementPolicy{}, &placementv1alpha1.PlacementPolicyList{},
		},
	} {
		s.AddKnownTypes(schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}, types...)
	}
	return nil
}

// GroupVersions are the versions served here, for the server's resource configuration.
func GroupVersions() []schema.GroupVersion {
	return []schema.GroupVersion{
		corev1alpha1.GroupVersion,
		tenancyv1alpha1.GroupVersion,
		workloadv1alpha1.GroupVersion,
		placementv1alpha1.GroupVersion,
	}
}

// ConfigureStorage makes a storage factory over legacyscheme store our types as JSON, whatever the media type of the
// built-in ones is, and under <group>/<resource>, where custom resources are kept too. What it returns is to be used instead.
func ConfigureStorage(f *serverstorage.DefaultStorageFactory) serverstorage.StorageFactory {
	for _, r := range resources("") {
		f.SetSerializer(r.groupResource(), runtime.ContentTypeJSON, nil)
		f.SetResourceEtcdPrefix(r.groupResource(), r.groupResource().Group+"/"+r.groupResource().Resource)
	}
	return storedForms{f}
}

const gvkExtension = "x-kubernetes-group-version-kind"

// DefinitionNames wraps the function that names OpenAPI definitions (openapi.DefinitionNamer.GetDefinitionName over
// legacyscheme), and leaves the internal version out of what it says about a type: clients shall not see it.
func DefinitionNames(next func(string) (string, spec.Extensions)) func(string) (string, spec.Extensions) {
	return func(name string) (string, spec.Extensions) {
		name, extensions := next(name)
		kinds, ok := extensions[gvkExtension].([]any)
		if !ok {
			return name, extensions
		}
		served := make([]any, 0, len(kinds))
		for _, kind := range kinds {
			if k, ok := kind.(map[string]any); ok && k["version"] == runtime.APIVersionInternal {
				continue
			}
			served = append(served, kind)
		}
		extensions[gvkExtension] = served
		return name, extensions
	}
}
