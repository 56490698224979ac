package fairness

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// seatsPerCPU is how many requests are worked on at once for each CPU, if nobody says otherwise. Most wait for etcd part
	// of the time; more of them finish no sooner, and what is begun competes with everybody's for CPU.
	seatsPerCPU = 8
	// DefaultWatches is the most watches that a workspace may have open, at about 100 KB each: some twenty controllers that
	// watch fifty resources.
	DefaultWatches = 1000
	// watchesOfMirror is the most watches that a mirror may have open. A syncer has some 20, one for each kind that goes down and
	// a few more, and another replica as many while it takes over; what connections leave behind that were cut without a word
	// ends within ten minutes, in which a syncer begins anew 13 times.
	watchesOfMirror = 300
	// watchesRetryAfter is the seconds after which who had too many watches may try again: some end every few minutes.
	watchesRetryAfter = 5
)

// defaultSeats is how many requests this machine works on at once.
func defaultSeats() int { return seatsPerCPU * cpus() }

// Config says what there is to divide.
type Config struct {
	// Seats is how many requests to all workspaces are worked on at once; 0 means defaultSeats. Mirrors have as many again.
	Seats int
	// SeatsPerWorkspace is how many of them one workspace may have; 0 means half. A mirror may have as many of its level.
	SeatsPerWorkspace int
	// Watches is how many watches a workspace may have open; nil means DefaultWatches. A mirror may have watchesOfMirror.
	Watches func(logicalcluster.Name) int
	// Called is how people call a workspace, for what they are told; nil means by the name of its logical cluster.
	Called func(logicalcluster.Name) string
	// Refuse answers a request with an error.
	Refuse func(w http.ResponseWriter, req *http.Request, err error)
}

// Fairness divides one server between workspaces.
type Fairness struct {
	// No configuration is read from anywhere, and watches are told of with their workspace: see watches.
	flowcontrol.MaxSeatsTracker

	called     func(logicalcluster.Name) string
	refuse     func(http.ResponseWriter, *http.Request, error)
	estimates  *flowcontrolrequest.WorkEstimatorConfig
	exempt     *level
	workspaces *level
	mirrors    *level
	lists      *lists
	watches    *watches
	// most is how many watches a workspace may have open.
	most func(logicalcluster.Name) int
}

var _ flowcontrol.Interface = (*Fairness)(nil)

// New returns a Fairness that has all its seats.
func New(c Config) (*Fairness, error) {
	if c.Seats == 0 {
		c.Seats = defaultSeats()
	}
	if c.SeatsPerWorkspace == 0 {
		c.SeatsPerWorkspace = max(1, c.Seats/2)
	}
	if c.Watches == nil {
		c.Watches = func(logicalcluster.Name) int { return DefaultWatches }
	}
	if c.Called == nil {
		c.Called = logicalcluster.Name.String
	}
	f := &Fairness{
		MaxSeatsTracker: flowcontrol.NewMaxSeatsTracker(), refuse: c.Refuse, called: c.Called,
		estimates: flowcontrolrequest.DefaultWorkEstimatorConfig(),
		exempt:    &level{schema: newSchema("exempt"), priority: newPriority("exempt")},
		watches:   newWatches(),
		most:      c.Watches,
	}
	f.lists = newLists(f.estimates.ObjectsPerSeat)
	for _, l := range []struct {
		name string
		to   **level
	}{{"workspaces", &f.workspaces}, {"mirrors", &f.mirrors}} {
		made, err := newLevel(l.name, c.Seats, c.SeatsPerWorkspace, newCPUWaits().rare)
		if err != nil {
			return nil, fmt.Errorf("divide %d requests at once between %s: %w", c.Seats, l.name, err)
		}
		*l.to = made
		// Half of what a workspace has, so that its widest requests do not go one by one.
		f.SetMaxSeats(l.name, uint64(max(1, min(c.SeatsPerWorkspace, c.Seats)/2)))
	}
	// Owners of workspaces have mirrors, too: what they do there is not at the expense of all workspaces, however few of these
	// ask. That a syncer tells what came of a workspace's request is none of its flood.
	f.mirrors.capacity.besides = f.workspaces.lastAsked
	return f, nil
}

