package rbac

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// deepest is how many roles may take their rules from each other in a row: admin takes from edit, which takes from view. It
	// bounds what the roles of one logical cluster cost, and ends those that take from each other in a circle without settling.
	deepest = 16
	// mostSteps bounds the rest: each requirement of a selector that is held against a role is a step, each rule that is taken is
	// ruleSteps and one for every stepBytes of its text. They are spent in about a second.
	mostSteps = 2_000_000
	ruleSteps = 10
	stepBytes = 16
)

// ErrUnsettled is wrapped by the errors of Aggregate that stay until roles change.
var ErrUnsettled = errors.New("rules of aggregated ClusterRoles are left as they are")

// Aggregate fills the rules of the roles that have an aggregation rule, as Kubernetes' controller does: the rules of the
// roles that match one of its selectors, in the order of their names, each rule once. Roles are all those of one logical
// cluster; the others are not changed. After an error the roles are of no use.
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
				return fmt.Errorf("%w: aggregation rule of %q: %w", ErrUnsettled, role.Name, err)
			}
			selectors = append(selectors, selector)
		}
		aggregated[role.Name] = selectors
	}
	names, takers := slices.Sorted(maps.Keys(byName)), slices.Sorted(maps.Keys(aggregated))
	left := mostSteps
	var changed []string
	for range deepest + 1 { // once more, to see that nothing changes
		changed = nil
		for _, name := range takers {
			rules := sum(name, aggregated[name], byName, names, &left)
			if left < 0 {
				return fmt.Errorf("%w: %d that have an aggregation rule select too many of %d, or too many rules; %q is where it became too much", ErrUnsettled, len(takers), len(names), name)
			}
			if !SameRules(rules, byName[name].Rules) {
				byName[name].Rules, changed = rules, append(changed, name)
			}
		}
		if len(changed) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: %s take their rules from others, and those from others, through more than %d, or in a circle that never settles", ErrUnsettled, some(changed), deepest)
}

// some names the first few.
func some(names []string) string {
	const few = 10
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}

// sum is the rules of all roles but name that one of the selectors matches. It takes its steps from left, and ends early when
// there are none.
func sum(name string, selectors []labels.Selector, byName map[string]*rbacv1.ClusterRole, names []string, left *int) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	known := map[string]bool{}
	for _, selector := range selectors {
		requirements, _ := selector.Requirements()
		for _, other := range names {
			if *left -= 1 + len(requirements); *left < 0 {
				return nil
			}
			if other == name || !selector.Matches(labels.Set(byName[other].Labels)) {
				continue
			}
			for _, rule := range byName[other].Rules {
				if *left -= ruleSteps; *left < 0 {
					return nil
				}
				key := keyOf(rule)
				if *left -= len(key) / stepBytes; !known[key] {
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
