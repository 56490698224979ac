package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

var namespacesGVR = corev1.SchemeGroupVersion.WithResource("namespaces")

// goesDown are the resources of which there are objects in workspaces, mirrors and physical clusters.
func goesDown() []schema.GroupVersionResource {
	all := []schema.GroupVersionResource{namespacesGVR}
	for _, k := range kinds.All {
		if k.HasLeaves() { // pods that clusters show have names that are drawn by lot
			all = append(all, k.GVR)
		}
	}
	return all
}

// state is everything that a run left anywhere, by where and what, in a form that is equal for equal runs: what is drawn
// by lot or told by a clock is taken out, or named by what it means.
type state map[string]string

func (r *run) state() state {
	r.t.Helper()
	s := state{}
	words := r.words()
	add := func(where string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
		text := normal(o)
		name := o.GetNamespace() + "/" + o.GetName()
		for _, w := range words {
			text, name = strings.ReplaceAll(text, w.odd, w.plain), strings.ReplaceAll(name, w.odd, w.plain)
		}
		key := where + " " + gvr.Resource + " " + name
		for _, twice := s[key]; twice; _, twice = s[key] {
			key += " (another)"
		}
		s[key] = text
	}
	list := func(ctx context.Context, where string, from dynamic.Interface, gvr schema.GroupVersionResource, selector string) {
		l, err := from.Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: selector})
		must(r.t, err)
		for i := range l.Items {
			add(where, gvr, &l.Items[i])
		}
	}
	for i, name := range r.clusters {
		alias := fmt.Sprintf("workspace %d", i)
		in := client.In(r.ctx, logicalcluster.Name(name))
		lc := &corev1alpha1.LogicalCluster{}
		if err := r.clients.Objects.Get(in, clusterName, lc); apierrors.IsNotFound(err) {
			// An object without its logical cluster cannot be listed, but it is a row.
			s[alias+" rows"] = strconv.Itoa(r.rows(name))
			continue
		} else if err != nil {
			r.t.Fatal(err)
		}
		for _, gvr := range append(goesDown(), appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), placementv1alpha1.GroupVersion.WithResource("placements"),
			tenancyv1alpha1.GroupVersion.WithResource("workspaces"), corev1alpha1.GroupVersion.WithResource("logicalclusters"),
			schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}) {
			list(in, alias, r.clients.Dynamic, gvr, "")
		}
		r.tellsNoDrift(in, alias)
		if r.scenario.house {
			for gvr, selector := range ofTheHouse {
				list(in, alias, r.clients.Dynamic, gvr, selector)
			}
			r.addRequests(s, in, alias)
		}
	}
	for _, name := range r.clusters {
		ours := workloadv1alpha1.WorkspaceLabel + "=" + name
		for _, c := range clusterNames {
			for _, gvr := range goesDown() {
				list(client.In(r.ctx, r.mirror(c)), "mirror of "+c, r.clients.Dynamic, gvr, ours)
				list(r.ctx, c, r.fleet[c].dynamic, gvr, ours)
			}
			// Pods' names are drawn by lot. Who goes on before they are shown has runs without those writes of the syncer.
			if n := r.shownPods(c, logicalcluster.Name(name)); n > 0 {
				s[fmt.Sprintf("pods of %s that are shown", c)] = strconv.Itoa(n)
			}
		}
	}
	r.addPulled(s)
	// A logical cluster that nobody knows the name of any more is none of those above.
	all := &corev1alpha1.LogicalClusterList{}
	must(r.t, r.clients.Objects.List(client.Everywhere(r.ctx), all))
	s["logical clusters"] = strconv.Itoa(len(all.Items) - r.before)
	return s
}

