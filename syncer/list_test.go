package syncer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/atoll/internal/weight"
)

// list lists as an informer does.
func list(ctx context.Context, i *informer) (*unstructured.UnstructuredList, error) {
	list, err := cache.ToListerWatcherWithContext(i.from).ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.(*unstructured.UnstructuredList), nil
}

// TestEmptyObjects: what counts of a list is what becomes of it, not its length.
func TestEmptyObjects(t *testing.T) {
	s := newIdle(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{},"items":[{}`+strings.Repeat(",{}", 100_000)+"]}")
	})
	s.room.most = 8 << 20
	var much tooMuch
	if shown, err := list(t.Context(), s.physical.informers[configMapsGVR]); !errors.As(err, &much) {
		t.Errorf("100,000 objects, which take 38 MB, have room in %d bytes: %v, %v", s.room.most, shown != nil, err)
	}
}

// endless is the beginning of a list, and its items for ever. It has noted the most that was in use when it was read.
type endless struct {
	beginning, item string
	peak            uint64
}

func (e *endless) Close() error { return nil }

func (e *endless) Read(p []byte) (int, error) {
	e.peak = max(e.peak, inUse())
	if e.beginning != "" {
		n := copy(p, e.beginning)
		e.beginning = e.beginning[n:]
		return n, nil
	}
	n := copy(p, e.item)
	for n < len(p) {
		n += copy(p[n:], e.item)
	}
	e.item = e.item[n%len(e.item):] + e.item[:n%len(e.item)]
	return n, nil
}

// inUse is how many bytes of memory are in use.
func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// peakOf returns how much more memory was in use while f ran than before, at most, in bytes: as far as somebody sees who looks all
// the time, and with a tenth more that is in use no longer.
func peakOf(f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	before := inUse()
	peak, done, seen := before, make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64())
			select {
			case <-done:
				seen <- peak
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	f()
	close(done)
	return <-seen - before
}

// TestMemoryOfList: a list without end never takes more memory than there is room for, whatever is in it.
func TestMemoryOfList(t *testing.T) {
	const most = 2 << 20
	for name, item := range map[string]string{
		"Empty":   "{},",
		"Nothing": "null,",
		"Dense":   `{"spec":[[],{},[],{"":{}}]},`,
		"Same":    `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"}},`,
		"Managed": `{"metadata":{"managedFields":[{},{},{}]}},`,
		"Text":    `{"data":{"k":"` + strings.Repeat("x", 10_000) + `"}},`,
		"Object":  `{"spec":[` + strings.Repeat("{},", 100_000) + `0]},`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newIdle(t, nil, nil)
			s.room.most = most
			answer := &endless{beginning: `{"kind":"ConfigMapList","items":[`, item: item}
			h := newHolding(s.room, func(o *unstructured.Unstructured) *unstructured.Unstructured {
				if size(o.Object) > 1<<20 {
					answer.peak = max(answer.peak, inUse())
				}
				o.SetManagedFields(nil)
				return o
			})
			before := inUse()
			_, err := h.list(t.Context(), metav1.ListOptions{}, func(context.Context, metav1.ListOptions) (io.ReadCloser, error) { return answer, nil })
			var much tooMuch
			if !errors.As(err, &much) {
				t.Errorf("the error is %v", err)
			}
			if answer.peak > before+most {
				t.Errorf("takes %d bytes, there is room for %d", answer.peak-before, int64(most))
			}
			if s.room.taken != 0 {
				t.Errorf("%d bytes are taken in the end", s.room.taken)
			}
		})
	}
}

