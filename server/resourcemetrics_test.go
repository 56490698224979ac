package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	metricstyped "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// measuring are Kubelets of physical clusters that have a Metrics API, by their mirrors.
type measuring struct {
	framework.NoPods
	clusters map[logicalcluster.Name]*httptest.Server

	mu    sync.Mutex
	says  map[logicalcluster.Name]string // of all pods
	away  map[logicalcluster.Name]error
	asked []string // mirrors, namespaces and paths
}

func startMeasuring(t *testing.T) (*streaming, *measuring) {
	t.Helper()
	s := startStreaming(t) // web-1 in east
	s.ground(t).cluster(t, shop, "root:shop", "root")
	m := &measuring{clusters: map[logicalcluster.Name]*httptest.Server{}, says: map[logicalcluster.Name]string{}, away: map[logicalcluster.Name]error{}}
	for _, mirror := range []logicalcluster.Name{east, west} {
		m.clusters[mirror] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.asked = append(m.asked, string(mirror)+" "+req.URL.Path)
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"items":[%s]}`, m.says[mirror])
		}))
		t.Cleanup(m.clusters[mirror].Close)
	}
	s.Server.kubelets = m
	leaf, err := s.in(t, west).AppsV1().Deployments(inEast).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	for _, pod := range []struct {
		name string
		west bool
	}{{"web-2", false}, {"web-3", true}} {
		below, kube := s.below(pod.name, nil), s.east
		if pod.west {
			below.OwnerReferences[0].UID, kube = leaf.UID, s.west
		}
		_, err := kube.CoreV1().Pods(inEast).Create(t.Context(), below, metav1.CreateOptions{})
		must(t, err)
	}
	m.says[east] = measured("web-1", "100m", "10Mi") + "," + measured("web-2", "50m", "6Mi") + "," + measured("not-ours", "7", "7Gi")
	m.says[west] = measured("web-3", "5m", "1Mi") + "," + measured("web-1", "9", "9Gi") // which it does not run
	waitFor(t, 20*time.Second, "the watch cache has three pods", func() (string, bool) {
		list, err := metricsOf(t, s.admin(), nil).PodMetricses(team).List(t.Context(), metav1.ListOptions{})
		return fmt.Sprint(list, err), err == nil && len(list.Items) == 3
	})
	m.asked = nil
	return s, m
}

// measuredAt is when physical clusters have measured.
var measuredAt = time.Now().Add(-time.Minute).Truncate(time.Second)

func measured(pod, cpu, memory string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"kube-system","labels":{"app":"theirs"},"annotations":{"a":"b"}},"timestamp":%q,"window":"15s",`+
		`"containers":[{"name":"c","usage":{"cpu":%q,"memory":%q}},{"name":"theirs","usage":{"cpu":"1","memory":"1Gi"}}]}`, pod, measuredAt.Format(time.RFC3339), cpu, memory)
}

func (m *measuring) Reach(_ context.Context, shown metav1.Object) (func() net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mirror := logicalcluster.Name(shown.GetLabels()[workloadv1alpha1.MirrorLabel])
	if err := m.away[mirror]; err != nil {
		return nil, err
	}
	return func() net.Conn {
		conn, err := net.Dial("tcp", m.clusters[mirror].Listener.Addr().String())
		if err != nil {
			panic(err)
		}
		return conn
	}, nil
}

// admin is an administrator of the server, in shop.
func (s *streaming) admin() *rest.Config { return s.withToken(root) }

// warnings collects those of answers.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

func metricsOf(t *testing.T, config *rest.Config, warns *warnings) metricstyped.MetricsV1beta1Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	if warns != nil {
		config.WarningHandler = warns
	}
	client, err := metricsclient.NewForConfig(config)
	must(t, err)
	return client.MetricsV1beta1()
}

// usageOf is what is shown of pods: namespace, name, containers with what they use.
func usageOf(list *metricsv1beta1.PodMetricsList) (all []string) {
	for _, pod := range list.Items {
		text := pod.Namespace + "/" + pod.Name
		for _, c := range pod.Containers {
			text += fmt.Sprintf(" %s %s %s", c.Name, c.Usage.Cpu(), c.Usage.Memory())
		}
		all = append(all, text)
	}
	return all
}

func sumsOf(list *metricsv1beta1.NodeMetricsList) (all []string) {
	for _, node := range list.Items {
		all = append(all, fmt.Sprintf("%s %s %s", node.Name, node.Usage.Cpu(), node.Usage.Memory()))
	}
	return all
}

