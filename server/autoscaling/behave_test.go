package autoscaling

import (
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func rules(windowSeconds int32, choice autoscalingv2.ScalingPolicySelect, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &windowSeconds, SelectPolicy: &choice, Policies: policies}
}

func podsPer(n, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: period}
}

func percentPer(n, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: period}
}

// TestBehave: how many there are to be of those that metrics want, by what was before.
func TestBehave(t *testing.T) {
	const most, least, disabled = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect
	wanted := func(replicas int32, ago time.Duration) recommendation {
		return recommendation{replicas, noon.Add(-ago)}
	}
	was := func(by int32, ago time.Duration) change { return change{by, noon.Add(-ago)} }
	behavior := func(up, down *autoscalingv2.HPAScalingRules) *autoscalingv2.HorizontalPodAutoscalerBehavior {
		if up == nil {
			up = rules(0, most, podsPer(4, 15), percentPer(100, 15))
		}
		if down == nil {
			down = rules(300, most, percentPer(100, 15))
		}
		return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}
	}
	quick := rules(0, most, percentPer(100, 15))
	for name, tc := range map[string]struct {
		reason          string
		behavior        *autoscalingv2.HorizontalPodAutoscalerBehavior
		past            history
		current, wanted int32
		want            int32
		able, limited   string
	}{
		"as it is":                {"", nil, history{}, 4, 4, 4, "ReadyForNewScale", "DesiredWithinRange"},
		"more":                    {"", nil, history{}, 4, 6, 6, "ReadyForNewScale", "DesiredWithinRange"},
		"many more":               {"twice as many at once", nil, history{}, 4, 20, 8, "ReadyForNewScale", "ScaleUpLimit"},
		"many more than one":      {"or four", nil, history{}, 1, 20, 4, "ReadyForNewScale", "ScaleUpLimit"},
		"too many":                {"", nil, history{}, 9, 20, 10, "ReadyForNewScale", "TooManyReplicas"},
		"fewer":                   {"", nil, history{}, 8, 4, 4, "ReadyForNewScale", "DesiredWithinRange"},
		"too few":                 {"", nil, history{}, 8, 1, 2, "ReadyForNewScale", "TooFewReplicas"},
		"fewer for now":           {"there were to be more a minute ago", nil, history{recommended: []recommendation{wanted(7, time.Minute)}}, 8, 4, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		"fewer for long":          {"it was too long ago", nil, history{recommended: []recommendation{wanted(7, 6*time.Minute)}}, 8, 4, 4, "ReadyForNewScale", "DesiredWithinRange"},
		"not reached":             {"what was wanted before is still", nil, history{recommended: []recommendation{wanted(8, time.Minute)}}, 4, 3, 8, "ScaleDownStabilized", "DesiredWithinRange"},
		"not reached, behaves":    {"a window keeps, and adds nothing", behavior(nil, nil), history{recommended: []recommendation{wanted(8, time.Minute)}}, 4, 3, 4, "ScaleDownStabilized", "DesiredWithinRange"},
		"no window":               {"", behavior(nil, quick), history{recommended: []recommendation{wanted(8, time.Second)}}, 8, 4, 4, "ReadyForNewScale", "DesiredWithinRange"},
		"no window is said":       {"it is five minutes", behavior(nil, &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(most), Policies: quick.Policies}), history{recommended: []recommendation{wanted(7, 4*time.Minute)}}, 8, 4, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		"a window upwards":        {"there were to be fewer a minute ago", behavior(rules(120, most, podsPer(9, 15)), nil), history{recommended: []recommendation{wanted(5, time.Minute)}}, 4, 8, 5, "ScaleUpStabilized", "DesiredWithinRange"},
		"a policy upwards":        {"", behavior(rules(0, most, podsPer(1, 60)), nil), history{}, 4, 8, 5, "ReadyForNewScale", "ScaleUpLimit"},
		"a policy used up":        {"in its period there is no more", behavior(rules(0, most, podsPer(1, 60)), nil), history{changes: []change{was(1, 30*time.Second)}}, 5, 8, 5, "ReadyForNewScale", "ScaleUpLimit"},
		"a policy over":           {"its period is over", behavior(rules(0, most, podsPer(1, 60)), nil), history{changes: []change{was(1, time.Minute)}}, 5, 8, 6, "ReadyForNewScale", "ScaleUpLimit"},
		"a policy and back":       {"what was taken away may come again", behavior(rules(0, most, podsPer(1, 60)), nil), history{changes: []change{was(-2, 30*time.Second)}}, 5, 9, 8, "ReadyForNewScale", "ScaleUpLimit"},
		"the most":                {"of policies the one that lets most", behavior(rules(0, most, podsPer(1, 60), percentPer(50, 60)), nil), history{}, 4, 9, 6, "ReadyForNewScale", "ScaleUpLimit"},
		"the least":               {"", behavior(rules(0, least, podsPer(1, 60), percentPer(50, 60)), nil), history{}, 4, 9, 5, "ReadyForNewScale", "ScaleUpLimit"},
		"a part of one":           {"is one", behavior(rules(0, most, percentPer(10, 60)), nil), history{}, 2, 9, 3, "ReadyForNewScale", "ScaleUpLimit"},
		"never more":              {"", behavior(rules(0, disabled, podsPer(9, 60)), nil), history{}, 4, 8, 4, "ReadyForNewScale", "ScaleUpLimit"},
		"never fewer":             {"", behavior(nil, rules(0, disabled, podsPer(9, 60))), history{}, 8, 4, 8, "ReadyForNewScale", "ScaleDownLimit"},
		"a policy downwards":      {"", behavior(nil, rules(0, most, podsPer(1, 60))), history{}, 8, 4, 7, "ReadyForNewScale", "ScaleDownLimit"},
		"it is used up":           {"", behavior(nil, rules(0, most, podsPer(1, 60))), history{changes: []change{was(-1, 30*time.Second)}}, 7, 4, 7, "ReadyForNewScale", "ScaleDownLimit"},
		"the most downwards":      {"", behavior(nil, rules(0, most, podsPer(1, 60), percentPer(50, 60))), history{}, 8, 2, 4, "ReadyForNewScale", "ScaleDownLimit"},
		"the least downwards":     {"", behavior(nil, rules(0, least, podsPer(1, 60), percentPer(50, 60))), history{}, 8, 2, 7, "ReadyForNewScale", "ScaleDownLimit"},
		"too many, behaves":       {"", behavior(nil, nil), history{}, 9, 20, 10, "ReadyForNewScale", "TooManyReplicas"},
		"too few, behaves":        {"", behavior(nil, quick), history{}, 3, 1, 2, "ReadyForNewScale", "TooFewReplicas"},
		"only upwards is said":    {"an API without defaults", &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: quick}, history{}, 4, 4, 4, "ReadyForNewScale", "DesiredWithinRange"},
		"without policies no way": {"as Kubernetes, which lets nobody write that", &autoscalingv2.HorizontalPodAutoscalerBehavior{}, history{}, 4, 6, 4, "ReadyForNewScale", "ScaleUpLimit"},
	} {
		before := history{recommended: slices.Clone(tc.past.recommended), changes: slices.Clone(tc.past.changes)}
		got, able, limited, next := behave(tc.past, bounds{2, 10, tc.behavior}, tc.current, tc.wanted, noon)
		if got != tc.want || able.reason != tc.able || limited.reason != tc.limited || !able.is || limited.is != (tc.limited != "DesiredWithinRange") {
			t.Errorf("%s: %d, %+v, %+v, want %d, %s, %s: %s", name, got, able, limited, tc.want, tc.able, tc.limited, tc.reason)
		}
		if !slices.Equal(before.recommended, tc.past.recommended) || !slices.Equal(before.changes, tc.past.changes) {
			t.Errorf("%s: what was before was changed", name)
		}
		if n := len(next.recommended); n == 0 || next.recommended[n-1] != wanted(tc.wanted, 0) {
			t.Errorf("%s: remembered is %v, want %d last", name, next.recommended, tc.wanted)
		}
	}
}

