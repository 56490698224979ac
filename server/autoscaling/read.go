package autoscaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// builtins are what every workspace has that can be scaled, so that nobody has to ask for it.
var builtins = map[schema.GroupKind]schema.GroupVersionResource{
	{Group: appsv1.GroupName, Kind: "Deployment"}:  appsv1.SchemeGroupVersion.WithResource("deployments"),
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  appsv1.SchemeGroupVersion.WithResource("replicasets"),
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	{Kind: "ReplicationController"}:                corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
}

// target is what a HorizontalPodAutoscaler scales.
type target struct {
	resource schema.GroupVersionResource
	at       []string // the path of its scale
	scale    autoscalingv1.Scale
}

// mostName is how long a name may be that is asked for, as a name of an object or a group is at most. What names a target becomes part of paths, of the status and of Events.
const mostName = validation.DNS1123SubdomainMaxLength

// mostAPIVersion is how long a group and a version are at most.
const mostAPIVersion = mostName + len("/") + validation.DNS1035LabelMaxLength

// mostVersions is how many versions of a kind are looked at for one that has a scale.
const mostVersions = 5

// targetOf reads the scale of what a HorizontalPodAutoscaler names. The version that it names does not matter, as in Kubernetes.
func (c *Controller) targetOf(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler) (*target, error) {
	ref := &hpa.Spec.ScaleTargetRef
	if n := len(ref.APIVersion); n > mostAPIVersion {
		return nil, fmt.Errorf("scaleTargetRef: an apiVersion of %d bytes, and there is none of more than %d", n, mostAPIVersion)
	}
	if n := max(len(ref.Kind), len(ref.Name)); n > mostName {
		return nil, fmt.Errorf("scaleTargetRef: a name of %d bytes, and there is none of more than %d", n, mostName)
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	if why := content.IsPathSegmentName(ref.Name); len(why) > 0 { // it becomes part of a path
		return nil, fmt.Errorf("name %q: %s", ref.Name, why[0])
	}
	gk := gv.WithKind(ref.Kind).GroupKind()
	if resource, ok := builtins[gk]; ok {
		return c.scaleOf(ctx, resource, hpa)
	}
	versions, err := c.versionsOf(ctx, gk)
	if err != nil {
		return nil, err
	}
	var first error = &meta.NoKindMatchError{GroupKind: gk}
	for _, version := range versions[:min(len(versions), mostVersions)] {
		resource, err := c.resourceOf(ctx, gk.WithVersion(version))
		if err != nil {
			return nil, err
		}
		if resource == "" {
			continue
		}
		t, err := c.scaleOf(ctx, schema.GroupVersionResource{Group: gk.Group, Version: version, Resource: resource}, hpa)
		if err == nil {
			return t, nil
		}
		if meta.IsNoMatchError(first) {
			first = err
		}
	}
	return nil, first
}

// scaleOf reads the scale of what a HorizontalPodAutoscaler names, of that resource.
func (c *Controller) scaleOf(ctx context.Context, r schema.GroupVersionResource, hpa *autoscalingv2.HorizontalPodAutoscaler) (*target, error) {
	t := &target{resource: r, at: []string{"/apis", r.Group, r.Version, "namespaces", hpa.Namespace, r.Resource, hpa.Spec.ScaleTargetRef.Name, "scale"}}
	if r.Group == "" {
		t.at = append([]string{"/api"}, t.at[2:]...)
	}
	if err := c.read(ctx, t); err != nil {
		return nil, err
	}
	return t, nil
}

// read reads the scale of a target anew, and nothing of before stays: no replicas are not written in it.
func (c *Controller) read(ctx context.Context, t *target) error {
	var scale autoscalingv1.Scale
	err := answered(ctx, c.rest().Get().AbsPath(t.at...), &scale)
	t.scale = scale
	return err
}

// write writes the scale of a target as it was read, with so many replicas.
func (c *Controller) write(ctx context.Context, t *target, replicas int32) error {
	t.scale.Spec.Replicas = replicas
	body, err := json.Marshal(&t.scale)
	if err != nil {
		return err
	}
	return answered(ctx, c.rest().Put().AbsPath(t.at...).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body), &autoscalingv1.Scale{})
}

