package syncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/internal/weight"
)

const (
	// mostOfAnswer is how long one answer may be, or one object of a list or event of a watch, in bytes, unpacked. An API server
	// takes requests of 3 MiB and etcd values of 1.5 MiB, so no object is that long.
	mostOfAnswer = 8 << 20
	// mostUnpacked is how much memory it may take to unpack one of them, in bytes, by weight: a short text may become a hundred times as
	// much. A ConfigMap of 1.5 MiB, which is as much as etcd takes, comes to 41 MiB if it is nothing but short keys.
	mostUnpacked = 128 << 20
	// perObject is what an informer takes for an object, apart from what is in it: keys and indexes, in bytes, about.
	perObject = 512
	// fullRest is how long a resource is left alone that had no room: it is read up to the bound each time, to be thrown away.
	fullRest = time.Minute
)

// tooMuch is the error of what has no room.
type tooMuch string

func (e tooMuch) Error() string { return string(e) }

// room is what one physical cluster may take of our memory. How much it answers is decided by whoever answers at the address
// that a workspace's owner wrote: selectors and limits of requests bound nobody who ignores them.
type room struct {
	cluster string
	most    int64 // bytes; 0 for no bound
	clock   clock.WithTicker
	mu      sync.Mutex // guards all below
	taken   int64
	// full is when what a resource showed was last too much, or refused.
	full map[schema.GroupVersionResource]time.Time
}

// take takes n bytes, or gives them back if n is negative. It takes nothing if it fails.
func (r *room) take(n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && r.most > 0 && r.taken+n > r.most {
		return tooMuch(fmt.Sprintf("physical cluster %q shows more, of all resources together, than the %s that there is room for: see --max-bytes-per-physical-cluster",
			r.cluster, resource.NewQuantity(r.most, resource.BinarySI)))
	}
	r.taken += n
	return nil
}

// heard has how a list or watch of a resource went.
func (r *room) heard(gvr schema.GroupVersionResource, err error) {
	// Nor is listed over and over what may be listed and not watched, as the rights of an earlier version have it.
	if much := tooMuch(""); errors.As(err, &much) || (gvr == podsGVR || gvr == eventsGVR || isClass(gvr)) && isDenial(err) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.full[gvr] = r.clock.Now()
	}
}

