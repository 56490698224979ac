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
	// shownFor is how long what pods use, or words of a condition, are shown that change nothing else.
	shownFor = time.Minute
)

// warning is when, and in which words, all warnings of one reason were told last.
type warning struct {
	at    time.Time
	words uint64
}

// news are those of what there is to tell that was not told just now. What fails says so at every look, and however many fail do not write at each.
func news(events []event, before map[string]warning, now time.Time) (tell []event, after map[string]warning) {
	after = maps.Clone(before)
	if after == nil {
		after = map[string]warning{}
	}
	maps.DeleteFunc(after, func(_ string, w warning) bool { return w.at.After(now) || now.Sub(w.at) >= toldFor })
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
			due[reason], after[reason] = true, warning{now, is}
		}
	}
	for _, e := range events {
		if e.kind != corev1.EventTypeWarning || due[e.reason] {
			tell = append(tell, e)
		}
	}
	return tell, after
}

// worthWriting says whether a status is to be written that was shown otherwise, and was last written then: what pods use is never the same, nor is what says why something fails, and where nothing else changes
// that is shown once in a while.
func worthWriting(shown, status *autoscalingv2.HorizontalPodAutoscalerStatus, last, now time.Time) bool {
	if equality.Semantic.DeepEqual(shown, status) {
		return false
	}
	since := now.Sub(last)
	return since < 0 || since >= shownFor || !equality.Semantic.DeepEqual(inShort(shown), inShort(status))
}

// inShort is a status without what its metrics are, and without the words of its conditions.
func inShort(status *autoscalingv2.HorizontalPodAutoscalerStatus) *autoscalingv2.HorizontalPodAutoscalerStatus {
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
	for i := range status.Conditions {
		status.Conditions[i].Message = ""
	}
	return status
}
