package syncer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// isolationPolicy is the name of the network policy that keeps tenants apart, in every namespace we make; further ones have
// names that begin so.
const isolationPolicy = "atoll-tenant-isolation"

// isFloor says whether a NetworkPolicy of that name is ours, and no workspace's.
func isFloor(name string) bool {
	return name == isolationPolicy || strings.HasPrefix(name, isolationPolicy+"-")
}

// NetworkPolicies only ever let in: what one of them lets in, no other takes away. So what is let in by default (from namespaces of the
// workspace, and from those of no workspace) must not be let in to pods that the user's own policies select:
//
//	no policy of the user's    isolationPolicy selects all pods, and lets in the default
//	some                       isolationPolicy selects all pods, and lets in nothing;
//	                           others let in the default to all pods that none of the user's selects
//
// isolationPolicy is always there and always selects all pods: whatever else is there or is late, nobody lets in other tenants, since
// what the user's policies let in does not, either (kinds).

// floor returns the policies that keep a namespace's tenant apart, in the order in which they are to be written, given which pods the
// user's policies select. ok is false if that takes too many.
func floor(namespace, workspace string, target types.UID, selected []metav1.LabelSelector) (policies []*unstructured.Unstructured, ok bool, err error) {
	rest, ok := unselected(selected)
	if !ok {
		return nil, false, nil
	}
	byDefault := []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{workloadv1alpha1.WorkspaceLabel: workspace}}},
		{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: workloadv1alpha1.WorkspaceLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
		}}},
	}}}
	add := func(name string, pods metav1.LabelSelector, ingress []networkingv1.NetworkPolicyIngressRule) error {
		policy, err := renderPolicy(namespace, name, workspace, target, pods, ingress)
		policies = append(policies, policy)
		return err
	}
	if len(selected) == 0 {
		err := add(isolationPolicy, metav1.LabelSelector{}, byDefault)
		return policies, true, err
	}
	for _, pods := range rest {
		text, err := json.Marshal(pods)
		if err != nil {
			return nil, false, fmt.Errorf("write a selector as JSON: %w", err)
		}
		sum := sha256.Sum256(text)
		if err := add(isolationPolicy+"-"+hex.EncodeToString(sum[:8]), pods, byDefault); err != nil {
			return nil, false, err
		}
	}
	err = add(isolationPolicy, metav1.LabelSelector{}, []networkingv1.NetworkPolicyIngressRule{})
	return policies, true, err
}

// selectedIn returns which pods of a downstream namespace the policies of its workspace select for what is let in, without that of one name:
// those that are there, and are to stay.
func (s *Syncer) selectedIn(namespace, less string) (selected []metav1.LabelSelector, err error) {
	policies := s.physical.informers[networkPoliciesGVR]
	names, _ := policies.IndexKeys(cache.NamespaceIndex, namespace) // fails only for an index that does not exist
	slices.Sort(names)
	for _, name := range names {
		_, name, _ := cache.SplitMetaNamespaceKey(name)
		k := key{networkPoliciesGVR, namespace, name}
		leaf, down := get(s.mirror.informers[networkPoliciesGVR], k), get(policies, k)
		if isFloor(name) || name == less || down == nil || down.GetDeletionTimestamp() != nil || leaf != nil && leaf.GetDeletionTimestamp() != nil {
			continue
		}
		pods, err := selectedBy(down)
		if err != nil {
			return nil, err
		}
		selected = append(selected, pods...)
	}
	return selected, nil
}

// selectedBy returns which pods a policy selects for what is let in; none if it is about what goes out alone.
func selectedBy(policy *unstructured.Unstructured) ([]metav1.LabelSelector, error) {
	p := &networkingv1.NetworkPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(policy.Object, p); err != nil {
		return nil, fmt.Errorf("read NetworkPolicy %s/%s: %w", policy.GetNamespace(), policy.GetName(), err)
	}
	if len(p.Spec.PolicyTypes) > 0 && !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
		return nil, nil
	}
	return []metav1.LabelSelector{p.Spec.PodSelector}, nil
}

func tooManyPolicies(namespace string) *refusal {
	return &refusal{"TooManyPolicies", fmt.Sprintf(
		"with this one, the pods of namespace %s that no NetworkPolicy selects would take more than %d selectors to name, or all policies there have more than %d labels and values: select pods by one label, or by labels of which one is common to all policies",
		namespace, maxUnselected, maxTerms)}
}

