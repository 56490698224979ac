package fairness

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

const (
	// patience is how long a request keeps its seats. Much longer than any takes that only works here.
	patience = 2 * time.Second
	// overtimePerSeat is how many requests of a workspace go on without seats, for each seat that it has. Each costs memory
	// only. When there are as many, what the workspace's webhook reads from here to answer them waits behind them.
	overtimePerSeat = 4
	// keptIdle is how many workspaces' queues a level keeps when nobody uses them, so as not to make them for each request.
	keptIdle = 64
)

// The labels, in upstream's metrics, of requests that wait for a seat of their workspace, and of the level.
const (
	within  = "within"
	between = "between"
)

// The queues of a workspace, dealt to its users: a hand of several keeps the quiet out of those that the loud fill. And
// those of a level, one for each workspace, of which no more than its seats wait there: who shares one with a loud workspace
// waits for few, while the loud would have the turns of several queues by a larger hand.
var (
	queuesOfWorkspace = fairqueuing.QueuingConfig{DesiredNumQueues: 16, HandSize: 3, QueueLengthLimit: 50}
	queuesOfLevel     = fairqueuing.QueuingConfig{DesiredNumQueues: 256, HandSize: 1, QueueLengthLimit: 1000}
)

// level has seats, and deals them to the logical clusters whose requests it takes.
type level struct {
	name     string
	schema   *flowcontrolv1.FlowSchema
	priority *flowcontrolv1.PriorityLevelConfiguration

	perOne  int // seats of one logical cluster, where the level has all of its own
	queues  fairqueuing.QueueSet
	seed    maphash.Seed
	factory fairqueuing.QueueSetFactory

	mu       sync.Mutex // guards what follows
	capacity *capacity
	clusters map[logicalcluster.Name]*share
	idle     int // those of clusters with no users
}

// share is what one logical cluster has of a level. Its counts are guarded by the level's mutex.
type share struct {
	queues   fairqueuing.QueueSet
	seats    int // that these deal
	users    int // requests that wait or have seats
	overtime int // requests that gave their seats back and go on
}

// newLevel returns one whose goroutines wait for a CPU as cpuWait says.
func newLevel(name string, seats, perOne int, cpuWait func() time.Duration) (*level, error) {
	l := &level{
		name: name, schema: newSchema(name), priority: newPriority(name),
		perOne: min(perOne, seats), seed: maphash.MakeSeed(), factory: queueset.NewQueueSetFactory(eventclock.Real{}),
		capacity: newCapacity(seats, cpuWait), clusters: map[logicalcluster.Name]*share{},
	}
	var err error
	l.queues, err = l.newQueues(queuesOfLevel, seats,
		metrics.RatioedGaugeVecPhasedElementPair(metrics.PriorityLevelConcurrencyGaugeVec, 1, 1, []string{name}),
		metrics.PriorityLevelExecutionSeatsGaugeVec.NewForLabelValuesSafe(0, 1, []string{name}))
	return l, err
}

func (l *level) newQueues(config fairqueuing.QueuingConfig, seats int, requests metrics.RatioedGaugePair, executing metrics.RatioedGauge) (fairqueuing.QueueSet, error) {
	config.Name = l.name // a label of metrics: never that of a logical cluster
	began, err := l.factory.BeginConstruction(config, requests, executing, unseen{})
	if err != nil {
		return nil, fmt.Errorf("make queues: %w", err)
	}
	return began.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: seats, ConcurrencyDenominator: seats}), nil
}

// enter waits until the request has its seats, and says whether it got them before ctx ended. What it returns gives them
// back.
func (l *level) enter(ctx context.Context, cluster logicalcluster.Name, who string, work *flowcontrolrequest.WorkEstimate, note fairqueuing.QueueNoteFn) (leave func(), ok bool) {
	own := l.join(cluster)
	first, _ := own.queues.StartRequest(ctx, l.narrow(work), maphash.String(l.seed, who), who, within, nil, nil, note)
	if first == nil {
		l.part(cluster, own)
		return nil, false
	}
	seated, left, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	// Queue sets have seats taken for as long as a function runs, which must be able to end before the request does.
	go func() {
		defer close(ended)
		overtime := false
		first.Finish(func() {
			second, _ := l.queues.StartRequest(ctx, l.narrow(work), maphash.String(l.seed, string(cluster)), string(cluster), between, nil, nil, note)
			if second == nil {
				return
			}
			gone := false
			second.Finish(func() {
				close(seated)
				gone = leaves(left)
			})
			if !gone {
				overtime = l.hold(cluster, own, left)
			}
		})
		if overtime {
			<-left
			l.endOvertime(own)
		}
		l.part(cluster, own)
	}()
	select {
	case <-seated:
	case <-ended:
		return nil, false // it ends before left only if it was never seated
	}
	return sync.OnceFunc(func() { close(left) }), true
}

