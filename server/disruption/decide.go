package disruption

import (
	"fmt"
	"maps"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// grantedFor is how long a pod whose eviction was granted counts as gone, although it is still there: a deletion that has not
// begun by then was lost.
const grantedFor = 2 * time.Minute

// Pod is what a count has to know of one that a budget selects.
type Pod struct {
	Name string
	// Healthy says that it is Ready, Going that it is being deleted.
	Healthy, Going bool
}

// isOfAll says that a budget is a part of the pods that there are to be, and not a number of those that there are.
func isOfAll(spec *policyv1.PodDisruptionBudgetSpec) bool {
	return spec.MaxUnavailable != nil || spec.MinAvailable != nil && spec.MinAvailable.Type == intstr.String
}

// Decide returns the status of a budget that selects those pods, of which there are to be as many as wanted (which is for
// budgets that are isOfAll), and when to look again though nothing changes; 0 for never. One that says neither how many are to
// be there nor how many may be away allows nothing, as in Kubernetes. A percentage that cannot be read, which validation lets
// nobody write, is an error.
func Decide(budget *policyv1.PodDisruptionBudget, pods []Pod, wanted int32, now time.Time) (status policyv1.PodDisruptionBudgetStatus, again time.Duration, err error) {
	status = *budget.Status.DeepCopy()
	if !isOfAll(&budget.Spec) {
		wanted = 0
		if budget.Spec.MinAvailable != nil {
			wanted = int32(len(pods)) //nolint:gosec // bounded by what a namespace may hold
		}
	}
	if status.DesiredHealthy, err = desired(&budget.Spec, wanted); err != nil {
		return status, 0, err
	}
	granted := map[string]metav1.Time{}
	status.CurrentHealthy = 0
	for _, pod := range pods {
		at, ok := status.DisruptedPods[pod.Name]
		left := at.Add(grantedFor).Sub(now)
		switch {
		case pod.Going:
		case ok && left > 0:
			granted[pod.Name] = at
			if again == 0 || left < again {
				again = left
			}
		case pod.Healthy:
			status.CurrentHealthy++
		}
	}
	status.DisruptedPods = granted
	if len(granted) == 0 {
		status.DisruptedPods = nil
	}
	status.ExpectedPods = wanted
	status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	if wanted <= 0 {
		status.DisruptionsAllowed = 0
	}
	status.ObservedGeneration = budget.Generation
	condition := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason}
	if status.DisruptionsAllowed > 0 {
		condition.Status, condition.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	say(&status, budget.Generation, condition, now)
	return status, again, nil
}

// Unknown is the status of a budget whose pods cannot be counted: nothing may be evicted.
func Unknown(budget *policyv1.PodDisruptionBudget, why error, now time.Time) policyv1.PodDisruptionBudgetStatus {
	status := *budget.Status.DeepCopy()
	status.DisruptionsAllowed = 0
	status.ObservedGeneration = budget.Generation
	say(&status, budget.Generation, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: why.Error(),
	}, now)
	return status
}

func say(status *policyv1.PodDisruptionBudgetStatus, generation int64, condition metav1.Condition, now time.Time) {
	condition.ObservedGeneration = generation
	if before := meta.FindStatusCondition(status.Conditions, condition.Type); before == nil || before.Status != condition.Status {
		condition.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

// desired is how many pods have to be healthy. Parts of a pod count for the budget: a percentage rounds up, as in Kubernetes.
func desired(spec *policyv1.PodDisruptionBudgetSpec, wanted int32) (int32, error) {
	if spec.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(wanted), true)
		return max(0, wanted-int32(n)), err //nolint:gosec // validation bounds it
	}
	if spec.MinAvailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(wanted), true)
		return int32(n), err //nolint:gosec // validation bounds it
	}
	return 0, nil
}

// unscaled says that nobody knows how many pods there are to be, until what makes them is another.
type unscaled struct{ why string }

func (e *unscaled) Error() string { return e.why }

// replicas is how many pods what is divided wants over all its clusters, and the mirrors of these, by its own Placement and its
// namespace's; nil for none. Where each cluster runs all of them, that is times the clusters it is to be in; those that are
// being left are not wanted. What has no cluster stays where it is, and as many as it was there, which nobody knows any more.
func replicas(d ctrlclient.Object, own, namespaces *placementv1alpha1.Placement) (n int32, mirrors sets.Set[string], err error) {
	kind, _ := kinds.Of(d)
	p := own
	if p == nil && !placementv1alpha1.HasWish(d.GetAnnotations()) { // else its own is to come
		p = namespaces
	}
	mirrors = sets.New[string]()
	if p != nil {
		for _, cluster := range p.Spec.Clusters {
			if cluster.Mirror != "" { // one without runs nothing
				mirrors.Insert(cluster.Mirror)
			}
		}
	}
	if len(mirrors) == 0 {
		return 0, nil, &unscaled{fmt.Sprintf("%s %s is placed nowhere: give it a cluster, see its condition Placed, or give minAvailable as a number", kind.GVK.Kind, d.GetName())}
	}
	n = kind.Division(d).Asked()
	if p.Spec.Split == placementv1alpha1.SplitDuplicate {
		n *= int32(len(mirrors)) //nolint:gosec // bounded by what an object may hold
	}
	return n, mirrors, nil
}

