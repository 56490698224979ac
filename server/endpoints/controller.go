package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
)

const (
	// workers of the queue: a key is two lists in memory, and a write or two when something changes. They are more than may wait for webhooks at once (server/admission).
	workers = 8
	// atOnce is how many looks of a workspace there are at once at most, and apart how far apart they begin at least. Those that are to come wait pause times as long as one has worked: all of it, or
	// webhooks that are slow would have more of the workers than others. Of what the server failed at mostFailed counts: a workspace does not pause for minutes since etcd was away.
	atOnce     = 2
	apart      = 20 * time.Millisecond
	pause      = 4
	mostFailed = 2 * time.Second
	// longest is how long what is read and written in a look takes at most. It begins anew then.
	longest = 30 * time.Second
	// mostWorked is how long a look takes at most that also has Events to tell.
	mostWorked = 2 * longest

	// slicesTogether is how long more changes of slices by others are waited for, as in Kubernetes.
	slicesTogether = time.Second
	// relisted is how long after a feed had to list all anew everything is looked at: the other has to as well then.
	relisted = 10 * time.Second
	// mostOwners is of how many owners of a slice it is looked whether they are Services.
	mostOwners = 8
	// mostSaid is how long what is told of a Service may be, in bytes: the words of a webhook may be in it.
	mostSaid = 1000
)

// lane is how the looks of a workspace follow each other.
var lane = turns.LaneRules{AtOnce: atOnce, Apart: apart, Pause: pause, MostWorked: mostWorked}

// everything is the key of all Services.
var everything = client.Key{}

// Controller makes the EndpointSlices of the Services of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	rows      Rows
	services  *client.Informer[ctrlclient.Object]
	pods      *client.Informer[*metav1.PartialObjectMetadata]
	slices    *client.Feed[*metav1.PartialObjectMetadata]
	endpoints *client.Feed[*metav1.PartialObjectMetadata]
	queue     *queue.Queue[client.Key] // Services, and namespaces: those have no name
	lanes     *turns.Lanes[logicalcluster.Name, client.Key]
	own       *own
	news      *news
	// slicesHeard and endpointsHeard are closed when all that there were have been told.
	slicesHeard, endpointsHeard chan struct{}

	mu sync.Mutex // guards what follows
	// selecting is how many Services with a selector a namespace has. Of one that has none pods are not looked at.
	selecting map[client.Key]int
	// touched has, by namespace, what pods were labelled with that have changed since it was looked which Services that concerns.
	touched map[client.Key]*client.Touched
}

// New returns the controller. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, rows Rows, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{
		clients: clients, informers: informers, clock: clk, rows: rows, services: informers.Of("Service"),
		lanes: turns.NewLanes[logicalcluster.Name, client.Key](clk, lane),
		own:   newOwn(clk), selecting: map[client.Key]int{}, touched: map[client.Key]*client.Touched{}, slicesHeard: make(chan struct{}), endpointsHeard: make(chan struct{}),
		news: newNews(client.NewEvents(clients, "endpoint-slice-controller", clk), clk), // as Kubernetes' is called in them
	}
	c.queue = queue.NewWithClock("endpoints", clk, c.reconcile)
	var pods, feed, older error
	kind := func(version, kind string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: kind}}
	}
	c.pods, pods = client.NewInformer(clients, kind(corev1.SchemeGroupVersion.String(), "Pod"), client.InformerOptions[*metav1.PartialObjectMetadata]{Unlisted: true, Transform: withLabels})
	c.slices, feed = client.NewFeed(clients, kind(discoveryv1.SchemeGroupVersion.String(), "EndpointSlice"), c.onSlice)
	c.endpoints, older = client.NewFeed(clients, kind(corev1.SchemeGroupVersion.String(), "Endpoints"), c.onEndpoints)
	if err := errors.Join(pods, feed, older); err != nil {
		return c, err
	}
	c.pods.OnEvent(c.onPod)
	c.slices.OnListed(func() { c.heard(c.slicesHeard) })
	c.endpoints.OnListed(func() { c.heard(c.endpointsHeard) })
	c.services.OnEvent(c.onService)
	informers.OnImported(c.wake)
	return c, nil
}