func (c *Controller) rest() rest.Interface { return c.clients.Kube.Discovery().RESTClient() }

// answered asks for an answer in JSON, which everything that is served has.
func answered(ctx context.Context, request *rest.Request, into any) error {
	return readInto(request.SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx), into)
}

func readInto(answer rest.Result, into any) error {
	if err := answer.Error(); err != nil { // in the server's words, which that of Raw has not
		return err
	}
	text, err := answer.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// versionsOf are the versions of a kind's group in the workspace, the one first that it prefers; none where there is no such group.
func (c *Controller) versionsOf(ctx context.Context, gk schema.GroupKind) ([]string, error) {
	if len(validation.IsDNS1123Subdomain(gk.Group)) > 0 { // the core group has no other kind that can be scaled, and what is no name would be another path
		return nil, nil
	}
	var group metav1.APIGroup
	err := answered(ctx, c.rest().Get().AbsPath("/apis", gk.Group), &group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	versions := []string{group.PreferredVersion.Version}
	for _, v := range group.Versions {
		if v.Version != versions[0] {
			versions = append(versions, v.Version)
		}
	}
	return versions, nil
}

// resourceOf is the resource of a kind in the workspace; empty where its version has none in namespaces.
func (c *Controller) resourceOf(ctx context.Context, kind schema.GroupVersionKind) (string, error) {
	var list metav1.APIResourceList
	err := answered(ctx, c.rest().Get().AbsPath("/apis", kind.Group, kind.Version), &list)
	if apierrors.IsNotFound(err) { // it has just gone
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, r := range list.APIResources {
		if r.Kind == kind.Kind && r.Namespaced && !strings.Contains(r.Name, "/") {
			return r.Name, nil
		}
	}
	return "", nil
}

// byRootUID finds the leaves of what can be scaled: by its Placement alone those are not known that are being left.
const byRootUID = "autoscaling-root-uid"

func addIndexes(informers *client.Informers) (err error) {
	for _, kind := range informers.Kinds {
		if _, scales := builtins[kind.GVK.GroupKind()]; scales {
			err = errors.Join(err, kind.AddIndex(byRootUID, func(leaf ctrlclient.Object) []string {
				if uid := leaf.GetLabels()[workloadv1alpha1.RootUIDLabel]; uid != "" {
					return []string{uid}
				}
				return nil
			}))
		}
	}
	return err
}

// targetIn is the SyncTarget of a mirror; nil if there is none any more, and for what is no mirror.
func (c *Controller) targetIn(mirror logicalcluster.Name) *workloadv1alpha1.SyncTarget {
	lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: mirror, Name: corev1alpha1.LogicalClusterName})
	if !ok || lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror || lc.Spec.Owner == nil {
		return nil
	}
	owner := lc.Spec.Owner
	t, ok := c.informers.SyncTargets.Get(client.Key{Cluster: logicalcluster.Name(owner.Cluster), Name: owner.Name})
	if !ok || t.UID != owner.UID {
		return nil
	}
	return t
}

// isAway says that a physical cluster is not heard of. Of one that is gone its rows say so.
func isAway(t *workloadv1alpha1.SyncTarget) bool {
	return t != nil && !t.Status.IsHeard()
}

// isLost says that nobody tells how the pods are that a physical cluster shows: it is away, or its syncer sees none any more.
func isLost(t *workloadv1alpha1.SyncTarget) bool {
	return isAway(t) || t != nil && !t.Carries(corev1.ResourcePods.String())
}

// reportsOf are what physical clusters say of their leaves: no more of each than it is to have, whatever that is.
func reportsOf(leaves []ctrlclient.Object, in func(mirror logicalcluster.Name) *workloadv1alpha1.SyncTarget) map[string]report {
	reports := map[string]report{}
	for _, leaf := range leaves {
		t := in(client.KeyOf(leaf).Cluster)
		if t == nil { // what somebody has labelled as one
			continue
		}
		var most *int32
		var is int32
		switch leaf := leaf.(type) {
		case *appsv1.Deployment:
			most, is = leaf.Spec.Replicas, leaf.Status.Replicas
		case *appsv1.ReplicaSet:
			most, is = leaf.Spec.Replicas, leaf.Status.Replicas
		case *corev1.ReplicationController:
			most, is = leaf.Spec.Replicas, leaf.Status.Replicas
		case *appsv1.StatefulSet:
			most, is = leaf.Spec.Replicas, leaf.Status.Replicas
		}
		reports[t.Name] = report{reports[t.Name].replicas + int(max(0, min(is, ptr.Deref(most, 1)))), isAway(t)}
	}
	return reports
}

// placementOf says whether each physical cluster runs all replicas of a target, and what each says of it, as far as the informers know.
func (c *Controller) placementOf(key client.Key, to *target) (each bool, reports map[string]report) {
	kind, ok := kinds.ByResource(to.resource.GroupResource())
	if !ok {
		return false, nil // its pods are made by what is of other kinds
	}
	reports = reportsOf(c.informers.Of(kind.GVK.Kind).ByIndex(byRootUID, string(to.scale.UID)), c.targetIn)
	if kind.Goes != kinds.Divided {
		return false, reports // it is whole in one cluster
	}
	read := func(object *placementv1alpha1.PlacedObject) *placementv1alpha1.Placement {
		p, _ := c.informers.Placements.Get(client.Key{Cluster: key.Cluster, Name: placementv1alpha1.NameFor(key.Namespace, object)})
		return p
	}
	var annotations map[string]string
	if root, ok := c.informers.Of(kind.GVK.Kind).Get(client.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: to.scale.Name}); ok {
		annotations = root.GetAnnotations()
	}
	return inEach(annotations, read(&placementv1alpha1.PlacedObject{Group: to.resource.Group, Resource: to.resource.Resource, Name: to.scale.Name}), read(nil)), reports
}

