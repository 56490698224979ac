package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// TestScenarios tells testdata/*.txt: one change after the other, and after each what it does to the Placements. After
// every change each namespace is reconciled until nothing is written any more; a line is printed for each Placement
// that changed. Regenerate with -rewrite, and commit only a difference that you understand.
//
// Commands; objects are in workspace shop (below org, below root) unless in=<workspace> says otherwise:
//
//	cluster NAME [ready|away|duplicate] [observed|instep] [cordoned|open] [deleting] [unmirrored|misnamed|mirrored] [label=k:v] [dedicated=path]  register or change
//	lose NAME                            the SyncTarget is deleted
//	policy NAME [allow=(a,b)] [label=k:v] [clusters=...] [selector=...] [max=n] [split=...]
//	namespace NAME | undeploy NAMESPACE NAME
//	deploy NAMESPACE NAME                with lines as of annotate, for one that is annotated from the start
//	annotate workspace|namespace NAME|deployment NAMESPACE NAME    lines "clusters=a, b", or "-clusters" to remove
//	burst N PREFIX                       N namespaces with a Deployment each, while informers show nothing
//	blind | see                          the informer of SyncTargets shows nothing, or all again
//	terminate namespace NAME | terminate workspace
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w, r := newWorld()
		w.addWorkspace("root", "")
		w.addWorkspace("org", "root")
		w.addWorkspace("shop", "org")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			before := describe(w)
			summary := command(t, w, r, d)
			quiesce(t, w, r)
			w.run()
			return difference(before, describe(w)) + summary
		})
	})
}

func command(t *testing.T, w *fakeWorld, r *reconciler, d *datadriven.TestData) (summary string) {
	var words []string
	options := map[string]string{}
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			words = append(words, a.Key)
		} else {
			options[a.Key] = strings.Join(a.Vals, ",")
		}
	}
	workspace := "shop"
	if o, ok := options["in"]; ok {
		workspace = o
	}
	key := func(name string) client.Key { return client.Key{Cluster: logicalcluster.Name(workspace), Name: name} }
	now := metav1.Unix(0, 0)

	switch d.Cmd {
	case "cluster":
		target := w.targets[key(words[0])]
		if target == nil {
			target = w.addTarget(workspace, words[0])
		}
		for _, state := range words[1:] {
			switch state {
			case "ready", "away":
				setReady(target, state == "ready")
			case "duplicate":
				meta.SetStatusCondition(&target.Status.Conditions, metav1.Condition{
					Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionFalse, Reason: workloadv1alpha1.ReasonDuplicate})
			case "observed", "instep":
				status := metav1.ConditionFalse
				if state == "observed" {
					status = metav1.ConditionTrue
				}
				meta.SetStatusCondition(&target.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: status, Reason: "Test"})
			case "cordoned", "open":
				target.Spec.Unschedulable = state == "cordoned"
			case "deleting":
				target.DeletionTimestamp = &now
			case "unmirrored":
				target.Status.Mirror = ""
			case "misnamed":
				target.Status.Mirror = "root"
			case "mirrored":
				target.Status.Mirror = mirrorOf(target.UID)
			default:
				t.Fatalf("%s: unknown state %q", d.Pos, state)
			}
		}
		if k, v, ok := strings.Cut(options["label"], ":"); ok {
			target.Labels[k] = v
		}
		target.Spec.DedicatedTo = options["dedicated"]
	case "lose":
		delete(w.targets, key(words[0]))
	case "policy":
		p := &placementv1alpha1.PlacementPolicy{ObjectMeta: metav1.ObjectMeta{Name: words[0]}}
		if names, ok := options["allow"]; ok {
			p.Spec.Allow = &placementv1alpha1.ClusterSelection{Names: strings.Split(names, ",")}
		}
		if k, v, ok := strings.Cut(options["label"], ":"); ok {
			if p.Spec.Allow == nil {
				p.Spec.Allow = &placementv1alpha1.ClusterSelection{}
			}
			p.Spec.Allow.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{k: v}}
		}
		def := placementv1alpha1.PlacementDefault{Clusters: options["clusters"], Selector: options["selector"], Split: options["split"]}
		if _, err := fmt.Sscan(options["max"], &def.MaxClusters); options["max"] != "" && err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		if def != (placementv1alpha1.PlacementDefault{}) {
			p.Spec.Default = &def
		}
		w.policies[key(words[0])] = p
	case "namespace":
		w.addNamespace(workspace, words[0])
	case "deploy":
		annotate(w.addDeployment(workspace, words[0], words[1]), d.Input)
	case "undeploy":
		delete(w.roots[key(words[0])], deployment(words[1]))
		delete(w.leaves[key(words[0])], deployment(words[1]))
	case "annotate":
		var on map[string]string
		switch words[0] {
		case "workspace":
			on = w.clusters[logicalcluster.Name(workspace)].Annotations
		case "namespace":
			on = w.namespaces[key(words[1])].Annotations
		case "deployment":
			on = w.roots[key(words[1])][deployment(words[2])]
		}
		annotate(on, d.Input)
	case "burst":
		return burst(t, w, r, workspace, words)
	case "blind", "see":
		w.blind = d.Cmd == "blind"
	case "terminate":
		if words[0] == "workspace" {
			w.clusters[logicalcluster.Name(workspace)].Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		} else {
			w.namespaces[key(words[1])].DeletionTimestamp = &now
		}
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return ""
}