// rest waits until a resource may be read again that was too much.
func (r *room) rest(ctx context.Context, gvr schema.GroupVersionResource) error {
	r.mu.Lock()
	full, wasFull := r.full[gvr]
	r.mu.Unlock()
	wait := fullRest - r.clock.Since(full)
	if !wasFull || wait <= 0 {
		return nil
	}
	select {
	case <-r.clock.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// claim is what one who reads something once has taken of a room.
type claim struct {
	room  *room
	taken int64 // bytes
}

func (c *claim) take(n int64) error {
	if err := c.room.take(n); err != nil {
		return err
	}
	c.taken += n
	return nil
}

// free gives back all that is taken.
func (c *claim) free() { _ = c.take(-c.taken) }

// unpack unpacks JSON for a moment: it has use look at it, and gives back what that took.
func (c *claim) unpack(text []byte, into any, use func() error) error {
	n := weight.Of(text)
	if err := c.take(n); err != nil {
		return err
	}
	defer func() { _ = c.take(-n) }()
	if err := json.Unmarshal(text, into); err != nil {
		return err
	}
	return use()
}

// holding is what of a room one informer takes, or one who lists. While a list comes in, what the one before brought is still
// there: the larger one counts, since what is there could not be listed again otherwise, and both together take up to twice the
// room for that time.
type holding struct {
	room *room
	// trim returns what is held of an object that came.
	trim func(*unstructured.Unstructured) *unstructured.Unstructured
	mu   sync.Mutex // guards all below
	// held are the sizes of what the informer holds, coming of what a list has brought so far; coming is nil between lists.
	held, coming *sizes
	// reading is what an object of a list takes, at most, that is being read.
	reading int64
	// taken is what the room knows of.
	taken int64
}

// sizes of objects by their keys, in bytes.
type sizes struct {
	of  map[string]int64
	all int64
}

func newSizes() *sizes { return &sizes{of: map[string]int64{}} }

// set returns the size that key had. Size 0 is none.
func (s *sizes) set(key string, size int64) (before int64) {
	before = s.of[key]
	s.all += size - before
	if s.of[key] = size; size == 0 {
		delete(s.of, key)
	}
	return before
}

func newHolding(r *room, trim func(*unstructured.Unstructured) *unstructured.Unstructured) *holding {
	return &holding{room: r, trim: trim, held: newSizes()}
}

// settle tells the room what is taken now. The caller has mu.
func (h *holding) settle() error {
	want := h.reading
	if h.coming != nil {
		want += h.coming.all
	}
	want = max(want, h.held.all)
	if err := h.room.take(want - h.taken); err != nil {
		return err
	}
	h.taken = want
	return nil
}

// begin begins a list, in place of one that did not end, unless it goes on with that.
func (h *holding) begin(goesOn bool) *sizes {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.coming == nil || !goesOn {
		h.coming, h.reading = newSizes(), 0
		_ = h.settle() // it takes no more than before
	}
	return h.coming
}

// end ends a list, unless another one is in its place; the informer holds what it brought if that is all.
func (h *holding) end(list *sizes, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.coming != list {
		return
	}
	if all {
		h.held = list
	}
	h.coming, h.reading = nil, 0
	_ = h.settle()
}

// read has an object of a list that is about to be unpacked.
func (h *holding) read(text []byte) error {
	if h.room.most == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reading = weight.Of(text)
	return h.settle()
}

// add has an object of a list that was read. What a list shows twice is there twice while it comes in.
func (h *holding) add(o *unstructured.Unstructured) error {
	if h.room.most == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reading = 0
	key := keyOf(o)
	return h.set(key, h.current().of[key]+perObject+size(o.Object))
}

// take has an object of an event.
func (h *holding) take(o *unstructured.Unstructured) error {
	if h.room.most == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.set(keyOf(o), perObject+size(o.Object))
}

// set has what is known by key be of that size, if there is room for it. The caller has mu.
func (h *holding) set(key string, size int64) error {
	to := h.current()
	before := to.set(key, size)
	err := h.settle()
	if err != nil {
		to.set(key, before)
		_ = h.settle()
	}
	return err
}

// give gives back what an object took.
func (h *holding) give(o *unstructured.Unstructured) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current().set(keyOf(o), 0)
	_ = h.settle()
}

// current is what changes: a list, while one comes in. The caller has mu.
func (h *holding) current() *sizes {
	if h.coming != nil {
		return h.coming
	}
	return h.held
}

func keyOf(o *unstructured.Unstructured) string {
	return cache.ObjectName{Namespace: o.GetNamespace(), Name: o.GetName()}.String()
}

// size is about how many bytes of memory a value of unpacked JSON takes, apart from the slot that it is in: a short text may
// become thirty times as much, such as a list of maps.
func size(value any) int64 {
	switch v := value.(type) {
	case string:
		return 24 + int64(len(v))
	case []any:
		n := int64(24)
		for _, e := range v {
			n += 24 + size(e) // a slot, and that every other one is not in use
		}
		return n
	case map[string]any:
		n := int64(48)
		if len(v) > 0 {
			n += max(288, 48*int64(len(v))) // slots come by eight
		}
		for k, e := range v {
			n += 8 + int64(len(k)) + size(e)
		}
		return n
	}
	return 8
}

// meter bounds what is read of one answer, or of one object of a list, or event of a watch.
type meter struct {
	mu    sync.Mutex // guards all below
	n     int64      // bytes
	scale weight.Scale
	err   error
}

type meterKey struct{}

// reading has what is read in answer to a request with that context count for m.
func reading(ctx context.Context, m *meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// meterOf returns the meter that was given to reading, or a new one.
func meterOf(ctx context.Context) *meter {
	if m, ok := ctx.Value(meterKey{}).(*meter); ok {
		return m
	}
	return &meter{}
}

// read counts what was read, and fails where that is too much.
func (m *meter) read(text []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.n += int64(len(text))
	m.scale.Add(text)
	const what = "an answer, or an object of a list or event of a watch, "
	switch {
	case m.n > mostOfAnswer:
		m.err = tooMuch(what + "is longer than " + resource.NewQuantity(mostOfAnswer, resource.BinarySI).String())
	case m.scale.N > mostUnpacked:
		m.err = tooMuch(what + "takes more memory than " + resource.NewQuantity(mostUnpacked, resource.BinarySI).String())
	}
	return m.err
}

// anew begins to count anew, where an object or an event ends. It returns why nothing more is read; nil if more is.
func (m *meter) anew() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n, m.scale.N = 0, 0
	return m.err
}

// measured reads no more of an answer than mostOfAnswer and mostUnpacked, unless who asked has the meter count anew, which is in the
// context of the request. It has to be where answers are decompressed already.
type measured struct {
	next http.RoundTripper
}

// makeMeasured bounds every answer to a request that is made with cfg.
func makeMeasured(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return measured{next} })
}

