package syncer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestUnselected: what is let in by default goes to a pod if and only if no policy of the user's selects it.
func TestUnselected(t *testing.T) {
	keys, values := []string{"app", "tier", "track"}, []string{"a", "b", "c"}
	var pods []labels.Set
	for _, app := range append(values, "") {
		for _, tier := range append(values, "") {
			for _, track := range append(values, "") {
				pod := labels.Set{}
				for i, v := range []string{app, tier, track} {
					if v != "" {
						pod[keys[i]] = v
					}
				}
				pods = append(pods, pod)
			}
		}
	}
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	matches := func(s metav1.LabelSelector, pod labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			t.Fatal(err)
		}
		return selector.Matches(pod)
	}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var selected []metav1.LabelSelector
		for range r.IntN(4) {
			s := metav1.LabelSelector{}
			for range r.IntN(3) {
				if key := keys[r.IntN(len(keys))]; r.IntN(2) == 0 {
					s.MatchLabels = labels.Merge(s.MatchLabels, labels.Set{key: values[r.IntN(len(values))]})
				} else {
					e := metav1.LabelSelectorRequirement{Key: key, Operator: operators[r.IntN(len(operators))]}
					if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
						for range 1 + r.IntN(2) {
							e.Values = append(e.Values, values[r.IntN(len(values))])
						}
					}
					s.MatchExpressions = append(s.MatchExpressions, e)
				}
			}
			selected = append(selected, s)
		}
		rest, ok := unselected(selected)
		if !ok {
			t.Fatalf("seed %d: %v takes too many", seed, selected)
		}
		again, _ := unselected(selected)
		if fmt.Sprint(rest) != fmt.Sprint(again) {
			t.Fatalf("seed %d: the same policies come to %v and %v", seed, rest, again)
		}
		for _, pod := range pods {
			count := func(of []metav1.LabelSelector) (n int) {
				for _, s := range of {
					if matches(s, pod) {
						n++
					}
				}
				return n
			}
			if (count(selected) == 0) != (count(rest) > 0) {
				t.Fatalf("seed %d: pod %v is selected by %d of %v, and by %d of %v", seed, pod, count(selected), selected, count(rest), rest)
			}
		}
	}
}

// TestUnselectedIsBounded: what charts write takes few policies, and what takes many is refused.
func TestUnselectedIsBounded(t *testing.T) {
	var single, instance, apart []metav1.LabelSelector
	for i := range 20 {
		name := fmt.Sprint("n", i)
		single = append(single, metav1.LabelSelector{MatchLabels: labels.Set{"app": name}})
		instance = append(instance, metav1.LabelSelector{MatchLabels: labels.Set{"instance": "shop", "component": name}})
		apart = append(apart, metav1.LabelSelector{MatchLabels: labels.Set{"instance": name, "name": name}})
	}
	for name, tc := range map[string]struct {
		selected []metav1.LabelSelector
		want     int
		ok       bool
	}{
		"none":             {nil, 1, true},
		"all pods":         {[]metav1.LabelSelector{{}, single[0]}, 0, true},
		"one label":        {single, 1, true},
		"one label common": {instance, 2, true},
		"six apart":        {apart[:6], 64, true},
		"seven apart":      {apart[:7], 0, false},
	} {
		if rest, ok := unselected(tc.selected); len(rest) != tc.want || ok != tc.ok {
			t.Errorf("%s: %d selectors, %v; want %d, %v", name, len(rest), ok, tc.want, tc.ok)
		}
	}
}

