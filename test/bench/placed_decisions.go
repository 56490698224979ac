package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

const (
	decisionsPolicy = "placement decisions per second, of one policy change"
	decisionsNew    = "placement decisions per second, of new namespaces"
	policyHundred   = "one policy change to 100 of 1,000 clusters"

	howPlayed = "clusters are SyncTargets whose syncers this program plays: it reports and beats in their mirrors, every 10 s, and applies nothing; "
)

var placedDecisions = Scenario{
	Name: "placed-decisions",
	Rows: []Row{
		{Name: decisionsPolicy, Unit: "/s", Goal: atLeast(2000), How: howPlayed + "10 clusters; namespaces, 100 in a workspace, each with a Service, wait for a policy that matches a cluster: from its PUT until a watch has shown the last Placement with its cluster; meanwhile the splitter writes the leaves"},
		{Name: decisionsNew, Unit: "/s", How: howPlayed + "the same clusters; Services made in as many more namespaces, 64 at a time: from the first POST until a watch has shown the last Placement"},
	},
	Run: runDecisions,
}

var placedPolicy = Scenario{
	Name: "placed-policy",
	Rows: []Row{{Name: policyHundred, Unit: "s", Goal: atMost(1), How: howPlayed +
		"a workspace runs a Deployment in one of them; from the PUT of its policy, which now selects 100, until a watch has shown the Deployment in all 100 mirrors; one after the other in 10 workspaces, the median"}},
	Run: runPolicy,
}

// policy is a PlacementPolicy with a default.
func policy(d placementv1alpha1.PlacementDefault) *placementv1alpha1.PlacementPolicy {
	return &placementv1alpha1.PlacementPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Spec: placementv1alpha1.PlacementPolicySpec{Default: &d}}
}

// watchPlacements follows the Placements of all workspaces: placedKey for each, and splitKey once the splitter has told
// of its leaves.
func (s *sightings) watchPlacements(ctx context.Context, env *Env, clients *client.Clients) error {
	return s.follow(client.Everywhere(ctx), env, source{
		list: func(ctx context.Context) (runtime.Object, error) {
			list := &placementv1alpha1.PlacementList{}
			return list, clients.Objects.List(ctx, list)
		},
		watch: func(ctx context.Context, from metav1.ListOptions) (watch.Interface, error) {
			return clients.Objects.Watch(ctx, &placementv1alpha1.PlacementList{}, &ctrlclient.ListOptions{Raw: &from})
		},
		keys: func(obj runtime.Object) []string {
			p, ok := obj.(*placementv1alpha1.Placement)
			if !ok {
				return nil
			}
			cluster, namespace, n := client.KeyOf(p).Cluster, p.Spec.Namespace, len(p.Spec.Clusters)
			keys := []string{placedKey(cluster, namespace, n)}
			pending := func(c placementv1alpha1.PlacedClusterStatus) bool { return c.Phase == placementv1alpha1.PhasePending }
			if p.Status.ObservedGeneration == p.Generation && len(p.Status.Clusters) == n && !slices.ContainsFunc(p.Status.Clusters, pending) {
				keys = append(keys, splitKey(cluster, namespace, n))
			}
			return keys
		},
	})
}

func placedKey(cluster logicalcluster.Name, namespace string, clusters int) string {
	return fmt.Sprintf("Placement of namespace %s in %s with %d clusters", namespace, cluster, clusters)
}

func splitKey(cluster logicalcluster.Name, namespace string, clusters int) string {
	return placedKey(cluster, namespace, clusters) + ", all with leaves"
}

