package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"atoll.dev/atoll/client"
)

const (
	placedUpdate = "update of a placed object to the physical cluster, "
	placedFirst  = "first apply to the physical cluster, "
	placedStatus = "status change below to the workspace, "

	// placedSpacing is between one sample and the next.
	placedSpacing = 100 * time.Millisecond

	howDown = "from the answer at the workspace until a watch on the physical cluster shows it, one after the other: "
)

var placed = Scenario{
	Name: "placed",
	Rows: []Row{
		{Name: placedFirst + "p50", Unit: "ms", Goal: atMost(40), How: howDown + "a new Deployment of one replica in a namespace that is there"},
		{Name: placedFirst + "p99", Unit: "ms", Goal: atMost(150), How: "as p50"},
		{Name: placedUpdate + "p50", Unit: "ms", Goal: atMost(15), How: howDown + "a patch of a Deployment's spec that rolls out nothing"},
		{Name: placedUpdate + "p99", Unit: "ms", Goal: atMost(60), How: "as p50"},
		{Name: placedStatus + "p50", Unit: "ms", Goal: atMost(20), How: "a pod turns unready and ready again: from when a watch on the physical cluster shows the Deployment's new status until one on the workspace does, one after the other"},
		{Name: placedStatus + "p99", Unit: "ms", Goal: atMost(80), How: "as p50"},
	},
	Run: runPlaced,
}

func runPlaced(ctx context.Context, env *Env) error {
	f, err := startFleet(ctx, env, 5, "east")
	if err != nil {
		return err
	}
	cluster, err := f.workspace(ctx, "app", "east")
	if err != nil {
		return err
	}
	l := &latencies{placedFleet: f, cluster: cluster, below: f.physical["east"].Clientset(), seen: newSightings()}
	if err := l.watch(ctx); err != nil {
		return err
	}
	samples := env.N(250, 5)
	for _, measure := range []func(context.Context, int) error{l.first, l.update, l.status} {
		if err := measure(ctx, samples); err != nil {
			return err
		}
	}
	return nil
}

// latencies measures with one workspace that is placed in one physical cluster.
type latencies struct {
	*placedFleet
	cluster logicalcluster.Name
	below   kubernetes.Interface
	seen    *sightings
	// namespace is what the workspace's namespace default is called below.
	namespace string
}

func belowKey(kind, name string, value any) string {
	return fmt.Sprintf("%s %s %v below", kind, name, value)
}
func readyKey(where string, ready int32) string { return fmt.Sprintf("%d ready %s", ready, where) }

// watch makes the Deployment app of two replicas with a ConfigMap, waits until it runs, and opens the watches.
func (l *latencies) watch(ctx context.Context) error {
	in := client.In(ctx, l.cluster)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"value": "none"}}
	if _, err := l.clients.Kube.CoreV1().ConfigMaps("default").Create(in, config, metav1.CreateOptions{}); err != nil {
		return err
	}
	app := placedDeployment("app", 2)
	app.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}}}
	err := l.seen.watchDeployments(in, l.env, l.clients.Kube, "default", metav1.ListOptions{FieldSelector: "metadata.name=app"}, func(d *appsv1.Deployment) []string {
		return []string{readyKey("above", d.Status.ReadyReplicas)}
	})
	if err != nil {
		return err
	}
	err = l.seen.watchDeployments(ctx, l.env, l.below, "", ofWorkspace(l.cluster), func(d *appsv1.Deployment) []string {
		keys := []string{belowKey("Deployment", d.Name, "created"), belowKey("Deployment", d.Name, *d.Spec.RevisionHistoryLimit)}
		if d.Name == "app" {
			keys = append(keys, readyKey("below", d.Status.ReadyReplicas))
		}
		return keys
	})
	if err != nil {
		return err
	}
	configs := l.below.CoreV1().ConfigMaps("")
	err = l.seen.follow(ctx, l.env, source{
		list: func(ctx context.Context) (runtime.Object, error) { return configs.List(ctx, ofWorkspace(l.cluster)) },
		watch: func(ctx context.Context, from metav1.ListOptions) (watch.Interface, error) {
			from.LabelSelector = ofWorkspace(l.cluster).LabelSelector
			return configs.Watch(ctx, from)
		},
		keys: func(obj runtime.Object) []string {
			cm, ok := obj.(*corev1.ConfigMap)
			if !ok {
				return nil
			}
			return []string{belowKey("ConfigMap", cm.Name, cm.Data["value"])}
		},
	})
	if err != nil {
		return err
	}
	if _, err := l.clients.Kube.AppsV1().Deployments("default").Create(in, app, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := l.seen.wait(ctx, readyKey("above", 2)); err != nil {
		return err
	}
	list, err := l.below.AppsV1().Deployments("").List(ctx, ofWorkspace(l.cluster))
	if err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("%d Deployments of the workspace are below, want 1", len(list.Items))
	}
	l.namespace = list.Items[0].Namespace
	return settle(ctx, l.PID())
}

