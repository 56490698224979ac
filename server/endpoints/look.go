package endpoints

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	kubestorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/storage"
)

// Rows are the stores that are read. What they list is shared with the watch caches.
type Rows struct{ Pods, EndpointSlices, Endpoints, Nodes *storage.Resource }

// mostRead is how many pods that a Service selects are read, by their names: more than may be endpoints, since those that are Ready come first.
const mostRead = 2 * mostPods

// madeHere selects the slices that are made here, and zoned the Nodes that have a zone.
var (
	madeHere = requirement(discoveryv1.LabelManagedBy, selection.In, ControllerName, MirroringControllerName)
	zoned    = labels.NewSelector().Add(requirement(corev1.LabelTopologyZone, selection.Exists))
)

func requirement(label string, is selection.Operator, values ...string) labels.Requirement {
	r, err := labels.NewRequirement(label, is, values)
	if err != nil {
		panic(err) // it is written here
	}
	return *r
}

// look reads what the slices of a Service are decided by, of slices as it is at a resourceVersion or later; empty is whenever.
func (c *Controller) look(ctx context.Context, service *corev1.Service, atLeast string) (facts, error) {
	f := facts{service: service}
	of, err := labels.NewRequirement(discoveryv1.LabelServiceName, selection.Equals, []string{service.Name})
	if err != nil {
		return f, fmt.Errorf("select the EndpointSlices of Service %s: %w", client.KeyOf(service), err)
	}
	made := labels.NewSelector().Add(*of, madeHere)
	stored := &discovery.EndpointSliceList{}
	if err := list(ctx, c.rows.EndpointSlices, service.Namespace, made, atLeast, 0, stored); err != nil {
		return f, fmt.Errorf("list the EndpointSlices of Service %s: %w", client.KeyOf(service), err)
	}
	for i := range stored.Items {
		f.slices = append(f.slices, &stored.Items[i])
	}
	if f.endpoints, err = c.endpointsOf(ctx, client.KeyOf(service), atLeast); err != nil || !hasEndpoints(service) {
		return f, err
	}
	pods := &core.PodList{}
	if err := list(ctx, c.rows.Pods, service.Namespace, labels.Set(service.Spec.Selector).AsSelectorPreValidated(), "", mostRead+1, pods); err != nil {
		return f, fmt.Errorf("list the pods of Service %s: %w", client.KeyOf(service), err)
	}
	if f.more = len(pods.Items) > mostRead; f.more { // the list says that there is more if any pod follows, whomever that is of
		pods.Items = pods.Items[:mostRead]
	}
	ports := named(service)
	for i := range pods.Items {
		f.pods = append(f.pods, slim(&pods.Items[i], ports))
	}
	if len(f.pods) == 0 {
		return f, nil
	}
	if f.zones, err = c.zones(ctx); err != nil && ctx.Err() == nil {
		// So it is where what a workspace may use cannot be told. No address that is gone stays for that.
		klog.FromContext(ctx).V(2).Info("Leaves endpoints in their zones, since nobody knows those of Nodes", "service", client.KeyOf(service), "err", err)
		f.zones, err = zonesIn(f.slices), nil
	}
	return f, err
}

// zonesIn are the zones of Nodes by what slices say.
func zonesIn(all []*discovery.EndpointSlice) map[string]string {
	zones := map[string]string{}
	for _, s := range all {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.NodeName != nil && e.Zone != nil {
				zones[*e.NodeName] = *e.Zone
			}
		}
	}
	return zones
}

// zones are those of the Nodes that the workspace shows: a pod says which it is on, and no more.
func (c *Controller) zones(ctx context.Context) (map[string]string, error) {
	nodes, zones := &core.NodeList{}, map[string]string{}
	if err := list(ctx, c.rows.Nodes, "", zoned, "", 0, nodes); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		zones[nodes.Items[i].Name] = nodes.Items[i].Labels[corev1.LabelTopologyZone]
	}
	return zones, nil
}

// list lists what a watch cache has, as it is at a resourceVersion or later, empty for whenever; so many at most, 0 for all. It is shared with the cache.
func list(ctx context.Context, store *storage.Resource, namespace string, selector labels.Selector, atLeast string, most int64, into runtime.Object) error {
	options := kubestorage.ListOptions{
		ResourceVersion:      cmp.Or(atLeast, "1"), // at 0 there is no limit
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true,
		Predicate: kubestorage.SelectionPredicate{Label: selector, Field: fields.Everything(), Limit: most},
	}
	return storeerr.InterpretListError(store.Storage.GetList(ctx, store.Key(namespace, ""), options, into), store.GroupResource)
}

// endpointsOf reads the Endpoints of a Service, nil if there are none.
func (c *Controller) endpointsOf(ctx context.Context, service client.Key, atLeast string) (*Endpoints, error) {
	store, stored := c.rows.Endpoints, &core.Endpoints{}
	err := store.Storage.Get(ctx, store.Key(service.Namespace, service.Name), kubestorage.GetOptions{ResourceVersion: cmp.Or(atLeast, "0")}, stored)
	if kubestorage.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Endpoints of Service %s: %w", service, storeerr.InterpretGetError(err, store.GroupResource, service.Name))
	}
	found := &Endpoints{}
	if err := legacyscheme.Scheme.Convert(stored.DeepCopy(), found, nil); err != nil {
		return nil, fmt.Errorf("convert Endpoints %s: %w", service, err)
	}
	return found, nil
}

// slim is what of a pod its endpoint is made of; of the ports those that have one of the names.
func slim(pod *core.Pod, names sets.Set[string]) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, DeletionTimestamp: pod.DeletionTimestamp},
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, Hostname: pod.Spec.Hostname, Subdomain: pod.Spec.Subdomain},
		Status:     corev1.PodStatus{Phase: corev1.PodPhase(pod.Status.Phase)},
	}
	for _, ip := range pod.Status.PodIPs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.IP})
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == core.PodReady {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime})
		}
	}
	if len(p.Status.PodIPs) > 0 {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	if len(names) == 0 {
		return p
	}
	portsOf := func(c *core.Container) corev1.Container {
		kept := corev1.Container{Name: c.Name}
		for _, port := range c.Ports {
			if names.Has(port.Name) {
				kept.Ports = append(kept.Ports, corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort, Protocol: corev1.Protocol(port.Protocol)})
			}
		}
		return kept
	}
	for i := range pod.Spec.Containers {
		p.Spec.Containers = append(p.Spec.Containers, portsOf(&pod.Spec.Containers[i]))
	}
	for i := range pod.Spec.InitContainers {
		if policy := pod.Spec.InitContainers[i].RestartPolicy; policy != nil {
			kept := portsOf(&pod.Spec.InitContainers[i])
			kept.RestartPolicy = (*corev1.ContainerRestartPolicy)(policy)
			p.Spec.InitContainers = append(p.Spec.InitContainers, kept)
		}
	}
	return p
}
