package client

import "hash/maphash"

const (
	// MostTouched is how many sets of labels a Touched has.
	MostTouched = 64
	// MostLabels is how many labels a set has that is looked at, and mostLabelBytes how long they are together.
	MostLabels     = 64
	mostLabelBytes = 4 << 10
)

// Touched is what objects were labelled with that have changed, each set of labels once, for who selects them to be found
// later, by somebody who may take his time. It has few sets: where there are more, or one that is large, it is of objects with
// any labels. The zero value is of none.
type Touched struct {
	sets map[uint64]map[string]string // by their hash
	any  bool
}

// Labelled is how an object is labelled. It is made before anybody waits for who adds it.
type Labelled struct {
	labels map[string]string
	hash   uint64
	many   bool
}

// NewLabelled takes the labels of an object, which nobody changes from now on.
func NewLabelled(labels map[string]string) Labelled {
	if !FewLabels(labels) {
		return Labelled{many: true}
	}
	return Labelled{labels: labels, hash: hashOf(labels)}
}

// FewLabels says whether labels are so few that they are looked at. No object has a label without a key: that stands for many.
func FewLabels(labels map[string]string) bool {
	if len(labels) > MostLabels {
		return false
	}
	n := 0
	for key, value := range labels {
		n += len(key) + len(value)
	}
	_, many := labels[""]
	return !many && n <= mostLabelBytes
}

// seed is of the hashes of labels, which nobody else can choose labels by.
var seed = maphash.MakeSeed()

// hashOf is the same for the same labels, in any order.
func hashOf(labels map[string]string) (hash uint64) {
	for key, value := range labels {
		hash += maphash.Comparable(seed, [2]string{key, value})
	}
	return hash
}

// Add adds an object that has changed.
func (t *Touched) Add(l Labelled) {
	switch _, known := t.sets[l.hash]; {
	case l.many:
		t.AddAny()
	case t.any || known:
	case len(t.sets) == MostTouched:
		t.AddAny()
	case t.sets == nil:
		t.sets = map[uint64]map[string]string{l.hash: l.labels}
	default:
		t.sets[l.hash] = l.labels
	}
}

// AddAny adds objects with any labels.
func (t *Touched) AddAny() { t.sets, t.any = nil, true }

// Empty says whether nothing has changed.
func (t *Touched) Empty() bool { return !t.any && len(t.sets) == 0 }

// Len is how many sets of labels it has.
func (t *Touched) Len() int { return len(t.sets) }

// By says whether one has changed whose labels are so.
func (t *Touched) By(are func(labels map[string]string) bool) bool {
	if t.any {
		return true
	}
	for _, labels := range t.sets {
		if are(labels) {
			return true
		}
	}
	return false
}
