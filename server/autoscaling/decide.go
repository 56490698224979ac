package autoscaling

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// every is how often a HorizontalPodAutoscaler is looked at; Kubernetes' number.
const every = 15 * time.Second

// next is how long to wait for the next look. Those of a namespace fall together, since metrics are read once for all of them, and those of different ones do not.
func next(of client.Key, now time.Time) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(of.Cluster) + "|" + of.Namespace))
	phase := time.Duration(h.Sum64() % uint64(every)) //nolint:gosec // less than 15 s
	since := (time.Duration(now.UnixNano()%int64(every)) - phase + every) % every
	return every - since
}

// facts are what is known for a decision.
type facts struct {
	// err is why the scale of the target is not known; then nothing else is.
	err error
	// replicas are those that the target is to have, and selector selects its pods, unless it is bad.
	replicas int32
	selector string
	bad      *badSelector

	// What follows is known where metrics are asked: where measured says so, and the selector is not bad.

	// reports are what physical clusters say of the target, by their names; none of what they do not know.
	reports map[string]report
	// each says that each physical cluster runs all replicas; else they are divided.
	each    bool
	pods    []pod
	asked   asked
	podsErr error
	// rivals are other HorizontalPodAutoscalers of the same pods, by name.
	rivals  []string
	used    usages
	usedErr error
	// silence is for how long a physical cluster has said nothing of pods that serve; decide knows it.
	silence func(cluster string) time.Duration
}

// report is what a physical cluster says of a target: how many pods of it run there. If it is away, it did so before.
type report struct {
	replicas int
	away     bool
}

// event is one to tell of a HorizontalPodAutoscaler.
type event struct{ kind, reason, message string }

// outcome is what follows from facts.
type outcome struct {
	status autoscalingv2.HorizontalPodAutoscalerStatus
	events []event
	past   history
	// replicas are to be written, if rescale, because of why.
	replicas int32
	rescale  bool
	why      string
}

func (o *outcome) warn(reason, message string) {
	o.events = append(o.events, event{corev1.EventTypeWarning, reason, message})
}