// podsOf reads the pods that a selector selects, with what they ask for, and which of the others of the namespace select the first of them that any does.
func (c *Controller) podsOf(ctx context.Context, key client.Key, of *selector, a *asked) (pods []pod, rivals []string, err error) {
	others := c.others(key)
	lost := map[string]bool{} // by mirrors
	all := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return c.clients.Kube.CoreV1().Pods(key.Namespace).List(ctx, opts)
	})
	all.PageBufferSize = 0 // one page at a time, of which little is kept
	err = all.EachListItem(ctx, metav1.ListOptions{LabelSelector: of.String()}, func(obj runtime.Object) error {
		p := obj.(*corev1.Pod)
		if len(rivals) == 0 {
			rivals = selecting(others, p.Labels)
		}
		is, mirror := podOf(p, a), p.Labels[workloadv1alpha1.MirrorLabel]
		if _, known := lost[mirror]; !known {
			lost[mirror] = isLost(c.targetIn(logicalcluster.Name(mirror)))
		}
		is.lost = is.lost || lost[mirror] // a pod that was not Ready has no word of it
		pods = append(pods, is)
		return nil
	})
	return pods, rivals, err
}

// rival is another HorizontalPodAutoscaler of a namespace.
type rival struct {
	name     string
	selector *selector
}

// selecting are those of the others that select a pod, by name, not more than are named.
func selecting(others []rival, pod labels.Set) (names []string) {
	for _, other := range others {
		if other.selector.Matches(pod) {
			names = append(names, other.name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), mostNamed)]
}

