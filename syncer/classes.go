package syncer

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
)

// The classes of a physical cluster are told in the status of the SyncTarget, which the server shows workspaces (server/nodes). Who
// does not let us see them, as rights of an earlier version do not, has none that anybody knows of, and no trouble.

// classesRest is the time, at least, between two heartbeats that changes of classes ask for: a physical cluster may change them as
// often as it likes, and each change is two writes in the hub.
const classesRest = 2 * time.Second

func isClass(gvr schema.GroupVersionResource) bool {
	k, ok := classes.ByResource(gvr.GroupResource())
	return ok && k.GVR == gvr
}

func thinClass(gvr schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	k, ok := classes.ByResource(gvr.GroupResource())
	if !ok {
		return o
	}
	return k.Thin(o).DeepCopy() // what is left out is not held by what is kept
}

// watchClasses makes the informers of classes.
func (s *Syncer) watchClasses() {
	s.classes = map[schema.GroupVersionResource]*informer{}
	var resting atomic.Bool
	for _, k := range classes.All {
		i := newInformer(s.physical, k.GVR, nil, s.heardClasses(k.GVR), s.room)
		i.handle = func(old, now *unstructured.Unstructured) {
			if old != nil && now != nil && classes.Same(k.Read(old), k.Read(now)) || !resting.CompareAndSwap(false, true) {
				return
			}
			time.AfterFunc(classesRest, func() {
				resting.Store(false)
				s.beatSoon()
			})
		}
		s.classes[k.GVR] = i
	}
}

// heardClasses records how lists and watches of classes go. Of a physical cluster that does not answer nothing is known anew.
func (s *Syncer) heardClasses(gvr schema.GroupVersionResource) func(error) {
	return func(err error) {
		much := tooMuch("")
		if err != nil && !isDenial(err) && !errors.As(err, &much) {
			return
		}
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		if before, known := s.state.classes[gvr]; !known || before != (err == nil) {
			s.state.classes[gvr] = err == nil
			s.beatSoon()
		}
	}
}

// classesSeen are the classes of each kind that is known; nil of one that the physical cluster does not let us see.
type classesSeen map[schema.GroupVersionResource]*workloadv1alpha1.ClassesOf

func (s *Syncer) classesSeen() classesSeen {
	seen := classesSeen{}
	for _, k := range classes.All {
		s.state.mu.Lock()
		shown, known := s.state.classes[k.GVR]
		s.state.mu.Unlock()
		i := s.classes[k.GVR]
		switch {
		case !known:
		case !shown:
			seen[k.GVR] = nil
		case i.HasSynced():
			var items []workloadv1alpha1.Class
			for _, o := range i.List() {
				items = append(items, k.Read(o.(*unstructured.Unstructured)))
			}
			of := k.Of(items)
			seen[k.GVR] = &of
		}
	}
	return seen
}

// status returns what a SyncTarget's status says, given what it said.
func (c classesSeen) status(before []workloadv1alpha1.ClassesOf) (now []workloadv1alpha1.ClassesOf) {
	for _, k := range classes.All {
		of, known := c[k.GVR]
		switch i := slices.IndexFunc(before, func(of workloadv1alpha1.ClassesOf) bool { return of.Resource == k.Resource() }); {
		case of != nil:
			now = append(now, *of)
		case !known && i >= 0:
			now = append(now, before[i])
		}
	}
	return now
}