// tellsNoDrift: nobody but controllers writes to the physical clusters, so whatever they meet, no user is told that somebody did.
func (r *run) tellsNoDrift(in context.Context, alias string) {
	r.t.Helper()
	events, err := r.clients.Kube.CoreV1().Events(metav1.NamespaceAll).List(in, metav1.ListOptions{FieldSelector: "reason=DriftCorrected"})
	must(r.t, err)
	for _, e := range events.Items {
		r.t.Errorf("%s is told of %s %s: %s", alias, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
}

// shownPods counts the pods of a workspace's default namespace that the mirror of a physical cluster shows.
func (r *run) shownPods(physical string, workspace logicalcluster.Name) int {
	pods, err := r.clients.Kube.CoreV1().Pods(kinds.DownstreamNamespace(workspace, "default", false)).List(client.In(r.ctx, r.mirror(physical)), metav1.ListOptions{})
	must(r.t, err)
	return len(pods.Items)
}

// rows counts what the store holds of a logical cluster.
func (r *run) rows(name string) (n int) {
	resp, err := r.etcd.Get(r.ctx, "/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(r.t, err)
	for _, kv := range resp.Kvs {
		if strings.Contains(string(kv.Key), "/"+name+"/") {
			n++
		}
	}
	return n
}

// word replaces what a run drew by lot.
type word struct{ odd, plain string }

// words of this run; those that may contain others come first.
func (r *run) words() []word {
	all := []word{{r.server.URL(), "https://SERVER"}}
	for i, name := range r.clusters {
		cluster := logicalcluster.Name(name)
		for _, ns := range []string{"default", "kube-system"} {
			all = append(all, word{kinds.DownstreamNamespace(cluster, ns, false), ns + "-HASH"})
		}
		// What a leaf says of its root is right only if it is the one that is there now.
		resources := []schema.GroupVersionResource{cronJobs}
		for _, k := range kinds.All {
			resources = append(resources, k.GVR)
		}
		for _, gvr := range resources {
			l, err := r.clients.Dynamic.Resource(gvr).List(client.In(r.ctx, cluster), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				continue
			}
			must(r.t, err)
			for _, o := range l.Items {
				all = append(all, word{string(o.GetUID()), "UID of " + gvr.Resource + " " + o.GetName()})
			}
		}
		all = append(all, word{name, fmt.Sprintf("WORKSPACE-%d", i)})
	}
	if len(r.user.path) > 0 {
		all = append(all, word{r.user.path[0], "TOP"})
	}
	for _, c := range clusterNames {
		all = append(all, word{string(r.targets[c].UID), "UID of " + c}, word{string(r.mirror(c)), "MIRROR of " + c})
	}
	return all
}

// normal is an object without what the same object may have otherwise.
func normal(o *unstructured.Unstructured) string {
	annotations := o.GetAnnotations()
	for of, by := range map[string]string{workloadv1alpha1.AppliedAnnotation: workloadv1alpha1.RenderedAnnotation} {
		if value, ok := annotations[of]; ok {
			annotations[of] = fmt.Sprintf("as rendered: %v", value == annotations[by])
		}
	}
	for _, a := range []string{workloadv1alpha1.RootGenerationAnnotation, "deployment.kubernetes.io/revision", "kcp.io/cluster"} {
		delete(annotations, a)
	}
	switch {
	case o.GetKind() == "Namespace":
		delete(annotations, workloadv1alpha1.RenderedAnnotation) // a hash of the workspace's name, among others
	case o.GetKind() == "Job":
		delete(annotations, workloadv1alpha1.RenderedAnnotation) // a hash of the root's UID, among others
		delete(annotations, workloadv1alpha1.TemplateAnnotation) // so is this
		unstructured.RemoveNestedField(o.Object, "status", "startTime")
		unstructured.RemoveNestedField(o.Object, "status", "completionTime")
	case o.GetKind() == "Deployment" && annotations[workloadv1alpha1.RenderedAnnotation] != "":
		// How fast a leaf rolls is left as it was while there is nothing to roll; the hash is of that, too.
		delete(annotations, workloadv1alpha1.RenderedAnnotation)
		unstructured.RemoveNestedField(o.Object, "spec", "strategy")
	case o.GetKind() == "EndpointSlice": // whose endpoints have pods' names and addresses, and which is called by lot
		o.SetName(o.GetLabels()[discoveryv1.LabelServiceName])
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		shear(o.Object, "endpoints", "addresses", "targetRef.name", "targetRef.uid")
	case o.GetKind() == "Endpoints":
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		subsets, _ := o.Object["subsets"].([]any)
		for _, s := range subsets {
			for _, addresses := range []string{"addresses", "notReadyAddresses"} {
				shear(s.(map[string]any), addresses, "ip", "targetRef.name", "targetRef.uid")
			}
		}
	case o.GetKind() == "CronJob":
		if _, ok, _ := unstructured.NestedString(o.Object, "status", "lastSuccessfulTime"); ok {
			_ = unstructured.SetNestedField(o.Object, "is set", "status", "lastSuccessfulTime")
		}
	case o.GetKind() == "HorizontalPodAutoscaler":
		// Who has scaled says so last, and who comes after him decides by metrics again, as in Kubernetes: where there are none it says
		// nothing of how many there are to be, and when that was decided.
		unstructured.RemoveNestedField(o.Object, "status", "lastScaleTime")
		is, _, _ := unstructured.NestedInt64(o.Object, "status", "currentReplicas")
		if wanted, _, _ := unstructured.NestedInt64(o.Object, "status", "desiredReplicas"); wanted == 0 || wanted == is {
			unstructured.RemoveNestedField(o.Object, "status", "desiredReplicas")
		}
	case o.GetName() == "kube-root-ca.crt":
		unstructured.RemoveNestedField(o.Object, "data") // each server has its own
		delete(annotations, "atoll.dev/root-ca")
	}
	o.SetAnnotations(annotations)
	unstructured.RemoveNestedField(o.Object, "spec", "owner", "uid")
	if observed, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); ok {
		_ = unstructured.SetNestedField(o.Object, fmt.Sprintf("behind by %d", o.GetGeneration()-observed), "status", "observedGeneration")
	}
	for _, f := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"} {
		if _, ok := o.Object["metadata"].(map[string]any)[f]; ok && f == "deletionTimestamp" {
			_ = unstructured.SetNestedField(o.Object, "is set", "metadata", f)
			continue
		}
		unstructured.RemoveNestedField(o.Object, "metadata", f)
	}
	for _, f := range []string{"clusterIP", "clusterIPs"} {
		unstructured.RemoveNestedField(o.Object, "spec", f)
	}
	if conditions, ok, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); ok {
		for _, c := range conditions {
			for _, f := range []string{"lastTransitionTime", "lastUpdateTime", "lastProbeTime", "observedGeneration", "message"} {
				delete(c.(map[string]any), f)
			}
		}
		slices.SortFunc(conditions, func(a, b any) int {
			return strings.Compare(fmt.Sprint(a.(map[string]any)["type"]), fmt.Sprint(b.(map[string]any)["type"]))
		})
		_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions")
	}
	text, err := json.MarshalIndent(o.Object, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// shear takes fields out of each of the objects in a list of another, and sorts what is left: they came in an order that says nothing.
func shear(o map[string]any, list string, fields ...string) {
	all, _ := o[list].([]any)
	for _, one := range all {
		for _, field := range fields {
			unstructured.RemoveNestedField(one.(map[string]any), strings.Split(field, ".")...)
		}
	}
	slices.SortFunc(all, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// runs says what keeps the physical clusters from running the app as wanted, and the Deployment from saying so.
func (r *run) running(want map[string]int32) string {
	if r.scenario.others {
		return r.othersRunning(want)
	}
	var total int32
	ours := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + r.clusters[len(r.clusters)-1]}
	for _, c := range clusterNames {
		n := want[c]
		total += n
		kube := r.fleet[c].kube
		deployments, err := kube.AppsV1().Deployments("").List(r.ctx, ours)
		if err != nil {
			return err.Error()
		}
		if n == 0 {
			namespaces, err := kube.CoreV1().Namespaces().List(r.ctx, ours)
			if err != nil || len(deployments.Items)+len(namespaces.Items) > 0 {
				return fmt.Sprintf("%s has %d Deployments and %d namespaces, want none (%v)", c, len(deployments.Items), len(namespaces.Items), err)
			}
			continue
		}
		if len(deployments.Items) != 1 {
			return fmt.Sprintf("%s has %d Deployments", c, len(deployments.Items))
		}
		if d := &deployments.Items[0]; *d.Spec.Replicas != n || !rolledOut(d, n) {
			return fmt.Sprintf("%s shall run %d: %d, %+v", c, n, *d.Spec.Replicas, d.Status)
		}
	}
	d, err := r.clients.Kube.AppsV1().Deployments("default").Get(r.home(), app, metav1.GetOptions{})
	switch {
	case total == 0 && apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return err.Error()
	case total == 0 || !rolledOut(d, total):
		return fmt.Sprintf("the Deployment of the workspace, of which %d should run, says %+v", total, d.Status)
	}
	return ""
}

// othersRunning is running, where there is no Deployment.
func (r *run) othersRunning(want map[string]int32) string {
	for _, c := range clusterNames {
		namespaces, err := r.fleet[c].kube.CoreV1().Namespaces().List(r.ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + r.clusters[len(r.clusters)-1]})
		if err != nil || len(namespaces.Items) != int(want[c]) {
			return fmt.Sprintf("%s has %d namespaces, want %d (%v)", c, len(namespaces.Items), want[c], err)
		}
	}
	name := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: app}
	set, rc, d, s, j := &appsv1.ReplicaSet{}, &corev1.ReplicationController{}, &appsv1.DaemonSet{}, &appsv1.StatefulSet{}, &batchv1.Job{}
	for _, o := range []ctrlclient.Object{set, rc, d, s, j} {
		switch err := r.clients.Objects.Get(r.home(), name, o); {
		case apierrors.IsNotFound(err) != (len(want) == 0):
			return fmt.Sprintf("%T: %v", o, err)
		case !apierrors.IsNotFound(err) && err != nil:
			return err.Error()
		}
	}
	done := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobSuspended && *j.Spec.Suspend)
	})
	if len(want) > 0 && (set.Status.Replicas != 1 || set.Status.AvailableReplicas != 1 || rc.Status.Replicas != 1 || rc.Status.AvailableReplicas != 1 || d.Status.NumberAvailable != 1 || s.Status.AvailableReplicas != 1 || !done) {
		return fmt.Sprintf("%+v\n%+v\n%+v\n%+v\n%+v", set.Status, rc.Status, d.Status, s.Status, j.Status)
	}
	return ""
}

