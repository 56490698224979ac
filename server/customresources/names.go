package customresources

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Names are the names of resources and kinds that are in use, by API group. The zero value has none.
type Names map[string]names

// names are those of one group.
type names struct {
	// resources are plurals, singulars and short names, which share one space: each can be asked for.
	resources sets.Set[string]
	// plurals are those under which objects are stored.
	plurals sets.Set[string]
	// kinds are kinds and list kinds.
	kinds sets.Set[string]
}

// Add adds what a group serves.
func (n Names) Add(info *genericapiserver.APIGroupInfo) error {
	for version, resources := range info.VersionedResourcesStorageMap {
		for path, storage := range resources {
			if strings.Contains(path, "/") {
				continue
			}
			group := info.PrioritizedVersions[0].Group
			of, ok := n[group]
			if !ok {
				of = names{sets.New[string](), sets.New[string](), sets.New[string]()}
				n[group] = of
			}
			of.plurals.Insert(path)
			of.resources.Insert(path)
			if s, ok := storage.(rest.SingularNameProvider); ok {
				of.resources.Insert(s.GetSingularName())
			}
			if s, ok := storage.(rest.ShortNamesProvider); ok {
				of.resources.Insert(s.ShortNames()...)
			}
			kinds, _, err := info.Scheme.ObjectKinds(storage.New())
			if err != nil {
				return fmt.Errorf("find the kind of %s.%s.%s: %w", path, version, group, err)
			}
			for _, kind := range kinds {
				of.kinds.Insert(kind.Kind, kind.Kind+"List")
			}
		}
	}
	return nil
}

// resource says whether a group serves a resource of that plural name.
func (n Names) resource(group, plural string) bool { return n[group].plurals.Has(plural) }

// taken are the names of a group that def cannot have: those of built-in resources, and those accepted for others.
func taken(builtin names, others []*Definition, def *Definition) names {
	all := names{resources: builtin.resources.Clone(), kinds: builtin.kinds.Clone()}
	if all.resources == nil {
		all.resources, all.kinds = sets.New[string](), sets.New[string]()
	}
	for _, other := range others {
		if other.Name == def.Name {
			continue
		}
		accepted := other.Status.AcceptedNames
		all.resources.Insert(accepted.Plural, accepted.Singular)
		all.resources.Insert(accepted.ShortNames...)
		all.kinds.Insert(accepted.Kind, accepted.ListKind)
	}
	return all
}

// acceptNames returns which of the requested names a definition has from now on, and the condition that says so. A name
// that is taken leaves the one accepted before, if any.
func acceptNames(requested, accepted apiextensionsv1.CustomResourceDefinitionNames, taken names) (apiextensionsv1.CustomResourceDefinitionNames, apiextensionsv1.CustomResourceDefinitionCondition) {
	condition := apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue,
		Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason string, inUse ...string) {
		for i, name := range inUse {
			inUse[i] = fmt.Sprintf("%q is already in use", name)
		}
		condition.Status = apiextensionsv1.ConditionFalse
		condition.Reason, condition.Message = reason, strings.Join(inUse, ", ")
	}
	free := func(wanted, has string, used sets.Set[string]) bool { return wanted == has || !used.Has(wanted) }
	one := func(field *string, wanted, reason string, used sets.Set[string]) {
		if free(wanted, *field, used) {
			*field = wanted
			return
		}
		refuse(reason, wanted)
	}

	next := accepted
	one(&next.Plural, requested.Plural, "PluralConflict", taken.resources)
	one(&next.Singular, requested.Singular, "SingularConflict", taken.resources)
	var inUse []string
	for _, short := range requested.ShortNames {
		if !slices.Contains(accepted.ShortNames, short) && taken.resources.Has(short) {
			inUse = append(inUse, short)
		}
	}
	if len(inUse) == 0 {
		next.ShortNames = requested.ShortNames
	} else {
		refuse("ShortNamesConflict", inUse...)
	}
	one(&next.Kind, requested.Kind, "KindConflict", taken.kinds)
	one(&next.ListKind, requested.ListKind, "ListKindConflict", taken.kinds)
	next.Categories = requested.Categories
	return next, condition
}
