package disruption

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers of the queue: a key is a few reads and a write.
	workers = 4
	// unscaledFor is how long nothing is allowed before a budget is counted again whose pods nobody knows the number of: nothing here watches what makes them.
	unscaledFor = time.Minute
)

// Controller counts pods for the budgets of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	budgets   *client.Feed[*policyv1.PodDisruptionBudget]
	pods      *client.Feed[*metav1.PartialObjectMetadata]
	queue     *queue.Queue[client.Key]

	mu sync.Mutex // guards what follows
	// named has the budgets.
	named client.ByNamespace[remembered]
	// until has, by logical cluster, when the counts that wait are done.
	until map[logicalcluster.Name]time.Time
}

// New returns the controller. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{clients: clients, informers: informers, clock: clk, named: client.ByNamespace[remembered]{}, until: map[logicalcluster.Name]time.Time{}}
	c.queue = queue.NewWithClock("disruption", clk, c.reconcile)
	var budgets, pods error
	c.budgets, budgets = client.NewFeed(clients, &policyv1.PodDisruptionBudget{}, c.onBudget)
	pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Pod"}}
	c.pods, pods = client.NewFeed(clients, pod, c.onPod)
	return c, errors.Join(budgets, pods)
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.budgets.Run(ctx) })
	wg.Go(func() { c.pods.Run(ctx) })
	wg.Go(func() { c.queue.Run(ctx, workers) })
	wg.Wait()
	return nil
}

func (c *Controller) onBudget(budget *policyv1.PodDisruptionBudget, gone bool) {
	key := client.KeyOf(budget)
	if gone {
		c.forget(key)
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		selector = labels.Everything() // each pod has it counted, which says what is wrong
	}
	c.remember(key, selector)
	c.queue.Add(key)
}

func (c *Controller) remember(key client.Key, selector labels.Selector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.named.In(key)[key.Name]
	known.selector = selector
	c.named.Put(key, known)
}

// begins says that a budget is counted now: what its pods do from now on has it counted again.
func (c *Controller) begins(key client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.named.In(key)[key.Name]; ok {
		known.waits = false
		c.named.Put(key, known)
	}
	if !c.until[key.Cluster].After(c.clock.Now()) {
		delete(c.until, key.Cluster)
	}
}

// counted remembers how many pods a budget selects, unless it is gone.
func (c *Controller) counted(key client.Key, selected int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.named.In(key)[key.Name]; ok {
		known.selected = selected
		c.named.Put(key, known)
	}
}

func (c *Controller) forget(key client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named.Delete(key)
}

// onPod asks for a count of the budgets that select a pod, and later of those that may have selected it before it was labelled otherwise.
func (c *Controller) onPod(pod *metav1.PartialObjectMetadata, _ bool) {
	in := client.KeyOf(pod).Space()
	c.mu.Lock()
	defer c.mu.Unlock()
	counted, others := touched(c.named[in], pod.Labels)
	now := c.clock.Now()
	for _, name := range counted {
		budget := c.named[in][name]
		if budget.waits {
			continue
		}
		budget.waits = true
		c.named[in][name], c.until[in.Cluster] = budget, next(c.until[in.Cluster], now, budget.selected)
		c.queue.AddAfter(client.Key{Cluster: in.Cluster, Namespace: in.Namespace, Name: name}, c.until[in.Cluster].Sub(now))
	}
	if others > 0 {
		c.queue.AddAfter(in, others)
	}
}

// reconcile does what a key is for: one without a name is a namespace's.
func (c *Controller) reconcile(ctx context.Context, key client.Key) (time.Duration, error) {
	if key.Name == "" {
		return 0, c.recount(ctx, key)
	}
	return c.count(ctx, key)
}

// recount asks for a count of the budgets of a namespace that do not select what they did, by one list of the metadata of its pods.
func (c *Controller) recount(ctx context.Context, in client.Key) error {
	c.mu.Lock()
	budgets := maps.Clone(c.named[in])
	c.mu.Unlock()
	if len(budgets) == 0 {
		return nil
	}
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, in.Cluster); !is || err != nil {
		return err
	}
	list, err := c.clients.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(in.Namespace).List(client.In(ctx, in.Cluster), metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the labels of the pods of %s: %w", in, err)
	}
	pods := make([]labels.Set, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, list.Items[i].Labels)
	}
	for _, name := range recounted(budgets, pods) {
		c.queue.Add(client.Key{Cluster: in.Cluster, Namespace: in.Namespace, Name: name})
	}
	return nil
}

