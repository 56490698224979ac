package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers is how many objects of one physical cluster are worked on at once: enough to hide its latency, few
	// enough not to crowd it.
	workers = 8
	// firstRetry and lastRetry bound the back-off after a refusal. A change of the leaf is tried at once.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 60 * time.Second
	// rememberedSets is how many ReplicaSets are remembered: those that make pods now.
	rememberedSets = 4096
	// gatePatience is how long a write waits for the heartbeats to be compared before its leaf is reported as waiting.
	gatePatience = 2 * time.Second
)

var (
	namespacesGVR      = corev1.SchemeGroupVersion.WithResource("namespaces")
	nodesGVR           = corev1.SchemeGroupVersion.WithResource("nodes")
	networkPoliciesGVR = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	syncTargetsGVR     = workloadv1alpha1.GroupVersion.WithResource("synctargets")
)

// Config is what a Syncer needs. All fields but MayWrite, MaxBytes and API are required.
type Config struct {
	// Name and UID of the SyncTarget. Its twin in the mirror has the same name and another UID.
	Name, UID string
	// Mirror reaches the mirror as if it were a cluster: its host ends in /clusters/<mirror>.
	Mirror *rest.Config
	// Physical reaches the physical cluster.
	Physical *rest.Config
	Clock    clock.WithTicker
	// MayWrite is asked before each request that changes something in the physical cluster, and returns why another Syncer may
	// be in our place by now; nil if none can be. nil: there is no other.
	MayWrite func() error
	// MaxBytes is how much memory, about, may go to what the physical cluster shows; 0 is no bound.
	MaxBytes int64
	// API is where pods there reach the API of their workspaces; nil: nowhere, and they get no tokens.
	API *API
}

// Syncer syncs one mirror and one physical cluster.
type Syncer struct {
	config           Config
	mirror, physical side
	// room is what the physical cluster's objects take of our memory.
	room *room
	// eventsRoom is that of its events.
	eventsRoom *room
	nodes      *informer
	twin       *informer
	// classes are those of the physical cluster, kind by kind.
	classes map[schema.GroupVersionResource]*informer
	// pods are those of the physical cluster, and shownPods what the mirror shows of them.
	pods, shownPods *informer
	// events are those of the physical cluster, by name.
	events *informer

	resources map[schema.GroupVersionResource]kinds.Kind
	bounds    []schema.GroupVersionResource // those of kinds.WithNamespace
	queue     *queue.Queue[key]
	// eventQueue has the events that are to be told, and what was put back and is to be told, and eventPace how fast.
	eventQueue *queue.Queue[key]
	eventPace  flowcontrol.RateLimiter
	// tokenQueue has the accounts of which pods want tokens.
	tokenQueue *queue.Queue[key]
	tokens     tokens
	backoff    workqueue.TypedRateLimiter[key]
	gate       *gate
	known      memory
	writes     writes
	drifts     drifts
	waiting    waiting
	leafless   leafless
	unbounded  unbounded
	unshown    unshown
	// sets are the ReplicaSets of the physical cluster (*setBelow), by their UID, the last that pods were shown of.
	sets *lru.Cache
	// toldOfPods are what was told last of ephemeral containers and resizes that are refused, by their events' names.
	toldOfPods *lru.Cache
	// tries are what is remembered of resizes, by the UIDs of pods below: tried.
	tries *lru.Cache
	// pace is that of what leaves are told.
	pace *client.Pace[key]
	// kick asks for a heartbeat, and for the twin's status to be published.
	kick  chan struct{}
	state state
}

// side is one of the two APIs.
type side struct {
	dynamic   dynamic.Interface
	kube      kube
	informers map[schema.GroupVersionResource]*informer
}

// kube is what a heartbeat needs of an API, and whoever asks for a path.
type kube struct {
	coordinationclient.LeasesGetter
	coreclient.NamespacesGetter
	paths rest.Interface
}

// key names one object on both sides: they have the same name and namespace.
type key struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (k key) String() string {
	if k.namespace == "" {
		return k.resource.Resource + " " + k.name
	}
	return k.resource.Resource + " " + k.namespace + "/" + k.name
}

// Tenant is the downstream namespace, so that one with many objects holds up no other's.
func (k key) Tenant() string {
	if k.namespace == "" {
		return k.name // of namespaces, which alone are in none
	}
	return k.namespace
}

