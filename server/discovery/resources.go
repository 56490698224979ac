package discovery

import (
	"cmp"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	endpoints "k8s.io/apiserver/pkg/endpoints/discovery"

	"atoll.dev/atoll/server/customresources"
)

// What can be done with objects, with those of a definition that goes, and with a subresource.
var (
	allVerbs         = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	terminatingVerbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	subresourceVerbs = metav1.Verbs{"get", "patch", "update"}
)

var scaleKind = metav1.GroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))

// groupVersion is a version of a group, and the definitions that serve it, ordered by name; at least one.
type groupVersion struct {
	schema.GroupVersion
	definitions []customresources.Definition
}

// byVersion returns what definitions serve. A version that is
// built in is the server's alone, as in kube-apiserver: what defines more resources there is not reached by any path.
func byVersion(definitions []customresources.Definition, known versions) surface {
	found := map[schema.GroupVersion][]customresources.Definition{}
	for _, d := range definitions {
		for _, v := range d.Spec.Versions {
			gv := schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
			if v.Served && !known.has(gv) {
				found[gv] = append(found[gv], d)
			}
		}
	}
	all := make(surface, 0, len(found))
	for gv, definitions := range found {
		all = append(all, groupVersion{gv, definitions})
	}
	slices.SortFunc(all, func(a, b groupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
	})
	return all
}

// groupOf returns a group as definitions make it, without versions if none do.
func groupOf(name string, s surface) metav1.APIGroup {
	group := metav1.APIGroup{Name: name}
	for _, v := range s {
		if v.Group == name {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: v.String(), Version: v.Version})
		}
	}
	if len(group.Versions) > 0 {
		group.PreferredVersion = group.Versions[0]
	}
	return group
}

// mergedGroup returns a built-in group to which definitions add versions. As in kube-apiserver, those are preferred.
func mergedGroup(known, custom metav1.APIGroup) metav1.APIGroup {
	merged := known
	merged.Versions = slices.Concat(custom.Versions, known.Versions)
	merged.PreferredVersion = merged.Versions[0]
	return merged
}

// allGroups returns the built-in groups in their order, each with what definitions add to it, and then the other groups
// of the definitions by name: clients that know a resource by its name alone take the first group that has it.
func allGroups(known []metav1.APIGroup, s surface) []metav1.APIGroup {
	all := make([]metav1.APIGroup, 0, len(known)+len(s))
	isKnown := map[string]bool{}
	for _, group := range known {
		isKnown[group.Name] = true
		if custom := groupOf(group.Name, s); len(custom.Versions) > 0 {
			group = mergedGroup(group, custom)
		}
		all = append(all, group)
	}
	for _, name := range groupNames(s) {
		if !isKnown[name] {
			all = append(all, groupOf(name, s))
		}
	}
	return all
}

// groupNames are those of the definitions, in order.
func groupNames(s surface) []string {
	var names []string
	for _, v := range s {
		if len(names) == 0 || names[len(names)-1] != v.Group {
			names = append(names, v.Group)
		}
	}
	return names
}

// resources are those of the version with their subresources, one after the other.
func (v groupVersion) resources() []metav1.APIResource {
	found := []metav1.APIResource{}
	for _, d := range v.definitions {
		names := d.Status.AcceptedNames
		namespaced := d.Spec.Scope == apiextensionsv1.NamespaceScoped
		found = append(found, metav1.APIResource{
			Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind,
			Verbs: verbsOf(d), ShortNames: names.ShortNames, Categories: names.Categories,
			StorageVersionHash: storageVersionHash(d),
		})
		status, scale := subresourcesOf(d, v.Version)
		if status {
			found = append(found, metav1.APIResource{
				Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: subresourceVerbs,
			})
		}
		if scale {
			found = append(found, metav1.APIResource{
				Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: subresourceVerbs,
				Group: scaleKind.Group, Version: scaleKind.Version, Kind: scaleKind.Kind,
			})
		}
	}
	return found
}

// aggregated is the version with its resources, as in the aggregated document.
func (v groupVersion) aggregated() apidiscoveryv2.APIVersionDiscovery {
	all := apidiscoveryv2.APIVersionDiscovery{Version: v.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, d := range v.definitions {
		names := d.Status.AcceptedNames
		kind := metav1.GroupVersionKind{Group: v.Group, Version: v.Version, Kind: names.Kind}
		resource := apidiscoveryv2.APIResourceDiscovery{
			Resource: names.Plural, SingularResource: names.Singular, Scope: apidiscoveryv2.ScopeCluster, ResponseKind: &kind,
			Verbs: verbsOf(d), ShortNames: names.ShortNames, Categories: names.Categories,
		}
		if d.Spec.Scope == apiextensionsv1.NamespaceScoped {
			resource.Scope = apidiscoveryv2.ScopeNamespace
		}
		status, scale := subresourcesOf(d, v.Version)
		if status {
			resource.Subresources = append(resource.Subresources, apidiscoveryv2.APISubresourceDiscovery{
				Subresource: "status", ResponseKind: &kind, Verbs: subresourceVerbs,
			})
		}
		if scale {
			resource.Subresources = append(resource.Subresources, apidiscoveryv2.APISubresourceDiscovery{
				Subresource: "scale", ResponseKind: &scaleKind, Verbs: subresourceVerbs,
			})
		}
		all.Resources = append(all.Resources, resource)
	}
	return all
}

func verbsOf(d customresources.Definition) metav1.Verbs {
	if apihelpers.IsCRDConditionTrue(d.CustomResourceDefinition, apiextensionsv1.Terminating) {
		return terminatingVerbs
	}
	return allVerbs
}

// subresourcesOf says which subresources objects have in one of the definition's versions.
func subresourcesOf(d customresources.Definition, version string) (status, scale bool) {
	for _, v := range d.Spec.Versions {
		if v.Name == version && v.Subresources != nil {
			return v.Subresources.Status != nil, v.Subresources.Scale != nil
		}
	}
	return false, false
}

// storageVersionHash names the version in which objects are stored, and is empty if that version is not served.
func storageVersionHash(d customresources.Definition) string {
	for _, v := range d.Spec.Versions {
		if v.Storage && v.Served {
			return endpoints.StorageVersionHash(d.Spec.Group, v.Name, d.Spec.Names.Kind)
		}
	}
	return ""
}
