package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	thousandApplied = "1,000 Deployments to two clusters: all applied below"
	thousandReady   = "1,000 Deployments to two clusters: all ready at the workspace"
	thousandWrites  = "1,000 Deployments to two clusters: writes for each"
	thousandCPU     = "1,000 Deployments to two clusters: CPU of server and syncers"

	hundredReady = "100 Deployments of 10 replicas over two clusters, against one cluster without Atoll"

	// appliedAtOnce so many requests at a time make the Deployments, as a few kubectl would.
	appliedAtOnce = 16
)

var placedThousand = Scenario{
	Name: "placed-thousand",
	Rows: []Row{
		{Name: thousandApplied, Unit: "s", How: "Deployments of two replicas, one for each cluster, 16 POSTs at a time: from the first POST until watches on both physical clusters have shown all"},
		{Name: thousandReady, Unit: "s", How: "the same, until a watch on the workspace has shown both replicas of all available"},
		{Name: thousandWrites, How: "how far the revision of etcd rose from before the first POST until all were ready and nothing was written any more, for each Deployment: its own POST, leaves, their status, its status, events"},
		{Name: thousandCPU, Unit: "s", How: "user and system time of the server's process, which runs the syncers and etcd, from the first POST until nothing was to do any more"},
	},
	Run: runThousand,
}

var placedHundred = Scenario{
	Name: "placed-hundred",
	Rows: []Row{{Name: hundredReady, Goal: atMost(1.3),
		How: "from the first POST, 16 at a time, until a watch has shown 10 available replicas of all: at the workspace, divided by the same at a physical cluster of its own; median of alternating rounds"}},
	Run: runHundred,
}

// manyDeployments are Deployments with equal numbers of replicas in one namespace, of a workspace or of a physical cluster.
type manyDeployments struct {
	kube      kubernetes.Interface
	namespace string
	n         int
	replicas  int32
	// seen has availableKey of each once all its replicas are available.
	seen *sightings
}

func manyName(i int) string     { return fmt.Sprintf("many-%04d", i) }
func availableKey(i int) string { return manyName(i) + " available" }
func (m *manyDeployments) keys() (keys []string) {
	for i := range m.n {
		keys = append(keys, availableKey(i))
	}
	return keys
}

// watch follows them; in the workspace of ctx, if it has one.
func (m *manyDeployments) watch(ctx context.Context, env *Env) error {
	return m.seen.watchDeployments(ctx, env, m.kube, m.namespace, metav1.ListOptions{}, func(d *appsv1.Deployment) []string {
		if d.Status.AvailableReplicas != m.replicas || d.Status.ObservedGeneration != d.Generation {
			return nil
		}
		return []string{d.Name + " available"}
	})
}

// create makes them all and returns when the first request began.
func (m *manyDeployments) create(ctx context.Context) (began time.Time, err error) {
	began = time.Now()
	_, _, err = Load(ctx, appliedAtOnce, m.n, func(ctx context.Context, i int) error {
		_, err := m.kube.AppsV1().Deployments(m.namespace).Create(ctx, placedDeployment(manyName(i), m.replicas), metav1.CreateOptions{})
		return err
	})
	return began, err
}

