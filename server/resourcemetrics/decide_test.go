package resourcemetrics

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/metrics"

	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// row is a pod of team that runs in a cluster, whose mirror has its name with -mirror.
func row(cluster, name string, change ...func(*api.Pod)) *api.Pod {
	pod := &api.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name,
			Labels:      map[string]string{"app": "web", workloadv1alpha1.MirrorLabel: cluster + "-mirror"},
			Annotations: map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: "team-1a", "note": "x", "kcp.io/cluster": "shopname"},
		},
		Spec: api.PodSpec{
			NodeName: cluster, InitContainers: []api.Container{{Name: "sidecar"}}, Containers: []api.Container{{Name: "c"}},
			EphemeralContainers: []api.EphemeralContainer{{EphemeralContainerCommon: api.EphemeralContainerCommon{Name: "debugger"}}},
		},
		Status: api.PodStatus{Phase: api.PodRunning},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func in(namespace string) func(*api.Pod) {
	return func(p *api.Pod) {
		p.Namespace, p.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] = namespace, namespace+"-1a"
	}
}

func TestQuestions(t *testing.T) {
	ended := func(phase api.PodPhase) func(*api.Pod) { return func(p *api.Pod) { p.Status.Phase = phase } }
	for _, tc := range []struct {
		reason string
		rows   []*api.Pod
		want   []string // cluster, namespace, namespace below: pods
	}{
		{"nothing runs", nil, nil},
		{"what a tenant made up runs nowhere", []*api.Pod{row("east", "a", func(p *api.Pod) { delete(p.Labels, workloadv1alpha1.MirrorLabel) })}, nil},
		{"one that is not in the cluster yet is not asked for", []*api.Pod{row("east", "a", func(p *api.Pod) { delete(p.Annotations, workloadv1alpha1.MirrorNamespaceAnnotation) })}, nil},
		{"what has ended uses nothing", []*api.Pod{row("east", "a", ended(api.PodSucceeded)), row("east", "b", ended(api.PodFailed))}, nil},
		{"pods of a place are asked for together", []*api.Pod{row("east", "a"), row("east", "b")}, []string{"east team team-1a: a b"}},
		{"each cluster is asked, and for each namespace, in turns", []*api.Pod{
			row("east", "a", in("x")), row("east", "a", in("y")), row("east", "a", in("z")), row("west", "b", in("x")), row("west", "b", in("y")),
		}, []string{"east x x-1a: a", "west x x-1a: b", "east y y-1a: a", "west y y-1a: b", "east z z-1a: a"}},
		{"what two of its namespaces would share is asked for of each, since the cluster says of which it is", []*api.Pod{
			row("east", "a", in("x")), row("east", "b", in("y"), func(p *api.Pod) { p.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] = "x-1a" }),
		}, []string{"east x x-1a: a", "east y x-1a: b"}},
	} {
		var got []string
		for _, q := range questions(tc.rows) {
			text := fmt.Sprintf("%s %s %s:", q.cluster, q.namespace, q.below)
			for _, pod := range q.rows {
				text += " " + pod.Name
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func TestWays(t *testing.T) {
	at := func(age time.Duration) func(*api.Pod) {
		return func(p *api.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
	}
	q := &question{rows: []*api.Pod{
		row("east", "goes", at(5*time.Hour), func(p *api.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
		row("east", "starts", at(4*time.Hour), func(p *api.Pod) { p.Status.Phase = api.PodPending }),
		row("east", "new", at(time.Minute)), row("east", "old", at(time.Hour)),
	}}
	var got []string
	for _, pod := range q.ways() {
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff([]string{"old", "new", "starts"}, got); diff != "" {
		t.Errorf("the place is looked for by those that stay (-want +got):\n%s", diff)
	}
}

// said is what a Metrics API says of a pod with the container c.
func said(name, cpu, memory string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"team-1a","labels":{"app":"theirs"}},"timestamp":"2026-01-01T11:59:00Z","window":"15s","containers":[{"name":"c","usage":{"cpu":%q,"memory":%q}}]}`, name, cpu, memory)
}

func TestReadItems(t *testing.T) {
	list := func(items ...string) string {
		return `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
	}
	for _, tc := range []struct {
		reason, list string
		want         []string // names of pods
		err          string
	}{
		{"a list", list(said("a", "1m", "1Ki"), said("b", "1m", "1Ki")), []string{"a", "b"}, ""},
		{"an empty one", list(), nil, ""},
		{"what is of no use is left out", list(`{"metadata":{"name":5}}`, `[]`, `{"metadata":{"name":"x"},"containers":[{"usage":{"cpu":5}}]}`, said("b", "1m", "1Ki")), []string{"b"}, ""},
		{"what follows the items is not looked at", `{"items":[` + said("a", "1m", "1Ki") + `],"more":{"a":[1]}}`, []string{"a"}, ""},
		{"one that is cut off", strings.TrimSuffix(list(said("a", "1m", "1Ki")), "]}"), []string{"a"}, "EOF"},
		{"one of many pods", list(strings.Split(strings.Repeat(said("a", "1m", "1Ki")+"\n", 2000), "\n")[:2000]...), make2000("a"), ""},
		{"items one after the other up to what may be read at once", list(pad("a", mostItem-10), pad("b", mostItem-10), pad("c", mostItem-10)), []string{"a", "b", "c"}, ""},
		{"one item that is too long", list(said("a", "1m", "1Ki"), pad("b", 2*mostItem)), []string{"a"}, "longer than 64 KiB"},
		{"something else that is too long", `{"metadata":{"x":"` + strings.Repeat("x", 2*mostItem) + `"},"items":[]}`, nil, "longer than 64 KiB"},
		{"no end of spaces", `{"items":[` + strings.Repeat(" ", 2*mostItem), nil, "longer than 64 KiB"},
		{"none at all", `{"items":null,"kind":"PodMetricsList"}`, nil, ""},
		{"a Status", `{"kind":"Status","message":"no"}`, nil, ""},
		{"no object", `[1,2]`, nil, "no list"},
		{"items that are none", `{"items":{"a":1}}`, nil, "no list"},
		{"nothing", ``, nil, "no list"},
		{"no JSON", `<html>`, nil, "no list"},
	} {
		var got []string
		err := readItems(strings.NewReader(tc.list), func(i item) { got = append(got, i.Metadata.Name) })
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.reason, err, tc.err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func make2000(name string) (all []string) {
	for range 2000 {
		all = append(all, name)
	}
	return all
}

// pad is what is said of a pod, of so many bytes.
func pad(name string, length int) string {
	const around = `{"metadata":{"name":%q},"more":"%s"}`
	return fmt.Sprintf(around, name, strings.Repeat("x", length-len(fmt.Sprintf(around, name, ""))))
}

// TestReadItemsTakesLittle: what a hostile physical cluster says takes no more memory than some times what may be read at once.
func TestReadItemsTakesLittle(t *testing.T) {
	fill := func(begin, of, end string) string {
		return begin + strings.Repeat(of, (mostAnswer-len(begin)-len(end))/len(of)) + end
	}
	for name, text := range map[string]string{
		"one item of many containers": fill(`{"items":[{"containers":[`, `{},`, `{}]}]}`),
		"another field":               fill(`{"metadata":[`, `{},`, `{}]}`),
		"a long name":                 fill(`{"items":[{"metadata":{"name":"`, `x`, `"}}]}`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := readItems(strings.NewReader(text), func(item) {})
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 1<<20 {
			t.Errorf("%s: %d MiB took %d KiB: %v", name, len(text)>>20, took>>10, err)
		}
	}
	if err := readItems(strings.NewReader(fill(`{"items":[`, `{},`, `{}]}`)), func(item) {}); err == nil || !strings.Contains(err.Error(), "more than 50000") {
		t.Errorf("many that say nothing: %v", err)
	}
}

func parsed(t *testing.T, text string) (i item) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

func TestPodMetricsOfARow(t *testing.T) {
	of := func(containers string) string {
		return `{"metadata":{"name":"a"},"timestamp":"2026-01-01T11:59:00Z","window":"15s","containers":[` + containers + `]}`
	}
	c := func(name, cpu, memory string) string {
		return fmt.Sprintf(`{"name":%q,"usage":{"cpu":%q,"memory":%q}}`, name, cpu, memory)
	}
	for _, tc := range []struct {
		reason, said string
		want         []string // name, cpu, memory
	}{
		{"a container", of(c("c", "1500000n", "20Mi")), []string{"c 1500u 20Mi"}},
		{"all kinds of containers", of(c("c", "1", "1Ki") + "," + c("sidecar", "2m", "2048") + "," + c("debugger", "0", "0")), []string{"c 1 1Ki", "sidecar 2m 2048", "debugger 0 0"}},
		{"one that the row has not", of(c("c", "1", "1Ki") + "," + c("theirs", "1", "1Ki")), []string{"c 1 1Ki"}},
		{"one twice", of(c("c", "1", "1Ki") + "," + c("c", "2", "2Ki")), []string{"c 1 1Ki"}},
		{"less than nothing", of(c("c", "-1", "1Ki")), nil},
		{"an exponent without measure", of(c("c", "1e2000000000", "1Ki")), nil},
		{"more digits than anything has", of(c("c", "1", strings.Repeat("9", 30))), nil},
		{"no quantity", of(c("c", "much", "1Ki")), nil},
		{"half of what everything has", of(`{"name":"c","usage":{"cpu":"1"}}`), nil},
		{"what nobody asked for", of(`{"name":"c","usage":{"cpu":"1","memory":"1Ki","secrets":"5","swap":"3Ki"}}`), []string{"c 1 1Ki"}},
		{"no container", of(``), nil},
		{"no time", `{"metadata":{"name":"a"},"window":"15s","containers":[` + c("c", "1", "1Ki") + `]}`, nil},
		{"the time of the year 10,000", `{"metadata":{"name":"a"},"timestamp":"9999-12-31T23:59:59-23:59","window":"15s","containers":[` + c("c", "1", "1Ki") + `]}`, nil},
		{"the time before the year 0", `{"metadata":{"name":"a"},"timestamp":"0000-01-01T00:00:00+23:59","window":"15s","containers":[` + c("c", "1", "1Ki") + `]}`, nil},
		{"a time of another day", `{"metadata":{"name":"a"},"timestamp":"2025-12-30T11:59:00Z","window":"15s","containers":[` + c("c", "1", "1Ki") + `]}`, nil},
		{"a window of less than nothing", `{"metadata":{"name":"a"},"timestamp":"2026-01-01T11:59:00Z","window":"-15s","containers":[` + c("c", "1", "1Ki") + `]}`, nil},
	} {
		shown, ok := podMetrics(row("east", "a"), parsed(t, tc.said), now)
		var got []string
		if ok {
			for _, container := range shown.Containers {
				got = append(got, fmt.Sprintf("%s %s %s", container.Name, container.Usage.Cpu(), container.Usage.Memory()))
				if len(container.Usage) > 3 {
					t.Errorf("%s: %v passes", tc.reason, container.Usage)
				}
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

// TestMetadataIsTheRows: whose metrics they are, the workspace says, and not the physical cluster.
func TestMetadataIsTheRows(t *testing.T) {
	pod := row("east", "a")
	shown, ok := podMetrics(pod, parsed(t, said("a", "1m", "1Ki")), now)
	want := metav1.ObjectMeta{
		Namespace: "team", Name: "a", Labels: pod.Labels, CreationTimestamp: metav1.NewTime(now), Annotations: map[string]string{"kcp.io/cluster": "shopname"},
	}
	if diff := cmp.Diff(want, shown.ObjectMeta); diff != "" || !ok {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if shown.Timestamp.Time.Equal(now.Add(-time.Minute)) == false || shown.Window.Duration != 15*time.Second {
		t.Errorf("of %s, in %s", shown.Timestamp, shown.Window.Duration)
	}
	if shown.Labels["app"] = "changed"; pod.Labels["app"] != "web" {
		t.Error("a row, which is shared, is changed")
	}
}

func TestSumsOf(t *testing.T) {
	measured := func(of *api.Pod, cpu, memory, when string) metrics.PodMetrics {
		i := parsed(t, said(of.Name, cpu, memory))
		at, err := time.Parse(time.RFC3339, "2026-01-01T"+when+"Z")
		if err != nil {
			t.Fatal(err)
		}
		i.Timestamp = metav1.NewTime(at)
		shown, ok := podMetrics(of, i, now)
		if !ok {
			t.Fatalf("%s uses nothing", of.Name)
		}
		return shown
	}
	a, b, c := row("east", "a"), row("east", "b", in("x")), row("west", "c")
	node := func(name string) *api.Node {
		return &api.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"region": "r"}, Annotations: map[string]string{"kcp.io/cluster": "shopname", "note": "x"}}}
	}
	for _, tc := range []struct {
		reason   string
		nodes    []string
		rows     []*api.Pod
		measured []metrics.PodMetrics
		away     string
		want     []string // name, cpu, memory, time
	}{
		{"of one without pods nothing is used", []string{"east"}, nil, nil, "", []string{"east 0 0 12:00:00"}},
		{"the sum of its pods in all namespaces, as old as the oldest", []string{"east", "west"}, []*api.Pod{a, b, c},
			[]metrics.PodMetrics{measured(a, "100m", "1Mi", "11:59:30"), measured(b, "50m", "1Mi", "11:59:00"), measured(c, "7m", "2Ki", "11:59:10")}, "",
			[]string{"east 150m 2Mi 11:59:00", "west 7m 2Ki 11:59:10"}},
		{"those that are measured, of some", []string{"east"}, []*api.Pod{a, b}, []metrics.PodMetrics{measured(a, "100m", "1Mi", "11:59:30")}, "", []string{"east 100m 1Mi 11:59:30"}},
		{"none is measured yet", []string{"east"}, []*api.Pod{a}, nil, "", nil},
		{"one that is away is not shown, though it has said something", []string{"east", "west"}, []*api.Pod{a, b, c},
			[]metrics.PodMetrics{measured(a, "100m", "1Mi", "11:59:30"), measured(c, "7m", "2Ki", "11:59:10")}, "east-mirror", []string{"west 7m 2Ki 11:59:10"}},
		{"pods elsewhere do not count", []string{"east"}, []*api.Pod{c}, []metrics.PodMetrics{measured(c, "7m", "2Ki", "11:59:10")}, "", []string{"east 0 0 12:00:00"}},
	} {
		known := &used{pods: map[types.NamespacedName]metrics.PodMetrics{}, away: map[logicalcluster.Name]trouble{}}
		for _, m := range tc.measured {
			known.pods[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}] = m
		}
		if tc.away != "" {
			known.away[logicalcluster.Name(tc.away)] = trouble{}
		}
		var there []*api.Node
		for _, name := range tc.nodes {
			there = append(there, node(name))
		}
		var got []string
		for _, n := range sumsOf(there, tc.rows, known, now) {
			got = append(got, fmt.Sprintf("%s %s %s %s", n.Name, n.Usage.Cpu(), n.Usage.Memory(), n.Timestamp.UTC().Format(time.TimeOnly)))
			if n.Labels["region"] != "r" || len(n.Annotations) != 1 {
				t.Errorf("%s: %s has %v", tc.reason, n.Name, n.ObjectMeta)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
	if got := measured(a, "100m", "1Mi", "11:59:30"); got.Containers[0].Usage.Cpu().String() != "100m" || len(corev1.ResourceList(got.Containers[0].Usage)) != 2 {
		t.Errorf("what pods use was changed by a sum: %v", got)
	}
}

func TestInHeader(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "two\nlines\r\n and  more": "two lines and more", "\x00bell\x07": "bell", strings.Repeat("x", 2*mostWords): strings.Repeat("x", mostWords),
		strings.Repeat("x", mostWords-1) + "é": strings.Repeat("x", mostWords-1),
	} {
		if got := inHeader(in); got != want {
			t.Errorf("%.40q is %.40q, want %.40q", in, got, want)
		}
	}
}