// TestHistoryIsBounded: no more is kept than what windows and policies look back at.
func TestHistoryIsBounded(t *testing.T) {
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(0, autoscalingv2.MaxChangePolicySelect, podsPer(1, 30)), ScaleDown: rules(60, autoscalingv2.MaxChangePolicySelect, podsPer(1, 45))}
	h := history{}.begun(3, noon)
	for i := range 1000 {
		at := noon.Add(time.Duration(i) * every)
		_, _, _, h = behave(h, bounds{1, 9, b}, 3, 3, at)
		h = h.changed(1, b, at)
	}
	if len(h.recommended) != 5 || len(h.changes) != 3 {
		t.Errorf("%d recommendations and %d changes are kept, want 5 of a minute and 3 of 45 s", len(h.recommended), len(h.changes))
	}
	if again := h.begun(7, noon); len(again.recommended) != 5 {
		t.Errorf("what began begins once more: %v", again.recommended)
	}
	if h = h.changed(1, nil, noon); h.changes != nil {
		t.Errorf("without policies changes are kept: %v", h.changes)
	}
}

func TestTolerances(t *testing.T) {
	asked := func(text string) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{Tolerance: ptr.To(resource.MustParse(text))}
	}
	for _, tc := range []struct {
		behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
		want     tolerance
	}{
		{nil, tolerance{usualTolerance, usualTolerance}},
		{&autoscalingv2.HorizontalPodAutoscalerBehavior{}, tolerance{usualTolerance, usualTolerance}},
		{&autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: asked("0"), ScaleDown: asked("0.25")}, tolerance{down: 0.25, up: 0}},
	} {
		if got := tolerances(tc.behavior); got != tc.want {
			t.Errorf("%+v, want %+v", got, tc.want)
		}
	}
}
