package storage

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	lc "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/turns"
)

// Limits are on what a logical cluster may have in the store, all its resources together; 0 is no limit. What is apart is not among
// that: of each such resource there may be a part as much.
type Limits struct {
	Objects int64
	Bytes   int64 // of keys and values, as etcd holds them
}

// part is what Limits are on by itself.
type part struct {
	what string
	of   int64 // the limits, divided by this
	hint string
}

// apart are those parts, by the prefix of their rows. Not who works in a workspace decides how many there are: Events say what goes on, and
// most Pods what physical clusters run. They must not use up what he has to write in, nor wait for him to make room.
var apart = map[string]part{
	"/events": {"Events", 10, "they end by themselves; delete some"},
	"/pods":   {"Pods", 2, "what physical clusters show of them ends with what it belongs to; ask for less"},
}

const (
	// growth is the part of the limits by which a logical cluster grows at most, by what went through here, before it is counted
	// again: other servers on the same etcd add to it, too.
	growth = 10
	// recount is how long what was counted refuses without being counted again. It is longer for what takes long to count.
	recount     = 10 * time.Second
	recountPart = 50
	// idleCounter and maxCounters bound what is kept; whoever writes after that is counted again.
	idleCounter = time.Hour
	maxCounters = 10_000
	// maxCounts is how many logical clusters are counted at once, and maxUncounted how many writes to one wait for that.
	maxCounts    = 4
	maxUncounted = 100
)

// amount is an amount of objects, or a change of it.
type amount struct{ objects, bytes int64 }

func (a amount) plus(b amount) amount  { return amount{a.objects + b.objects, a.bytes + b.bytes} }
func (a amount) minus(b amount) amount { return amount{a.objects - b.objects, a.bytes - b.bytes} }

// share is what limits are on: all objects of a logical cluster but those that are apart, or those of one prefix that are.
type share struct {
	cluster logicalcluster.Name
	apart   string
}

// shareIn is the share of a logical cluster that rows below a resource's prefix are in.
func shareIn(cluster logicalcluster.Name, prefix string) share {
	if _, ok := apart[prefix]; ok {
		return share{cluster, prefix}
	}
	return share{cluster: cluster}
}

// usage knows how much the logical clusters have that somebody writes to who is bounded by the limits. Each is counted in etcd
// when it is first written to; after that what goes through this process is added, and etcd is asked again only as decide
// says. A nil usage knows nothing and bounds nothing.
type usage struct {
	limits func(logicalcluster.Name) Limits
	called func(logicalcluster.Name) string
	clock  clock.PassiveClock
	// count returns what etcd has of a share, and the revision at which.
	count func(context.Context, share) (amount, int64, error)
	turns *turns.Turns[share]
	slots chan struct{}

	mu     sync.Mutex // guards what follows
	byName map[share]*list.Element
	recent *list.List // of *counter, the last used first
}

// counter is of one share.
type counter struct {
	share share
	used  time.Time

	known    bool   // the rest says something
	now      amount // counted, and what changed since
	reserved amount // by writes under way
	counted  amount
	revision int64 // at which it was counted; changes up to there are in it
	at       time.Time
	took     time.Duration

	counting bool
	pending  []change // while counting
}

type change struct {
	revision int64
	by       amount
}

func newUsage(limits func(logicalcluster.Name) Limits, called func(logicalcluster.Name) string, clk clock.PassiveClock, count func(context.Context, share) (amount, int64, error)) *usage {
	if limits == nil {
		return nil
	}
	if called == nil {
		called = logicalcluster.Name.String
	}
	return &usage{
		limits: limits, called: called, clock: clk, count: count,
		turns: turns.New[share](maxUncounted + 1), slots: make(chan struct{}, maxCounts),
		byName: map[share]*list.Element{}, recent: list.New(),
	}
}

// onBehalf are the resources of which the server makes objects because of what people of a workspace wrote, as many and as large as that says:
// the Jobs of CronJobs, the revisions of workloads, the claims of StatefulSets, the EndpointSlices and Endpoints of Services, and what is told of all of them.
var onBehalf = sets.New(
	schema.GroupResource{Group: "batch", Resource: "jobs"},
	schema.GroupResource{Group: "apps", Resource: "replicasets"},
	schema.GroupResource{Group: "apps", Resource: "controllerrevisions"},
	schema.GroupResource{Resource: "persistentvolumeclaims"},
	schema.GroupResource{Resource: "events"},
	endpointSlices,
	endpoints,
)