// Around is a handler that lets next serve a request when it is its turn. It stands after authorisation. A request waits
// for its turn for at most a quarter of timeout.
func (f *Fairness) Around(next http.Handler, longRunning request.LongRunningRequestCheck, timeout time.Duration) http.Handler {
	queued := filters.WithPriorityAndFairness(next, longRunning, f, f.estimate, timeout/4)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !longRunning(req, info) {
			queued.ServeHTTP(w, req)
			return
		}
		cluster := charged(req.Context())
		ctx, stop := context.WithCancel(req.Context())
		defer stop()
		most := f.mostWatches(req.Context(), cluster.Name)
		writers, end, ok := f.watches.begin(cluster.Name, info.APIGroup, info.Resource, most, stop)
		if !ok {
			f.refuse(w, req, apierrors.NewTooManyRequests(f.tooMany(cluster, most), watchesRetryAfter))
			return
		}
		defer end()
		if writers != nil && info.Verb == "watch" { // no write wakes what stays open else
			w = newInTurn(req.Context(), w, writers)
		}
		queued.ServeHTTP(w, req.WithContext(ctx))
	})
}

// mostWatches is how many watches a logical cluster may have open, with the one that is asked for; 0 for who is not bounded.
func (f *Fairness) mostWatches(ctx context.Context, cluster logicalcluster.Name) int {
	switch f.levelOf(ctx) {
	case f.exempt:
		return 0
	case f.mirrors:
		return watchesOfMirror
	}
	return f.most(cluster)
}

// tooMany is what is told who asks for one watch more than there may be.
func (f *Fairness) tooMany(cluster lcctx.Cluster, most int) string {
	if cluster.Mirror {
		return fmt.Sprintf("mirror %q has %d watches open, which is all it may have and more than its syncer needs: if others use the syncer's credential, replace it (atoll cluster add --manifest); what connections left behind ends within ten minutes",
			cluster.Name, most)
	}
	return fmt.Sprintf("workspace %q has %d watches open, which is all it may have (--max-watches-per-workspace of the server, or %s of its LogicalCluster): end some of its clients, or ask the server's administrator",
		f.called(cluster.Name), most, corev1alpha1.LimitWatchesAnnotation)
}

// health are the paths that tell whether the server is well, and each of its checks.
var health = regexp.MustCompile(`^/(healthz|livez|readyz)(/|$)`)

// levelOf is the level of a request.
func (f *Fairness) levelOf(ctx context.Context) *level {
	cluster, named := lcctx.ClusterFrom(ctx)
	who, _ := request.UserFrom(ctx)
	info, _ := request.RequestInfoFrom(ctx)
	switch {
	case who != nil && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return f.exempt
	case !named && info != nil && health.MatchString(info.Path):
		return f.exempt // who asks whether the server is well is told, above all when it is busy
	case named && cluster.Mirror:
		return f.mirrors
	}
	return f.workspaces
}

// charged is the logical cluster whose turn a request takes. One for all that wait for an attendant is its type's.
func charged(ctx context.Context) lcctx.Cluster {
	cluster, _ := lcctx.ClusterFrom(ctx)
	if as, is := attendance.From(ctx); is && cluster.Wildcard {
		holder, _, _ := attendance.TypeOf(as.Name) // which was asked before it got here
		return lcctx.Cluster{Name: logicalcluster.Name(holder)}
	}
	return cluster
}

// Handle implements flowcontrol.Interface: it calls execute when the request has its seats, and not at all if it gets none
// in time.
func (f *Fairness) Handle(ctx context.Context, digest flowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queueNote fairqueuing.QueueNoteFn, execute func(),
) {
	l := f.levelOf(ctx)
	cluster := charged(ctx)
	note(l.schema, l.priority, cluster.String())
	if l == f.exempt {
		execute()
		return
	}
	work := estimate()
	leave, ok := l.enter(ctx, cluster.Name, digest.User.GetName(), &work, queueNote)
	if !ok {
		return
	}
	defer leave()
	execute()
}

// Listed tells how many objects of a resource there were in a logical cluster, or in one namespace of it.
func (f *Fairness) Listed(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, objects int64) {
	f.lists.saw(list{cluster, resource.Group, resource.Resource, namespace}, objects)
}

// Run implements flowcontrol.Interface. There is nothing to follow.
func (f *Fairness) Run(stop <-chan struct{}) error {
	<-stop
	return nil
}

// Install implements flowcontrol.Interface.
func (f *Fairness) Install(*mux.PathRecorderMux) {}

// newSchema and newPriority are what upstream's filter names in headers, logs and metrics.
func newSchema(name string) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

func newPriority(name string) *flowcontrolv1.PriorityLevelConfiguration {
	return &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}
