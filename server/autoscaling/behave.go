package autoscaling

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// usualWindow is how long no fewer replicas are wanted than were at any time, where a HorizontalPodAutoscaler does not say; Kubernetes' number.
const usualWindow = 5 * time.Minute

// Without spec.behavior there may be twice as many replicas, or usualSteps, each time.
const usualSteps = 4

// history is what the behaviour of a HorizontalPodAutoscaler depends on beside what is. It is not changed: who adds to it makes another.
type history struct {
	// recommended is what was wanted before any limit, the oldest first, for as long as a window may reach back.
	recommended []recommendation
	// changes are what was written, the oldest first, for as long as a policy counts.
	changes []change
	// silent has the physical clusters that say nothing of pods that serve there.
	silent map[string]silence
}

// silence is one of a physical cluster: since when it was heard at no look, and when that was so last.
type silence struct{ since, last time.Time }

// unbroken is how far apart two looks are at most at which a physical cluster is silent for it to be silent between them, too.
const unbroken = 5 * time.Minute

type recommendation struct {
	replicas int32
	at       time.Time
}

type change struct {
	by int32 // fewer if it is less than nothing
	at time.Time
}

// begun is a history that knows how many there are: right after a start nothing else is known, and no fewer are wanted before the window has passed.
func (h history) begun(replicas int32, now time.Time) history {
	if h.recommended == nil {
		h.recommended = []recommendation{{replicas, now}}
	}
	return h
}

// recommends adds what is wanted now, and leaves out what no window has any more.
func (h history) recommends(replicas int32, longest time.Duration, now time.Time) history {
	kept := slices.DeleteFunc(slices.Clone(h.recommended), func(r recommendation) bool { return r.at.Before(now.Add(-longest)) })
	h.recommended = append(kept, recommendation{replicas, now})
	return h
}

// changed adds what was written, and leaves out what no policy counts any more. Without behaviour nobody counts.
func (h history) changed(by int32, b *autoscalingv2.HorizontalPodAutoscalerBehavior, now time.Time) history {
	if b == nil {
		h.changes = nil
		return h
	}
	longest := max(longestPeriod(b.ScaleUp), longestPeriod(b.ScaleDown))
	kept := slices.DeleteFunc(slices.Clone(h.changes), func(c change) bool { return !c.at.After(now.Add(-longest)) })
	h.changes = append(kept, change{by, now})
	return h
}

// hears adds which physical clusters are silent now, of which those count whose pods serve, and leaves out those that are not any more.
func (h history) hears(unheard map[string]bool, now time.Time) history {
	silent := map[string]silence{}
	for cluster, serves := range unheard {
		if serves {
			silent[cluster] = silence{now.Add(-h.silence(cluster, now)), now}
		}
	}
	h.silent = silent
	return h
}

// silence is for how long a physical cluster has said nothing at any look; 0 if nobody has looked for long.
func (h history) silence(cluster string, now time.Time) time.Duration {
	is, ok := h.silent[cluster]
	if since := now.Sub(is.last); !ok || since < 0 || since > unbroken {
		return 0
	}
	return now.Sub(is.since)
}

func longestPeriod(rules *autoscalingv2.HPAScalingRules) time.Duration {
	var longest time.Duration
	for _, policy := range policies(rules) {
		longest = max(longest, seconds(policy.PeriodSeconds))
	}
	return longest
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func policies(rules *autoscalingv2.HPAScalingRules) []autoscalingv2.HPAScalingPolicy {
	if rules == nil {
		return nil
	}
	return rules.Policies
}

// window is how long a direction looks back.
func window(rules *autoscalingv2.HPAScalingRules, usual time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return usual
	}
	return seconds(*rules.StabilizationWindowSeconds)
}

// bounds are what a HorizontalPodAutoscaler says of its replicas.
type bounds struct {
	least, most int32
	behavior    *autoscalingv2.HorizontalPodAutoscalerBehavior // nil for none
}

// condition is one of a HorizontalPodAutoscaler, in the words that Kubernetes has for it.
type condition struct {
	is              bool
	reason, message string
}

// behave says how many replicas there are to be of those that metrics want, by what was wanted and done before, with what to say of whether it can scale, and whether
// something limits it. The history that it returns has what is wanted now.
func behave(h history, b bounds, current, wanted int32, now time.Time) (replicas int32, able, limited condition, next history) {
	var up, down *autoscalingv2.HPAScalingRules
	if b.behavior != nil {
		up, down = b.behavior.ScaleUp, b.behavior.ScaleDown
	}
	upWindow, downWindow := window(up, 0), window(down, usualWindow)
	stable := stabilised(h, b.behavior != nil, current, wanted, now.Add(-upWindow), now.Add(-downWindow))
	next = h.recommends(wanted, max(upWindow, downWindow), now)

	able = condition{true, "ReadyForNewScale", "recommended size matches current size"}
	switch {
	case stable == wanted:
	case wanted >= current && b.behavior != nil:
		able = condition{true, "ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation"}
	default:
		able = condition{true, "ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation"}
	}
	replicas, limited.reason, limited.message = within(h, b, current, stable, now)
	limited.is = replicas != stable
	return replicas, able, limited, next
}