func (k key) cacheKey() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// New returns a Syncer that does nothing before Run.
func New(c Config) (*Syncer, error) {
	if c.Name == "" || c.UID == "" || c.Mirror == nil || c.Physical == nil || c.Clock == nil {
		return nil, errors.New("make a syncer: name, UID, both configurations and the clock are needed")
	}
	s := &Syncer{
		config:     c,
		room:       &room{cluster: c.Name, most: c.MaxBytes, clock: c.Clock, full: map[schema.GroupVersionResource]time.Time{}},
		eventsRoom: &room{cluster: c.Name, most: c.MaxBytes / eventsRoom, clock: c.Clock, full: map[schema.GroupVersionResource]time.Time{}},
		resources:  map[schema.GroupVersionResource]kinds.Kind{},
		eventPace:  flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		backoff:    workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry),
		gate:       newGate(),
		pace:       client.NewPace[key](c.Clock),
		sets:       lru.New(rememberedSets),
		toldOfPods: lru.New(mostToldOfPods),
		tries:      lru.New(mostTried),
		kick:       make(chan struct{}, 1),
	}
	s.tokens.refused = utilcache.NewLRUExpireCacheWithClock(mostRefused, c.Clock)
	s.state.init(c.Clock.Now())
	s.unshown.began = c.Clock.Now()
	s.queue = queue.New("syncer", s.reconcile)
	s.eventQueue = queue.New("syncer-events", s.reconcileEvent)
	s.tokenQueue = queue.NewWithClock("syncer-tokens", c.Clock, s.reconcileTokens)

	mirror := rest.CopyConfig(c.Mirror)
	mirror.Wrap(func(next http.RoundTripper) http.RoundTripper { return guarded{next, s.gate} })
	var err error
	ours := func(s runtime.NegotiatedSerializer) runtime.NegotiatedSerializer { return s }
	if s.mirror, err = newSide(mirror, ours); err != nil {
		return nil, fmt.Errorf("make a client for the mirror of %s: %w", c.Name, err)
	}
	physical := rest.CopyConfig(c.Physical)
	if c.MayWrite != nil {
		physical.Wrap(func(next http.RoundTripper) http.RoundTripper { return fenced{next, c.MayWrite} })
	}
	if s.physical, err = newPhysical(physical, s.gate); err != nil {
		return nil, fmt.Errorf("make a client for physical cluster %s: %w", c.Name, err)
	}
	s.watch()
	return s, nil
}

// newPhysical returns the side of a physical cluster that closes g, unless that is nil. All that the server reads of a physical
// cluster it reads by way of this: how much comes, when, and in what form, is decided by whoever answers at the address that a
// workspace's owner wrote.
func newPhysical(cfg *rest.Config, g *gate) (side, error) {
	cfg = rest.CopyConfig(cfg)
	makeImpatient(cfg)
	makeMeasured(cfg)
	if g != nil {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return guarded{next, g} })
	}
	return newSide(cfg, func(s runtime.NegotiatedSerializer) runtime.NegotiatedSerializer { return asked{s} })
}

// newSide returns a side whose answers are unpacked as unpack says.
func newSide(cfg *rest.Config, unpack func(runtime.NegotiatedSerializer) runtime.NegotiatedSerializer) (side, error) {
	cfg = dynamic.ConfigFor(cfg)
	// No limit on our side: the fair queuing of the server decides, and workers bound what is under way.
	cfg.QPS = -1
	cfg.UserAgent = workloadv1alpha1.FieldManager
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return side{}, err
	}
	cfg.NegotiatedSerializer = unpack(cfg.NegotiatedSerializer)
	paths, err := rest.UnversionedRESTClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return side{}, err
	}
	cfg.NegotiatedSerializer = unpack(scheme.Codecs.WithoutConversion())
	of := func(path string, gv schema.GroupVersion) (*rest.RESTClient, error) {
		cfg.APIPath, cfg.GroupVersion = path, &gv
		return rest.RESTClientForConfigAndClient(cfg, httpClient)
	}
	core, err := of("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return side{}, err
	}
	coordination, err := of("/apis", coordinationv1.SchemeGroupVersion)
	if err != nil {
		return side{}, err
	}
	return side{
		dynamic:   dynamic.New(paths),
		kube:      kube{coordinationclient.New(coordination), coreclient.New(core), paths},
		informers: map[schema.GroupVersionResource]*informer{},
	}, nil
}

