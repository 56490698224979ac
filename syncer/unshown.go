package syncer

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// unshownTries is after how many tries it is told that a pod is not shown: a name may be free, or there may be room, in a moment.
	unshownTries = 3
	// unshownFor is how long it is told at least. A physical cluster may have pods come and go as fast as it likes.
	unshownFor = time.Minute
)

// unshown has the pods that the hub would not show, by their leaves, which are told why.
type unshown struct {
	began time.Time

	mu     sync.Mutex // guards all below
	leafOf map[key]key
	of     map[key]*unshownPods
}

// unshownPods are those of one leaf.
type unshownPods struct {
	pods map[key]struct{}
	// why the first of them was not, and since when that is told. It does not change with each pod that comes.
	why   *refusal
	since time.Time
}

// add adds a pod of a leaf, and says whether the leaf is to be told.
func (u *unshown) add(pod, leaf key, why *refusal, now time.Time) (news bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.of[leaf]
	if all == nil {
		all, news = &unshownPods{map[key]struct{}{}, why, now}, true
		u.keep(leaf, all)
	}
	u.leafOf[pod], all.pods[pod] = leaf, struct{}{}
	return news
}

func (u *unshown) keep(leaf key, all *unshownPods) {
	if u.of == nil {
		u.leafOf, u.of = map[key]key{}, map[key]*unshownPods{}
	}
	u.of[leaf] = all
}

// remove takes a pod out that is shown, or is none any more, and returns its leaf if that is to be told.
func (u *unshown) remove(pod key) (leaf key, news bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	leaf, ok := u.leafOf[pod]
	if !ok {
		return key{}, false
	}
	delete(u.leafOf, pod)
	delete(u.of[leaf].pods, pod)
	return leaf, len(u.of[leaf].pods) == 0
}

// why returns why pods of a leaf are not shown, and when that is over if no other follows; nil if all are. What the leaf was told
// before our start holds until it is known better.
func (u *unshown) why(leaf key, told *refusal, now time.Time) (why *refusal, over time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.of[leaf]
	if all == nil && told != nil && now.Before(u.began.Add(unshownFor)) {
		all = &unshownPods{map[key]struct{}{}, told, u.began}
		u.keep(leaf, all)
	}
	switch {
	case all == nil:
		return nil, 0
	case len(all.pods) > 0:
		return all.why, 0
	}
	if over = all.since.Add(unshownFor).Sub(now); over > 0 {
		return all.why, over
	}
	delete(u.of, leaf)
	return nil, 0
}

// forget forgets a leaf that is gone.
func (u *unshown) forget(leaf key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if all := u.of[leaf]; all != nil {
		for pod := range all.pods {
			delete(u.leafOf, pod)
		}
		delete(u.of, leaf)
	}
}

// tellUnshown has the leaf of a pod told that the pod cannot be shown, if that is what err says, and not for the first time.
func (s *Syncer) tellUnshown(k key, below *unstructured.Unstructured, err error) {
	why := whyUnshown(err)
	if why == nil || below == nil || s.backoff.NumRequeues(k)+1 < unshownTries {
		return
	}
	if leaf, ok := leafOf(below, s.madeSet); ok && s.unshown.add(k, leaf, why, s.config.Clock.Now()) {
		s.queue.Add(leaf)
	}
}

// toldUnshown is what a leaf was told of pods that are not shown; nil if nothing.
func toldUnshown(leaf *unstructured.Unstructured) *refusal {
	var r workloadv1alpha1.Refusal
	if json.Unmarshal([]byte(leaf.GetAnnotations()[workloadv1alpha1.UnshownAnnotation]), &r) != nil {
		return nil // nothing, or what no syncer wrote
	}
	return &refusal{r.Reason, r.Message}
}

// keepUnshown has want say of pods that are not shown what leaf does, and says whether it said something else.
func keepUnshown(want, leaf *unstructured.Unstructured) (changed bool) {
	annotations, told := want.GetAnnotations(), leaf.GetAnnotations()
	says, ok := told[workloadv1alpha1.UnshownAnnotation]
	if annotations[workloadv1alpha1.UnshownAnnotation] == says {
		return false
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(annotations, workloadv1alpha1.UnshownAnnotation)
	if ok {
		annotations[workloadv1alpha1.UnshownAnnotation] = says
	}
	want.SetAnnotations(annotations)
	return true
}

// whyUnshown is what the hub refuses a pod for, in its own words alone; nil for what passes by itself, and for what the physical cluster
// says of what is to be changed of the pod: that may name others, and the pod is shown.
func whyUnshown(err error) *refusal {
	var hubs *mirrorError
	var status apierrors.APIStatus
	if !errors.As(err, &hubs) || !errors.As(hubs.error, &status) {
		return nil
	}
	err = hubs.error
	r := refusalOf(err)
	switch {
	case apierrors.IsAlreadyExists(err):
		r = &refusal{reason: refusedNameConflict}
	case r == nil, r.reason == refusedUnreachable, apierrors.IsNotFound(err): // its owner is gone: there is nobody to be told
		return nil
	}
	return &refusal{r.reason, status.Status().Message}
}
