package resourcemetrics

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/metrics"

	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// place is a namespace of a workspace in a physical cluster that shows pods of it.
type place struct {
	mirror    logicalcluster.Name
	namespace string // of the workspace
	below     string // of the physical cluster
}

// question is what a physical cluster is asked: what pods in a place use.
type question struct {
	place
	cluster string // as its Node is called
	rows    []*api.Pod
}

// runsBelow says whether a physical cluster shows a pod, which may use something there.
func runsBelow(pod *api.Pod) bool {
	return pod.Labels[workloadv1alpha1.MirrorLabel] != "" && pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] != "" &&
		pod.Status.Phase != api.PodSucceeded && pod.Status.Phase != api.PodFailed
}

// questions are what is to be asked to know what pods use, of one physical cluster after the other in turns: one that does not answer holds up no other
// before it is known to be away.
func questions(rows []*api.Pod) []*question {
	of := map[place]*question{}
	for _, pod := range rows {
		if !runsBelow(pod) {
			continue
		}
		at := place{logicalcluster.Name(pod.Labels[workloadv1alpha1.MirrorLabel]), pod.Namespace, pod.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation]}
		if of[at] == nil {
			of[at] = &question{place: at, cluster: pod.Spec.NodeName}
		}
		of[at].rows = append(of[at].rows, pod)
	}
	turn, turns := map[logicalcluster.Name]int{}, map[place]int{}
	for _, at := range slices.SortedFunc(maps.Keys(of), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.mirror, b.mirror), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.below, b.below))
	}) {
		turns[at] = turn[at.mirror]
		turn[at.mirror]++
	}
	return slices.SortedFunc(maps.Values(of), func(a, b *question) int {
		return cmp.Or(cmp.Compare(turns[a.place], turns[b.place]), cmp.Compare(a.mirror, b.mirror))
	})
}

// mostWays is by how many pods of a place it is looked for: those that have just gone lead nowhere.
const mostWays = 3

// ways are the pods by which a place is looked for, those first that are there for the longest.
func (q *question) ways() []*api.Pod {
	rank := func(pod *api.Pod) int {
		switch {
		case pod.DeletionTimestamp != nil:
			return 2
		case pod.Status.Phase != api.PodRunning:
			return 1
		}
		return 0
	}
	sorted := slices.SortedStableFunc(slices.Values(q.rows), func(a, b *api.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return sorted[:min(len(sorted), mostWays)]
}

// item is what a Metrics API says of a pod. Quantities are texts: who reads them as such believes exponents without measure.
type item struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Timestamp  metav1.Time     `json:"timestamp"`
	Window     metav1.Duration `json:"window"`
	Containers []struct {
		Name  string            `json:"name"`
		Usage map[string]string `json:"usage"`
	} `json:"containers"`
}

const (
	// mostItem is how long what a Metrics API says of one pod may be, in bytes: it unpacks to some times as much.
	mostItem = 64 << 10
	// mostItems is of how many pods of a namespace it may say something: more than as long an answer as is read has room for, where it says what it should.
	mostItems = 50_000
)

// readItems calls take for each pod that a PodMetricsList is of, one after the other, so that no more of it is kept than take does.
func readItems(list io.Reader, take func(item)) error {
	from := &inPieces{Reader: list}
	decoder := json.NewDecoder(from)
	more := func() bool {
		from.left = mostItem
		return decoder.More()
	}
	if more(); expect(decoder, json.Delim('{')) != nil {
		return errNoList
	}
	for more() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		if key != "items" {
			var other json.RawMessage
			if err := decoder.Decode(&other); err != nil {
				return err
			}
			continue
		}
		first, err := decoder.Token()
		switch {
		case err != nil:
			return err
		case first == nil:
			continue // null
		case first != json.Delim('['):
			return errNoList
		}
		for items := 0; more(); items++ {
			if items == mostItems {
				return fmt.Errorf("it is of more than %d pods", mostItems)
			}
			var text json.RawMessage
			if err := decoder.Decode(&text); err != nil {
				return err
			}
			var said item
			if json.Unmarshal(text, &said) == nil { // else it is of no use, and others may be
				take(said)
			}
		}
		if err := expect(decoder, json.Delim(']')); err != nil {
			return err
		}
	}
	return expect(decoder, json.Delim('}'))
}

// errNoList is what an answer is that has no items.
var errNoList = errors.New("it is no list")

func expect(decoder *json.Decoder, want json.Delim) error {
	got, err := decoder.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case got != want:
		return errNoList
	}
	return nil
}

// inPieces reads no more than so many bytes before somebody says that he has understood what he read.
type inPieces struct {
	io.Reader
	left int
}

func (p *inPieces) Read(into []byte) (int, error) {
	if p.left <= 0 {
		return 0, fmt.Errorf("what it says of one pod is longer than %d KiB", mostItem>>10)
	}
	n, err := p.Reader.Read(into[:min(len(into), p.left)])
	p.left -= n
	return n, err
}