// withLabels leaves of a pod's metadata its name and its labels, if these are few.
func withLabels(pod *metav1.PartialObjectMetadata) {
	if !client.FewLabels(pod.Labels) {
		pod.Labels = map[string]string{"": ""} // which are not few either
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		Annotations: map[string]string{logicalcluster.AnnotationKey: string(client.KeyOf(pod).Cluster)},
	}
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	wg.Go(func() { c.pods.Run(ctx) })
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	if err := c.pods.WaitSynced(ctx); err != nil {
		return err
	}
	wg.Go(func() { c.slices.Run(ctx) })
	wg.Go(func() { c.endpoints.Run(ctx) })
	for _, all := range []chan struct{}{c.slicesHeard, c.endpointsHeard} { // a look reads what is as new as that, at least
		select {
		case <-all:
		case <-ctx.Done():
			return nil
		}
	}
	c.queue.Run(ctx, workers)
	return nil
}

// onService takes a Service that was written. What others write of it, such as its status, changes no slice.
func (c *Controller) onService(e client.Event[ctrlclient.Object]) {
	c.count(e)
	if e.Deleted() { // the garbage collector takes its slices, and the registry its Endpoints, unless they are made after that
		c.queue.AddAfter(client.KeyOf(e.Old), slicesTogether)
		return
	}
	now, ok := e.New.(*corev1.Service)
	if !ok || c.isMirror(client.KeyOf(now).Cluster) {
		return
	}
	before, _ := e.Old.(*corev1.Service)
	switch {
	case before == nil && e.Initial && !hasEndpoints(now): // somebody's Endpoints have it looked at
	case before != nil && !hasEndpoints(before) && !hasEndpoints(now):
	case before == nil || changes(before, now):
		c.queue.Add(client.KeyOf(now))
	}
}

// isMirror says whether a logical cluster is known to be a mirror.
func (c *Controller) isMirror(name logicalcluster.Name) bool {
	lc, known := c.informers.LogicalClusters.Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	return known && lc.Spec.Use == corev1alpha1.LogicalClusterUseMirror
}

// count counts the Services of a namespace that have a selector.
func (c *Controller) count(e client.Event[ctrlclient.Object]) {
	in, n := client.KeyOf(e.Object()).Space(), 0
	if before, ok := e.Old.(*corev1.Service); ok && hasEndpoints(before) {
		n--
	}
	if now, ok := e.New.(*corev1.Service); ok && hasEndpoints(now) {
		n++
	}
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.selecting[in] += n; c.selecting[in] == 0 {
		delete(c.selecting, in)
	}
}

// selects says whether a namespace has a Service that has a selector.
func (c *Controller) selects(in client.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.selecting[in] > 0
}

