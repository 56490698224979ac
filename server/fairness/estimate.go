package fairness

import (
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/lru"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// longLists is how many lists are remembered, of all logical clusters together, some 100 bytes each.
const longLists = 10000

// estimate is the work of a request, by upstream's rules, but of the lists and watches of its own logical cluster: upstream
// counts the objects of a resource in all of them.
func (f *Fairness) estimate(req *http.Request, schemaName, levelName string) flowcontrolrequest.WorkEstimate {
	cluster, _ := lcctx.ClusterFrom(req.Context())
	info, _ := request.RequestInfoFrom(req.Context()) // without one, upstream takes the most
	return flowcontrolrequest.NewWorkEstimator(
		func(string) (storage.Stats, error) { return f.lists.stats(listOf(cluster.Name, info)) },
		func(*request.RequestInfo) int {
			return f.watches.interested(cluster.Name, info.APIGroup, info.Resource)
		},
		f.estimates, f.GetMaxSeats,
	)(req, schemaName, levelName)
}

// list is what is listed at once: a resource in a logical cluster, or in one namespace of it.
type list struct {
	cluster                    logicalcluster.Name
	group, resource, namespace string
}

func listOf(cluster logicalcluster.Name, info *request.RequestInfo) list {
	return list{cluster, info.APIGroup, info.Resource, info.Namespace}
}

// lists remembers how long lists were, if they were long enough to cost more than one seat. What nobody has listed yet
// counts as short: the first list tells.
type lists struct {
	seat    int64 // objects for one seat
	objects *lru.Cache
}

func newLists(seat float64) *lists { return &lists{seat: int64(seat), objects: lru.New(longLists)} }

func (l *lists) saw(what list, objects int64) {
	if objects <= l.seat {
		l.objects.Remove(what)
		return
	}
	l.objects.Add(what, objects)
}

func (l *lists) stats(what list) (storage.Stats, error) {
	objects, ok := l.objects.Get(what)
	if !ok {
		return storage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	}
	return storage.Stats{ObjectCount: objects.(int64)}, nil
}
