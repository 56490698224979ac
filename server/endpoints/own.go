package endpoints

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"atoll.dev/atoll/client"
)

const (
	// rememberedServices is of how many Services it is known what was written last. What is forgotten is looked at once more.
	rememberedServices = 4096
	// betweenWrites is how far apart a Service is written at least, and forEachSlice how much further for each slice that was.
	betweenWrites = 200 * time.Millisecond
	forEachSlice  = 100 * time.Millisecond
	// firstRefused is when to try again what the workspace did not let in, and lastRefused when at last, each time.
	firstRefused = 30 * time.Second
	lastRefused  = 10 * time.Minute
)

// own knows what was written here, so that it wakes nobody, and is read before anything else is written.
type own struct {
	clock clock.PassiveClock

	mu      sync.Mutex // guards what follows
	written *lru.Cache // client.Key of a Service → *written
	// writing has the Services that are written now, and what was told of their slices meanwhile: whether that was it, is known when it was answered.
	writing map[client.Key][]told
}

// written is what was written last of a Service.
type written struct {
	at      time.Time
	slices  int               // of them
	version string            // the newest
	of      map[string]string // versions of slices, by name, of those that were there when it was looked, and what has come since
	removed sets.Set[string]  // those that were deleted since, of which nobody has told yet
	// tryAgain is when that is to be tried again which the workspace has refused, and patience how long that was from then.
	tryAgain time.Time
	patience time.Duration
}

// told is an event of a slice, or of Endpoints.
type told struct {
	slice, version string
	gone           bool
}

func newOwn(clk clock.PassiveClock) *own {
	return &own{clock: clk, written: lru.New(rememberedServices), writing: map[client.Key][]told{}}
}

// begin says that a Service is written now, of which there are those slices. Of others, which somebody has deleted, nothing is known any more.
func (o *own) begin(service client.Key, there sets.Set[string]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing[service] = nil
	if w := o.last(service); w != nil {
		w.slices, w.removed = 0, sets.New[string]()
		maps.DeleteFunc(w.of, func(slice, _ string) bool { return !there.Has(slice) })
	}
}

// wrote says which version of a slice came of a write.
func (o *own) wrote(service client.Key, slice, version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.known(service)
	w.at, w.of[slice] = o.clock.Now(), version
	w.slices++
	if order, err := resourceversion.CompareResourceVersion(w.version, version); err != nil || order < 0 {
		w.version = version
	}
}

// removed says that a slice was deleted.
func (o *own) removed(service client.Key, slice string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.known(service)
	delete(w.of, slice)
	w.removed.Insert(slice)
}

// end says that a Service is not written any more, and whether somebody else has written meanwhile.
func (o *own) end(service client.Key) (others bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	meanwhile := o.writing[service]
	delete(o.writing, service)
	w := o.last(service)
	for _, t := range meanwhile {
		if !w.takes(t) {
			others = true
		}
	}
	return others
}

// takes says whether an event of a slice tells of what was written: its version, or one before that, as who writes a slice has seen it as it was; or that it was deleted. What has gone is forgotten.
func (w *written) takes(t told) bool {
	if w == nil {
		return false
	}
	if t.gone {
		delete(w.of, t.slice)
		ours := w.removed.Has(t.slice)
		w.removed.Delete(t.slice)
		return ours
	}
	order, err := resourceversion.CompareResourceVersion(t.version, w.of[t.slice])
	return err == nil && order <= 0
}

// mostTold is how many events of slices are remembered while their Service is written. Who writes more is taken for somebody else.
const mostTold = 200

// is says whether an event of a slice tells of what was written here, or whether that is known later.
func (o *own) is(service client.Key, t told) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if meanwhile, writes := o.writing[service]; writes && len(meanwhile) < mostTold {
		o.writing[service] = append(meanwhile, t)
		return true
	}
	return o.last(service).takes(t)
}

// refused says after what time to try again what the workspace did not let in: twice as long each time. Who looks at the Service in between changes nothing of that.
func (o *own) refused(service client.Key) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	w, now := o.known(service), o.clock.Now()
	w.at = now
	if left := w.tryAgain.Sub(now); left > 0 && left <= w.patience {
		return left
	}
	w.patience = min(max(2*w.patience, firstRefused), lastRefused)
	w.tryAgain = now.Add(w.patience)
	return w.patience
}

// accepted says that nothing of a Service is refused any more.
func (o *own) accepted(service client.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.last(service); w != nil {
		w.tryAgain, w.patience = time.Time{}, 0
	}
}

// looks says that a Service is looked at from now on, and returns the newest version of its slices, as far as it was written here; empty if that is not known. What was deleted here, of which nobody has told yet,
// may still be there in what is read: that it is gone has the Service looked at once more then, as if somebody else had deleted it.
func (o *own) looks(service client.Key) (atLeast string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.last(service); w != nil {
		w.removed = sets.New[string]()
		return w.version
	}
	return ""
}

// wait is how long a Service is not to be written yet.
func (o *own) wait(service client.Key) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.last(service)
	if w == nil {
		return 0
	}
	since := o.clock.Since(w.at)
	if since < 0 { // the clock was turned back
		return 0
	}
	return max(0, betweenWrites+time.Duration(w.slices)*forEachSlice-since)
}

func (o *own) last(service client.Key) *written {
	if w, ok := o.written.Get(service); ok {
		return w.(*written)
	}
	return nil
}

// known is what is remembered of a Service, from now on.
func (o *own) known(service client.Key) *written {
	w := o.last(service)
	if w == nil {
		w = &written{of: map[string]string{}, removed: sets.New[string]()}
		o.written.Add(service, w)
	}
	return w
}
