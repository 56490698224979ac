package workspaces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// What syncers write on the namespaces that they make (apis/workload/v1alpha1 of Atoll).
const (
	workspaceLabel  = "workload.atoll.dev/workspace"
	syncTargetLabel = "workload.atoll.dev/synctarget"
	rootAnnotation  = "workload.atoll.dev/root"
)

const (
	// patience is how long a query waits for its pod to be known. Containers start when the node has their address, and its report of that may come a moment later.
	patience = 2 * time.Second
	// maxWaiting is how many wait at a time. That an address is nobody's is remembered for strangerFor, of maxStrangers of them.
	maxWaiting   = 256
	maxStrangers = 4096
	strangerFor  = time.Minute
)

// Indices of pods by their own addresses and those of their nodes, and of namespaces by place.
const (
	byAddress = "address"
	byNode    = "node"
	byPlace   = "place"
)

var (
	errNotSynced = errors.New("the pods and namespaces of the cluster are not known yet")
	errWaiting   = errors.New("too many queries wait for pods that are not known yet")
)

// workspace is one as a physical cluster knows it: by the syncer that made its namespaces, and the logical cluster.
type workspace struct{ syncTarget, cluster string }

// place is a namespace of a workspace.
type place struct {
	workspace
	namespace string
}

func (p place) key() string { return p.syncTarget + "/" + p.cluster + "/" + p.namespace }

// placeOf says which namespace of a workspace one of the physical cluster is; false if it is none.
func placeOf(namespace metav1.Object) (p place, ok bool) {
	labels := namespace.GetLabels()
	p.syncTarget, p.cluster = labels[syncTargetLabel], labels[workspaceLabel]
	p.namespace, ok = strings.CutPrefix(namespace.GetAnnotations()[rootAnnotation], "/")
	return p, ok && p.syncTarget != "" && p.cluster != "" && p.namespace != ""
}

// directory knows the addresses of pods and the names of namespaces of a physical cluster.
type directory struct {
	pods, namespaces cache.SharedIndexInformer
	networks         []netip.Prefix // of pods, as far as they are named

	waiting   chan struct{}             // holds one for each query that waits
	strangers *utilcache.LRUExpireCache // addresses of nobody who is known

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed when something else is known of pods
}

func newDirectory(client kubernetes.Interface, networks []netip.Prefix) (*directory, error) {
	d := &directory{
		networks: networks,
		pods: coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{
			byAddress: func(o any) ([]string, error) { return o.(*knownPod).addresses, nil },
			byNode:    func(o any) ([]string, error) { return o.(*knownPod).hosts, nil },
		}),
		namespaces: coreinformers.NewNamespaceInformer(client, 0, cache.Indexers{byPlace: func(o any) ([]string, error) {
			namespace, err := meta.Accessor(o)
			if err != nil {
				return nil, err
			}
			if p, ok := placeOf(namespace); ok {
				return []string{p.key()}, nil
			}
			return nil, nil
		}}),
		waiting:   make(chan struct{}, maxWaiting),
		strangers: utilcache.NewLRUExpireCache(maxStrangers),
		changed:   make(chan struct{}),
	}
	_, err := d.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { d.tell() },
		UpdateFunc: func(any, any) { d.tell() },
	})
	if err := errors.Join(err, d.pods.SetTransform(trimPod), d.namespaces.SetTransform(trimNamespace)); err != nil {
		return nil, fmt.Errorf("prepare to watch the pods and namespaces of the cluster: %w", err)
	}
	return d, nil
}

// knownPod is what is looked at of a pod: a cluster may have tens of thousands.
type knownPod struct {
	object.Empty
	namespace, name, version string
	created                  int64    // seconds since 1970
	addresses                []string // its own
	hosts                    []string // of its node
}

// What informers ask of an object.
var (
	_ metav1.Object  = &knownPod{}
	_ runtime.Object = &knownPod{}
)

// GetNamespace implements metav1.Object.
func (p *knownPod) GetNamespace() string { return p.namespace }

// GetName implements metav1.Object.
func (p *knownPod) GetName() string { return p.name }

// GetResourceVersion implements metav1.Object.
func (p *knownPod) GetResourceVersion() string { return p.version }

// SetNamespace implements metav1.Object: nobody changes one, and so the next.
func (*knownPod) SetNamespace(string) {}

// SetName implements metav1.Object.
func (*knownPod) SetName(string) {}

// SetResourceVersion implements metav1.Object.
func (*knownPod) SetResourceVersion(string) {}

// DeepCopyObject implements runtime.Object.
func (p *knownPod) DeepCopyObject() runtime.Object {
	c := *p
	return &c
}