// annotate adds and removes annotations, one a line.
func annotate(on map[string]string, input string) {
	for line := range strings.Lines(input) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "-"); ok {
			delete(on, "placement.atoll.dev/"+name)
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		on["placement.atoll.dev/"+name] = value
	}
}

// burst adds namespaces and reconciles each once while informers show nothing of what is written. It returns how
// many went where: the Placements are too many to print.
func burst(t *testing.T, w *fakeWorld, r *reconciler, workspace string, words []string) string {
	n := 0
	if _, err := fmt.Sscan(words[0], &n); err != nil {
		t.Fatal(err)
	}
	w.lagging = true
	counts := map[string]int{}
	for i := range n {
		key := client.Key{Cluster: logicalcluster.Name(workspace), Name: fmt.Sprintf("%s-%03d", words[1], i)}
		w.addNamespace(workspace, key.Name)
		w.addDeployment(workspace, key.Name, "web")
		if _, err := r.reconcile(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for _, c := range w.placements[key].Spec.Clusters {
			counts[c.Name]++
		}
	}
	w.lagging = false
	w.catchUp()
	return fmt.Sprintf("%v\n", counts)
}

// quiesce reconciles every namespace until nothing is written; that takes one round, and one that writes nothing.
func quiesce(t *testing.T, w *fakeWorld, r *reconciler) {
	t.Helper()
	for range 3 {
		before := w.writes
		for _, key := range slices.SortedFunc(maps.Keys(w.namespaces), byKey) {
			if _, err := r.reconcile(context.Background(), key); err != nil {
				t.Fatalf("reconcile %s: %v", key, err)
			}
		}
		if w.writes == before {
			return
		}
	}
	t.Fatal("Placements are still being written after three rounds without a change")
}

// describe prints every Placement as one line.
func describe(w *fakeWorld) map[string]string {
	lines := map[string]string{}
	for key, p := range w.placements {
		var clusters []string
		for _, c := range p.Spec.Clusters {
			s := string(c.UID)
			if c.Weight != 1 {
				s += fmt.Sprintf("*%d", c.Weight)
			}
			clusters = append(clusters, s)
		}
		placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced)
		lines[key.String()] = fmt.Sprintf("[%s] %s\n  %s: %s", strings.Join(clusters, " "), p.Spec.Split, placed.Reason, placed.Message)
	}
	return lines
}

func difference(before, after map[string]string) string {
	var b strings.Builder
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, key := range sortedKeys(all) {
		switch now, ok := after[key]; {
		case strings.Contains(key, "burst-"): // burst prints a summary
		case !ok:
			fmt.Fprintf(&b, "%s gone\n", key)
		case now != before[key]:
			fmt.Fprintf(&b, "%s %s\n", key, now)
		}
	}
	if b.Len() == 0 {
		return "no change\n"
	}
	return b.String()
}
