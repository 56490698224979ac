package autoscaling

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Kubernetes' numbers, which kube-controller-manager has as flags.
const (
	// usualTolerance is how far what is used may be from what is to be, as a part of that, for nothing to be done.
	usualTolerance = 0.1
	// startsFor is how long after its start a pod's CPU is not believed unless it is Ready, and was so for as long as was measured.
	startsFor = 5 * time.Minute
	// neverReadyFor is how soon after its start a pod that is not Ready was last said to be anything else, if it never was Ready.
	neverReadyFor = 30 * time.Second
)

// believedFor is for how long a physical cluster that says nothing of pods that serve keeps what they are of from being made smaller. One that has no Metrics API says nothing
// for ever: after that its pods count as pods without metrics do in Kubernetes. Of one that is away no pod is Ready, and it is waited for.
const believedFor = time.Hour

// pod is what a calculation has to know of one that a target's selector selects.
type pod struct {
	name    string
	cluster string // the physical cluster that shows it, as its Node is called; empty where none does
	phase   corev1.PodPhase
	going   bool // it is being deleted
	started time.Time
	ready   *corev1.PodCondition
	lost    bool // its physical cluster is away, or its syncer sees no pods: how it is, nobody knows
	// requests has what it asks for, of each demand of the HorizontalPodAutoscaler in its order, in thousandths.
	requests []int64
}

// demand is a resource that pods ask for, of one container or, where that is empty, of all.
type demand struct {
	resource  corev1.ResourceName
	container string
}

// asked are the demands that a HorizontalPodAutoscaler's percentages are of, each once, however many metrics there are.
type asked struct {
	of []demand
	// lacks has, of each, why no percentage of it can be told: the first pod that does not ask for it. No other is looked at for that.
	lacks []error
}

// askedBy are the demands of metrics.
func askedBy(specs []autoscalingv2.MetricSpec) asked {
	var a asked
	for i := range specs {
		if g, ok := goalOf(&specs[i]); ok && g.percent > 0 && !slices.Contains(a.of, g.demand) {
			a.of = append(a.of, g.demand)
		}
	}
	a.lacks = make([]error, len(a.of))
	return a
}

// read returns what a pod asks for.
func (a *asked) read(p *corev1.Pod) []int64 {
	if len(a.of) == 0 {
		return nil
	}
	milli := make([]int64, len(a.of))
	for i, d := range a.of {
		if a.lacks[i] == nil {
			milli[i], a.lacks[i] = requestFor(p, d.resource, d.container)
		}
	}
	return milli
}

// usages are what pods of a namespace use, by name. They are shared.
type usages map[string]*metricsv1beta1.PodMetrics

// goal is what a resource metric is to be.
type goal struct {
	demand
	// percent of what pods ask for, or thousandths for each pod if that is 0.
	percent int32
	milli   int64
	// request is where a pod has what it asks for, and lacks why not all have it; of percent.
	request int
	lacks   error
}

// tolerance is how far from its goal a metric may be for nothing to be done, as parts of the goal.
type tolerance struct{ down, up float64 }