// leaves returns when the request has left, or when its patience is over.
func leaves(left <-chan struct{}) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-left:
		return true
	case <-timer.C:
		return false
	}
}

// hold returns when the request has left, or goes on without the seats of its workspace, too. The level has its own back by
// then: several workspaces whose requests all hang would hold all that there are.
func (l *level) hold(cluster logicalcluster.Name, own *share, left <-chan struct{}) (overtime bool) {
	for {
		if l.beginOvertime(cluster, own) {
			return true
		}
		if leaves(left) {
			return false
		}
	}
}

// beginOvertime lets a request go on without seats, unless too many of its logical cluster do. While goroutines wait for CPUs and another
// logical cluster is there these are no more than it has seats: they may be what is waited for, and others in their place would make them no
// faster. It is some all the same, or what a webhook of the logical cluster reads from here would wait for the request that waits for it.
func (l *level) beginOvertime(cluster logicalcluster.Name, own *share) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.deal(l.capacity.look(now))
	most := overtimePerSeat * l.perOne
	if alone := len(l.clusters)-l.idle == 1 && !l.capacity.isWith(cluster, now); l.capacity.waited > crowded && !alone {
		most = own.seats
	}
	if own.overtime >= most {
		return false
	}
	own.overtime++
	return true
}

func (l *level) endOvertime(own *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own.overtime--
}

// join returns the share of a logical cluster, which is kept until as many part as joined.
func (l *level) join(cluster logicalcluster.Name) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deal(l.capacity.asks(cluster, time.Now()))
	own, ok := l.clusters[cluster]
	if !ok {
		queues, err := l.newQueues(queuesOfWorkspace, l.perOne, metrics.RatioedGaugePair{RequestsWaiting: unseen{}, RequestsExecuting: unseen{}}, unseen{})
		if err != nil {
			panic(fmt.Sprintf("the constant queuesOfWorkspace is wrong: %v", err))
		}
		own = &share{queues: queues, seats: l.perOne}
		l.clusters[cluster] = own
		l.idle++
	}
	if own.users == 0 {
		l.idle--
	}
	own.users++
	if seats := l.capacity.of(l.perOne); seats != own.seats {
		own.seats = seats
		l.seat(own.queues, queuesOfWorkspace, seats)
	}
	return own
}

// lastAsked is when somebody asked last.
func (l *level) lastAsked() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.capacity.asked
}

// narrow is the work in no more than half of the seats that a logical cluster has now, as New has it of those it has at most: the
// widest would hold up the whole level.
func (l *level) narrow(work *flowcontrolrequest.WorkEstimate) *flowcontrolrequest.WorkEstimate {
	l.mu.Lock()
	defer l.mu.Unlock()
	seats := l.capacity.of(l.perOne)
	if seats == l.perOne {
		return work
	}
	half := uint64(max(1, seats/2))
	narrow := *work
	narrow.InitialSeats, narrow.FinalSeats = min(work.InitialSeats, half), min(work.FinalSeats, half)
	return &narrow
}

// deal deals as many seats of the level as there are now, if they are others than before. The lock is held.
func (l *level) deal(changed bool) {
	if changed {
		l.seat(l.queues, queuesOfLevel, l.capacity.now)
	}
}

// seat changes how many seats there are of those that have them and wait for them.
func (l *level) seat(queues fairqueuing.QueueSet, config fairqueuing.QueuingConfig, seats int) {
	config.Name = l.name
	change, err := queues.BeginConfigChange(config)
	if err != nil {
		panic(fmt.Sprintf("the constant %+v is wrong: %v", config, err))
	}
	change.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: seats, ConcurrencyDenominator: l.capacity.most})
}

func (l *level) part(cluster logicalcluster.Name, own *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own.users--; own.users > 0 {
		return
	}
	// With the queues goes what they know of work that goes on after a request, such as telling its watches.
	if l.idle >= keptIdle {
		delete(l.clusters, cluster)
		return
	}
	l.idle++
}

// unseen is a gauge that nobody reads: one for each workspace would be a series for each.
type unseen struct{}

var _ metrics.RatioedGauge = unseen{}

func (unseen) Set(float64)            {}
func (unseen) Inc()                   {}
func (unseen) Dec()                   {}
func (unseen) Add(float64)            {}
func (unseen) SetToCurrentTime()      {}
func (unseen) SetDenominator(float64) {}