const (
	// podsTogether is how long more pods are waited for, before they are counted: those of a rollout come at once.
	podsTogether = 200 * time.Millisecond
	// relabelled is how long a budget goes by pods that it does not select any more: that is not told by the pod as it is now, and
	// looking takes a list of all.
	relabelled = 30 * time.Second
)

// remembered is what is known of a budget between two counts.
type remembered struct {
	selector labels.Selector
	selected int  // pods at the last count
	waits    bool // for a count
}

// podsOfACount cost as much again as a count does by itself.
const podsOfACount = 100

// next is when a budget is counted, of which so many pods were selected at the last count, where those of its workspace before
// it are done by then: who has many, or large ones, waits longer, and others do not.
func next(before, now time.Time, selected int) time.Time {
	if before.Before(now) {
		before = now
	}
	return before.Add(podsTogether * time.Duration(1+selected/podsOfACount))
}

const (
	// mostBudgets is how many budgets of a namespace are counted: each is held against the labels of each pod that changes.
	mostBudgets = 1000
	// mostSelector is how many bytes of keys and values a selector may have. One takes some twenty times as much memory when it is
	// read, and is kept so.
	mostSelector = 2 << 10
	// mostFiled is how many sets of labels of pods that have changed are kept of a workspace, until a worker looks at them.
	mostFiled = 1024
	// mostHeld is how many labels of pods are held against selectors at a time, where there are more budgets than one.
	mostHeld = 200_000
)

// uncounted says that a budget is not counted, until somebody writes it or another.
type uncounted struct{ why string }

func (e *uncounted) Error() string { return e.why }

var errBeyond = &uncounted{fmt.Sprintf("its namespace has more than %d PodDisruptionBudgets, which is as many as are counted, and this one is not among them: delete some", mostBudgets)}

// selectorOf reads the selector of a budget. One that cannot be read selects nothing.
func selectorOf(budget *policyv1.PodDisruptionBudget) (labels.Selector, error) {
	if n := sizeOf(budget.Spec.Selector); n > mostSelector {
		return labels.Nothing(), &uncounted{fmt.Sprintf("its selector has %d bytes of keys and values, and none of more than %d is read: select its pods by fewer labels, or with fewer values", n, mostSelector)}
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return labels.Nothing(), &uncounted{fmt.Sprintf("its selector cannot be read: %v", err)}
	}
	return selector, nil
}

// sizeOf is how many bytes of keys and values a selector has.
func sizeOf(selector *metav1.LabelSelector) (n int) {
	if selector == nil {
		return 0
	}
	for key, value := range selector.MatchLabels {
		n += len(key) + len(value)
	}
	for i := range selector.MatchExpressions {
		n += len(selector.MatchExpressions[i].Key)
		for _, value := range selector.MatchExpressions[i].Values {
			n += len(value) + 1 // many may be empty
		}
	}
	return n
}

// matched says which budgets of a namespace pods are counted by that have changed. Whether one is another's no more is to be
// found out after so long; 0 for never, where all select them.
func matched(budgets map[string]remembered, pods *client.Touched) (counted []string, others time.Duration) {
	for name, budget := range budgets {
		if pods.By(func(pod map[string]string) bool { return budget.selector.Matches(labels.Set(pod)) }) {
			counted = append(counted, name)
		}
	}
	slices.Sort(counted)
	if len(counted) < len(budgets) {
		others = relabelled + time.Duration(len(budgets))*podsTogether
	}
	return counted, others
}

// recounted are the budgets of a namespace that select another number of pods, which are given by their labels, than at their
// last count. What comes to be selected is counted as it comes: if one goes as another comes, the number is right. Where there
// are many of both it looks at some of those budgets whose names follow from, and returns the last of these; empty when there
// are no more.
func recounted(budgets map[string]remembered, from string, pods []labels.Set) (names []string, last string) {
	held := 0
	for _, name := range slices.Sorted(maps.Keys(budgets)) {
		if name <= from {
			continue
		}
		if held > 0 && held+len(pods) > mostHeld {
			return names, last
		}
		held, last = held+len(pods), name
		budget, n := budgets[name], 0
		for _, pod := range pods {
			if budget.selector.Matches(pod) {
				n++
			}
		}
		if n != budget.selected {
			names = append(names, name)
		}
	}
	return names, ""
}

// same says that a status needs no write to become another one.
func same(a, b *policyv1.PodDisruptionBudgetStatus) bool {
	ca, cb := meta.FindStatusCondition(a.Conditions, policyv1.DisruptionAllowedCondition), meta.FindStatusCondition(b.Conditions, policyv1.DisruptionAllowedCondition)
	return a.ObservedGeneration == b.ObservedGeneration && a.CurrentHealthy == b.CurrentHealthy && a.DesiredHealthy == b.DesiredHealthy &&
		a.ExpectedPods == b.ExpectedPods && a.DisruptionsAllowed == b.DisruptionsAllowed &&
		maps.EqualFunc(a.DisruptedPods, b.DisruptedPods, func(x, y metav1.Time) bool { return x.Equal(&y) }) &&
		(ca == nil) == (cb == nil) && (ca == nil || *ca == *cb)
}