// onPod remembers what a pod is labelled with, and was.
func (c *Controller) onPod(e client.Event[*metav1.PartialObjectMetadata]) {
	if e.Initial {
		return // each Service is looked at anyway
	}
	in := client.KeyOf(e.Object()).Space()
	if !c.selects(in) { // one that comes looks at all pods
		return
	}
	var all []client.Labelled
	for _, pod := range []*metav1.PartialObjectMetadata{e.Old, e.New} {
		if pod != nil && len(pod.Labels) > 0 {
			all = append(all, client.NewLabelled(pod.Labels))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.touched[in]
	if t == nil {
		t = &client.Touched{}
		c.touched[in] = t
		c.queue.AddAfter(in, client.WhileSettling)
	}
	for _, l := range all {
		t.Add(l)
	}
}

func selectedBy(selector, labels map[string]string) bool {
	for key, value := range selector {
		if is, ok := labels[key]; !ok || is != value {
			return false
		}
	}
	return true
}

// onSlice takes the metadata of a slice. Who changes one that is made here, or makes it another Service's, has those looked at that it names, and that own it.
func (c *Controller) onSlice(slice *metav1.PartialObjectMetadata, gone bool) {
	of := client.KeyOf(slice).Space()
	names := servicesOf(slice, func(name string) bool {
		_, there := c.services.Get(client.Key{Cluster: of.Cluster, Namespace: of.Namespace, Name: name})
		return there
	})
	for _, name := range names {
		service := client.Key{Cluster: of.Cluster, Namespace: of.Namespace, Name: name}
		if !c.begins(c.slicesHeard, service) && !c.own.is(service, told{slice.Name, slice.ResourceVersion, gone}) {
			c.queue.AddAfter(service, slicesTogether)
		}
	}
}

// begins says whether all are not told yet, and a Service is looked at after that anyway.
func (c *Controller) begins(all chan struct{}, key client.Key) bool {
	select {
	case <-all:
		return false
	default:
	}
	o, _ := c.services.Get(key)
	service, ok := o.(*corev1.Service)
	return ok && hasEndpoints(service)
}

// onEndpoints takes the metadata of Endpoints. Whoever changes those of a Service has it looked at, and so have those that are left of one.
func (c *Controller) onEndpoints(e *metav1.PartialObjectMetadata, gone bool) {
	key := client.KeyOf(e)
	if c.begins(c.endpointsHeard, key) || c.own.is(key, told{ofEndpoints, e.ResourceVersion, gone}) {
		return
	}
	if service, there := c.services.Get(key); there && !c.isMirror(client.KeyOf(service).Cluster) || isManagedEndpoints(e) && !gone {
		c.queue.AddAfter(key, slicesTogether)
	}
}

// servicesOf are the names of the Services whose slices are another by one that was changed, of those that there are. Of what owns it the controller counts, as one that was made here has, and those that are named first:
// anybody may name as many as a request holds.
func servicesOf(slice *metav1.PartialObjectMetadata, isThere func(name string) bool) (names []string) {
	add := func(name string) {
		if !slices.Contains(names, name) && isThere(name) {
			names = append(names, name)
		}
	}
	if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" && (isManaged(slice) || isMirrored(slice)) {
		add(name)
	}
	for i := range slice.OwnerReferences {
		owner := &slice.OwnerReferences[i]
		if (i < mostOwners || ptr.Deref(owner.Controller, false)) && (owner.Kind == "Service" || owner.Kind == "Endpoints") && owner.APIVersion == corev1.SchemeGroupVersion.String() {
			add(owner.Name)
		}
	}
	return names
}

// heard is called when all that there are have been told. If that was so already, some may have gone of which nobody was told: all Services are looked at, once for both feeds.
func (c *Controller) heard(all chan struct{}) {
	select {
	case <-all:
		c.queue.AddAfter(everything, relisted)
	default:
		close(all)
	}
}

// wake has the Services of a logical cluster looked at.
func (c *Controller) wake(cluster logicalcluster.Name) {
	for _, o := range c.services.List(cluster, "") {
		c.wakeOne(o)
	}
}

func (c *Controller) wakeOne(service ctrlclient.Object) {
	if key := client.KeyOf(service); !c.isMirror(key.Cluster) {
		c.queue.Add(key)
	}
}

// reconcile does what a key is for, in its turn: one without a name is a namespace's, and one without a logical cluster everybody's.
func (c *Controller) reconcile(ctx context.Context, key client.Key) (again time.Duration, err error) {
	if key == everything {
		for _, o := range c.services.All() {
			c.wakeOne(o)
		}
		return 0, nil
	}
	if wait := c.own.wait(key); wait > 0 {
		return wait, nil
	}
	if wait := c.lanes.Turn(key.Cluster, key); wait > 0 {
		return 0, queue.Later(wait)
	}
	began := c.clock.Now()
	defer func() { c.lanes.Done(key.Cluster, counted(c.clock.Since(began), err)) }()
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster); err != nil {
		return 0, err
	} else if !is {
		c.take(key) // of what is no workspace nothing is kept
		return 0, nil
	}
	if key.Name == "" {
		c.match(key)
		return 0, nil
	}
	// Pods may not be there yet. All are looked at when they are (OnImported).
	if importing, err := client.Importing(ctx, c.clients, c.informers, key.Cluster); importing || err != nil {
		return 0, err
	}
	return c.sync(client.In(ctx, key.Cluster), key)
}