// roomFor says why a workspace's policy cannot be there beside the others of its namespace; nil if it can.
func (s *Syncer) roomFor(leaf *unstructured.Unstructured) error {
	selected, err := s.selectedIn(leaf.GetNamespace(), leaf.GetName())
	if err != nil {
		return err
	}
	own, err := selectedBy(leaf)
	if err != nil {
		return err
	}
	if _, ok := unselected(append(selected, own...)); !ok {
		return tooManyPolicies(leaf.GetNamespace())
	}
	return nil
}

// floorOf returns what is to be written, in that order, and then deleted, so that a namespace has its floor.
func (s *Syncer) floorOf(namespace, workspace string) (write, remove []*unstructured.Unstructured, err error) {
	selected, err := s.selectedIn(namespace, "")
	if err != nil {
		return nil, nil, err
	}
	wanted, ok, err := floor(namespace, workspace, types.UID(s.config.UID), selected)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, tooManyPolicies(namespace)
	}
	policies := s.physical.informers[networkPoliciesGVR]
	names := map[string]bool{}
	for _, want := range wanted {
		names[want.GetName()] = true
		if toApply(want, get(policies, key{networkPoliciesGVR, namespace, want.GetName()})) != leaveIt {
			write = append(write, want)
		}
	}
	there, _ := policies.IndexKeys(cache.NamespaceIndex, namespace)
	slices.Sort(there)
	for _, name := range there {
		_, name, _ := cache.SplitMetaNamespaceKey(name)
		if down := get(policies, key{networkPoliciesGVR, namespace, name}); down != nil && isFloor(name) && !names[name] && down.GetDeletionTimestamp() == nil {
			remove = append(remove, down)
		}
	}
	return write, remove, nil
}

// layFloor writes and deletes what floorOf returned.
func (s *Syncer) layFloor(ctx context.Context, write, remove []*unstructured.Unstructured) error {
	for _, want := range write {
		k := key{networkPoliciesGVR, want.GetNamespace(), want.GetName()}
		if _, err := s.apply(ctx, k, get(s.physical.informers[networkPoliciesGVR], k), want); err != nil {
			return err
		}
	}
	for _, down := range remove {
		err := s.physical.dynamic.Resource(networkPoliciesGVR).Namespace(down.GetNamespace()).Delete(ctx, down.GetName(),
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(down.GetUID())}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the policy %s of namespace %s: %w", down.GetName(), down.GetNamespace(), err)
		}
	}
	return nil
}