// TestResourceMetrics: a workspace shows what its pods use, as the physical clusters say it, and of nothing else that runs there.
func TestResourceMetrics(t *testing.T) {
	s, m := startMeasuring(t)
	of := metricsOf(t, s.admin(), nil)
	all := []string{"team/web-1 c 100m 10Mi", "team/web-2 c 50m 6Mi", "team/web-3 c 5m 1Mi"}
	for _, tc := range []struct {
		reason, namespace string
		options           metav1.ListOptions
		want              []string
		asked             []string
	}{
		{"of a namespace", team, metav1.ListOptions{}, all, []string{"eastname /podMetrics/team", "westname /podMetrics/team"}},
		{"of all", "", metav1.ListOptions{}, all, []string{"eastname /podMetrics/team", "westname /podMetrics/team"}},
		{"by labels", team, metav1.ListOptions{LabelSelector: "app=web"}, all, []string{"eastname /podMetrics/team", "westname /podMetrics/team"}},
		{"by labels that the workspace knows, not by theirs", team, metav1.ListOptions{LabelSelector: "app=theirs"}, nil, nil},
		{"by name, where only its cluster is asked", team, metav1.ListOptions{FieldSelector: "metadata.name=web-3"}, all[2:], []string{"westname /podMetrics/team"}},
		{"of a namespace without pods", "default", metav1.ListOptions{}, nil, nil},
	} {
		m.asked = nil
		list, err := of.PodMetricses(tc.namespace).List(t.Context(), tc.options)
		must(t, err)
		if diff := cmp.Diff(tc.want, usageOf(list)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
		slices.Sort(m.asked)
		if diff := cmp.Diff(tc.asked, m.asked); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", tc.reason, diff)
		}
	}
	m.asked = nil
	one, err := of.PodMetricses(team).Get(t.Context(), "web-1", metav1.GetOptions{})
	must(t, err)
	if one.Labels["app"] != "web" || len(one.Annotations) != 1 || one.Window.Duration != 15*time.Second || !one.Timestamp.Time.Equal(measuredAt) || len(one.Containers) != 1 {
		t.Errorf("of one: %+v", one)
	}
	if diff := cmp.Diff([]string{"eastname /podMetrics/team/web-1"}, m.asked); diff != "" {
		t.Errorf("of one, asked (-want +got):\n%s", diff)
	}
	if _, err := of.PodMetricses(team).Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of no pod: %v", err)
	}

	nodes, err := of.NodeMetricses().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if diff := cmp.Diff([]string{"us-east-1 150m 16Mi", "us-west-1 5m 1Mi"}, sumsOf(nodes)); diff != "" {
		t.Errorf("on nodes (-want +got):\n%s", diff)
	}
	node, err := of.NodeMetricses().Get(t.Context(), "us-west-1", metav1.GetOptions{})
	must(t, err)
	if node.Usage.Cpu().String() != "5m" {
		t.Errorf("on one node: %+v", node)
	}
	if _, err := of.NodeMetricses().Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("on no node: %v", err)
	}

	// A pod of which nothing is known yet.
	m.says[west] = ""
	if _, err := of.PodMetricses(team).Get(t.Context(), "web-3", metav1.GetOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `podmetrics.metrics.k8s.io "team/web-3" not found`) {
		t.Errorf("of a pod that nobody has measured: %v", err)
	}
	nodes, err = of.NodeMetricses().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if diff := cmp.Diff([]string{"us-east-1 150m 16Mi"}, sumsOf(nodes)); diff != "" {
		t.Errorf("on nodes of which one is measured (-want +got):\n%s", diff)
	}
	s.asKubectl(t)
}

// asKubectl asks as kubectl does: for what is served, for tables, and with what is not there.
func (s *streaming) asKubectl(t *testing.T) {
	t.Helper()
	found, err := kubeOf(t, s.admin()).Discovery().ServerResourcesForGroupVersion("metrics.k8s.io/v1beta1")
	must(t, err)
	served := map[string]string{}
	for _, r := range found.APIResources {
		served[r.Name] = fmt.Sprint(r.Kind, " ", r.Namespaced, " ", r.Verbs)
	}
	if diff := cmp.Diff(map[string]string{"pods": "PodMetrics true [get list]", "nodes": "NodeMetrics false [get list]"}, served); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	const at = clustersPrefix + string(shop) + "/apis/metrics.k8s.io/v1beta1"
	asTable := map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
	for path, want := range map[string]string{at + "/namespaces/" + team + "/pods": `"cells":["web-1","100m","10Mi","15s"]`, at + "/nodes/us-east-1": `"cells":["us-east-1","150m","16Mi","15s"]`} {
		if got := s.ask(t, asked{path: path, token: root, header: asTable}); got.code != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("%s as a table: %d %s, want %s", path, got.code, got.body, want)
		}
	}
	for method, path := range map[string]string{http.MethodDelete: at + "/nodes/us-east-1", http.MethodPost: at + "/namespaces/" + team + "/pods"} {
		if got := s.ask(t, asked{method: method, path: path, token: root}); got.code != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d %s, want 405", method, path, got.code, got.body)
		}
	}
	if got := s.ask(t, asked{path: clustersPrefix + string(shop) + "/openapi/v3/apis/metrics.k8s.io/v1beta1", token: root}); got.code != http.StatusOK || !strings.Contains(got.body, "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics") {
		t.Errorf("OpenAPI: %d %.200s", got.code, got.body)
	}
}