// watch makes the informers and their handlers.
func (s *Syncer) watch() {
	leaves := func(o *metav1.ListOptions) { o.LabelSelector = workloadv1alpha1.WorkspaceLabel }
	ours := func(o *metav1.ListOptions) { o.LabelSelector = workloadv1alpha1.SyncTargetLabel + "=" + s.config.UID }
	named := func(name string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}
	}

	for _, k := range kinds.All {
		if !k.HasLeaves() {
			continue // they are with what is shown of their kind
		}
		s.resources[k.GVR] = k
		if k.Goes == kinds.WithNamespace {
			s.bounds = append(s.bounds, k.GVR)
		}
		s.mirror.informers[k.GVR] = newInformer(s.mirror, k.GVR, leaves, s.denied(k.GVR), nil)
		s.physical.informers[k.GVR] = newInformer(s.physical, k.GVR, ours, s.heard(k.GVR), s.room)
	}
	s.mirror.informers[namespacesGVR] = newInformer(s.mirror, namespacesGVR, leaves, nil, nil)
	s.physical.informers[namespacesGVR] = newInformer(s.physical, namespacesGVR, ours, s.heard(namespacesGVR), s.room)
	s.nodes = newInformer(s.physical, nodesGVR, nil, s.heardUnlessRefused(nodesGVR), s.room)
	s.twin = newInformer(s.mirror, syncTargetsGVR, named(s.config.Name), nil, nil)
	s.watchPods()
	s.watchEvents()
	s.watchClasses()

	for _, sd := range []side{s.mirror, s.physical} {
		for gvr, i := range sd.informers {
			i.handle = s.seen(gvr)
		}
	}
	s.twin.handle = func(old, now *unstructured.Unstructured) {
		if old == nil || now == nil || old.GetAnnotations()[workloadv1alpha1.LetInAnnotation] != now.GetAnnotations()[workloadv1alpha1.LetInAnnotation] {
			s.gate.close()
		}
		if old == nil || now == nil || old.GetGeneration() != now.GetGeneration() ||
			old.GetAnnotations()[workloadv1alpha1.ConfirmAnnotation] != now.GetAnnotations()[workloadv1alpha1.ConfirmAnnotation] {
			s.beatSoon()
			for _, name := range s.mirror.informers[namespacesGVR].ListKeys() {
				s.queue.Add(key{resource: namespacesGVR, name: name})
			}
		}
	}
}

func newest(old, now *unstructured.Unstructured) *unstructured.Unstructured {
	if now != nil {
		return now
	}
	return old
}

// seen handles events of one resource, of either side.
func (s *Syncer) seen(gvr schema.GroupVersionResource) func(old, now *unstructured.Unstructured) {
	return func(old, now *unstructured.Unstructured) {
		obj := newest(old, now)
		k := key{gvr, obj.GetNamespace(), obj.GetName()}
		s.queue.Add(k)
		s.tokensSoon(gvr, old, now)
		if now != nil && (old == nil || old.GetUID() != now.GetUID()) {
			for _, pod := range s.leafless.of(k) {
				s.queue.Add(pod)
			}
		}
		if slices.Contains(s.bounds, gvr) {
			s.boundSeen(k)
		}
		switch {
		case gvr == namespacesGVR:
			s.enqueueNamespace(obj.GetName())
			if old == nil {
				s.enqueueEvents(obj.GetName())
			}
		case gvr == networkPoliciesGVR:
			s.queue.Add(key{resource: namespacesGVR, name: obj.GetNamespace()}) // for its floor
			if old == nil && s.isReserved(k) {
				s.enqueueNamespace(obj.GetNamespace())
			}
		case now == nil:
			// The last leaf to go lets its namespace go.
			s.queue.Add(key{resource: namespacesGVR, name: obj.GetNamespace()})
		}
	}
}

// enqueueNamespace adds the leaves in a namespace.
func (s *Syncer) enqueueNamespace(name string) {
	for gvr := range s.resources {
		// IndexKeys fails only for an index that does not exist.
		names, _ := s.mirror.informers[gvr].IndexKeys(cache.NamespaceIndex, name)
		for _, n := range names {
			_, leaf, _ := cache.SplitMetaNamespaceKey(n)
			s.queue.Add(key{gvr, name, leaf})
		}
	}
	s.enqueuePods(name)
}