// TestUnselectedCostsLittle: whatever a tenant writes, a look at it costs some milliseconds, since everybody's leaves wait for it.
func TestUnselectedCostsLittle(t *testing.T) {
	many := func(n int, selector func(i int) metav1.LabelSelector) (selected []metav1.LabelSelector) {
		for i := range n {
			selected = append(selected, selector(i))
		}
		return selected
	}
	wide := func(prefix string, labelled int) metav1.LabelSelector {
		s := metav1.LabelSelector{MatchLabels: labels.Set{}}
		for i := range labelled {
			s.MatchLabels[fmt.Sprint(prefix, i)] = "v"
		}
		return s
	}
	in := func(key string, from, values int) metav1.LabelSelector {
		e := metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn}
		for i := range values {
			e.Values = append(e.Values, fmt.Sprint("v", from+i))
		}
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
	}
	apart := many(6, func(i int) metav1.LabelSelector { return wide(fmt.Sprint("apart", i, "-"), 2) })
	for name, tc := range map[string]struct {
		selected []metav1.LabelSelector
		ok       bool
	}{
		"two wide ones apart": {many(2, func(i int) metav1.LabelSelector { return wide(fmt.Sprint("w", i, "-"), 64) }), false},
		"a hundred alike":     {many(100, func(int) metav1.LabelSelector { return wide("w", 64) }), true},
		"one value varied": {many(100, func(i int) metav1.LabelSelector {
			s := wide("w", 64)
			s.MatchLabels["w0"] = fmt.Sprint("v", i)
			return s
		}), false},
		"a hundred keys beside sixty-four": {append(many(100, func(i int) metav1.LabelSelector { return wide(fmt.Sprint("k", i), 1) }), apart...), true},
		"fifty values beside sixty-four":   {append(many(50, func(i int) metav1.LabelSelector { return in("app", i, 1) }), apart...), true},
		"a thousand keys":                  {many(1000, func(i int) metav1.LabelSelector { return wide(fmt.Sprint("k", i), 1) }), false},
		"a thousand values":                {many(2, func(i int) metav1.LabelSelector { return in("app", i, 1000) }), false},
		"pairs in a circle": {many(250, func(i int) metav1.LabelSelector {
			return metav1.LabelSelector{MatchLabels: labels.Set{fmt.Sprint("k", i%7): "v", fmt.Sprint("k", (i+1+i/7)%7): fmt.Sprint("v", i/7)}}
		}), false},
	} {
		var ok bool
		if allocations := testing.AllocsPerRun(1, func() { _, ok = unselected(tc.selected) }); allocations > 1_000_000 || ok != tc.ok {
			t.Errorf("%s: %v after %.0f allocations, want %v after a million at most", name, ok, allocations, tc.ok)
		}
	}
}

// TestFloor: whatever the user's policies select, one policy selects all pods, so that none is open, and what is let in by default is
// this workspace and what is of none.
func TestFloor(t *testing.T) {
	for name, selected := range map[string][]metav1.LabelSelector{
		"nothing":  nil,
		"all pods": {{}},
		"some":     {{MatchLabels: labels.Set{"app": "web", "tier": "a"}}, {MatchLabels: labels.Set{"app": "db"}}},
	} {
		policies, ok, err := floor("shop-1a", "shop", "east", selected)
		if err != nil || !ok {
			t.Fatalf("%s: %v, %v", name, ok, err)
		}
		all := false
		for _, p := range policies {
			typed := &networkingv1.NetworkPolicy{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(p.Object, typed); err != nil {
				t.Fatal(err)
			}
			all = all || typed.Name == isolationPolicy && len(typed.Spec.PodSelector.MatchLabels)+len(typed.Spec.PodSelector.MatchExpressions) == 0
			for _, rule := range typed.Spec.Ingress {
				in := map[string]bool{}
				for workspace, namespace := range map[string]labels.Set{"shop": {workloadv1alpha1.WorkspaceLabel: "shop"}, "bank": {workloadv1alpha1.WorkspaceLabel: "bank"}, "none": {}} {
					for _, peer := range rule.From {
						selector, err := metav1.LabelSelectorAsSelector(peer.NamespaceSelector)
						if err != nil {
							t.Fatal(err)
						}
						in[workspace] = in[workspace] || selector.Matches(namespace)
					}
				}
				if !in["shop"] || !in["none"] || in["bank"] {
					t.Errorf("%s: %s lets in %v", name, typed.Name, in)
				}
			}
		}
		if last := policies[len(policies)-1]; !all || last.GetName() != isolationPolicy {
			t.Errorf("%s: no policy selects all pods, or it is not written last: %v", name, policies)
		}
	}
}