func (m *manyDeployments) delete(ctx context.Context) error {
	m.seen.forget(m.keys()...)
	_, _, err := Load(ctx, appliedAtOnce, m.n, func(ctx context.Context, i int) error {
		return m.kube.AppsV1().Deployments(m.namespace).Delete(ctx, manyName(i), metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	return eventually(ctx, "the Deployments are gone", func() (string, error) {
		list, err := m.kube.AppsV1().Deployments(m.namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left", len(list.Items)), nil
	})
}

// eventually asks until there is no problem.
func eventually(ctx context.Context, what string, check func() (problem string, err error)) error {
	for deadline := time.Now().Add(placedPatience); ; {
		problem, err := check()
		if err != nil || problem == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not after %s: %s", what, placedPatience, problem)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// podsGone waits until physical clusters run no pods.
func podsGone(ctx context.Context, clusters ...kubernetes.Interface) error {
	return eventually(ctx, "the pods are gone", func() (string, error) {
		left := 0
		for _, kube := range clusters {
			list, err := kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				return "", err
			}
			left += len(list.Items)
		}
		if left == 0 {
			return "", nil
		}
		return fmt.Sprintf("%d are left", left), nil
	})
}

func runThousand(ctx context.Context, env *Env) error {
	f, err := startFleet(ctx, env, env.N(12, 3), "east", "west")
	if err != nil {
		return err
	}
	cluster, err := f.workspace(ctx, "app", "east,west")
	if err != nil {
		return err
	}
	in := client.In(ctx, cluster)
	m := &manyDeployments{kube: f.clients.Kube, namespace: "default", n: env.N(1000, 20), replicas: 2, seen: newSightings()}
	if err := m.watch(in, env); err != nil {
		return err
	}
	below := newSightings()
	var belowKeys []string
	for name, c := range f.physical {
		err := below.watchDeployments(ctx, env, c.Clientset(), "", ofWorkspace(cluster), func(d *appsv1.Deployment) []string {
			return []string{name + " " + d.Name}
		})
		if err != nil {
			return err
		}
		for i := range m.n {
			belowKeys = append(belowKeys, name+" "+manyName(i))
		}
	}
	pids := []int{f.PID()}
	for _, c := range f.physical {
		pids = append(pids, c.PID())
	}
	if err := settle(ctx, pids...); err != nil {
		return err
	}

	cpu, err := cpuTime(f.PID())
	if err != nil {
		return err
	}
	revision, err := revisionOf(ctx, f.clients)
	if err != nil {
		return err
	}
	env.Progress("make %d Deployments", m.n)
	began, err := m.create(in)
	if err != nil {
		return err
	}
	made := time.Since(began)
	applied, err := below.last(ctx, belowKeys)
	if err != nil {
		return err
	}
	ready, err := m.seen.last(ctx, m.keys())
	if err != nil {
		return err
	}
	if err := settle(ctx, pids...); err != nil {
		return err
	}
	revisionAfter, err := revisionOf(ctx, f.clients)
	if err != nil {
		return err
	}
	cpuAfter, err := cpuTime(f.PID())
	if err != nil {
		return err
	}
	took := time.Since(began)
	if err := env.Report(thousandApplied, applied.Sub(began).Seconds(), fmt.Sprintf("the POSTs took %s", quantity(made.Seconds(), "s")), nil); err != nil {
		return err
	}
	if err := env.Report(thousandReady, ready.Sub(began).Seconds(), "", nil); err != nil {
		return err
	}
	writes := float64(revisionAfter-revision) / float64(m.n)
	if err := env.Report(thousandWrites, writes, fmt.Sprintf("%d in all, heartbeats of %s included", revisionAfter-revision, took.Round(time.Second)), nil); err != nil {
		return err
	}
	return env.Report(thousandCPU, (cpuAfter - cpu).Seconds(), fmt.Sprintf("%s ms for each", threeDigits(Milliseconds(cpuAfter-cpu)/float64(m.n))), nil)
}

func runHundred(ctx context.Context, env *Env) error {
	nodes, n := env.N(12, 3), env.N(100, 2)
	f, err := startFleet(ctx, env, nodes, "east", "west")
	if err != nil {
		return err
	}
	env.Progress("start physical cluster plain")
	plain := env.StartPhysical("plain", framework.PhysicalNodes(nodes), framework.PhysicalFsync())
	cluster, err := f.workspace(ctx, "app", "east,west")
	if err != nil {
		return err
	}
	in := client.In(ctx, cluster)
	atoll := &manyDeployments{kube: f.clients.Kube, namespace: "default", n: n, replicas: 10, seen: newSightings()}
	if err := atoll.watch(in, env); err != nil {
		return err
	}
	alone := &manyDeployments{kube: plain.Clientset(), namespace: "bench", n: n, replicas: 10, seen: newSightings()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: alone.namespace}}
	if _, err := alone.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := alone.watch(ctx, env); err != nil {
		return err
	}
	pids := []int{f.PID(), plain.PID(), f.physical["east"].PID(), f.physical["west"].PID()}
	clusters := []kubernetes.Interface{alone.kube, f.physical["east"].Clientset(), f.physical["west"].Clientset()}
	measure := func(m *manyDeployments, in context.Context) func(context.Context) (float64, error) {
		return func(context.Context) (float64, error) {
			if err := settle(ctx, pids...); err != nil {
				return 0, err
			}
			began, err := m.create(in)
			if err != nil {
				return 0, err
			}
			ready, err := m.seen.last(ctx, m.keys())
			if err != nil {
				return 0, err
			}
			if err := m.delete(in); err != nil {
				return 0, err
			}
			return ready.Sub(began).Seconds(), podsGone(ctx, clusters...)
		}
	}
	rounds, err := Compare(ctx, env.N(5, 1), measure(atoll, in), measure(alone, ctx))
	if err != nil {
		return err
	}
	return env.Report(hundredReady, Median(rounds.Ratios),
		fmt.Sprintf("%s against %s", quantity(Median(rounds.A), "s"), quantity(Median(rounds.B), "s")),
		rounds.Samples("Atoll s", "one cluster s"))
}