func trimPod(o any) (any, error) {
	from, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	return &knownPod{
		namespace: from.Namespace, name: from.Name, version: from.ResourceVersion, created: from.CreationTimestamp.Unix(), addresses: addressesOf(from), hosts: hostsOf(from),
	}, nil
}

func trimNamespace(o any) (any, error) {
	namespace, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	kept := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion}}
	if p, ok := placeOf(namespace); ok {
		kept.Labels = map[string]string{syncTargetLabel: p.syncTarget, workspaceLabel: p.cluster}
		kept.Annotations = map[string]string{rootAnnotation: "/" + p.namespace}
	}
	return kept, nil
}

// addressesOf are the addresses that a pod has for itself. One that has ended has none: another may have got it since.
func addressesOf(pod *corev1.Pod) (all []string) {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	for _, ip := range pod.Status.PodIPs {
		all = appendAddress(all, ip.IP)
	}
	return all
}

func hostsOf(pod *corev1.Pod) []string {
	all := appendAddress(nil, pod.Status.HostIP) // alone in clusters before 1.30
	for _, ip := range pod.Status.HostIPs {
		all = appendAddress(all, ip.IP)
	}
	return all
}

// appendAddress appends an address as it is looked up: addresses are written in several ways.
func appendAddress(all []string, text string) []string {
	if ip, err := netip.ParseAddr(text); err == nil {
		all = append(all, ip.Unmap().String())
	}
	return all
}

// run watches until ctx ends.
func (d *directory) run(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { d.pods.RunWithContext(ctx) })
	watches.Go(func() { d.namespaces.RunWithContext(ctx) })
	watches.Wait()
}

func (d *directory) synced() bool { return d.pods.HasSynced() && d.namespaces.HasSynced() }

func (d *directory) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *directory) next() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// podAt is the namespace of the pod that has an address, the one that was made last where several say so.
func (d *directory) podAt(address netip.Addr) (namespace string, ok bool) {
	found, err := d.pods.GetIndexer().ByIndex(byAddress, address.String())
	if err != nil || len(found) == 0 {
		return "", false
	}
	last := slices.MaxFunc(found, func(a, b any) int {
		x, y := a.(*knownPod), b.(*knownPod)
		return cmp.Or(cmp.Compare(x.created, y.created), strings.Compare(x.namespace, y.namespace)) // whoever asks first is told the same
	})
	return last.(*knownPod).namespace, true
}

func (d *directory) nodeAt(address netip.Addr) bool {
	keys, err := d.pods.GetIndexer().IndexKeys(byNode, address.String())
	return err == nil && len(keys) > 0
}

// client is the namespace of the pod that asks from an address, and empty if no pod does. It waits for a pod that is not known yet.
func (d *directory) client(ctx context.Context, address netip.Addr) (string, error) {
	if !d.synced() {
		return "", errNotSynced
	}
	if namespace, known := d.known(address); known {
		return namespace, nil
	}
	select {
	case d.waiting <- struct{}{}:
		defer func() { <-d.waiting }()
	default:
		return "", errWaiting
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		changed := d.next() // before it looks, so that nothing comes between
		if namespace, known := d.known(address); known {
			return namespace, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			if slices.ContainsFunc(d.networks, func(n netip.Prefix) bool { return n.Contains(address) }) {
				return "", fmt.Errorf("no pod is known that has the address %s", address)
			}
			d.strangers.Add(address, true, strangerFor)
			return "", nil
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the pod at %s: %w", address, context.Cause(ctx))
		}
	}
}

// known is the namespace of the pod at an address, empty for what is known to be none.
func (d *directory) known(address netip.Addr) (namespace string, known bool) {
	if namespace, ok := d.podAt(address); ok {
		return namespace, true
	}
	_, stranger := d.strangers.Get(address)
	return "", stranger || address.IsLoopback() || d.nodeAt(address)
}

// place says which namespace of a workspace one of the physical cluster is; false if it is none.
func (d *directory) place(namespace string) (place, bool) {
	o, ok, err := d.namespaces.GetIndexer().GetByKey(namespace)
	if err != nil || !ok {
		return place{}, false
	}
	return placeOf(o.(*corev1.Namespace))
}

// physical is the name that a namespace of a workspace has in the physical cluster; false if it is not there.
func (d *directory) physical(p place) (string, bool) {
	keys, err := d.namespaces.GetIndexer().IndexKeys(byPlace, p.key())
	if err != nil || len(keys) != 1 {
		return "", false
	}
	return keys[0], true
}
