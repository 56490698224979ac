package autoscaling

import (
	"fmt"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestNews: what fails at every look is told every five minutes, and in other words after a minute; what was done is always told.
func TestNews(t *testing.T) {
	fails := func(reason, message string) event { return event{corev1.EventTypeWarning, reason, message} }
	scaled := event{corev1.EventTypeNormal, "SuccessfulRescale", "New size: 3"}
	var before map[string]warning
	for _, tc := range []struct {
		reason string
		at     time.Duration
		events []event
		want   int
	}{
		{"it is new", 0, []event{fails("a", "x"), fails("a", "y"), fails("b", "x")}, 3},
		{"it was told", every, []event{fails("a", "x"), fails("a", "y"), fails("b", "x")}, 0},
		{"another reason is new", 2 * every, []event{fails("a", "x"), fails("a", "y"), fails("c", "x")}, 1},
		{"other words come too soon", 3 * every, []event{fails("a", "x"), fails("a", "z")}, 0},
		{"other words", 5 * every, []event{fails("a", "x"), fails("a", "z")}, 2},
		{"nothing", 6 * every, nil, 0},
		{"what was told before it was well", 7 * every, []event{fails("a", "x"), fails("a", "z")}, 0},
		{"what was done", 8 * every, []event{scaled, scaled, fails("a", "x"), fails("a", "z")}, 2},
		{"five minutes have passed", 5*time.Minute + 5*every, []event{fails("a", "x"), fails("a", "z")}, 2},
		{"the clock was turned back", 0, []event{fails("a", "x"), fails("a", "z")}, 2},
	} {
		var tell []event
		tell, before = news(tc.events, before, noon.Add(tc.at))
		if len(tell) != tc.want {
			t.Errorf("%s: told are %v, want %d", tc.reason, tell, tc.want)
		}
	}
	if _, kept := news(nil, before, noon.Add(time.Hour)); len(kept) != 0 {
		t.Errorf("kept are %v, want nothing of an hour ago", kept)
	}
	n := 0
	before = nil
	for look := range 240 {
		var tell []event
		tell, before = news([]event{fails("a", fmt.Sprint("other words each time: ", look))}, before, noon.Add(time.Duration(look)*every))
		n += len(tell)
	}
	if n != 60 {
		t.Errorf("in an hour of other words at each look %d are told, want 60", n)
	}
}

// TestWorthWriting: what pods use is written once a minute where it changes nothing else, and all else at once.
func TestWorthWriting(t *testing.T) {
	status := func(change func(*autoscalingv2.HorizontalPodAutoscalerStatus)) *autoscalingv2.HorizontalPodAutoscalerStatus {
		s := &autoscalingv2.HorizontalPodAutoscalerStatus{
			CurrentReplicas: 3, DesiredReplicas: 3, LastScaleTime: ptr.To(metav1.NewTime(noon)),
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue, Reason: "ValidMetricFound"}},
			CurrentMetrics: []autoscalingv2.MetricStatus{
				{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To(int32(50)), AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)}}},
				{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: corev1.ResourceCPU, Container: "c", Current: autoscalingv2.MetricValueStatus{AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)}}},
			},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	numbers := status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) {
		s.CurrentMetrics[0].Resource.Current.AverageValue, s.CurrentMetrics[0].Resource.Current.AverageUtilization = resource.NewMilliQuantity(51, resource.DecimalSI), ptr.To(int32(51))
		s.CurrentMetrics[1].ContainerResource.Current.AverageValue = resource.NewMilliQuantity(49, resource.DecimalSI)
	})
	words := status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) { s.Conditions[0].Message = "request 8f3a failed" })
	for name, tc := range map[string]struct {
		is   *autoscalingv2.HorizontalPodAutoscalerStatus
		ago  time.Duration
		want bool
	}{
		"the same":                  {status(nil), time.Hour, false},
		"numbers":                   {numbers, 45 * time.Second, false},
		"numbers, a minute later":   {numbers, time.Minute, true},
		"the clock was turned back": {numbers, -time.Minute, true},
		"replicas":                  {status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) { s.DesiredReplicas = 4 }), 0, true},
		"words of a condition":      {words, 45 * time.Second, false},
		"words, a minute later":     {words, time.Minute, true},
		"a condition":               {status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) { s.Conditions[0].Reason = "other" }), 0, true},
		"a metric that fails": {status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) {
			s.CurrentMetrics[0] = autoscalingv2.MetricStatus{}
		}), 0, true},
		"another metric": {status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) {
			s.CurrentMetrics[1].ContainerResource.Container = "d"
		}), 0, true},
		"no metrics": {status(func(s *autoscalingv2.HorizontalPodAutoscalerStatus) { s.CurrentMetrics = nil }), 0, true},
	} {
		shown, is := status(nil), tc.is.DeepCopy()
		if got := worthWriting(shown, is, noon.Add(-tc.ago), noon); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if shown.CurrentMetrics[0].Resource.Current.AverageUtilization == nil {
			t.Errorf("%s: what was shown was changed", name)
		}
	}
}