// podOf keeps of a pod what a calculation has to know.
func podOf(p *corev1.Pod, a *asked) pod {
	is := pod{name: p.Name, phase: p.Status.Phase, going: p.DeletionTimestamp != nil, requests: a.read(p)}
	if p.Labels[workloadv1alpha1.MirrorLabel] != "" { // else its Node is what somebody wrote
		is.cluster = p.Spec.NodeName
	}
	if p.Status.StartTime != nil {
		is.started = p.Status.StartTime.Time
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			is.ready = &corev1.PodCondition{Status: c.Status, LastTransitionTime: c.LastTransitionTime}
			is.lost = c.Status != corev1.ConditionTrue && (c.Reason == workloadv1alpha1.PodUnheard || c.Reason == workloadv1alpha1.PodUnseen)
		}
	}
	return is
}

// readFor is for how long what was read of the metrics of a namespace is for all that ask: they are measured no more often than this by far.
const readFor = 5 * time.Second

// readings are the metrics that were read of namespaces in the last moment, each once for all that asked.
type readings struct {
	// read adds to idle for how long it has waited for an answer.
	read  func(ctx context.Context, of client.Key, idle *time.Duration) (usages, error)
	clock clock.PassiveClock

	mu    sync.Mutex // guards what follows
	taken map[client.Key]*reading
	swept time.Time
}

type reading struct {
	done chan struct{} // closed when what follows is known
	at   time.Time
	used usages
	err  error
}

func newReadings(clk clock.PassiveClock, read func(context.Context, client.Key, *time.Duration) (usages, error)) *readings {
	return &readings{read: read, clock: clk, taken: map[client.Key]*reading{}}
}

// of returns what the pods of a namespace use. It is shared. To idle it adds for how long it has waited, for an answer or for who reads it.
func (r *readings) of(ctx context.Context, space client.Key, idle *time.Duration) (usages, error) {
	r.mu.Lock()
	one := r.taken[space]
	if one == nil || one.isOld(r.clock.Now()) {
		one = &reading{done: make(chan struct{})}
		r.taken[space] = one
		r.mu.Unlock()
		one.used, one.err = r.read(ctx, space, idle)
		if ctx.Err() == nil { // else it says nothing to those that ask later
			one.at = r.clock.Now()
		}
		close(one.done)
		return one.used, one.err
	}
	r.mu.Unlock()
	asked := r.clock.Now()
	defer func() { *idle += r.clock.Now().Sub(asked) }()
	select {
	case <-one.done:
		return one.used, one.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isOld says that it is known and no news any more.
func (r *reading) isOld(now time.Time) bool {
	select {
	case <-r.done:
		age := now.Sub(r.at)
		return age < 0 || age >= readFor
	default:
		return false
	}
}

// sweep forgets what is no news any more, if that was not done in the last moment.
func (r *readings) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if since := now.Sub(r.swept); since >= 0 && since < readFor {
		return
	}
	r.swept = now
	maps.DeleteFunc(r.taken, func(_ client.Key, one *reading) bool { return one.isOld(now) })
}

// usagesOf asks the workspace's own Metrics API, which asks the physical clusters. What these do not say is not in it; where none says anything, the error says why.
func (c *Controller) usagesOf(ctx context.Context, space client.Key, idle *time.Duration) (usages, error) {
	var list metricsv1beta1.PodMetricsList
	at := []string{"/apis", metricsv1beta1.SchemeGroupVersion.Group, metricsv1beta1.SchemeGroupVersion.Version, "namespaces", space.Namespace, "pods"}
	asked := c.clock.Now()
	answer := c.rest().Get().AbsPath(at...).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx)
	*idle += c.clock.Now().Sub(asked)
	if err := readInto(answer, &list); err != nil {
		return nil, err
	}
	used := make(usages, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i]
		used[m.Name] = &metricsv1beta1.PodMetrics{Timestamp: m.Timestamp, Window: m.Window, Containers: m.Containers}
	}
	return used, nil
}