// say sets a condition. Its time is that of its last change from true to false or back.
func (o *outcome) say(kind autoscalingv2.HorizontalPodAutoscalerConditionType, c condition, now time.Time) {
	i := slices.IndexFunc(o.status.Conditions, func(is autoscalingv2.HorizontalPodAutoscalerCondition) bool { return is.Type == kind })
	if i < 0 {
		i = len(o.status.Conditions)
		o.status.Conditions = append(o.status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	is := &o.status.Conditions[i]
	if is.Status != c.status() {
		is.LastTransitionTime = metav1.NewTime(now)
	}
	is.Status, is.Reason, is.Message = c.status(), c.reason, c.message
}

// measured says whether metrics are asked: they decide, and are not too many.
func measured(hpa *autoscalingv2.HorizontalPodAutoscaler, replicas int32) bool {
	_, _, asks := bound(hpa, replicas)
	return asks && len(hpa.Spec.Metrics) <= kinds.MostMetrics
}

// leastOf is how few replicas there may be.
func leastOf(hpa *autoscalingv2.HorizontalPodAutoscaler) int32 {
	return ptr.Deref(hpa.Spec.MinReplicas, 1)
}

// bound says how many replicas there are to be whatever metrics say, and why; asks is that they decide. What has none was stopped by somebody, and stays so.
func bound(hpa *autoscalingv2.HorizontalPodAutoscaler, replicas int32) (n int32, why string, asks bool) {
	switch {
	case replicas == 0:
		return 0, "", false
	case replicas > hpa.Spec.MaxReplicas:
		return hpa.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas", false
	case replicas < leastOf(hpa):
		return leastOf(hpa), "Current number of replicas below Spec.MinReplicas", false
	}
	return 0, "", true
}

// mostSelector is how long a selector may be. One takes some twenty times as much memory when it is read, and is kept so.
const mostSelector = 2 << 10

// selector selects the pods of a target.
type selector struct {
	labels.Selector
	text string // as its scale has it
}

// readSelector reads the selector of a scale. If there is none, it says why, for a condition and for an Event.
func readSelector(text string) (*selector, *badSelector) {
	switch {
	case text == "":
		return nil, &badSelector{"SelectorRequired", "selector is required", "InvalidSelector", "the HPA target's scale is missing a selector"}
	case len(text) > mostSelector:
		words := fmt.Sprintf("the selector of the HPA target's scale has %d bytes, and none of more than %d is read", len(text), mostSelector)
		return nil, &badSelector{"SelectorTooLong", words, "SelectorTooLong", words}
	}
	is, err := labels.Parse(text)
	if err != nil {
		words := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		return nil, &badSelector{"InvalidSelector", words, "InvalidSelector", words}
	}
	return &selector{is, text}, nil
}

type badSelector struct{ event, words, reason, condition string }

// decide says what a HorizontalPodAutoscaler does about what is known, in the words that Kubernetes has for it.
func decide(hpa *autoscalingv2.HorizontalPodAutoscaler, f facts, past history, now time.Time) outcome {
	o := outcome{status: *hpa.Status.DeepCopy(), past: past}
	if f.err != nil {
		o.warn("FailedGetScale", f.err.Error())
		o.say(autoscalingv2.AbleToScale, condition{false, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", f.err)}, now)
		return o
	}
	o.say(autoscalingv2.AbleToScale, condition{true, "SucceededGetScale", "the HPA controller was able to get the target's current scale"}, now)
	o.past = o.past.begun(f.replicas, now)
	f.silence = func(cluster string) time.Duration { return past.silence(cluster, now) }
	var asks bool
	o.replicas, o.why, asks = bound(hpa, f.replicas)
	switch {
	case asks:
		wanted, ok := o.measure(hpa, f, now)
		if !ok {
			o.status.CurrentReplicas = f.replicas
			return o
		}
		o.limit(hpa, f, wanted, now)
	case o.replicas == 0:
		o.status.CurrentMetrics = nil
		o.say(autoscalingv2.ScalingActive, condition{false, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero"}, now)
	default:
		o.status.CurrentMetrics = nil
		o.rescale = true
	}
	o.status.CurrentReplicas, o.status.DesiredReplicas = f.replicas, o.replicas
	return o
}

// wish is what all metrics together say.
type wish struct {
	replicas int32
	name     string   // of the metric that wants the most
	held     string   // why there are not fewer, if that is what is not known
	mute     []string // physical clusters in spite of whose silence there may be fewer
}

// measure asks all metrics. It is false where they do not say enough: none does, or not all that would have to for fewer replicas.
func (o *outcome) measure(hpa *autoscalingv2.HorizontalPodAutoscaler, f facts, now time.Time) (wish, bool) {
	o.status.CurrentMetrics = nil
	fail := func(why error) (wish, bool) {
		o.warn("FailedComputeMetricsReplicas", why.Error())
		return wish{}, false
	}
	refuse := func(reason, words string) (wish, bool) {
		o.warn(reason, words)
		o.say(autoscalingv2.ScalingActive, condition{false, reason, words}, now)
		return fail(errors.New(words))
	}
	if bad := f.bad; bad != nil {
		o.warn(bad.event, bad.words)
		o.say(autoscalingv2.ScalingActive, condition{false, bad.reason, bad.condition}, now)
		return fail(errors.New(bad.words))
	}
	if n := len(hpa.Spec.Metrics); n > kinds.MostMetrics {
		return refuse("TooManyMetrics", fmt.Sprintf("there are %d metrics, and nothing is scaled by more than %d", n, kinds.MostMetrics))
	}
	if len(f.rivals) > 0 {
		all := append(slices.Clone(f.rivals), hpa.Name)
		slices.Sort(all)
		return refuse("AmbiguousSelector", fmt.Sprintf("pods by selector %s are controlled by multiple HPAs: %s", f.selector, strings.Join(all, ", ")))
	}
	var all wish
	var first error // that a metric could not be asked
	var why condition
	unheard := map[string]bool{}
	free := int32(0) // the most that a metric wants which nothing unknown holds up
	failed := 0
	for i := range hpa.Spec.Metrics {
		m := &hpa.Spec.Metrics[i]
		is, status, name, err := ask(hpa, m, f, now)
		o.status.CurrentMetrics = append(o.status.CurrentMetrics, status)
		if err != nil {
			reason := failures[m.Type]
			o.warn(reason, err.Error())
			if first == nil {
				first, why = err, condition{false, reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", err)}
			}
			failed++
			continue
		}
		if all.name == "" || is.replicas > all.replicas {
			all.replicas, all.name = is.replicas, name
		}
		maps.Copy(unheard, is.unheard) // what says nothing serves, or not, whatever is asked for
		switch {
		case len(is.waits) == 0:
			free = max(free, is.replicas)
		case all.held == "":
			all.held = fmt.Sprintf("fewer replicas would do by what is known, and %s of %s is not: see kubectl top pods", name, podsIn(is.waits))
		}
		all.mute = append(all.mute, is.mute...)
	}
	if free >= f.replicas {
		all.held = ""
	}
	if failed < len(hpa.Spec.Metrics) { // else all are silent, or somebody else is away
		o.past = o.past.hears(unheard, now)
	}
	if failed > 0 && all.replicas < f.replicas {
		o.say(autoscalingv2.ScalingActive, why, now)
		return fail(fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failed, len(hpa.Spec.Metrics), first))
	}
	words := "the HPA was able to successfully calculate a replica count from " + all.name
	if len(unheard) > 0 {
		words += fmt.Sprintf("; what %s use is not known", podsIn(slices.Collect(maps.Keys(unheard))))
	}
	o.say(autoscalingv2.ScalingActive, condition{true, "ValidMetricFound", words}, now)
	return all, true
}

// mostNamed is how many of others are named, be they HorizontalPodAutoscalers or physical clusters.
const mostNamed = 5

// podsIn are the pods of physical clusters, in words.
func podsIn(clusters []string) string {
	slices.Sort(clusters)
	clusters = slices.Compact(clusters)
	switch n := len(clusters); {
	case n == 1:
		return "pods of physical cluster " + clusters[0]
	case n > mostNamed:
		return fmt.Sprintf("pods of physical clusters %s and %d more", strings.Join(clusters[:mostNamed], ", "), n-mostNamed)
	}
	return "pods of physical clusters " + strings.Join(clusters, ", ")
}

// limit has what metrics want done as spec.behavior lets it be.
func (o *outcome) limit(hpa *autoscalingv2.HorizontalPodAutoscaler, f facts, wanted wish, now time.Time) {
	switch {
	case wanted.replicas > f.replicas:
		o.why = wanted.name + " above target"
	case wanted.replicas < f.replicas:
		o.why = "All metrics below target"
	}
	var able, limited condition
	o.replicas, able, limited, o.past = behave(o.past, bounds{leastOf(hpa), hpa.Spec.MaxReplicas, hpa.Spec.Behavior}, f.replicas, wanted.replicas, now)
	switch {
	case wanted.held == "":
	case f.replicas > leastOf(hpa):
		limited = condition{true, "MissingMetrics", wanted.held}
	default: // and were all known there could not be fewer
		limited = condition{true, tooFew, tooFewWords}
	}
	o.say(autoscalingv2.AbleToScale, able, now)
	o.say(autoscalingv2.ScalingLimited, limited, now)
	o.rescale = o.replicas != f.replicas
	if o.replicas < f.replicas && len(wanted.mute) > 0 {
		o.warn("MissingMetrics", fmt.Sprintf("what %s use has not been known for %s: they count for all that they ask for, and there are fewer replicas", podsIn(wanted.mute), believedFor))
	}
}

// written says how the write of an outcome's replicas ended.
func (o *outcome) written(hpa *autoscalingv2.HorizontalPodAutoscaler, from int32, err error, now time.Time) {
	if err != nil {
		o.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", o.replicas, o.why, err))
		o.say(autoscalingv2.AbleToScale, condition{false, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err)}, now)
		o.status.DesiredReplicas = hpa.Status.DesiredReplicas
		return
	}
	o.events = append(o.events, event{corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", o.replicas, o.why)})
	o.say(autoscalingv2.AbleToScale, condition{true, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", o.replicas)}, now)
	o.status.LastScaleTime = ptr.To(metav1.NewTime(now))
	o.past = o.past.changed(o.replicas-from, hpa.Spec.Behavior, now)
}

// failures are the reasons why nothing is known of a metric.
var failures = map[autoscalingv2.MetricSourceType]string{
	autoscalingv2.ResourceMetricSourceType:          "FailedGetResourceMetric",
	autoscalingv2.ContainerResourceMetricSourceType: "FailedGetContainerResourceMetric",
	autoscalingv2.PodsMetricSourceType:              "FailedGetPodsMetric",
	autoscalingv2.ObjectMetricSourceType:            "FailedGetObjectMetric",
	autoscalingv2.ExternalMetricSourceType:          "FailedGetExternalMetric",
}

// goalOf is the goal of a metric of a resource, false for any other.
func goalOf(m *autoscalingv2.MetricSpec) (goal, bool) {
	var target autoscalingv2.MetricTarget
	var g goal
	switch {
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		target, g.resource = m.Resource.Target, m.Resource.Name
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		target, g.resource, g.container = m.ContainerResource.Target, m.ContainerResource.Name, m.ContainerResource.Container
	default:
		return goal{}, false
	}
	if target.AverageValue != nil {
		g.milli = milliOf(*target.AverageValue)
	} else {
		g.percent = ptr.Deref(target.AverageUtilization, 0)
	}
	return g, true
}

// ask asks one metric, and returns what it says and how it is shown in the status.
func ask(hpa *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.MetricSpec, f facts, now time.Time) (proposal, autoscalingv2.MetricStatus, string, error) {
	fail := func(err error) (proposal, autoscalingv2.MetricStatus, string, error) {
		return proposal{}, autoscalingv2.MetricStatus{}, "", err
	}
	g, ok := goalOf(m)
	if !ok {
		return fail(unserved(hpa, m))
	}
	what := "utilization"
	switch {
	case g.milli > 0:
		what = "usage"
	case g.percent <= 0:
		return fail(errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"))
	}
	is, err := f.proposes(g, tolerances(hpa.Spec.Behavior), now)
	if err != nil {
		return fail(fmt.Errorf("failed to get %s %s: %w", g.resource, what, err))
	}
	format := resource.DecimalSI
	if g.resource == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	value := autoscalingv2.MetricValueStatus{AverageValue: resource.NewMilliQuantity(is.milli, format)}
	name := fmt.Sprintf("%s resource", g.resource)
	if g.percent > 0 {
		value.AverageUtilization = &is.percent
		name += " utilization (percentage of request)"
	}
	if g.container == "" {
		return is, autoscalingv2.MetricStatus{Type: m.Type, Resource: &autoscalingv2.ResourceMetricStatus{Name: g.resource, Current: value}}, name, nil
	}
	name = strings.Replace(name, " resource utilization", " container resource utilization", 1)
	return is, autoscalingv2.MetricStatus{Type: m.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: g.resource, Container: g.container, Current: value}}, name, nil
}

// proposes is what a metric of a resource says.
func (f *facts) proposes(g goal, allowed tolerance, now time.Time) (proposal, error) {
	if f.usedErr != nil {
		return proposal{}, fmt.Errorf("unable to get metrics for resource %s: unable to fetch metrics from resource metrics API: %w", g.resource, f.usedErr)
	}
	if f.podsErr != nil {
		return proposal{}, fmt.Errorf("unable to get pods while calculating replica count: %w", f.podsErr)
	}
	if !slices.ContainsFunc(f.pods, func(p pod) bool { return f.used[p.name] != nil }) {
		return proposal{}, fmt.Errorf("unable to get metrics for resource %s: no metrics returned from resource metrics API", g.resource)
	}
	if i := slices.Index(f.asked.of, g.demand); i >= 0 {
		g.request, g.lacks = i, f.asked.lacks[i]
	}
	return calculate(g, f, allowed, now)
}

// unserved is why nothing is known of a metric that no API of a workspace has, as in a Kubernetes without that API.
func unserved(hpa *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.MetricSpec) error {
	const custom = "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"
	switch {
	case m.Pods != nil:
		return fmt.Errorf("unable to get metric %s: %s", m.Pods.Metric.Name, custom)
	case m.Object != nil:
		of := m.Object.DescribedObject
		return fmt.Errorf("unable to get metric %s of %s %s/%s: %s", m.Object.Metric.Name, of.Kind, hpa.Namespace, of.Name, custom)
	case m.External != nil:
		name := m.External.Metric.Name
		return fmt.Errorf("unable to get external metric %s/%s: unable to fetch metrics from external metrics API: the server could not find the requested resource (get %s.external.metrics.k8s.io)", hpa.Namespace, name, name)
	}
	return fmt.Errorf("unknown metric source type %q", m.Type)
}

// inEach says whether each physical cluster runs all replicas of an object with those annotations, by its own Placement and its namespace's; nil for none.
func inEach(annotations map[string]string, own, namespaces *placementv1alpha1.Placement) bool {
	p := own
	if p == nil && !placementv1alpha1.HasWish(annotations) { // else its own is to come
		p = namespaces
	}
	return p != nil && p.Spec.Split == placementv1alpha1.SplitDuplicate
}