func (t tolerance) has(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// proposal is what a metric says by itself.
type proposal struct {
	replicas int32
	percent  int32 // of what is asked for, if the goal is in percent
	milli    int64 // for each pod
	// request is what a pod asks for, on average, and ratio what is used as a part of what is to be.
	request int64
	ratio   float64
	// unheard are the physical clusters that say nothing of any pod that runs there, and whether one serves.
	unheard map[string]bool
	// waits are those of them because of which there are not fewer replicas, and mute those in spite of which there are, by name.
	waits, mute []string
}

var errNotMeasured = errors.New("did not receive metrics for targeted pods (pods might be unready)")

// calculate returns how many replicas would use as much as they are to. Where each physical cluster runs all of them, that is what the one needs that needs most, by its own pods alone: what one does not use is
// nothing that another could. While one says nothing, or all pods of one just begin, there are not fewer, for however long: what the others need says nothing of it.
func calculate(g goal, f *facts, allowed tolerance, now time.Time) (proposal, error) {
	if len(f.pods) == 0 {
		return proposal{}, errors.New("no pods returned by selector while calculating replica count")
	}
	if !f.each {
		return need(g, f, f.pods, f.hidden(), allowed, now)
	}
	of, hidden := map[string][]pod{}, f.hidden()
	for cluster := range hidden {
		of[cluster] = nil
	}
	for i := range f.pods {
		of[f.pods[i].cluster] = append(of[f.pods[i].cluster], f.pods[i])
	}
	most, unheard, unknown := proposal{replicas: -1}, map[string]bool{}, map[string]bool{}
	for _, cluster := range slices.Sorted(maps.Keys(of)) {
		is, err := need(g, f, of[cluster], map[string]int{cluster: hidden[cluster]}, allowed, now)
		maps.Copy(unheard, is.unheard)
		switch {
		case err == nil && cmp.Or(cmp.Compare(is.replicas, most.replicas), cmp.Compare(is.ratio, most.ratio)) > 0:
			most = is
		case errors.Is(err, errNotMeasured): // all of them begin, perhaps, or make room for others, and what those will need is not known
			if cluster != "" && slices.ContainsFunc(of[cluster], func(p pod) bool { return !p.ended() }) {
				unknown[cluster] = true
			}
		case err != nil:
			return proposal{}, err
		}
	}
	if most.replicas < 0 {
		return proposal{}, errNotMeasured
	}
	maps.Copy(unknown, unheard)
	if most.unheard = unheard; most.replicas < f.replicas && len(unknown) > 0 {
		most.replicas, most.waits = f.replicas, slices.Sorted(maps.Keys(unknown))
	}
	return most, nil
}

// mostHidden is how many are counted, and one of each physical cluster: what is reported somebody wrote.
const mostHidden = 10_000

func (p pod) ended() bool { return p.phase == corev1.PodFailed || p.phase == corev1.PodSucceeded }

// isReported says that a pod is, perhaps, among those that its physical cluster reports: a StatefulSet counts one on its way out. One of which nobody tells is on its way out
// for as long as that is so, whatever becomes of it there.
func (p pod) isReported() bool { return !p.ended() && !(p.going && p.lost) }

// hidden is how many pods physical clusters report of the target, and do not show.
func (f *facts) hidden() map[string]int {
	shown := map[string]int{}
	for i := range f.pods {
		if f.pods[i].isReported() {
			shown[f.pods[i].cluster]++
		}
	}
	hidden, left := map[string]int{}, mostHidden
	for _, cluster := range slices.Sorted(maps.Keys(f.reports)) {
		if n := min(f.reports[cluster].replicas-shown[cluster], max(1, left)); n > 0 {
			hidden[cluster], left = n, left-n
		}
	}
	return hidden
}

// need returns how many replicas pods need, as Kubernetes calculates it, by those that there are: those that have just begun are taken for using nothing if there would be more,
// and those of which nothing is known for using nothing if there would be more, and all that they ask for, or are to use, if there would be fewer. Pods that are reported, and hidden, are such, and a physical cluster that reports some and shows none of those
// says nothing. One that shows some does: what it reports is of another moment.
//
// Beyond Kubernetes, what uses too much is no reason for fewer, however few are seen, and what uses too little none for more, however many there are for a while, as in a move, whose replicas would grow by
// themselves. There are not fewer while a physical cluster says nothing of any pod that runs there: what is not seen is not less used. That ends when it was silent for believedFor, and its pods serve. If there would
// be more, pods of one that is away, or silent for so long that they have not just begun, are not there, and added to what the others need: of those nobody knows whether they could take more.
//
// An error that nothing is measured comes with who is silent.
func need(g goal, f *facts, pods []pod, hidden map[string]int, allowed tolerance, now time.Time) (proposal, error) {
	var counted, unready, missing []part
	clusters := map[string]voice{}
	for i := range pods {
		p := &pods[i]
		v := clusters[p.cluster]
		v.away = v.away || p.lost
		if p.going || p.phase == corev1.PodFailed {
			clusters[p.cluster] = v // of which there may be more
			continue
		}
		is := part{cluster: p.cluster}
		if g.percent > 0 {
			is.request = p.requests[g.request]
		}
		sample := f.used[p.name]
		milli, measured := valueOf(sample, g)
		v.heard = v.heard || measured
		switch {
		case p.phase == corev1.PodPending:
			unready = append(unready, is)
			v.runs = v.runs || p.lost // for all that is known
		case !measured:
			missing = append(missing, is)
			if p.phase != corev1.PodSucceeded { // of one that has ended there is nothing to say
				v.runs, v.serves = true, v.serves || p.ready != nil && p.ready.Status == corev1.ConditionTrue
			}
		case g.resource == corev1.ResourceCPU && starts(p, sample, now):
			unready = append(unready, is)
		default:
			is.milli = milli
			counted = append(counted, is)
		}
		clusters[p.cluster] = v
	}
	for cluster, n := range hidden {
		if n > 0 && !slices.ContainsFunc(pods, func(p pod) bool { return p.cluster == cluster && p.isReported() }) {
			clusters[cluster] = voice{runs: true, serves: true, away: clusters[cluster].away || f.reports[cluster].away}
		}
	}
	unheard := map[string]bool{}
	for name, v := range clusters {
		if v.runs && !v.heard && name != "" {
			unheard[name] = v.serves && !v.away
		}
	}
	if len(counted) == 0 {
		return proposal{unheard: unheard}, errNotMeasured
	}
	if g.percent > 0 && g.lacks != nil {
		return proposal{}, g.lacks
	}
	ratio, is, err := g.ratio(counted)
	if err != nil {
		return proposal{}, err
	}
	is.unheard = unheard
	for cluster, n := range hidden {
		missing = append(missing, slices.Repeat([]part{{request: is.request, cluster: cluster}}, n)...) // they ask for as much as others
	}
	apart := 0
	switch {
	case ratio > 1:
		others := slices.DeleteFunc(append(missing, unready...), func(p part) bool {
			_, silent := unheard[p.cluster]
			return silent && (clusters[p.cluster].away || f.silence(p.cluster) >= startsFor)
		})
		apart = len(missing) + len(unready) - len(others)
		counted = append(counted, others...)
		apart = min(apart, max(0, int(f.replicas)-len(counted))) // what more there are is not of the replicas any more
	case ratio < 1:
		for _, p := range missing {
			p.milli = g.supposed(p)
			counted = append(counted, p)
		}
	}
	again, _, err := g.ratio(counted)
	if err != nil {
		return proposal{}, err
	}
	is.replicas, is.ratio = f.replicas, ratio
	if allowed.has(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return is, nil
	}
	n := times(again, len(counted), apart)
	if again > 1 {
		is.replicas = max(n, f.replicas)
		return is, nil
	}
	if n >= f.replicas {
		return is, nil
	}
	for _, name := range slices.Sorted(maps.Keys(unheard)) {
		if unheard[name] && f.silence(name) >= believedFor {
			is.mute = append(is.mute, name)
		} else {
			is.waits = append(is.waits, name)
		}
	}
	if len(is.waits) == 0 {
		is.replicas = n
	}
	return is, nil
}

// part is what a pod uses and asks for, in thousandths.
type part struct {
	milli, request int64
	cluster        string
}

// voice is what is known of a physical cluster by its pods: that it says something of one, that it is away, that one runs of which it says nothing, and that such a one serves.
type voice struct{ heard, away, runs, serves bool }

// ratio is what pods use as a part of what they are to, with what that is in percent and for each pod. Percents and averages are whole numbers, as in Kubernetes.
func (g goal) ratio(of []part) (float64, proposal, error) {
	var used, asked int64
	for _, p := range of {
		used, asked = add(used, p.milli), add(asked, p.request)
	}
	is := proposal{milli: used / int64(len(of)), request: asked / int64(len(of))}
	if g.percent == 0 {
		return float64(is.milli) / float64(g.milli), is, nil
	}
	if asked <= 0 {
		return 0, proposal{}, errors.New("no metrics returned matched known pods")
	}
	is.percent = int32(min(scaled(used, 100, asked), math.MaxInt32)) //nolint:gosec // it is at most that
	return float64(is.percent) / float64(g.percent), is, nil
}

// supposed is what a pod is taken to use of which nothing is known, if there would be fewer.
func (g goal) supposed(p part) int64 {
	if g.percent == 0 {
		return g.milli
	}
	return scaled(p.request, int64(max(100, g.percent)), 100)
}

// starts says that a pod's CPU says nothing yet of what it will use: it is not Ready, or was not for as long as was measured.
func starts(p *pod, sample *metricsv1beta1.PodMetrics, now time.Time) bool {
	if p.ready == nil || p.started.IsZero() {
		return true
	}
	since := p.ready.LastTransitionTime.Time
	if p.started.Add(startsFor).After(now) {
		return p.ready.Status == corev1.ConditionFalse || sample.Timestamp.Time.Before(since.Add(sample.Window.Duration))
	}
	return p.ready.Status == corev1.ConditionFalse && p.started.Add(neverReadyFor).After(since)
}

// valueOf is what a pod uses, or a container of it, in thousandths; false where that is not known.
func valueOf(sample *metricsv1beta1.PodMetrics, g goal) (sum int64, ok bool) {
	if sample == nil {
		return 0, false
	}
	for i := range sample.Containers {
		c := &sample.Containers[i]
		if g.container != "" && c.Name != g.container {
			continue
		}
		quantity, measured := c.Usage[g.resource]
		if !measured {
			return 0, false
		}
		sum, ok = add(sum, milliOf(quantity)), true
	}
	return sum, ok
}

// requestFor is how much of a resource a pod asks for, or a container of it.
func requestFor(p *corev1.Pod, name corev1.ResourceName, container string) (int64, error) {
	if container == "" && podresource.IsPodLevelRequestsSet(p) {
		quantity, ok := podresource.PodRequests(p, podresource.PodResourcesOptions{})[name]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, p.Name)
		}
		return milliOf(quantity), nil
	}
	sum, found := int64(0), false
	take := func(c *corev1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		quantity, ok := c.Resources.Requests[name]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, p.Name)
		}
		sum, found = add(sum, milliOf(quantity)), true
		return nil
	}
	for i := range p.Spec.Containers {
		if err := take(&p.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue // it has ended when the others run
		}
		if err := take(c); err != nil {
			return 0, err
		}
	}
	if container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}

// milliOf is a quantity in thousandths, or as many as there can be. Less than nothing is nothing.
func milliOf(q resource.Quantity) int64 {
	switch {
	case q.Sign() < 0:
		return 0
	case q.CmpInt64(math.MaxInt64/1000) > 0:
		return math.MaxInt64
	}
	return q.MilliValue()
}

// add adds what is not less than nothing, to no more than there can be.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// scaled is a*by/of rounded down, or as much as there can be; of > 0, and nothing is less than 0.
func scaled(a, by, of int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(by)) //nolint:gosec // not less than 0
	if high >= uint64(of) {                        //nolint:gosec // more than 0
		return math.MaxInt64
	}
	q, _ := bits.Div64(high, low, uint64(of)) //nolint:gosec // more than 0
	return int64(min(q, math.MaxInt64))       //nolint:gosec // it is at most that
}

// times is so many times as many pods as there are, rounded up, and some more, or as many as there can be.
func times(ratio float64, pods, more int) int32 {
	return int32(min(math.Ceil(ratio*float64(pods))+float64(more), math.MaxInt32))
}
