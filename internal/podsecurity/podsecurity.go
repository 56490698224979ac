// Package podsecurity says which pods physical clusters refuse: namespaces of workspaces are held there to a level of Kubernetes' Pod Security
// Standards at least, the floor of the SyncTarget.
package podsecurity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Levels are those that there are, least strict first.
var Levels = []string{string(api.LevelPrivileged), string(api.LevelBaseline), string(api.LevelRestricted)}

// floorOf is the least strict level that a namespace has in a physical cluster, by its SyncTarget.
func floorOf(podSecurity string) string {
	if podSecurity == "" {
		return string(api.LevelBaseline)
	}
	return podSecurity
}

// Stricter returns the stricter of a SyncTarget's spec.podSecurity and a namespace's own level. No level of its own is the floor. A word
// that is no level is taken for the strictest, as Kubernetes does.
func Stricter(podSecurity, own string) string {
	floor := floorOf(podSecurity)
	if own == "" {
		own = floor
	}
	rank := func(level string) int {
		if i := slices.Index(Levels, level); i >= 0 {
			return i
		}
		return len(Levels) - 1
	}
	return Levels[max(rank(floor), rank(own))]
}

// checks are Kubernetes' own, of the version in go.mod. A namespace is held to the latest that its cluster knows.
var checks = sync.OnceValues(func() (policy.Evaluator, error) { return policy.NewEvaluator(policy.DefaultChecks(), nil) })

// Refused says, a sentence for each level, which of the physical clusters refuse a pod, and what for.
func Refused(pod *corev1.PodTemplateSpec, in []*workloadv1alpha1.SyncTarget) (sentences []string, err error) {
	checks, err := checks()
	if err != nil {
		return nil, fmt.Errorf("checks of Pod Security: %w", err)
	}
	for _, level := range Levels {
		var clusters []string
		for _, t := range in {
			if Stricter(t.Spec.PodSecurity, "") == level {
				clusters = append(clusters, strconv.Quote(t.Name))
			}
		}
		if len(clusters) == 0 {
			continue
		}
		result := policy.AggregateCheckResults(checks.EvaluatePod(api.LevelVersion{Level: api.Level(level), Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
		if !result.Allowed {
			slices.Sort(clusters)
			sentences = append(sentences, fmt.Sprintf("refused by the physical clusters %s, which hold pods to Pod Security %q: %s",
				strings.Join(slices.Compact(clusters), ", "), level, result.ForbiddenDetail()))
		}
	}
	return sentences, nil
}
