package logicalcluster

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxUnasked bounds the objects that Held names; all of them are counted.
const maxUnasked = 200

// HeldObject is an object whose finalizers are somebody's to remove.
type HeldObject struct {
	// Resource has the version by which requests reach it, or none if it is not served now.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	UID             types.UID
}

// Held is what finalizers hold in a logical cluster that is being deleted.
type Held struct {
	// Unasked are the first of the objects that nobody has asked to go yet.
	Unasked []HeldObject
	// Objects counts what is held by resource, Finalizers by what holds it.
	Objects    map[schema.GroupResource]int
	Finalizers map[string]int
}

// Empty says whether nothing is held.
func (h Held) Empty() bool { return len(h.Objects) == 0 }

// Add counts an object and the finalizers that hold it. asked says whether it is being deleted already.
func (h *Held) Add(o HeldObject, finalizers []string, asked bool) {
	if h.Objects == nil {
		h.Objects, h.Finalizers = map[schema.GroupResource]int{}, map[string]int{}
	}
	h.Objects[o.Resource.GroupResource()]++
	for _, f := range finalizers {
		h.Finalizers[f]++
	}
	if !asked && len(h.Unasked) < maxUnasked {
		h.Unasked = append(h.Unasked, o)
	}
}