// stabilised is the least that was wanted since one time, or the most since another one, whichever is nearer to what there is. Without behaviour it is the most, though there were fewer: what was wanted
// and not reached is still wanted, as in Kubernetes.
func stabilised(h history, behaves bool, current, wanted int32, upSince, downSince time.Time) int32 {
	least, most := wanted, wanted
	for _, r := range h.recommended {
		if r.at.After(upSince) {
			least = min(least, r.replicas)
		}
		if r.at.After(downSince) || !behaves && r.at.Equal(downSince) {
			most = max(most, r.replicas)
		}
	}
	if !behaves {
		return most
	}
	return min(max(current, least), most)
}

// limit is how far there may be replicas, and what to say of it.
type limit struct {
	at              int32
	reason, message string
}

// tooFew is why there are not as few as are wanted, where it is the minimum.
const (
	tooFew      = "TooFewReplicas"
	tooFewWords = "the desired replica count is less than the minimum replica count"
)

// within is what there may be of what is wanted, and why not all, or not as few. With behaviour who goes up is not held to the least, nor who goes down to the most.
func within(h history, b bounds, current, wanted int32, now time.Time) (replicas int32, reason, message string) {
	low := limit{b.least, tooFew, tooFewWords}
	high := limit{b.most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	most, least := int32(math.MaxInt32), int32(math.MinInt32) // for now
	switch {
	case b.behavior == nil:
		most = max(clamped(2*float64(current)), usualSteps)
	case wanted > current:
		most, low.at = max(current, upTo(b.behavior.ScaleUp, h, current, now)), math.MinInt32
	case wanted < current:
		least, high.at = min(current, downTo(b.behavior.ScaleDown, h, current, now)), math.MaxInt32
	}
	if most < high.at {
		high = limit{most, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
	}
	if least > low.at {
		low = limit{least, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
	}
	switch {
	case wanted == current && b.behavior != nil:
	case wanted < low.at:
		return low.at, low.reason, low.message
	case wanted > high.at:
		return high.at, high.reason, high.message
	}
	return wanted, "DesiredWithinRange", "the desired count is within the acceptable range"
}

func clamped(x float64) int32 { return int32(max(min(x, math.MaxInt32), math.MinInt32)) }

// upTo is how many replicas the policies let there be now.
func upTo(rules *autoscalingv2.HPAScalingRules, h history, current int32, now time.Time) int32 {
	return policed(rules, h, current, now, func(begun, by int32, percent bool) int32 {
		if percent { // rounded up, or one could stay one for ever
			return clamped(math.Ceil(float64(begun) * (1 + float64(by)/100)))
		}
		return clamped(float64(begun) + float64(by))
	}, func(a, b int32) bool { return a > b })
}

// downTo is to how many replicas the policies let go down now.
func downTo(rules *autoscalingv2.HPAScalingRules, h history, current int32, now time.Time) int32 {
	return policed(rules, h, current, now, func(begun, by int32, percent bool) int32 {
		if percent {
			return clamped(math.Trunc(float64(begun) * (1 - float64(by)/100)))
		}
		return clamped(float64(begun) - float64(by))
	}, func(a, b int32) bool { return a < b })
}

// policed is the one of what policies allow that goes farther, or less far if the rules select that. Each counts from how many there were when its period began.
func policed(rules *autoscalingv2.HPAScalingRules, h history, current int32, now time.Time, by func(begun, value int32, percent bool) int32, farther func(a, b int32) bool) int32 {
	choice := autoscalingv2.MaxChangePolicySelect
	if rules != nil {
		choice = ptr.Deref(rules.SelectPolicy, choice)
	}
	if choice == autoscalingv2.DisabledPolicySelect {
		return current
	}
	var chosen *int32
	for _, policy := range policies(rules) {
		begun := current
		for _, c := range h.changes {
			if c.at.After(now.Add(-seconds(policy.PeriodSeconds))) {
				begun -= c.by
			}
		}
		limit := by(begun, policy.Value, policy.Type == autoscalingv2.PercentScalingPolicy)
		if chosen == nil || farther(limit, *chosen) == (choice != autoscalingv2.MinChangePolicySelect) {
			chosen = &limit
		}
	}
	return ptr.Deref(chosen, current)
}

// tolerances are those that a behaviour asks for.
func tolerances(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerance {
	t := tolerance{down: usualTolerance, up: usualTolerance}
	if b == nil {
		return t
	}
	if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
		t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
	}
	if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
		t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
	}
	return t
}

// status is how a condition is written.
func (c condition) status() corev1.ConditionStatus {
	if c.is {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
