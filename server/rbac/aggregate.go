package rbac

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// deepest is how many roles may take their rules from each other in a row: admin takes from edit, which takes from view. It
// bounds what the roles of one logical cluster cost, and ends those that take from each other in a circle without settling.
const deepest = 16

// Aggregate fills the rules of the roles that have an aggregation rule, as Kubernetes' controller does: the rules of the
// roles that match one of its selectors, in the order of their names, each rule once. Roles are all those of one logical
// cluster; the others are not changed.
func Aggregate(roles []rbacv1.ClusterRole) error {
	byName := make(map[string]*rbacv1.ClusterRole, len(roles))
	aggregated := map[string][]labels.Selector{}
	for i := range roles {
		role := &roles[i]
		byName[role.Name] = role
		if role.AggregationRule == nil {
			continue
		}
		selectors := make([]labels.Selector, 0, len(role.AggregationRule.ClusterRoleSelectors))
		for _, s := range role.AggregationRule.ClusterRoleSelectors {
			selector, err := metav1.LabelSelectorAsSelector(&s)
			if err != nil {
				return fmt.Errorf("aggregation rule of ClusterRole %q: %w", role.Name, err)
			}
			selectors = append(selectors, selector)
		}
		aggregated[role.Name] = selectors
	}
	names, takers := slices.Sorted(maps.Keys(byName)), slices.Sorted(maps.Keys(aggregated))
	for range deepest + 1 { // once more, to see that nothing changes
		changed := false
		for _, name := range takers {
			if rules := sum(name, aggregated[name], byName, names); !SameRules(rules, byName[name].Rules) {
				byName[name].Rules, changed = rules, true
			}
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("ClusterRoles %s take their rules from each other through more than %d, or in a circle that never settles", strings.Join(takers, ", "), deepest)
}

// sum is the rules of all roles but name that one of the selectors matches.
func sum(name string, selectors []labels.Selector, byName map[string]*rbacv1.ClusterRole, names []string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	known := map[string]bool{}
	for _, selector := range selectors {
		for _, other := range names {
			if other == name || !selector.Matches(labels.Set(byName[other].Labels)) {
				continue
			}
			for _, rule := range byName[other].Rules {
				if key := keyOf(rule); !known[key] {
					known[key] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// SameRules says whether two roles have the same rules in the same order.
func SameRules(a, b []rbacv1.PolicyRule) bool {
	return slices.EqualFunc(a, b, func(a, b rbacv1.PolicyRule) bool { return keyOf(a) == keyOf(b) })
}

// keyOf is equal for equal rules alone. No list and an empty one are the same.
func keyOf(rule rbacv1.PolicyRule) string {
	var b strings.Builder
	for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
		fmt.Fprintf(&b, "%q", list)
	}
	return b.String()
}