// growing are those of them that the server goes on to write as large as what people wrote says: an EndpointSlice has one pod today, and a hundred tomorrow. An update that makes none larger is
// written however much there is, so that what is gone can be taken out.
var growing = sets.New(endpointSlices, endpoints)

var (
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	endpoints      = schema.GroupResource{Resource: "endpoints"}
)

// bounded says whether the limits are for a write to a logical cluster: not for one of an administrator, nor for mirrors, whose contents
// other limits bound. The server itself has to write what became of objects, and of each there is only so much to write; but what it makes
// on somebody's behalf is as if he made it, and so is what it adds to what is growing. Nobody else has the server's name: authentication takes it from no one, and none may impersonate it.
func (u *usage) bounded(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, isNew bool) bool {
	if u == nil || strings.HasPrefix(cluster.String(), "system:") {
		return false
	}
	if c, ok := lc.ClusterFrom(ctx); ok && c.Mirror {
		return false
	}
	who, ok := request.UserFrom(ctx)
	switch {
	case !ok:
		return false
	case !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
	case who.GetName() != user.APIServerUser, !onBehalf.Has(resource), !isNew && !growing.Has(resource):
		return false
	}
	return u.limits(cluster) != Limits{}
}

// of returns the limits on a share.
func (u *usage) of(s share) Limits {
	limits := u.limits(s.cluster)
	p, ok := apart[s.apart]
	if !ok {
		return limits
	}
	return Limits{Objects: (limits.Objects + p.of - 1) / p.of, Bytes: (limits.Bytes + p.of - 1) / p.of}
}

// CauseNoRoom is that of a refusal since Limits are reached.
const CauseNoRoom metav1.CauseType = "NoRoom"

// fullError is the refusal of a write; its caller knows the object.
type fullError struct{ says string }

func (e *fullError) Error() string { return e.says }

// reserve makes room for what a write will add at most, until settle. The error is a *fullError if there is no room.
func (u *usage) reserve(ctx context.Context, s share, need amount) (*counter, error) {
	for {
		c, next, err := u.ask(s, need)
		switch next {
		case passes:
			return c, nil
		case refused:
			return nil, err
		}
		end, err := u.turns.Take(ctx, s)
		if errors.Is(err, turns.ErrTooMany) {
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d requests wait until the objects of workspace %q are counted", maxUncounted, u.called(s.cluster)), 1)
		}
		if err != nil {
			return nil, fmt.Errorf("wait until the objects of logical cluster %s are counted: %w", s.cluster, err)
		}
		err = u.recount(ctx, s, need)
		end()
		if err != nil {
			return nil, fmt.Errorf("count the objects of logical cluster %s: %w", s.cluster, err)
		}
	}
}

type verdict int

const (
	passes verdict = iota
	uncounted
	refused
)

// ask decides about a write, and reserves room for it if it passes.
func (u *usage) ask(s share, need amount) (*counter, verdict, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	c := u.counter(s, now)
	next, err := u.decide(c, need, now)
	if next == passes {
		c.reserved = c.reserved.plus(need)
	}
	return c, next, err
}

func (u *usage) decide(c *counter, need amount, now time.Time) (verdict, error) {
	limits := u.of(c.share)
	has := c.now.plus(c.reserved)
	tooMany := limits.Objects > 0 && need.objects > 0 && has.objects+need.objects > limits.Objects
	tooMuch := limits.Bytes > 0 && need.bytes > 0 && has.bytes+need.bytes > limits.Bytes
	grown := c.now.minus(c.counted)
	switch {
	case !c.known:
		return uncounted, nil
	case !tooMany && !tooMuch:
		if !c.counting && (limits.Objects > 0 && grown.objects > limits.Objects/growth || limits.Bytes > 0 && grown.bytes > limits.Bytes/growth) {
			return uncounted, nil
		}
		return passes, nil
	case now.Sub(c.at) >= max(recount, recountPart*c.took):
		return uncounted, nil
	}
	return refused, &fullError{full(u.called(c.share.cluster), c.share, has, limits, need, tooMany)}
}

