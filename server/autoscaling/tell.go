package autoscaling

import (
	"hash/fnv"
	"maps"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

const (
	// toldFor is how long a warning is not told again in the same words, and rewordedFor in others.
	toldFor     = 5 * time.Minute
	rewordedFor = time.Minute
	// shownFor is how long what pods use is shown that changes nothing else.
	shownFor = time.Minute
)

// told is when, and in which words, all warnings of one reason were told last.
type told struct {
	at    time.Time
	words uint64
}

// news are those of what there is to tell that was not told just now. What fails says so at every look, and however many fail do not write at each.
func news(events []event, before map[string]told, now time.Time) (tell []event, after map[string]told) {
	after = maps.Clone(before)
	if after == nil {
		after = map[string]told{}
	}
	maps.DeleteFunc(after, func(_ string, t told) bool { return t.at.After(now) || now.Sub(t.at) >= toldFor })
	words := map[string]uint64{}
	for _, e := range events {
		if e.kind == corev1.EventTypeWarning {
			h := fnv.New64a()
			_, _ = h.Write([]byte(e.message))
			words[e.reason] = words[e.reason]*31 + h.Sum64()
		}
	}
	due := map[string]bool{}
	for reason, is := range words {
		if was, known := after[reason]; !known || was.words != is && now.Sub(was.at) >= rewordedFor {
			due[reason], after[reason] = true, told{now, is}
		}
	}
	for _, e := range events {
		if e.kind != corev1.EventTypeWarning || due[e.reason] {
			tell = append(tell, e)
		}
	}
	return tell, after
}

// worthWriting says whether a status is to be written that was shown otherwise, and was last written then: what pods use is never the same, and where it changes nothing else it is shown once in a while.
func worthWriting(shown, status *autoscalingv2.HorizontalPodAutoscalerStatus, last, now time.Time) bool {
	if equality.Semantic.DeepEqual(shown, status) {
		return false
	}
	since := now.Sub(last)
	return since < 0 || since >= shownFor || !equality.Semantic.DeepEqual(withoutNumbers(shown), withoutNumbers(status))
}

// withoutNumbers is a status without what its metrics are.
func withoutNumbers(status *autoscalingv2.HorizontalPodAutoscalerStatus) *autoscalingv2.HorizontalPodAutoscalerStatus {
	status = status.DeepCopy()
	for i := range status.CurrentMetrics {
		m := &status.CurrentMetrics[i]
		if m.Resource != nil {
			m.Resource.Current = autoscalingv2.MetricValueStatus{}
		}
		if m.ContainerResource != nil {
			m.ContainerResource.Current = autoscalingv2.MetricValueStatus{}
		}
	}
	return status
}