func (m measured) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := m.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = measuredBody{resp.Body, meterOf(req.Context())}
	return resp, nil
}

type measuredBody struct {
	io.ReadCloser
	meter *meter
}

func (b measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if full := b.meter.read(p[:n]); full != nil {
		return 0, full
	}
	return n, err
}

// counted is a watch that ends with an error where what it brings has no room.
type counted struct {
	watch.Interface
	events chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

func (c *counted) ResultChan() <-chan watch.Event { return c.events }

func (c *counted) Stop() {
	c.once.Do(func() { close(c.stop) })
	c.Interface.Stop()
}

// list lists what open shows, as far as there is room for it.
func (h *holding) list(ctx context.Context, o metav1.ListOptions, open openFunc) (*unstructured.UnstructuredList, error) {
	coming := h.begin(o.Continue != "")
	list, err := h.page(ctx, o, open)
	if err != nil || list.GetContinue() == "" {
		h.end(coming, err == nil)
	}
	return list, err
}

// page lists as much as is shown at once.
func (h *holding) page(ctx context.Context, o metav1.ListOptions, open openFunc) (*unstructured.UnstructuredList, error) {
	list := &unstructured.UnstructuredList{Object: map[string]any{}}
	head, err := readList(ctx, o, open, "items", func(text []byte) error {
		if err := h.read(text); err != nil {
			return err
		}
		var o unstructured.Unstructured
		if err := json.Unmarshal(text, &o.Object); err != nil {
			return err
		}
		if isUntyped(&o) {
			o.SetAPIVersion("") // which the list may tell later, but counts now
			o.SetKind("")
		}
		list.Items = append(list.Items, *h.trim(&o))
		return h.add(&list.Items[len(list.Items)-1])
	})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if o := &list.Items[i]; isUntyped(o) {
			o.SetAPIVersion(head.APIVersion)
			o.SetKind(strings.TrimSuffix(head.Kind, "List"))
		}
	}
	list.SetAPIVersion(head.APIVersion)
	list.SetKind(head.Kind)
	list.SetResourceVersion(head.ResourceVersion)
	list.SetContinue(head.Continue)
	list.SetRemainingItemCount(head.RemainingItemCount)
	return list, nil
}

// isUntyped says whether an object leaves it to its list to say of what type it is, as those of built-in types do.
func isUntyped(o *unstructured.Unstructured) bool {
	return o.GetAPIVersion() == "" && o.GetKind() == ""
}

// watch watches with from. It calls heard with the error that watch could not begin for, or that ends it where something has no
// room, and with nil when it has begun; where it begins with a list of what there is, when that is in.
func (h *holding) watch(ctx context.Context, o metav1.ListOptions, from cache.WatchFuncWithContext, heard func(error)) (watch.Interface, error) {
	m := &meter{}
	w, err := from(reading(ctx, m), o)
	if err != nil {
		heard(err)
		return nil, err
	}
	c := &counted{Interface: w, events: make(chan watch.Event), stop: make(chan struct{})}
	var coming *sizes // nil if no list comes in
	if ptr.Deref(o.SendInitialEvents, false) {
		coming = h.begin(false)
	} else {
		heard(nil)
	}
	// Before anybody learns how it goes on: he may begin the next list. Who leaves may do so meanwhile.
	end := func(all bool) {
		if coming != nil {
			h.end(coming, all)
			coming = nil
		}
	}
	go func() {
		defer close(c.events)
		defer end(false)
		for e := range w.ResultChan() {
			err := m.anew()
			if err == nil {
				err = h.follow(&e)
			}
			switch {
			case err != nil:
				end(false)
				heard(err)
				status := apierrors.NewRequestEntityTooLargeError(err.Error()).Status()
				e = watch.Event{Type: watch.Error, Object: &status}
			case e.Type == watch.Error:
				end(false)
			case coming != nil && endsList(e):
				end(true)
				heard(nil)
			}
			select {
			case c.events <- e:
			case <-c.stop:
				return
			}
			if e.Type == watch.Error {
				w.Stop()
				return
			}
		}
	}()
	return c, nil
}

// follow counts what an event brings or takes away.
func (h *holding) follow(e *watch.Event) error {
	o, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	switch e.Type {
	case watch.Added, watch.Modified:
		o = h.trim(o)
		e.Object = o
		return h.take(o)
	case watch.Deleted:
		h.give(o)
	}
	return nil
}

// endsList says whether an event says that what there was has been told.
func endsList(e watch.Event) bool {
	o, ok := e.Object.(*unstructured.Unstructured)
	return ok && e.Type == watch.Bookmark && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
