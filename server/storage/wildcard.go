package storage

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
)

// wildcardFilter is the field selector that means on all logical clusters what rest means in one. rest is what the
// registry put after the resource prefix: "", a namespace, a name, or both; recursive says that it is a range and not
// one object. It returns nil for no filter.
func wildcardFilter(rest string, namespaced, recursive bool) (fields.Selector, error) {
	if rest == "" {
		return nil, nil
	}
	parts := strings.Split(rest, "/")
	namespace := func(v string) fields.Selector { return fields.OneTermEqualSelector("metadata.namespace", v) }
	name := func(v string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", v) }
	switch {
	case namespaced && recursive && len(parts) == 1:
		return namespace(parts[0]), nil
	case namespaced && !recursive && len(parts) == 2:
		return fields.AndSelectors(namespace(parts[0]), name(parts[1])), nil
	case !namespaced && !recursive && len(parts) == 1:
		return name(parts[0]), nil
	}
	return nil, fmt.Errorf("no filter on all logical clusters means %q", rest)
}