func rolledOut(d *appsv1.Deployment, n int32) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.ReadyReplicas == n && s.AvailableReplicas == n
}

// picture is what somebody needs to see who has to find a fault: all that there is, and what was decided about the app.
func (s state) picture() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintln(&b, k)
		if slices.ContainsFunc([]string{
			" deployments ", " replicasets ", " replicationcontrollers ", " daemonsets ", " statefulsets ", " jobs ", " placements ",
			" cronjobs ", " resourcequotas ", " poddisruptionbudgets ", " endpointslices ", " horizontalpodautoscalers ",
		}, func(of string) bool { return strings.Contains(k, of) }) {
			fmt.Fprintln(&b, s[k])
		}
	}
	return b.String()
}

// underWay says what somebody is about to change.
func (s state) underWay() string {
	for _, k := range slices.Sorted(maps.Keys(s)) {
		for l := range strings.Lines(s[k]) {
			// What a namespace was rendered to is only known to who applies it.
			if strings.Contains(l, `"deletionTimestamp"`) || strings.Contains(l, "as rendered: false") && !strings.Contains(k, " namespaces ") ||
				strings.Contains(l, "behind by ") && !strings.Contains(l, "behind by 0") {
				return k + " is under way: " + strings.TrimSpace(l)
			}
		}
	}
	return ""
}

// diff tells what is otherwise.
func (s state) diff(want state) string {
	var b strings.Builder
	keys := maps.Clone(s)
	maps.Copy(keys, want)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		have, here := s[k]
		wanted, there := want[k]
		switch {
		case !there:
			fmt.Fprintf(&b, "%s is there\n", k)
		case !here:
			fmt.Fprintf(&b, "%s is missing\n", k)
		case have != wanted:
			fmt.Fprintf(&b, "%s:\n%s", k, lines(have, wanted))
		}
	}
	return b.String()
}

// lines are those that only one of two texts has.
func lines(have, want string) string {
	var b strings.Builder
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for _, l := range h {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&b, "  has   %s\n", strings.TrimSpace(l))
		}
	}
	for _, l := range w {
		if !slices.Contains(h, l) {
			fmt.Fprintf(&b, "  lacks %s\n", strings.TrimSpace(l))
		}
	}
	if b.Len() == 0 {
		return "  the order of its lines\n"
	}
	return b.String()
}