// count counts the pods of one budget, and says in its status how many may be evicted.
func (c *Controller) count(ctx context.Context, key client.Key) (again time.Duration, err error) {
	c.begins(key)
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster); !is || err != nil {
		return 0, err
	}
	ctx = client.In(ctx, key.Cluster)
	budgets := c.clients.Kube.PolicyV1().PodDisruptionBudgets(key.Namespace)
	budget, err := budgets.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.forget(key) // a feed does not tell of what was deleted while it did not watch
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read PodDisruptionBudget %s: %w", key, err)
	}
	status, again, err := c.decide(ctx, budget)
	if err != nil {
		status, again = Unknown(budget, err, c.clock.Now()), 0
	}
	if !same(&budget.Status, &status) {
		budget.Status = status
		if _, problem := budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}); problem != nil && !apierrors.IsNotFound(problem) {
			return 0, fmt.Errorf("write the status of PodDisruptionBudget %s: %w", key, problem)
		}
	}
	var told *unscaled
	if errors.As(err, &told) {
		return unscaledFor, nil // the budget says so
	}
	return again, err
}

func (c *Controller) decide(ctx context.Context, budget *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	fail := func(err error) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
		return policyv1.PodDisruptionBudgetStatus{}, 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return fail(fmt.Errorf("read the selector: %w", err))
	}
	var found []selected
	if budget.Spec.Selector != nil { // none selects nothing
		all := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.clients.Kube.CoreV1().Pods(budget.Namespace).List(ctx, opts)
		})
		all.PageBufferSize = 0 // one page at a time, of which little is kept
		err := all.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector.String()}, func(obj runtime.Object) error {
			found = append(found, selectedOf(obj.(*corev1.Pod)))
			return nil
		})
		if err != nil {
			return fail(fmt.Errorf("list the pods that it selects: %w", err))
		}
	}
	c.counted(client.KeyOf(budget), len(found))
	var wanted int32
	if isOfAll(&budget.Spec) {
		if wanted, err = c.wanted(ctx, budget.Namespace, found); err != nil {
			return fail(err)
		}
	}
	pods := make([]Pod, 0, len(found))
	for i := range found {
		pods = append(pods, found[i].Pod)
	}
	return Decide(budget, pods, wanted, c.clock.Now())
}

// selected is what a count keeps of a pod.
type selected struct {
	Pod
	mirror string // of the physical cluster that shows it
	owners []metav1.OwnerReference
}

func selectedOf(pod *corev1.Pod) selected {
	return selected{
		Pod:    Pod{Name: pod.Name, Healthy: kinds.IsReady(pod), Going: pod.DeletionTimestamp != nil},
		mirror: pod.Labels[workloadv1alpha1.MirrorLabel], owners: pod.OwnerReferences,
	}
}

// controllerOf returns the one of the owners that controls, nil for none.
func controllerOf(owners []metav1.OwnerReference) *metav1.OwnerReference {
	return metav1.GetControllerOfNoCopy(&metav1.ObjectMeta{OwnerReferences: owners})
}

// wanted is how many pods the controllers of these want together. What nobody controls is not among them. Pods where what is divided does not go any more
// serve until they are taken away, which nobody asks a budget for: they are not healthy from here on.
func (c *Controller) wanted(ctx context.Context, namespace string, pods []selected) (int32, error) {
	scales := map[types.UID]scale{}
	of := map[types.UID]types.UID{} // what a controller's pods are counted by
	for i := range pods {
		owner := controllerOf(pods[i].owners)
		if owner == nil {
			continue
		}
		uid, known := of[owner.UID]
		if !known {
			var is scale
			var err error
			if uid, is, err = c.scaleOf(ctx, namespace, owner, pods[i].owners); err != nil {
				return 0, err
			}
			of[owner.UID], scales[uid] = uid, is
		}
		if in := scales[uid].in; in != nil && pods[i].mirror != "" && !in.Has(pods[i].mirror) {
			pods[i].Healthy = false
		}
	}
	var sum int32
	for is := range maps.Values(scales) {
		sum += is.pods
	}
	return sum, nil
}

// scale is how many pods a controller wants, and in which mirrors, nil for any.
type scale struct {
	pods int32
	in   sets.Set[string]
}

