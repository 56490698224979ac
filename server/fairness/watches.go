package fairness

import (
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
)

// watches counts the open watches of logical clusters, and everything else that stays open. A logical cluster without
// any is not there.
type watches struct {
	mu       sync.Mutex // guards what follows
	clusters map[logicalcluster.Name]*watched
}

type watched struct {
	bounded   int                 // those that are, of however many there may be
	writers   *semaphore.Weighted // of these, that write an event
	resources map[watchedResource]int
	stops     map[*func()]struct{} // one of each
}

type watchedResource struct{ group, resource string }

func newWatches() *watches { return &watches{clusters: map[logicalcluster.Name]*watched{}} }

// begin counts one more until end is called, and calls stop where its logical cluster goes before. ok says whether there may be
// one more, of most, and it writes in turn with those; of 0 there may always be, and it is not among them.
func (w *watches) begin(cluster logicalcluster.Name, group, resource string, most int, stop func()) (writers *semaphore.Weighted, end func(), ok bool) {
	bounded := most > 0
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.clusters[cluster]
	if own == nil {
		own = &watched{writers: semaphore.NewWeighted(writersOfWorkspace()), resources: map[watchedResource]int{}, stops: map[*func()]struct{}{}}
	}
	if bounded && own.bounded >= most {
		return nil, nil, false
	}
	w.clusters[cluster] = own
	key := watchedResource{group, resource}
	own.resources[key]++
	own.stops[&stop] = struct{}{}
	if bounded {
		own.bounded++
		writers = own.writers
	}
	return writers, sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if bounded {
			own.bounded--
		}
		delete(own.stops, &stop)
		if own.resources[key]--; own.resources[key] == 0 {
			delete(own.resources, key)
		}
		if len(own.resources) == 0 {
			delete(w.clusters, cluster)
		}
	}), true
}

// gone stops what is open of a logical cluster.
func (w *watches) gone(cluster logicalcluster.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.clusters[cluster]; own != nil {
		for stop := range own.stops {
			(*stop)()
		}
	}
}

// lastEvents is how long a watch has to tell what was deleted last, when its logical cluster has gone.
const lastEvents = time.Second

// Gone ends the watches of a logical cluster that has gone, and all else that is open there: they would be silent for as long as their clients
// like, also where a workspace of that path is made anew, which is another logical cluster.
func (f *Fairness) Gone(cluster logicalcluster.Name) {
	time.AfterFunc(lastEvents, func() { f.watches.gone(cluster) })
}

// interested is how many watches hear of a write to a resource of a logical cluster. Those of the server's controllers,
// which read all at once, are not among them.
func (w *watches) interested(cluster logicalcluster.Name, group, resource string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.clusters[cluster]
	if own == nil {
		return 0
	}
	return own.resources[watchedResource{group, resource}]
}

// RegisterWatch implements flowcontrol.Interface. Watches are counted before they wait for seats, with their workspace.
func (f *Fairness) RegisterWatch(*http.Request) flowcontrol.ForgetWatchFunc { return nil }

// GetInterestedWatchCount implements flowcontrol.Interface; estimate asks watches, which know the workspace.
func (f *Fairness) GetInterestedWatchCount(*request.RequestInfo) int { return 0 }