// TestResourceMetricsOfClustersThatAreAway: others are shown, and it is said whose are not; where all are away, why.
func TestResourceMetricsOfClustersThatAreAway(t *testing.T) {
	s, m := startMeasuring(t)
	warns := &warnings{}
	of := metricsOf(t, s.admin(), warns)
	m.away[east] = apierrors.NewServiceUnavailable(`physical cluster "us-east-1" is not Ready (HeartbeatLost)`)
	list, err := of.PodMetricses(team).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if diff := cmp.Diff([]string{"team/web-3 c 5m 1Mi"}, usageOf(list)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	nodes, err := of.NodeMetricses().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if diff := cmp.Diff([]string{"us-west-1 5m 1Mi"}, sumsOf(nodes)); diff != "" {
		t.Errorf("on nodes (-want +got):\n%s", diff)
	}
	const words = `what some pods use is not shown: physical cluster "us-east-1" is not Ready (HeartbeatLost)`
	if diff := cmp.Diff(warnings{words, words}, *warns); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if _, err := of.PodMetricses(team).Get(t.Context(), "web-1", metav1.GetOptions{}); code(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), `"us-east-1"`) {
		t.Errorf("of one there: %v", err)
	}
	m.away[west] = errors.New(`physical cluster "us-west-1" does not answer`)
	for what, err := range map[string]error{
		"pods":  func() error { _, err := of.PodMetricses("").List(t.Context(), metav1.ListOptions{}); return err }(),
		"nodes": func() error { _, err := of.NodeMetricses().List(t.Context(), metav1.ListOptions{}); return err }(),
	} {
		if code(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "HeartbeatLost") || !strings.Contains(err.Error(), `"us-west-1" does not answer`) {
			t.Errorf("%s of none: %v", what, err)
		}
	}
}

// TestWhoMaySeeResourceMetrics: as in Kubernetes, who may view pods, in his own workspace, and neither in mirrors nor in all at once.
func TestWhoMaySeeResourceMetrics(t *testing.T) {
	s, m := startMeasuring(t)
	_, err := s.shop.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}},
	}, metav1.CreateOptions{})
	must(t, err)
	viewer := metricsOf(t, s.withToken(bob), nil)
	waitFor(t, 20*time.Second, "a viewer sees what pods use", func() (string, bool) {
		list, err := viewer.PodMetricses(team).List(t.Context(), metav1.ListOptions{})
		return fmt.Sprint(list, err), err == nil && len(list.Items) == 3
	})
	m.asked = nil
	if _, err := viewer.NodeMetricses().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a viewer, who may not list Nodes, sees what is used on them: %v", err)
	}
	if _, err := metricsOf(t, s.alice, nil).PodMetricses(team).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("one with rights to pods alone: %v", err)
	}
	if _, err := metricsOf(t, s.withToken("nobodys"), nil).PodMetricses(team).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("nobody: %v", err)
	}

	// Another workspace has pods of its own alone, whatever it writes into one.
	ofBank := s.withToken(root)
	ofBank.Host = s.URL() + clustersPrefix + string(bank)
	s.makeNamespace(t, bank, team)
	_, err = s.in(t, bank).CoreV1().ServiceAccounts(team).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = s.in(t, bank).CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, Spec: corev1.PodSpec{NodeName: "us-east-1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	if list, err := metricsOf(t, ofBank, nil).PodMetricses("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("another workspace: %v %v", usageOf(list), err)
	}
	for cluster, want := range map[string]string{"*": "ask in a workspace", string(east): "not in mirrors"} {
		for _, resource := range []string{"pods", "nodes"} {
			if got := s.ask(t, asked{path: clustersPrefix + cluster + "/apis/metrics.k8s.io/v1beta1/" + resource, token: root}); got.code != http.StatusNotImplemented || !strings.Contains(got.body, want) {
				t.Errorf("%s of %s: %d %s", resource, cluster, got.code, got.body)
			}
		}
	}
	if len(m.asked) > 0 {
		t.Errorf("asked: %v", m.asked)
	}
}