// enqueueAll adds everything that either side shows.
func (s *Syncer) enqueueAll() {
	for _, sd := range []side{s.mirror, s.physical} {
		for gvr, i := range sd.informers {
			for _, k := range i.ListKeys() {
				namespace, name, _ := cache.SplitMetaNamespaceKey(k)
				s.queue.Add(key{gvr, namespace, name})
			}
		}
	}
	s.enqueuePods("")
}

func (s *Syncer) beatSoon() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run syncs until ctx ends. It does not return for as long as either side is merely unreachable.
func (s *Syncer) Run(ctx context.Context) error {
	for {
		err := s.run(ctx)
		if !errors.Is(err, errOtherHistory) {
			return err
		}
		// What the caches hold may never have been in what the side is now, and a watch does not say so: it goes on after
		// a resource version that both histories have, or waits for one that the restored side has not reached.
		klog.FromContext(ctx).Info("Forgets what it saw and reads both sides anew", "reason", err.Error())
		if s, err = s.anew(); err != nil {
			return err
		}
	}
}

// anew returns a Syncer in the place of one that does not run any more. It remembers what was too much: a physical cluster can
// have its Syncer begin anew whenever it likes.
func (s *Syncer) anew() (*Syncer, error) {
	next, err := New(s.config)
	if err != nil {
		return nil, err
	}
	next.room.full, next.eventsRoom.full = s.room.full, s.eventsRoom.full
	return next, nil
}

// run is Run until ctx ends, or one side turns out to be restored (errOtherHistory).
func (s *Syncer) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.queue.Stop()
	defer s.eventQueue.Stop()
	defer s.tokenQueue.Stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	looked := make(chan struct{})
	wg.Go(func() { cancel(s.heartbeat(ctx, sync.OnceFunc(func() { close(looked) }))) })
	// What is listed before the first heartbeat would belong to a history of which nothing is remembered.
	select {
	case <-looked:
	case <-ctx.Done():
		return otherHistory(ctx)
	}

	synced := []cache.InformerSynced{s.twin.HasSynced}
	all := []*informer{s.nodes, s.twin, s.shownPods}
	for gvr, i := range s.mirror.informers {
		all, synced = append(all, i), append(synced, func() bool { return i.HasSynced() || s.isDenied(gvr) })
	}
	for _, i := range s.physical.informers {
		all = append(all, i)
	}
	for _, i := range s.classes {
		all = append(all, i)
	}
	for _, i := range all {
		wg.Go(func() { i.run(ctx) })
	}
	wg.Go(func() { s.runPods(ctx) })
	wg.Go(func() { s.runEvents(ctx) })
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), s.pods.HasSynced, s.shownPods.HasSynced) {
			s.enqueuePods("")
		}
	})

	// Before the whole mirror is known, whatever of ours runs below would look as if nobody wanted it.
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return otherHistory(ctx)
	}
	s.beatSoon()
	wg.Go(func() { s.eventQueue.Run(ctx, eventWorkers) })
	if s.config.API == nil {
		klog.FromContext(ctx).Info("Pods get no tokens for the API of their workspaces: it has no address that they could reach it by (atoll start --external-hostname, or atoll syncer --hub-url)", "cluster", s.config.Name)
	}
	wg.Go(func() { s.tokenQueue.Run(ctx, tokenWorkers) })
	s.queue.Run(ctx, workers)
	return otherHistory(ctx)
}

// otherHistory returns the errOtherHistory that ended ctx; nil if something else did.
func otherHistory(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, errOtherHistory) {
		return err
	}
	return nil
}

// get returns a copy of what an informer holds under k, or nil.
func get(i *informer, k key) *unstructured.Unstructured {
	obj, ok, _ := i.GetByKey(k.cacheKey()) // a cache.Indexer never fails here
	if !ok {
		return nil
	}
	return obj.(*unstructured.Unstructured).DeepCopy()
}