// full says what there is too much of in a workspace, with what is being written, and what to do.
func full(workspace string, of share, has amount, limits Limits, need amount, tooMany bool) string {
	what, part, hint := "objects", "", "delete some"
	if p, ok := apart[of.apart]; ok {
		what, hint = p.what, p.hint
		part = fmt.Sprintf(", 1/%d of what it may have otherwise", p.of)
	}
	if tooMany {
		return fmt.Sprintf("workspace %q has %d %s, and may have %d%s: %s, or ask an administrator of the server, who may make more, or raise --max-objects-per-workspace, or %s of the workspace's LogicalCluster",
			workspace, has.objects, what, limits.Objects, part, hint, corev1alpha1.LimitObjectsAnnotation)
	}
	return fmt.Sprintf("workspace %q has %s of %d bytes, and may have %d%s; this would add %d: %s, or ask an administrator of the server, who may make more, or raise --max-bytes-per-workspace, or %s of the workspace's LogicalCluster",
		workspace, what, has.bytes, limits.Bytes, part, need.bytes, hint, corev1alpha1.LimitBytesAnnotation)
}

// recount counts a share unless somebody else just has.
func (u *usage) recount(ctx context.Context, s share, need amount) error {
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	u.mu.Lock()
	begin := u.clock.Now()
	c := u.counter(s, begin)
	if next, _ := u.decide(c, need, begin); next != uncounted {
		u.mu.Unlock()
		return nil
	}
	c.counting = true
	u.mu.Unlock()

	counted, revision, err := u.count(ctx, s)

	u.mu.Lock()
	defer u.mu.Unlock()
	pending := c.pending
	c.counting, c.pending = false, nil
	if err != nil {
		return err
	}
	c.known, c.counted, c.now, c.revision = true, counted, counted, revision
	c.at = u.clock.Now()
	c.took = c.at.Sub(begin)
	for _, p := range pending {
		if p.revision > revision {
			c.now = c.now.plus(p.by)
		}
	}
	return nil
}

// counter returns that of a share, and makes an unknown one if there is none. Callers hold mu.
func (u *usage) counter(s share, now time.Time) *counter {
	if e, ok := u.byName[s]; ok {
		u.recent.MoveToFront(e)
		c := e.Value.(*counter)
		c.used = now
		return c
	}
	c := &counter{share: s, used: now}
	u.byName[s] = u.recent.PushFront(c)
	// Whoever still has one that goes loses nothing but its reservation.
	for last := u.recent.Back(); len(u.byName) > maxCounters || now.Sub(last.Value.(*counter).used) > idleCounter; last = u.recent.Back() {
		u.drop(last)
	}
	return c
}

func (u *usage) drop(e *list.Element) {
	delete(u.byName, u.recent.Remove(e).(*counter).share)
}

// settle gives back what was reserved for a write, and adds what it changed if it was done.
func (u *usage) settle(c *counter, need amount, revision int64, by amount) {
	u.mu.Lock()
	defer u.mu.Unlock()
	c.reserved = c.reserved.minus(need)
	u.addLocked(c.share, revision, by)
}

// knows says whether changes of a share are to be added.
func (u *usage) knows(s share) bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.byName[s]
	return ok
}

// add adds what a write changed, whoever wrote.
func (u *usage) add(s share, revision int64, by amount) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addLocked(s, revision, by)
}

func (u *usage) addLocked(s share, revision int64, by amount) {
	e, ok := u.byName[s]
	if !ok || by == (amount{}) {
		return
	}
	c := e.Value.(*counter)
	if c.counting {
		c.pending = append(c.pending, change{revision, by})
	}
	if revision > c.revision {
		c.now = c.now.plus(by)
	}
}

// forget drops what is known of a logical cluster.
func (u *usage) forget(cluster logicalcluster.Name) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	shares := []share{{cluster: cluster}}
	for prefix := range apart {
		shares = append(shares, share{cluster, prefix})
	}
	for _, s := range shares {
		if e, ok := u.byName[s]; ok {
			u.drop(e)
		}
	}
}
