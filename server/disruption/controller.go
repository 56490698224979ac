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
	"atoll.dev/atoll/internal/turns"
)

const (
	// workers of the queue: a key is a few reads and a write. They are more than may wait for webhooks at once (server/admission).
	workers = 8
	// atOnce is how many looks of a workspace there are at once at most, and apart how far apart they begin at least. Those that
	// are to come wait pause times as long as one has worked, mostWorked of it at most: what takes longer waits, as for an etcd
	// that is away.
	atOnce     = 2
	apart      = 5 * time.Millisecond
	pause      = 4
	mostWorked = 2 * time.Second
	// unscaledFor is how long nothing is allowed before a budget is counted again whose pods nobody knows the number of: nothing
	// here watches what makes them.
	unscaledFor = time.Minute
	// refused is when to write again what the workspace did not let in.
	refused = time.Minute
)

// lane is how the looks of a workspace follow each other.
var lane = turns.LaneRules{AtOnce: atOnce, Apart: apart, Pause: pause, MostWorked: mostWorked}

// Controller counts pods for the budgets of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	events    *client.Events
	budgets   *client.Feed[*policyv1.PodDisruptionBudget]
	pods      *client.Feed[*metav1.PartialObjectMetadata]
	queue     *queue.Queue[client.Key] // budgets, and namespaces: those have no name
	lanes     *turns.Lanes[logicalcluster.Name, client.Key]

	mu sync.Mutex // guards what follows; nobody holds it for longer because a tenant has more, as all tenants' pods wait for it
	// named has the budgets that are counted, and beyond the others.
	named  client.ByNamespace[remembered]
	beyond client.ByNamespace[struct{}]
	// until has, by logical cluster, when the counts that wait are done.
	until map[logicalcluster.Name]time.Time
	// spaces has, of namespaces with budgets, what there is to find out about their pods, and filed how many sets of labels a
	// logical cluster has there.
	spaces map[client.Key]*space
	filed  map[logicalcluster.Name]int
}

// space is what there is to find out about the pods of a namespace.
type space struct {
	touched client.Touched
	// list is when the labels of all pods are to be listed, zero for not; from is the last budget that this was done for, and
	// again after what time it is to be done anew once it is done for all, 0 for not: of what changes meanwhile those before from
	// know nothing.
	list  time.Time
	from  string
	again time.Duration
}

// New returns the controller. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := newController(clk)
	c.clients, c.informers, c.events = clients, informers, client.NewEvents(clients, "controllermanager", clk) // as Kubernetes' is called in them
	c.queue = queue.NewWithClock("disruption", clk, c.reconcile)
	var budgets, pods error
	c.budgets, budgets = client.NewFeed(clients, &policyv1.PodDisruptionBudget{}, c.onBudget)
	pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Pod"}}
	c.pods, pods = client.NewFeed(clients, pod, c.onPod)
	return c, errors.Join(budgets, pods)
}

// newController returns one that knows nothing, and asks nobody.
func newController(clk clock.PassiveClock) *Controller {
	return &Controller{
		clock: clk, lanes: turns.NewLanes[logicalcluster.Name, client.Key](clk, lane),
		named: client.ByNamespace[remembered]{}, beyond: client.ByNamespace[struct{}]{},
		until: map[logicalcluster.Name]time.Time{}, spaces: map[client.Key]*space{}, filed: map[logicalcluster.Name]int{},
	}
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
	selector, _ := selectorOf(budget) // what is wrong with it the count says
	c.remember(key, selector)
	c.queue.Add(key)
}

// remember has pods find a budget, if it is not one too many in its namespace.
func (c *Controller) remember(key client.Key, selector labels.Selector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.place(key, selector)
}

// place is remember, and says whether the budget is among those that are counted. Callers hold mu.
func (c *Controller) place(key client.Key, selector labels.Selector) bool {
	known, is := c.named.In(key)[key.Name]
	if !is && len(c.named.In(key)) >= mostBudgets {
		c.beyond.Put(key, struct{}{})
		return false
	}
	c.beyond.Delete(key)
	known.selector = selector
	c.named.Put(key, known)
	return true
}