// counted is what of the time that a look took those that are to come pause for. That somebody else has written is no failure of the server: a webhook may do it each time.
func counted(took time.Duration, err error) time.Duration {
	if err != nil && !apierrors.IsConflict(err) {
		return min(took, mostFailed)
	}
	return took
}

// take returns what has changed in a namespace, nil for nothing, and forgets it.
func (c *Controller) take(in client.Key) *client.Touched {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.touched[in]
	delete(c.touched, in)
	return t
}

// match has those Services of a namespace looked at that select pods which have changed, or did.
func (c *Controller) match(in client.Key) {
	t := c.take(in)
	if t == nil {
		return
	}
	for _, o := range c.services.List(in.Cluster, in.Namespace) {
		if service, ok := o.(*corev1.Service); ok && hasEndpoints(service) && t.By(func(labels map[string]string) bool { return selectedBy(service.Spec.Selector, labels) }) {
			c.queue.Add(client.KeyOf(service))
		}
	}
}

// sync makes the slices of one Service what they are to be, and tells what is not as somebody might think, when it has: an address that is gone waits for no Event.
func (c *Controller) sync(ctx context.Context, key client.Key) (time.Duration, error) {
	o, there := c.services.Get(key)
	service, ok := o.(*corev1.Service)
	if !there || !ok {
		ctx, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		return 0, c.leave(ctx, key)
	}
	done, others, err := c.write(ctx, service)
	if err != nil {
		return 0, err
	}
	if done.theirs != nil {
		done.left = append(done.left, event{"FailedToUpdateEndpointSlices", short(fmt.Sprintf("Error updating Endpoint Slices for Service %s/%s: %v", key.Namespace, key.Name, done.theirs), mostSaid)})
	}
	telling, cancel := context.WithTimeout(ctx, longest) // what was written may have taken all of its time, as where a webhook does not answer
	defer cancel()
	c.news.tell(telling, service, done.left)
	return c.next(key, done, others)
}

// next says when a Service is to be looked at again, or what failed that is the server's to mend.
func (c *Controller) next(key client.Key, done done, others bool) (time.Duration, error) {
	switch {
	case done.ours != nil:
		return 0, fmt.Errorf("write the EndpointSlices of Service %s: %w", key, inShort{done.ours})
	case others || done.unfinished:
		return slicesTogether, nil
	case done.theirs != nil && done.wait > 0:
		return done.wait, nil
	case done.theirs != nil:
		return c.own.refused(key), nil
	}
	c.own.accepted(key)
	if done.more {
		return slicesTogether, nil
	}
	return 0, nil
}

// done is what came of a look: what failed, what is left out, and whether there is more to do.
type done struct {
	outcome
	left []event
	more bool
}

// write writes what is to be written of a Service, and says whether somebody else has meanwhile.
func (c *Controller) write(ctx context.Context, service *corev1.Service) (d done, others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	key := client.KeyOf(service)
	f, err := c.look(ctx, service, c.own.looks(key))
	if err != nil {
		return d, false, err
	}
	plan, err := decide(f, c.clock.Now())
	if err != nil {
		return d, false, err
	}
	d.left, d.more = plan.left, plan.more
	if plan.empty() {
		return d, false, nil
	}
	c.own.begin(key, f.names())
	d.outcome = sortOut(plan.carryOut(ctx, requests{c.clients.Kube.DiscoveryV1().RESTClient(), c.clients.Kube.CoreV1().RESTClient(), c.own, key}))
	return d, c.own.end(key), nil
}

// leave deletes the Endpoints that were made of a Service which is gone: nothing owns them, and who was late may have made them once more. That it is gone, etcd says.
func (c *Controller) leave(ctx context.Context, key client.Key) error {
	found, err := c.endpointsOf(ctx, key, c.own.looks(key))
	if err != nil || found == nil || !IsOfPods(found) {
		return err
	}
	_, err = c.clients.Kube.CoreV1().Services(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err // it is new, and looked at when the informer shows it
	}
	return requests{c.clients.Kube.DiscoveryV1().RESTClient(), c.clients.Kube.CoreV1().RESTClient(), c.own, key}.drop(ctx, found)
}