// twinObject returns the SyncTarget's twin, or nil.
func (s *Syncer) twinObject() *workloadv1alpha1.SyncTarget {
	u := get(s.twin, key{resource: syncTargetsGVR, name: s.config.Name})
	if u == nil {
		return nil
	}
	twin := &workloadv1alpha1.SyncTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, twin); err != nil {
		return nil // the server validates the type
	}
	return twin
}

// isReserved says that what has this name is the syncer's own, and nobody's leaf.
func (s *Syncer) isReserved(k key) bool {
	return k.resource == networkPoliciesGVR && isFloor(k.name) || k.resource == secretsGVR && kinds.IsTokenSecret(k.name)
}

// state is what the heartbeat learned of the physical cluster, and what the workers found there unasked.
type state struct {
	mu sync.Mutex // guards all below
	// lastAnswer is when the physical cluster last answered a heartbeat, also one of the syncer before us; when we started
	// if that is not known.
	lastAnswer time.Time
	// everAnswered says whether it did since we started.
	everAnswered bool
	// trouble is why it did not answer the last heartbeat; empty if it did.
	trouble string
	orphans map[key]struct{}
	// unwatched has the resources of the physical cluster that cannot be listed or watched.
	unwatched map[schema.GroupVersionResource]unwatched
	// watched has those that were watched once, denied those that the hub, of an earlier version, has no leaves of.
	watched, denied map[schema.GroupVersionResource]bool
	// unseen has since when nothing was seen of what a physical cluster need not let us see: later than now while nothing went wrong yet.
	unseen map[schema.GroupVersionResource]time.Time
	// classes has of each kind whether the physical cluster lets us see those that it has, as far as that is known.
	classes map[schema.GroupVersionResource]bool
	// kept has the namespaces that tombstones left downstream, and in words what is in them.
	kept map[string]string
	// version, clusterUID and asked: what the physical cluster is, and when we last asked.
	version, clusterUID string
	asked               time.Time
	// said is who the physical cluster said it is when it was last asked, and since when it says so: not always clusterUID.
	said  string
	since time.Time
}

// unwatched is since when and why there is no watch of a resource.
type unwatched struct {
	since time.Time
	err   error
}

func (s *state) init(now time.Time) {
	s.lastAnswer = now
	s.orphans = map[key]struct{}{}
	s.unwatched = map[schema.GroupVersionResource]unwatched{}
	s.watched, s.denied = map[schema.GroupVersionResource]bool{}, map[schema.GroupVersionResource]bool{}
	first := now.Add(firstListTakes)
	s.unseen = map[schema.GroupVersionResource]time.Time{nodesGVR: first, podsGVR: first}
	s.kept = map[string]string{}
	s.classes = map[schema.GroupVersionResource]bool{}
}

func (s *Syncer) answered() {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.lastAnswer, s.state.everAnswered, s.state.trouble = s.config.Clock.Now(), true, ""
}

// lastAnswer returns when the physical cluster last answered, and whether it did since we started.
func (s *Syncer) lastAnswer() (at time.Time, ever bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.lastAnswer, s.state.everAnswered
}

// recall takes from the mirror's Lease when the physical cluster last answered, as long as it has not answered us: our
// start is no news of it. What is written there lies before our start, or a clock was turned back. Of another address than ours
// it says nothing: what has never answered has been away for ever.
func (s *Syncer) recall(hub *coordinationv1.Lease) error {
	text, ok := hub.Annotations[workloadv1alpha1.HeartbeatAnsweredAnnotation]
	if !ok {
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("annotation %s of lease %s/%s: %w", workloadv1alpha1.HeartbeatAnsweredAnnotation, hub.Namespace, hub.Name, err)
	}
	address, known := hub.Annotations[workloadv1alpha1.HeartbeatAddressAnnotation]
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	switch {
	case s.state.everAnswered:
	case known && address != s.config.Physical.Host:
		s.state.lastAnswer = time.Time{}
	case at.Before(s.state.lastAnswer):
		s.state.lastAnswer = at
	}
	return nil
}

// failed records the error of a heartbeat, if the physical cluster is to blame.
func (s *Syncer) failed(err error) {
	if !errors.Is(err, errPhysical) || errors.Is(err, errHeldBack) {
		return
	}
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.trouble = rootCause(err)
}

// trouble returns why the physical cluster did not answer the last heartbeat, or "".
func (s *Syncer) trouble() string {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.trouble
}