// sample calls change so many times, and returns how many milliseconds after each the key it names was seen.
func (l *latencies) sample(ctx context.Context, n int, change func(ctx context.Context, i int) (key string, err error)) ([]float64, error) {
	ms := make([]float64, 0, n)
	for i := range n {
		key, err := change(ctx, i)
		if err != nil {
			return ms, err
		}
		answered := time.Now()
		at, err := l.seen.wait(ctx, key)
		if err != nil {
			return ms, err
		}
		ms = append(ms, since(answered, at))
		if err := pause(ctx, placedSpacing); err != nil {
			return ms, err
		}
	}
	return ms, nil
}

// reportBoth reports the rows of p50 and p99.
func (e *Env) reportBoth(row string, ms []float64, detail, what string) error {
	samples := map[string][]float64{what: ms}
	own := fmt.Sprintf("of %d, the slowest %s", len(ms), quantity(Percentile(ms, 100), "ms"))
	if detail != "" {
		own += "; " + detail
	}
	if err := e.Report(row+"p50", Median(ms), own, samples); err != nil {
		return err
	}
	return e.Report(row+"p99", Percentile(ms, 99), own, nil)
}

func (l *latencies) first(ctx context.Context, n int) error {
	deployments := l.clients.Kube.AppsV1().Deployments("default")
	ms, err := l.sample(ctx, n, func(ctx context.Context, i int) (string, error) {
		d := placedDeployment(fmt.Sprintf("first-%04d", i), 1)
		_, err := deployments.Create(client.In(ctx, l.cluster), d, metav1.CreateOptions{})
		return belowKey("Deployment", d.Name, "created"), err
	})
	if err != nil {
		return err
	}
	if err := l.env.reportBoth(placedFirst, ms, "", "ms of each"); err != nil {
		return err
	}
	for i := range n {
		if err := deployments.Delete(client.In(ctx, l.cluster), fmt.Sprintf("first-%04d", i), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return settle(ctx, l.PID())
}

func (l *latencies) update(ctx context.Context, n int) error {
	configs, err := l.sample(ctx, n, func(ctx context.Context, i int) (string, error) {
		value := fmt.Sprintf("value-%d", i)
		_, err := l.clients.Kube.CoreV1().ConfigMaps("default").Patch(client.In(ctx, l.cluster), "app", types.MergePatchType,
			fmt.Appendf(nil, `{"data":{"value":%q}}`, value), metav1.PatchOptions{})
		return belowKey("ConfigMap", "app", value), err
	})
	if err != nil {
		return err
	}
	ms, err := l.sample(ctx, n, func(ctx context.Context, i int) (string, error) {
		limit := 100 + i // another each time
		_, err := l.clients.Kube.AppsV1().Deployments("default").Patch(client.In(ctx, l.cluster), "app", types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"revisionHistoryLimit":%d}}`, limit), metav1.PatchOptions{})
		return belowKey("Deployment", "app", limit), err
	})
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("a ConfigMap it refers to: p50 %s, p99 %s", quantity(Median(configs), "ms"), quantity(Percentile(configs, 99), "ms"))
	return l.env.reportBoth(placedUpdate, ms, detail, "ms of each")
}

func (l *latencies) status(ctx context.Context, n int) error {
	pods, err := l.below.CoreV1().Pods(l.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=app"})
	if err != nil {
		return err
	}
	if len(pods.Items) != 2 {
		return fmt.Errorf("app has %d pods below, want 2", len(pods.Items))
	}
	var ms []float64
	for i := range n {
		ready, want := corev1.ConditionFalse, int32(1)
		if i%2 == 1 {
			ready, want = corev1.ConditionTrue, 2
		}
		l.seen.forget(readyKey("below", want), readyKey("above", want))
		_, err := l.below.CoreV1().Pods(l.namespace).Patch(ctx, pods.Items[0].Name, types.StrategicMergePatchType,
			fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready), metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
		below, err := l.seen.wait(ctx, readyKey("below", want))
		if err != nil {
			return err
		}
		above, err := l.seen.wait(ctx, readyKey("above", want))
		if err != nil {
			return err
		}
		ms = append(ms, since(below, above))
		if err := pause(ctx, placedSpacing); err != nil {
			return err
		}
	}
	return l.env.reportBoth(placedStatus, ms, "", "ms of each")
}