// scaleOf returns how many pods a controller of one with these owners wants, and by which UID that is counted once: those of a Deployment's ReplicaSets are its. A
// ReplicaSet may go while pods of it still run, as their Deployment's history has no room for it: they name that, too (server/builtin, owners).
func (c *Controller) scaleOf(ctx context.Context, namespace string, owner *metav1.OwnerReference, owners []metav1.OwnerReference) (types.UID, scale, error) {
	apps := c.clients.Kube.AppsV1()
	switch owner.APIVersion + " " + owner.Kind {
	case appsv1.SchemeGroupVersion.String() + " ReplicaSet":
		set, err := apps.ReplicaSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err := isThere(owner, set, err); err != nil {
			var gone *unscaled
			if root := deploymentOf(owners); root != nil && errors.As(err, &gone) {
				return c.scaleOf(ctx, namespace, root, owners)
			}
			return "", scale{}, err
		}
		if above := metav1.GetControllerOfNoCopy(set); isDeployment(above) {
			return c.scaleOf(ctx, namespace, above, owners)
		}
		is, err := c.replicas(ctx, set)
		return set.UID, is, err
	case corev1.SchemeGroupVersion.String() + " ReplicationController":
		rc, err := c.clients.Kube.CoreV1().ReplicationControllers(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err := isThere(owner, rc, err); err != nil {
			return "", scale{}, err
		}
		is, err := c.replicas(ctx, rc)
		return rc.UID, is, err
	case deployment: // of whose revisions the pod's is not kept
		d, err := apps.Deployments(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err := isThere(owner, d, err); err != nil {
			return "", scale{}, err
		}
		is, err := c.replicas(ctx, d)
		return d.UID, is, err
	case appsv1.SchemeGroupVersion.String() + " StatefulSet": // it is whole in one cluster, whatever its split
		set, err := apps.StatefulSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err := isThere(owner, set, err); err != nil {
			return "", scale{}, err
		}
		return set.UID, scale{pods: ptr.Deref(set.Spec.Replicas, 1)}, nil
	}
	return "", scale{}, &unscaled{fmt.Sprintf("how many pods %s %s wants is not known: give minAvailable as a number, or select pods of Deployments, ReplicaSets, ReplicationControllers and StatefulSets alone", owner.Kind, owner.Name)}
}

var deployment = appsv1.SchemeGroupVersion.String() + " Deployment"

func isDeployment(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.APIVersion+" "+owner.Kind == deployment
}

// deploymentOf returns the owner that is a Deployment, nil for none.
func deploymentOf(owners []metav1.OwnerReference) *metav1.OwnerReference {
	for i := range owners {
		if isDeployment(&owners[i]) {
			return &owners[i]
		}
	}
	return nil
}

// replicas reads where what is divided goes, after its pods were: what is known of that is not older than they are.
func (c *Controller) replicas(ctx context.Context, d ctrlclient.Object) (scale, error) {
	kind, _ := kinds.Of(d)
	read := func(object *placementv1alpha1.PlacedObject) (*placementv1alpha1.Placement, error) {
		p := &placementv1alpha1.Placement{}
		name := placementv1alpha1.NameFor(d.GetNamespace(), object)
		err := c.clients.Objects.Get(ctx, types.NamespacedName{Name: name}, p)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read Placement %s of %s %s: %w", name, kind.GVK.Kind, d.GetName(), err)
		}
		return p, nil
	}
	own, err := read(&placementv1alpha1.PlacedObject{Group: kind.GVR.Group, Resource: kind.GVR.Resource, Name: d.GetName()})
	if err != nil {
		return scale{}, err
	}
	namespaces, err := read(nil)
	if err != nil {
		return scale{}, err
	}
	pods, in, err := replicas(d, own, namespaces)
	return scale{pods, in}, err
}

// isThere returns an error if a controller was not found, or is another one.
func isThere(owner *metav1.OwnerReference, found metav1.Object, err error) error {
	switch {
	case apierrors.IsNotFound(err), err == nil && found.GetUID() != owner.UID:
		return &unscaled{fmt.Sprintf("%s %s, whose pods it selects, is gone", owner.Kind, owner.Name)}
	case err != nil:
		return fmt.Errorf("read %s %s: %w", owner.Kind, owner.Name, err)
	}
	return nil
}