// heard records how lists and watches of a resource of the physical cluster go: while there is no watch, statuses are
// those of before.
func (s *Syncer) heard(gvr schema.GroupVersionResource) func(error) {
	return func(err error) {
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		before, broken := s.state.unwatched[gvr]
		if err == nil && !s.state.watched[gvr] {
			s.state.watched[gvr] = true
			if !isCarriedByAll(gvr) {
				s.beatSoon() // to say that it is carried
			}
		}
		switch {
		case err == nil && broken:
			delete(s.state.unwatched, gvr)
			s.beatSoon()
			s.retry()
		case err != nil && broken:
			s.state.unwatched[gvr] = unwatched{before.since, err}
		case err != nil:
			s.state.unwatched[gvr] = unwatched{s.config.Clock.Now(), err}
		}
	}
}

// unseenAfter is how long nothing has to be seen of what a physical cluster need not let us see, until that counts. Who refused it is asked
// once more in that time.
const unseenAfter = 90 * time.Second

// firstListTakes is how long nobody need have heard of a resource at first: the first list of it may be long.
const firstListTakes = 5*time.Minute - unseenAfter

// heardUnlessRefused is heard of what nobody has to let us see, Nodes and pods: that they are not seen is no trouble. What is shown of
// them has to have room; who goes on refusing them has ended a lack of it, and who does not answer has not.
func (s *Syncer) heardUnlessRefused(gvr schema.GroupVersionResource) func(error) {
	heard := s.heard(gvr)
	return func(err error) {
		hidden := s.hides(gvr)
		var much tooMuch
		switch {
		case err == nil, errors.As(err, &much):
			heard(err)
		case hidden && isDenial(err):
			heard(nil)
		}
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		now := s.config.Clock.Now()
		since, unseen := s.state.unseen[gvr]
		switch {
		case err == nil && unseen:
			delete(s.state.unseen, gvr)
			s.beatSoon() // to say that it is carried
			s.retry()
		case err != nil && (!unseen || since.After(now)):
			s.state.unseen[gvr] = now
		}
	}
}

// hides says whether nothing has been seen for so long of a resource that the physical cluster need not let us see.
func (s *Syncer) hides(gvr schema.GroupVersionResource) bool {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.hides(gvr, s.config.Clock.Now())
}

func (s *state) hides(gvr schema.GroupVersionResource, now time.Time) bool {
	since, unseen := s.unseen[gvr]
	return unseen && now.Sub(since) > unseenAfter
}

// sees says whether what the physical cluster shows of a resource is how it is now, as far as it answers.
func (s *Syncer) sees(gvr schema.GroupVersionResource) bool {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.watched[gvr] && !s.state.hides(gvr, s.config.Clock.Now()) && s.state.unwatched[gvr].err == nil
}

// unlisted returns why a resource of the physical cluster is not known yet; nil if no try failed.
func (s *Syncer) unlisted(gvr schema.GroupVersionResource) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.unwatched[gvr].err
}

// blind returns what of the physical cluster cannot be watched, sorted by resource.
func (s *Syncer) blind() []blindSpot {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	var spots []blindSpot
	for gvr, u := range s.state.unwatched {
		if s.isRefused(gvr, u.err) {
			continue // it is not carried, and nothing is asked of it
		}
		spots = append(spots, blindSpot{gvr.GroupResource().String(), u.since, rootCause(u.err)})
	}
	slices.SortFunc(spots, func(a, b blindSpot) int { return strings.Compare(a.resource, b.resource) })
	return spots
}

// keep records what keeps a namespace downstream from being deleted; "" is nothing.
func (s *Syncer) keep(namespace, contents string) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if contents == "" {
		delete(s.state.kept, namespace)
	} else {
		s.state.kept[namespace] = contents
	}
}

func (s *Syncer) setOrphan(k key, orphan bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if orphan {
		s.state.orphans[k] = struct{}{}
	} else {
		delete(s.state.orphans, k)
	}
}

// orphans returns the objects of ours that no leaf asks for, sorted.
func (s *Syncer) orphans() []string {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	names := make([]string, 0, len(s.state.orphans))
	for k := range s.state.orphans {
		name := k.String()
		if contents := s.state.kept[k.name]; k.resource == namespacesGVR && contents != "" {
			name += " (kept for " + contents + ")"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