// counts says whether a budget is not one too many in its namespace, or not any more.
func (c *Controller) counts(key client.Key, selector labels.Selector) bool {
	c.mu.Lock()
	if _, beyond := c.beyond.In(key)[key.Name]; !beyond { // one that is gone is not remembered again
		c.mu.Unlock()
		return true
	}
	placed := c.place(key, selector)
	next, more := c.spare(key)
	c.mu.Unlock()
	if more {
		c.queue.Add(next)
	}
	return placed
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

// forget drops a budget. Another of its namespace that was one too many is counted in its place.
func (c *Controller) forget(key client.Key) {
	c.mu.Lock()
	c.named.Delete(key)
	c.beyond.Delete(key)
	if len(c.named.In(key)) == 0 {
		c.take(key.Space())
		delete(c.spaces, key.Space())
	}
	next, more := c.spare(key)
	c.mu.Unlock()
	if more {
		c.queue.Add(next)
	}
}

// leave drops all budgets of a namespace.
func (c *Controller) leave(in client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(in)
	delete(c.spaces, in)
	delete(c.named, in)
	delete(c.beyond, in)
}

// spare is a budget that was one too many in a namespace, if there is room for it. Callers hold mu.
func (c *Controller) spare(in client.Key) (key client.Key, ok bool) {
	if len(c.named.In(in)) < mostBudgets {
		for name := range c.beyond.In(in) {
			return client.Key{Cluster: in.Cluster, Namespace: in.Namespace, Name: name}, true
		}
	}
	return client.Key{}, false
}

// onPod notes what a pod is labelled with. Which budgets that concerns is found by a worker, in the turn of its workspace: the
// pods of all workspaces are told one after the other.
func (c *Controller) onPod(pod *metav1.PartialObjectMetadata, _ bool) {
	in := client.KeyOf(pod).Space()
	if !c.hasBudgets(in) {
		return
	}
	labelled := client.NewLabelled(pod.Labels)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spaces[in]
	if s == nil {
		s = &space{}
		c.spaces[in] = s
	}
	if s.touched.Empty() { // else a worker is asked already
		c.queue.AddAfter(in, client.WhileSettling)
	}
	before := s.touched.Len()
	if s.touched.Add(labelled); c.filed[in.Cluster] >= mostFiled {
		s.touched.AddAny()
	}
	c.file(in.Cluster, s.touched.Len()-before)
}

func (c *Controller) hasBudgets(in client.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.named[in]) > 0
}

// file counts sets of labels that are filed. Callers hold mu.
func (c *Controller) file(cluster logicalcluster.Name, n int) {
	if c.filed[cluster] += n; c.filed[cluster] == 0 {
		delete(c.filed, cluster)
	}
}

// take returns which pods of a namespace have changed, and forgets it. Callers hold mu.
func (c *Controller) take(in client.Key) client.Touched {
	s := c.spaces[in]
	if s == nil {
		return client.Touched{}
	}
	touched := s.touched
	s.touched = client.Touched{}
	c.file(in.Cluster, -touched.Len())
	return touched
}

// reconcile does what a key is for, in its turn: one without a name is a namespace's.
func (c *Controller) reconcile(ctx context.Context, key client.Key) (time.Duration, error) {
	if wait := c.lanes.Turn(key.Cluster, key); wait > 0 {
		return 0, queue.Later(wait)
	}
	began := c.clock.Now()
	defer func() { c.lanes.Done(key.Cluster, c.clock.Since(began)) }()
	is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster)
	switch {
	case err != nil:
		return 0, err
	case !is && key.Name == "":
		c.leave(key)
		return 0, nil
	case !is:
		c.begins(key)
		c.forget(key)
		return 0, nil
	case key.Name == "":
		c.match(key)
		return c.recount(ctx, key)
	}
	return c.count(ctx, key)
}

// match asks for a count of the budgets of a namespace that select a pod which has changed, and later for a look at those that
// may have selected it before it was labelled otherwise.
func (c *Controller) match(in client.Key) {
	c.mu.Lock()
	touched, budgets := c.take(in), maps.Clone(c.named[in])
	c.mu.Unlock()
	if touched.Empty() {
		return
	}
	counted, others := matched(budgets, &touched)
	for name, wait := range c.ask(in, counted, others) {
		c.queue.AddAfter(client.Key{Cluster: in.Cluster, Namespace: in.Namespace, Name: name}, wait)
	}
}

