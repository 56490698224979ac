package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// What somebody changes in the physical cluster of what a leaf asks for is put back, and an Event on the user's object tells of
// it, as one does of what was deleted there and is made again (docs/design/0020-drift.md). Whether it was somebody, and not we,
// has to be known: it is told only of what was as it should be, or has the name of another on it, and of what is right again.

// reasonDrift is the reason of these events.
const reasonDrift = "DriftCorrected"

const (
	// firstPutBack is how long it takes to put the same back once more, if it is changed again soon; twice as long each time from
	// then on, and mostPutBack in the end. Two who do not agree would write as fast as they can otherwise, with a rollout each time.
	// So long, too, is left alone what our writes do not change.
	firstPutBack = time.Second
	mostPutBack  = 5 * time.Minute
	// calmAfter is how long nothing has to be put back until that begins anew.
	calmAfter = 10 * time.Minute
	// toldAgain is how long the same is not told again. What is put back meanwhile counts.
	toldAgain = time.Minute
	// foughtFor is from how many times on the event says that there is no end to it.
	foughtFor = 3
)

// drifts are what is known of the objects of ours that are there, one entry for each that a leaf asks for, some 200 bytes.
type drifts struct {
	mu sync.Mutex // guards all below
	of map[key]*standing
}

// standing is what is known of one object.
type standing struct {
	leaf types.UID
	// want stands for what the leaf asked for when the object was last seen to be so, or written.
	want uint64
	// left is in what the object is otherwise although we have just written it, as by a webhook there; nil if in nothing.
	left *leftover
	// fight is nil where nothing was put back lately.
	fight *fight
}

// leftover is what our own write left otherwise.
type leftover struct {
	sum   uint64   // stands for all of it, with the values
	paths []string // the first of them
	all   bool     // there are no more
	// tries is how often the same was written in vain besides, and next when it may be once more.
	tries int
	next  time.Time
}

// has says whether a place may be among what is left.
func (l *leftover) has(path string) bool {
	return l != nil && (!l.all || slices.Contains(l.paths, path))
}

// fight is what is known of an object that was put back.
type fight struct {
	turns int       // how often in a row it was
	last  time.Time // when it was
	next  time.Time // no sooner is the same written again
	// count is how often something was put back, since when.
	count int64
	first time.Time
	// news is what is to be told, "" if nothing is, and tries how often that was tried.
	news  string
	tries int
	// told is what was told last, or could not be, and when.
	told   string
	toldAt time.Time
}

// digestSeed is that of all digests of this process.
var digestSeed = maphash.MakeSeed()

// digest stands for a value of JSON.
func digest(value any) uint64 {
	text, err := json.Marshal(value) // maps are written sorted
	if err != nil {
		return 0 // no value of JSON
	}
	return maphash.Bytes(digestSeed, text)
}

// asWanted has an object that is as its leaf asks for.
func (d *drifts) asWanted(k key, leaf types.UID, want *unstructured.Unstructured, now time.Time) {
	is := digest(want.Object)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.standing(k, leaf)
	s.want, s.left = is, nil
	if f := s.fight; f != nil && f.news == "" && now.Sub(f.last) >= calmAfter {
		s.fight = nil
	}
}

// standing returns what is known of the object of a leaf. The caller has mu.
func (d *drifts) standing(k key, leaf types.UID) *standing {
	s := d.of[k]
	if s == nil || s.leaf != leaf {
		s = &standing{leaf: leaf}
		if d.of == nil {
			d.of = map[key]*standing{}
		}
		d.of[k] = s
	}
	return s
}

// forget forgets what no leaf asks for.
func (d *drifts) forget(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, k)
}

// pauseBefore is how long it is until the nth turn after the first.
func pauseBefore(n int) time.Duration { return min(firstPutBack<<min(n, 16), mostPutBack) }

// wait returns how long it is until an object that is otherwise than its leaf asks for may be written, down being what it is, nil
// for nothing; leave says that there is nothing to wait for, since it is as our last write has left it. What a leaf asks for anew
// is never waited for.
func (d *drifts) wait(k key, leaf types.UID, want, down *unstructured.Unstructured, now time.Time) (wait time.Duration, leave bool) {
	asked := digest(want.Object)
	d.mu.Lock()
	s := d.of[k]
	if s == nil || s.leaf != leaf || s.want != asked {
		d.mu.Unlock()
		return 0, false
	}
	left := s.left
	if s.fight != nil {
		wait = min(max(0, s.fight.next.Sub(now)), mostPutBack) // the clock may have been turned back
	}
	d.mu.Unlock()
	if left != nil && down != nil && compareObjects(want, down).sum.Sum64() == left.sum {
		pause := left.next.Sub(now)
		return 0, pause > 0 && pause <= mostPutBack
	}
	return wait, false
}

// written is what came of a write for a leaf.
type written struct {
	key  key
	leaf *unstructured.Unstructured
	// want is what was written, over was (nil: nothing was there), and is is what came of it.
	want, was, is *unstructured.Unstructured
}