func renderPolicy(namespace, name, workspace string, target types.UID, pods metav1.LabelSelector, ingress []networkingv1.NetworkPolicyIngressRule) (*unstructured.Unstructured, error) {
	policy := &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{
				workloadv1alpha1.SyncTargetLabel: string(target),
				workloadv1alpha1.WorkspaceLabel:  workspace,
			},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: pods, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: ingress,
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(policy)
	if err != nil {
		return nil, fmt.Errorf("render policy %s: %w", name, err)
	}
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	if len(ingress) == 0 { // said, or what is there would stay
		if err := unstructured.SetNestedSlice(content, []any{}, "spec", "ingress"); err != nil {
			return nil, fmt.Errorf("render policy %s: %w", name, err)
		}
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// maxUnselected bounds the policies that let in the default. Selectors of one label each, or of labels of which one is common to
// all, need a policy or two; n selectors of two labels that have nothing in common need two to the power of n.
// maxTerms bounds what a look at a namespace's policies costs: nobody's policies are to keep a cluster's workers from all others.
const (
	maxUnselected = 64
	maxTerms      = 128 // labels, expressions and their values, in all different selectors
)

// constraint is what a pod's label of one key has to be: absent, or one of in, or none of not; present if exists is set.
type constraint struct {
	absent, exists bool
	in, not        []string // sorted; in is nil if it does not matter
}

// constraints are those of a selector by their keys; all have to hold.
type constraints map[string]constraint

// unselected returns selectors that together select exactly the pods that none of selected does; ok is false if they are too many,
// or too many to find. The order of selected does not matter.
func unselected(selected []metav1.LabelSelector) (rest []metav1.LabelSelector, ok bool) {
	different, ok := distinct(selected)
	if !ok {
		return nil, false
	}
	all := []constraints{{}}
	for _, s := range different {
		against := contradictions(s)
		var next, others []constraints
		for _, have := range all { // one that s selects nothing of stays as it is: all else that it led to would be a part of it
			if slices.ContainsFunc(against, func(c contradiction) bool { return have[c.key].implies(c.constraint) }) {
				next = append(next, have)
			} else {
				others = append(others, have)
			}
		}
		for _, have := range others {
			for _, c := range against {
				with, possible := have[c.key].and(c.constraint)
				if !possible {
					continue
				}
				one := maps.Clone(have)
				one[c.key] = with
				if next = absorb(next, one); len(next) > maxUnselected {
					return nil, false
				}
			}
		}
		all = next
	}
	for _, one := range all {
		rest = append(rest, one.selector())
	}
	slices.SortFunc(rest, func(a, b metav1.LabelSelector) int { return cmp.Compare(a.String(), b.String()) })
	return rest, true
}

// distinct returns the selectors without their equals, the shortest first: they leave the least to look at. ok is false if they
// have more than maxTerms.
func distinct(selectors []metav1.LabelSelector) (different []metav1.LabelSelector, ok bool) {
	type measured struct {
		metav1.LabelSelector
		text  string
		terms int
	}
	var all []measured
	for _, s := range selectors {
		terms := len(s.MatchLabels)
		for _, e := range s.MatchExpressions {
			terms += 1 + len(e.Values)
		}
		if terms > maxTerms {
			return nil, false
		}
		all = append(all, measured{s, s.String(), terms})
	}
	slices.SortFunc(all, func(a, b measured) int { return cmp.Or(cmp.Compare(a.terms, b.terms), cmp.Compare(a.text, b.text)) })
	all = slices.CompactFunc(all, func(a, b measured) bool { return a.text == b.text })
	terms := 0
	for _, s := range all {
		terms += s.terms
		different = append(different, s.LabelSelector)
	}
	return different, terms <= maxTerms
}

// contradiction is what a pod's label of one key has to be for one requirement of a selector not to hold.
type contradiction struct {
	key string
	constraint
}

// contradictions are what a pod has to be one of not to be selected; nothing if the selector selects all.
func contradictions(s metav1.LabelSelector) (all []contradiction) {
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		all = append(all, contradiction{key, constraint{not: []string{s.MatchLabels[key]}}})
	}
	for _, e := range s.MatchExpressions {
		values := slices.Compact(slices.Sorted(slices.Values(e.Values)))
		all = append(all, contradiction{e.Key, map[metav1.LabelSelectorOperator]constraint{
			metav1.LabelSelectorOpIn:           {not: values},
			metav1.LabelSelectorOpNotIn:        {exists: true, in: values},
			metav1.LabelSelectorOpExists:       {absent: true},
			metav1.LabelSelectorOpDoesNotExist: {exists: true},
		}[e.Operator]})
	}
	return all
}

// and is what holds if both hold; possible is false if both cannot.
func (c constraint) and(d constraint) (both constraint, possible bool) {
	if c.absent || d.absent {
		return constraint{absent: true}, !c.exists && !d.exists
	}
	both = constraint{exists: c.exists || d.exists, not: slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.not, d.not))))}
	switch {
	case c.in == nil:
		both.in = d.in
	case d.in == nil:
		both.in = c.in
	default:
		both.in = intersection(c.in, d.in)
	}
	if both.in == nil {
		return both, true
	}
	both.in, both.not = lacking(both.in, both.not), nil
	return both, len(both.in) > 0
}

// implies says whether whatever c allows, d does.
func (c constraint) implies(d constraint) bool {
	switch {
	case c.absent:
		return d.absent || !d.exists
	case d.absent:
		return false
	case c.in != nil:
		return (d.in == nil || len(lacking(c.in, d.in)) == 0) && len(intersection(c.in, d.not)) == 0
	}
	return d.in == nil && len(lacking(d.not, c.not)) == 0 && (c.exists || !d.exists)
}

// implies says whether every pod that c allows, d does.
func (c constraints) implies(d constraints) bool {
	for key := range d {
		if !c[key].implies(d[key]) {
			return false
		}
	}
	return true
}

// absorb adds one to those of which none implies another.
func absorb(all []constraints, one constraints) []constraints {
	if slices.ContainsFunc(all, one.implies) {
		return all
	}
	return append(slices.DeleteFunc(all, func(have constraints) bool { return have.implies(one) }), one)
}

func (c constraints) selector() (s metav1.LabelSelector) {
	add := func(key string, operator metav1.LabelSelectorOperator, values []string) {
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		switch c := c[key]; {
		case c.absent:
			add(key, metav1.LabelSelectorOpDoesNotExist, nil)
		case c.in != nil:
			add(key, metav1.LabelSelectorOpIn, c.in)
		default:
			if c.exists {
				add(key, metav1.LabelSelectorOpExists, nil)
			}
			if len(c.not) > 0 {
				add(key, metav1.LabelSelectorOpNotIn, c.not)
			}
		}
	}
	return s
}

// contains says whether v is in sorted.
func contains(sorted []string, v string) bool {
	_, found := slices.BinarySearch(sorted, v)
	return found
}

func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return !contains(b, v) })
}

func lacking(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return contains(b, v) })
}