// amount is how a Metrics API writes what is used, which is never less than nothing.
var amount = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?([numkMGTPE]|[KMGTPE]i)?$`)

// Of what a container uses pass what kubectl shows. The first two everything has that has any.
var (
	needed  = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	amounts = append(slices.Clone(needed), "swap")
)

// usage returns what a container uses, false for one of which a Metrics API says too little.
func usage(said map[string]string) (corev1.ResourceList, bool) {
	used := corev1.ResourceList{}
	for _, name := range amounts {
		if text := said[string(name)]; amount.MatchString(text) {
			if quantity, err := resource.ParseQuantity(text); err == nil {
				used[name] = quantity
			}
		}
	}
	for _, name := range needed {
		if _, ok := used[name]; !ok {
			return nil, false
		}
	}
	return used, true
}

// mostSkew is how far the time of what a physical cluster says is from that of this server, at most. One that clients cannot read, of the year 10,000, would
// leave them without the whole list.
const mostSkew = 24 * time.Hour

// podMetrics is what is shown of a pod: the row, with what the physical cluster says that its containers use. It is false where that is nothing.
func podMetrics(row *api.Pod, said item, now time.Time) (metrics.PodMetrics, bool) {
	if age := now.Sub(said.Timestamp.Time); age < -mostSkew || age > mostSkew || said.Window.Duration < 0 {
		return metrics.PodMetrics{}, false
	}
	shown := metrics.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{
			Name: row.Name, Namespace: row.Namespace, Labels: maps.Clone(row.Labels), CreationTimestamp: metav1.NewTime(now), // as upstream
			Annotations: map[string]string{lcctx.Annotation: row.Annotations[lcctx.Annotation]},
		},
		Timestamp: said.Timestamp, Window: said.Window,
	}
	left := containersOf(row)
	for _, container := range said.Containers {
		used, ok := usage(container.Usage)
		if !ok || !left[container.Name] {
			continue
		}
		left[container.Name] = false
		shown.Containers = append(shown.Containers, metrics.ContainerMetrics{Name: container.Name, Usage: used})
	}
	return shown, len(shown.Containers) > 0
}

// containersOf are the names of all containers of a pod.
func containersOf(pod *api.Pod) map[string]bool {
	names := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		names[pod.Spec.InitContainers[i].Name] = true
	}
	for i := range pod.Spec.Containers {
		names[pod.Spec.Containers[i].Name] = true
	}
	for i := range pod.Spec.EphemeralContainers {
		names[pod.Spec.EphemeralContainers[i].Name] = true
	}
	return names
}

// nodeMetrics is what is shown of a Node: what the workspace's own pods use there together, and not what others do. It is as old as the oldest that it is a sum
// of; without pods it is nothing, now.
func nodeMetrics(node *api.Node, pods []metrics.PodMetrics, now time.Time) metrics.NodeMetrics {
	shown := metrics.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, Labels: maps.Clone(node.Labels), CreationTimestamp: metav1.NewTime(now),
			Annotations: map[string]string{lcctx.Annotation: node.Annotations[lcctx.Annotation]},
		},
		Timestamp: metav1.NewTime(now),
		Usage:     corev1.ResourceList{corev1.ResourceCPU: resource.Quantity{Format: resource.DecimalSI}, corev1.ResourceMemory: resource.Quantity{Format: resource.BinarySI}},
	}
	for i := range pods {
		if pods[i].Timestamp.Before(&shown.Timestamp) || i == 0 {
			shown.Timestamp = pods[i].Timestamp
		}
		shown.Window.Duration = max(shown.Window.Duration, pods[i].Window.Duration)
		add(shown.Usage, pods[i].Containers)
	}
	return shown
}

// sumsOf are the Nodes of whose pods, which are rows, all is known that there is to know. Those of whose pods nothing has been measured yet are not among them:
// that is not nothing.
func sumsOf(there []*api.Node, rows []*api.Pod, known *used, now time.Time) []metrics.NodeMetrics {
	of, runs, away := map[string][]metrics.PodMetrics{}, map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		node := row.Spec.NodeName
		runs[node] = true
		if _, is := known.away[logicalcluster.Name(row.Labels[workloadv1alpha1.MirrorLabel])]; is {
			away[node] = true
		}
		if shown, ok := known.pods[types.NamespacedName{Namespace: row.Namespace, Name: row.Name}]; ok {
			of[node] = append(of[node], shown)
		}
	}
	shown := []metrics.NodeMetrics{} // not null
	for _, node := range there {
		if measured := of[node.Name]; !away[node.Name] && (len(measured) > 0 || !runs[node.Name]) {
			shown = append(shown, nodeMetrics(node, measured, now))
		}
	}
	slices.SortFunc(shown, func(a, b metrics.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return shown
}

// add adds what containers use to a sum.
func add(sum corev1.ResourceList, containers []metrics.ContainerMetrics) {
	for _, container := range containers {
		for name, quantity := range container.Usage {
			total := sum[name]
			total.Add(quantity)
			sum[name] = total
		}
	}
}

// mostWords is how long what is told of one physical cluster may be, in bytes.
const mostWords = 512

// inHeader makes words fit for the header Warning.
func inHeader(words string) string {
	words = strings.ToValidUTF8(words[:min(len(words), mostWords)], "")
	return strings.Join(strings.FieldsFunc(words, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}