func runDecisions(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	workspaces, err := NewWorkspaces(ctx, env, clients)
	if err != nil {
		return err
	}
	if _, err := playSyncers(ctx, env, clients, 10, func(int) map[string]string { return map[string]string{"use": "yes"} }); err != nil {
		return err
	}
	root := client.In(ctx, "root")
	nowhere := policy(placementv1alpha1.PlacementDefault{Selector: "use=no"})
	if err := clients.Objects.Create(root, nowhere); err != nil {
		return err
	}
	n := env.N(5000, 200)
	const each = 100
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, n/each)
	if err != nil {
		return err
	}
	env.Progress("make %d namespaces with a Service", n)
	name := func(batch string, i int) string { return fmt.Sprintf("%s-%05d", batch, i) }
	service := func(ctx context.Context, batch string, i int) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		_, err := clients.Kube.CoreV1().Services(name(batch, i)).Create(client.In(ctx, clusters[i/each]), s, metav1.CreateOptions{})
		return err
	}
	keys := func(key func(logicalcluster.Name, string, int) string, batch string, placed int) (keys []string) {
		for i := range n {
			keys = append(keys, key(clusters[i/each], name(batch, i), placed))
		}
		return keys
	}
	namespaces := func(batch string) error {
		_, _, err := Load(ctx, inFlight, n, func(ctx context.Context, i int) error {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name(batch, i)}}
			_, err := clients.Kube.CoreV1().Namespaces().Create(client.In(ctx, clusters[i/each]), ns, metav1.CreateOptions{})
			return err
		})
		return err
	}
	seen := newSightings()
	if err := seen.watchPlacements(ctx, env, clients); err != nil {
		return err
	}
	if err := namespaces("old"); err != nil {
		return err
	}
	if _, _, err := Load(ctx, inFlight, n, func(ctx context.Context, i int) error { return service(ctx, "old", i) }); err != nil {
		return err
	}
	if _, err := seen.last(ctx, keys(splitKey, "old", 0)); err != nil {
		return err
	}
	if err := settle(ctx, a.PID()); err != nil {
		return err
	}

	env.Progress("change the policy")
	nowhere.Spec.Default = &placementv1alpha1.PlacementDefault{Selector: "use=yes", MaxClusters: 1}
	cpu, err := cpuTime(a.PID())
	if err != nil {
		return err
	}
	revision, err := revisionOf(ctx, clients)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := clients.Objects.Update(root, nowhere); err != nil {
		return err
	}
	last, err := seen.last(ctx, keys(placedKey, "old", 1))
	if err != nil {
		return err
	}
	cpuAfter, err := cpuTime(a.PID())
	if err != nil {
		return err
	}
	took := last.Sub(began).Seconds()
	// A server that waits for a busy disk looks as if it were done.
	if _, err := seen.last(ctx, keys(splitKey, "old", 1)); err != nil {
		return err
	}
	if err := settle(ctx, a.PID()); err != nil {
		return err
	}
	revisionAfter, err := revisionOf(ctx, clients)
	if err != nil {
		return err
	}
	err = env.Report(decisionsPolicy, float64(n)/took, fmt.Sprintf("%d in %s, with %s ms of CPU for each; until all was done %s writes for each",
		n, quantity(took, "s"), threeDigits(Milliseconds(cpuAfter-cpu)/float64(n)), number(float64(revisionAfter-revision)/float64(n))), nil)
	if err != nil {
		return err
	}

	if err := namespaces("new"); err != nil {
		return err
	}
	if err := settle(ctx, a.PID()); err != nil {
		return err
	}
	env.Progress("make Services")
	if cpu, err = cpuTime(a.PID()); err != nil {
		return err
	}
	began = time.Now()
	_, made, err := Load(ctx, inFlight, n, func(ctx context.Context, i int) error { return service(ctx, "new", i) })
	if err != nil {
		return err
	}
	if last, err = seen.last(ctx, keys(placedKey, "new", 1)); err != nil {
		return err
	}
	if cpuAfter, err = cpuTime(a.PID()); err != nil {
		return err
	}
	took = last.Sub(began).Seconds()
	return env.Report(decisionsNew, float64(n)/took, fmt.Sprintf("%d in %s, of which the POSTs took %s, with %s ms of CPU for each",
		n, quantity(took, "s"), quantity(made.Seconds(), "s"), threeDigits(Milliseconds(cpuAfter-cpu)/float64(n))), nil)
}

func runPolicy(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	workspaces, err := NewWorkspaces(ctx, env, clients)
	if err != nil {
		return err
	}
	all := env.N(1000, 20)
	some := all / 10
	env.Progress("register %d clusters", all)
	_, err = playSyncers(ctx, env, clients, all, func(i int) map[string]string {
		labels := map[string]string{"number": fmt.Sprint(i), "ring": "outer"}
		if i < some {
			labels["ring"] = "inner"
		}
		return labels
	})
	if err != nil {
		return err
	}
	below := newSightings()
	leafKey := func(cluster, mirror logicalcluster.Name) string {
		return fmt.Sprintf("leaf of %s in %s", cluster, mirror)
	}
	leaves := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel}
	err = below.watchDeployments(client.Everywhere(ctx), env, clients.Kube, "", leaves, func(d *appsv1.Deployment) []string {
		return []string{leafKey(logicalcluster.Name(d.Labels[workloadv1alpha1.WorkspaceLabel]), client.KeyOf(d).Cluster)}
	})
	if err != nil {
		return err
	}
	decided := newSightings()
	if err := decided.watchPlacements(ctx, env, clients); err != nil {
		return err
	}
	var inner workloadv1alpha1.SyncTargetList
	if err := clients.Objects.List(client.In(ctx, "root"), &inner, ctrlclient.MatchingLabels{"ring": "inner"}); err != nil {
		return err
	}

	var seconds, decisions []float64
	for i := range env.N(10, 2) {
		cluster, err := workspaces.Create(ctx, workspaceName(i))
		if err != nil {
			return err
		}
		in := client.In(ctx, cluster)
		p := policy(placementv1alpha1.PlacementDefault{Selector: "number=0", Split: string(placementv1alpha1.SplitEven)})
		if err := clients.Objects.Create(in, p); err != nil {
			return err
		}
		if _, err := clients.Kube.AppsV1().Deployments("default").Create(in, placedDeployment("web", int32(2*some)), metav1.CreateOptions{}); err != nil {
			return err
		}
		var keys []string
		for _, t := range inner.Items {
			keys = append(keys, leafKey(cluster, logicalcluster.Name(t.Status.Mirror)))
			if t.Name == playedName(0) {
				if _, err := below.wait(ctx, keys[len(keys)-1]); err != nil {
					return err
				}
			}
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		p.Spec.Default.Selector = "ring=inner"
		began := time.Now()
		if err := clients.Objects.Update(in, p); err != nil {
			return err
		}
		last, err := below.last(ctx, keys)
		if err != nil {
			return err
		}
		decision, err := decided.wait(ctx, placedKey(cluster, "default", some))
		if err != nil {
			return err
		}
		seconds = append(seconds, last.Sub(began).Seconds())
		decisions = append(decisions, decision.Sub(began).Seconds())
	}
	return env.Report(policyHundred, Median(seconds), fmt.Sprintf("of %d, the slowest %s; the decision was stored after %s",
		len(seconds), quantity(slices.Max(seconds), "s"), quantity(Median(decisions), "s")), map[string][]float64{"s of each": seconds, "s until the decision": decisions})
}
