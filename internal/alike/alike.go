package alike

import (
	"hash/maphash"
	"maps"
	"sync"
	"testing"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
)

const (
	// rememberedFor is how long a map is remembered at least, and twice as long at most, to give it to further objects: as long as it takes
	// to make a workspace, or to fill the caches of a server that starts. Who comes later gets others.
	rememberedFor = 30 * time.Second
	// mostRemembered is what the maps take, in bytes, that are remembered: some 50,000. Where more are told of, each is remembered for less time.
	mostRemembered = 32 << 20
	// mostEntries is how many entries are compared, and longestValue how long one may be, in bytes: what has more is rarely alike.
	mostEntries  = 8
	longestValue = 4 << 10
	// shortestValue is the length of a value, in bytes, from which it is held once, whatever is beside it.
	shortestValue = 256
	// mapTakes is what a map of a few entries takes beside what they say, in bytes.
	mapTakes = 340
)

// remembered are maps by the hashes of what they say, in two generations: those that were asked for since it was time last, and before.
type remembered struct {
	seed maphash.Seed

	mu         sync.Mutex // guards what follows
	young, old map[uint64]map[string]string
	takes      int // the young ones, in bytes
	timed      bool
}

// ofProcess are those of all caches and informers of this process.
var ofProcess = &remembered{seed: maphash.MakeSeed()}

// hashOf is of what a map says, and how many bytes that takes. It is not ok for a map that is not worth to remember.
func (r *remembered) hashOf(m map[string]string) (hash uint64, takes int, ok bool) {
	if len(m) == 0 || len(m) > mostEntries {
		return 0, 0, false
	}
	for key, value := range m {
		if len(value) > longestValue {
			return 0, 0, false
		}
		// Added up, since entries have no order; the product tells which value is of which key.
		hash += (maphash.String(r.seed, key) | 1) * maphash.String(r.seed, value)
		takes += len(key) + len(value)
	}
	return hash, takes + mapTakes, true
}

// get is a map that says what m says: the one of an object before, or else m.
func (r *remembered) get(m map[string]string) map[string]string {
	hash, takes, ok := r.hashOf(m)
	if !ok {
		return m
	}
	r.mu.Lock()
	known, isYoung := r.young[hash]
	if !isYoung {
		known = r.old[hash]
	}
	r.mu.Unlock()
	if known != nil && maps.Equal(known, m) {
		m = known
	}
	if !isYoung {
		r.add(hash, takes, m)
	}
	return m
}

// add remembers a map, unless another has its hash by now.
func (r *remembered) add(hash uint64, takes int, m map[string]string) {
	var forgotten map[uint64]map[string]string
	defer func() { r.check(forgotten) }() // without the lock, for which all watch caches would wait
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.takes+takes > mostRemembered/2 {
		forgotten = r.age()
	}
	if _, ok := r.young[hash]; ok {
		return
	}
	if r.young == nil {
		r.young = map[uint64]map[string]string{}
	}
	r.young[hash] = m
	r.takes += takes
	r.time()
}

// age forgets what was not asked for lately, and returns it.
func (r *remembered) age() (forgotten map[uint64]map[string]string) {
	forgotten = r.old
	r.young, r.old, r.takes = nil, r.young, 0
	return forgotten
}

// check finds out whether maps say what they said when they were remembered, or somebody has changed an object that others hold.
func (r *remembered) check(forgotten map[uint64]map[string]string) {
	for hash, m := range forgotten {
		if now, _, _ := r.hashOf(m); now == hash {
			continue
		}
		if testing.Testing() {
			panic("a part of an object in a cache was changed in place")
		}
		klog.ErrorS(nil, "A part of an object in a cache was changed in place, and with it that of other objects: this is a fault of the server") // and not what it says
	}
}

// time lets what is remembered age, as long as there is some.
func (r *remembered) time() {
	if r.timed || r.young == nil && r.old == nil {
		return
	}
	r.timed = true
	time.AfterFunc(rememberedFor, func() {
		r.mu.Lock()
		r.timed = false
		forgotten := r.age()
		r.time()
		r.mu.Unlock()
		r.check(forgotten)
	})
}

// Share gives an object that nobody has seen yet the labels and annotations of those before it that say the same.
func Share(object metav1.Object) {
	if _, copies := object.(*unstructured.Unstructured); copies {
		return // of what it is given
	}
	if labels := object.GetLabels(); len(labels) > 0 {
		object.SetLabels(ofProcess.get(labels))
	}
	if annotations := object.GetAnnotations(); len(annotations) > 0 {
		object.SetAnnotations(ofProcess.get(annotations))
	}
}

// Data is a map that says what data says, of an object that nobody has seen yet, with long values that others have.
func Data(data map[string]string) map[string]string {
	for name, value := range data {
		if len(value) >= shortestValue {
			data[name] = unique.Make(value).Value()
		}
	}
	return ofProcess.get(data)
}