// ask notes which budgets of a namespace are to be counted, and returns after what time those are that did not wait already.
func (c *Controller) ask(in client.Key, counted []string, others time.Duration) map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, wait := c.clock.Now(), map[string]time.Duration{}
	for _, name := range counted {
		budget, known := c.named[in][name]
		if !known || budget.waits {
			continue
		}
		budget.waits = true
		c.named[in][name], c.until[in.Cluster] = budget, next(c.until[in.Cluster], now, budget.selected)
		wait[name] = c.until[in.Cluster].Sub(now)
	}
	if s := c.spaces[in]; s != nil && others > 0 {
		switch {
		case s.list.IsZero():
			s.list = now.Add(others)
		case s.from != "":
			s.again = others
		}
	}
	return wait
}

// recount asks for a count of the budgets of a namespace that do not select what they did, by a list of the metadata of its
// pods, when that is due. It returns when it is, or goes on: some budgets are looked at for each list.
func (c *Controller) recount(ctx context.Context, in client.Key) (time.Duration, error) {
	wait, from, budgets := c.listed(in)
	if len(budgets) == 0 {
		return wait, nil
	}
	list, err := c.clients.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(in.Namespace).List(client.In(ctx, in.Cluster), metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list the labels of the pods of %s: %w", in, err)
	}
	pods := make([]labels.Set, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, list.Items[i].Labels)
	}
	names, last := recounted(budgets, from, pods)
	for _, name := range names {
		c.queue.Add(client.Key{Cluster: in.Cluster, Namespace: in.Namespace, Name: name})
	}
	return c.looked(in, last), nil
}

// listed returns after what time the pods of a namespace are to be listed, 0 for never; or if they are now, for which budgets,
// and the last one that this was done for.
func (c *Controller) listed(in client.Key) (wait time.Duration, from string, budgets map[string]remembered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spaces[in]
	if s == nil {
		return 0, "", nil
	}
	if !s.list.IsZero() {
		if wait = s.list.Sub(c.clock.Now()); wait <= 0 {
			return 0, s.from, maps.Clone(c.named[in])
		}
	} else if s.touched.Empty() {
		delete(c.spaces, in) // until one of its pods changes again
	}
	return wait, "", nil
}

// looked says that the pods of a namespace were listed, for its budgets up to one; empty for the last. It returns when to go on.
func (c *Controller) looked(in client.Key, last string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spaces[in]
	if s == nil {
		return 0
	}
	if s.from = last; last != "" {
		return client.WhileSettling
	}
	if again := s.again; again > 0 {
		s.list, s.again = c.clock.Now().Add(again), 0
		return again
	}
	if s.list = (time.Time{}); s.touched.Empty() {
		delete(c.spaces, in)
	}
	return 0
}

// count counts the pods of one budget, and says in its status how many may be evicted.
func (c *Controller) count(ctx context.Context, key client.Key) (again time.Duration, err error) {
	c.begins(key)
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
		_, problem := budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{})
		switch {
		case client.Theirs(problem):
			c.events.Tell(ctx, budget, corev1.EventTypeWarning, "FailedUpdateStatus", fmt.Sprintf("Its pods were counted, and its status cannot be written: %v", problem))
			return refused, nil
		case problem != nil && !apierrors.IsNotFound(problem):
			return 0, fmt.Errorf("write the status of PodDisruptionBudget %s: %w", key, problem)
		}
	}
	var told *unscaled
	var beyond *uncounted
	switch { // the budget says so
	case errors.As(err, &told):
		return unscaledFor, nil
	case errors.As(err, &beyond):
		return 0, nil
	}
	return again, err
}

func (c *Controller) decide(ctx context.Context, budget *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	fail := func(err error) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
		return policyv1.PodDisruptionBudgetStatus{}, 0, err
	}
	selector, err := selectorOf(budget)
	if !c.counts(client.KeyOf(budget), selector) {
		return fail(errBeyond)
	}
	if err != nil {
		return fail(err)
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

// wanted is how many pods the controllers of these want together. What nobody controls is not among them. Pods where what is
// divided does not go any more serve until they are taken away, which nobody asks a budget for: they are not healthy from here
// on.
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

// scaleOf returns how many pods a controller of one with these owners wants, and by which UID that is counted once: those of a
// Deployment's ReplicaSets are its. A ReplicaSet may go while pods of it still run, as their Deployment's history has no room
// for it: they name that, too (server/builtin, owners).
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