// wrote has what came of a write, and says whether there is something to tell.
func (d *drifts) wrote(w written, cluster string, now time.Time) (news bool) {
	before, after := &comparison{}, compareObjects(w.want, w.is)
	if w.was != nil {
		before = compareObjects(w.want, w.was)
	}
	want, leaf := digest(w.want.Object), w.leaf.GetUID()
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.of[w.key] != nil && d.of[w.key].leaf == leaf
	s := d.standing(w.key, leaf)
	same := known && s.want == want

	text := ""
	switch {
	case w.was == nil && (known || w.leaf.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != ""):
		text = fmt.Sprintf("Deleted in physical cluster %q; made again", cluster)
	case w.was != nil:
		held := func(path string) bool { return same && !s.left.has(path) }
		text = changedBelow(w, before, after, held, cluster)
	}
	// Of what is asked for anew, was right already, or as our last write had left it, nothing says that anybody disagrees.
	disagrees := text != "" || same && len(before.found) > 0 && (s.left == nil || before.sum.Sum64() != s.left.sum)
	left := after.leftover()
	if left != nil {
		if same && s.left != nil {
			left.tries = s.left.tries + 1
		}
		left.next = now.Add(pauseBefore(left.tries))
	}
	s.want, s.left = want, left
	if !disagrees {
		return false
	}

	f := s.fight
	if f == nil || now.Sub(f.last) >= calmAfter {
		f = &fight{}
		s.fight = f
	}
	f.last, f.next = now, now.Add(pauseBefore(f.turns))
	f.turns++
	if text == "" {
		return false
	}
	if f.count++; f.count == 1 {
		f.first = now
	}
	if f.count >= foughtFor {
		text += ". That happens again and again: it is put back ever less often"
	}
	if f.told == text && now.Sub(f.toldAt) < toldAgain {
		return false
	}
	f.news, f.tries = text, 0
	return true
}

// changedBelow says what somebody else had changed of what a write has put right; "" if that was nothing. held says of a place
// that it was as it should be before.
func changedBelow(w written, before, after *comparison, held func(path string) bool, cluster string) string {
	managers := managersOf(w.was)
	was, is := w.was.GetAnnotations()[workloadv1alpha1.RenderedAnnotation], w.want.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]
	sameRendering := was != "" && was == is
	var paths, names []string
	more := before.more
	for _, at := range before.found {
		if after.stays(at) {
			continue // it is not put back, such as what others have added to a list that is merged
		}
		by, theirs := managers.changed(at, held(at.path()), sameRendering)
		if !theirs {
			continue
		}
		for _, name := range by {
			if name = strconv.Quote(printable(name, longestManager)); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if path := at.shown(w.want.GetKind()); !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	by := ", by whom is not recorded"
	if len(names) > 0 {
		slices.Sort(names)
		by = " by " + several(names, mostManagers, false)
	}
	return fmt.Sprintf("Changed in physical cluster %q%s; put back: %s", cluster, by, several(paths, mostPaths, more))
}

// several names the first few of several.
func several(names []string, most int, more bool) string {
	switch n := len(names) - most; {
	case n > 0 && more:
		return strings.Join(names[:most], ", ") + " and more"
	case n > 0:
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n)
	case more:
		return strings.Join(names, ", ") + " and more"
	}
	return strings.Join(names, ", ")
}

// tellDrift tells what is to be told of an object, as reconcileEvent does: nothing rests on it.
func (s *Syncer) tellDrift(ctx context.Context, k key) (time.Duration, error) {
	event := s.driftEvent(k)
	if event == nil {
		return 0, nil
	}
	if wait, err := s.mayShow(ctx); wait > 0 || err != nil {
		return wait, err
	}
	if err := s.eventPace.Wait(ctx); err != nil {
		return 0, err
	}
	if event = s.driftEvent(k); event == nil { // or more is to be told by now
		return 0, nil
	}
	news, _, _ := unstructured.NestedString(event.Object, "message")
	err := s.writeEvent(ctx, k.namespace, event)
	again := s.drifts.tried(k, news, err, s.config.Clock.Now())
	if err != nil && again == 0 {
		klog.FromContext(ctx).V(2).Info("That an object was put back is not told", "object", k.String(), "err", err)
	}
	return again, nil
}

// driftEvent returns what is to be told of an object; nil if nothing is. It is one event as long as it does not end: it counts
// up.
func (s *Syncer) driftEvent(k key) *unstructured.Unstructured {
	kind, ok := kinds.ByResource(k.resource.GroupResource())
	if !ok {
		return nil
	}
	s.drifts.mu.Lock()
	defer s.drifts.mu.Unlock()
	of := s.drifts.of[k]
	if of == nil || of.fight == nil || of.fight.news == "" {
		return nil
	}
	f := of.fight
	event := &unstructured.Unstructured{Object: map[string]any{
		involvedObject: map[string]any{
			"apiVersion": kind.GVK.GroupVersion().String(), "kind": kind.GVK.Kind, "namespace": k.namespace, "name": k.name, "uid": string(of.leaf),
		},
		"type": corev1.EventTypeWarning, "reason": reasonDrift, "message": f.news,
		"source":         map[string]any{"component": workloadv1alpha1.FieldManager},
		"firstTimestamp": f.first.UTC().Format(time.RFC3339), "lastTimestamp": f.last.UTC().Format(time.RFC3339), "count": f.count,
	}}
	event.SetAPIVersion("v1")
	event.SetKind("Event")
	event.SetNamespace(k.namespace)
	event.SetName(fmt.Sprintf("%s-drift-%s", of.leaf, strconv.FormatInt(f.first.Unix(), 36)))
	return event
}

// tried has what came of telling news, and returns when to try again; 0 for not at all.
func (d *drifts) tried(k key, news string, err error, now time.Time) (again time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.of[k]
	if s == nil || s.fight == nil {
		return 0
	}
	f := s.fight
	switch {
	case err == nil:
		f.told, f.toldAt = news, now
		if f.news != news {
			f.tries = 0
			return time.Second // there is more by now
		}
	case f.tries+1 < eventTries && !isFinal(err):
		f.tries++
		return min(firstRetry<<f.tries, lastRetry)
	case f.news != news:
		return time.Second
	default: // the same is not told any sooner than if it had been
		f.told, f.toldAt = news, now
	}
	f.news, f.tries = "", 0
	return 0
}