// TestThinNodes: of a Node nothing is held but what counts.
func TestThinNodes(t *testing.T) {
	s := newIdle(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"n"},"status":{"conditions":[{"type":"Ready","status":"True"}`+
			strings.Repeat(",{}", 10_000)+"]}}]}")
	})
	nodes, err := list(t.Context(), s.nodes)
	if err != nil {
		t.Fatal(err)
	}
	conditions := nodes.Items[0].Object["status"].(map[string]any)["conditions"].([]any)
	if len(conditions) != 1 || cap(conditions) > 10 {
		t.Errorf("%d conditions in %d slots are held", len(conditions), cap(conditions))
	}
}

// TestReadList: a list is what client-go makes of it, and what is none is an error, wherever it ends.
func TestReadList(t *testing.T) {
	const good = `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":"c","remainingItemCount":7},` +
		`"items":[{"metadata":{"name":"a","generation":9007199254740993},"data":{"k":"\u00e9"}},{"kind":"Secret","apiVersion":"v1","metadata":{"name":"b"}}]}`
	read := func(text string) (*unstructured.UnstructuredList, error) {
		h := newHolding(&room{}, func(o *unstructured.Unstructured) *unstructured.Unstructured { return o })
		return h.list(t.Context(), metav1.ListOptions{}, func(context.Context, metav1.ListOptions) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(text)), nil
		})
	}
	for name, text := range map[string]string{
		"As Kubernetes writes it": good,
		"Sorted":                  `{"apiVersion":"example.com/v1","items":[{"metadata":{"name":"a"}}],"kind":"ThingList","metadata":{"resourceVersion":"5"}}`,
		"Spaces":                  " {\n \"kind\": \"ThingList\", \"more\": [{}], \"items\" : [ {\"a\" : 1.5} , {} ] }\n",
		"Empty":                   `{"kind":"ThingList","apiVersion":"v1","metadata":{},"items":[]}`,
		"Null":                    `{"kind":"ThingList","apiVersion":"v1","metadata":{},"items":null}`,
	} {
		want := &unstructured.UnstructuredList{}
		if _, _, err := unstructured.UnstructuredJSONScheme.Decode([]byte(text), nil, want); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := read(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want.Items, got.Items, cmp.Transformer("empty", func(items []unstructured.Unstructured) []unstructured.Unstructured {
			return append([]unstructured.Unstructured{}, items...)
		})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
		if got.GetKind() != want.GetKind() || got.GetAPIVersion() != want.GetAPIVersion() || got.GetResourceVersion() != want.GetResourceVersion() ||
			got.GetContinue() != want.GetContinue() || !cmp.Equal(got.GetRemainingItemCount(), want.GetRemainingItemCount()) {
			t.Errorf("%s: got %v, want %v", name, got.Object, want.Object)
		}
	}
	for n := range len(good) {
		if _, err := read(good[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("it ends after %d bytes: %v", n, err)
		}
	}
	for text, want := range map[string]string{
		`[]`:                         "something else",
		`{"kind":"ConfigMapList"}`:   "no items",
		`{"items":{}}`:               "something else",
		`{"items":[],"items":[]}`:    "items twice",
		`{"items":[1]}`:              "cannot unmarshal",
		`{"items":[{}}`:              "invalid character",
		`{"items":[{} {}]}`:          "expected comma",
		`{"items":[]} {}`:            "does not end",
		`{"items":[]]`:               "invalid character",
		`{"items":[],"metadata":[]}`: "cannot unmarshal",
		`{"items":[],"kind":{}}`:     "cannot unmarshal",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}

// TestListErrors: an error of the server is what it is to client-go.
func TestListErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		sent *apierrors.StatusError
		is   func(error) bool
	}{
		"Expired":   {apierrors.NewResourceExpired("too old"), apierrors.IsResourceExpired},
		"Forbidden": {apierrors.NewForbidden(configMapsGVR.GroupResource(), "", nil), apierrors.IsForbidden},
		"Gone":      {apierrors.NewNotFound(configMapsGVR.GroupResource(), ""), apierrors.IsNotFound},
	} {
		s := newIdle(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			status := tc.sent.Status()
			status.Kind, status.APIVersion = "Status", "v1"
			answer(t, w, int(status.Code), status)
		})
		if _, err := list(t.Context(), s.physical.informers[configMapsGVR]); !tc.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzWeight: no text weighs less than what becomes of it.
func FuzzWeight(f *testing.F) {
	for _, text := range []string{`{}`, `[]`, `0`, `"\xff\xff"`, `{"":{"":{"a":[{},{},[[]]]}}}`, `[{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}]`, `[null,true,"{:\"[,",1.5]`,
		`{ "a" : { "b" : [ 1 , 2 ] } }`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			return
		}
		if weight.Of(text) < size(value) {
			t.Errorf("%q weighs %d, and takes %d", text, weight.Of(text), size(value))
		}
	})
}
