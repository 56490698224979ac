package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// filter withholds watch events. While it is shut nothing passes; when it opens, every watch from which something was
// withheld expires, so that its client lists and sees the last states only.
type filter struct {
	mu   sync.Mutex // guards all below
	shut bool
	// expire is closed, and replaced, when the filter opens.
	expire chan struct{}
	last   time.Time // of an event
	held   held
	// away is how many watches something was withheld from that have not begun again, by id.
	away map[string]int
	// missed is what intermediate events were of since the filter was shut last, as "hub deployments/web".
	missed map[string]bool
}

// held is what was withheld, by all watches together.
type held struct {
	events int
	// intermediate are events whose states nobody ever sees: a later one was withheld as well.
	intermediate int
	// deleted are deletions, recreated are those after which an object of the same name came.
	deleted, recreated int
}

func newFilter() *filter { return &filter{expire: make(chan struct{}), away: map[string]int{}} }

func (f *filter) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut, f.last, f.missed = true, time.Now(), map[string]bool{}
}

func (f *filter) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut = false
	close(f.expire)
	f.expire = make(chan struct{})
}

// quietFor is how long no event has come.
func (f *filter) quietFor() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.last)
}

func (f *filter) dropped() held {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// behind returns the watches that have to begin again, which comes after a list: while the filter is shut that would show what is
// to be withheld.
func (f *filter) behind() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(f.away)), "\n")
}

// drops returns what was dropped for good since the filter was shut, nothing if the object is of it.
func (f *filter) drops(object string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missed[object] {
		return ""
	}
	return fmt.Sprintf("dropped are some of %v", slices.Sorted(maps.Keys(f.missed)))
}

// event is one frame of a watch.
type event struct {
	Type   string `json:"type"`
	Object struct {
		metav1.ObjectMeta `json:"metadata"`
	} `json:"object"`
}

func (e event) key() string {
	return fmt.Sprintf("%s %s/%s", e.Object.Annotations["kcp.io/cluster"], e.Object.Namespace, e.Object.Name)
}

const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
	`"message":"too old resource version","reason":"Expired","code":410}}` + "\n"

// watch passes a watch on. req has to ask for JSON.
func (f *filter) watch(next http.RoundTripper, side string, info *apirequest.RequestInfo, req *http.Request) (*http.Response, error) {
	resp, err := next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	id := idOf(side, req)
	f.mu.Lock()
	if f.away[id]--; f.away[id] <= 0 {
		delete(f.away, id)
	}
	f.mu.Unlock()
	body := resp.Body
	reader, writer := io.Pipe()
	frames, failed := make(chan json.RawMessage), make(chan error, 1)
	stopped := make(chan struct{})
	go func() { // ends with body
		decoder := json.NewDecoder(body)
		for {
			var frame json.RawMessage
			if err := decoder.Decode(&frame); err != nil {
				failed <- err
				return
			}
			select {
			case frames <- frame:
			case <-stopped:
				return
			}
		}
	}()
	w := watched{id: id, what: side + " " + info.Resource, withheld: map[string]event{}}
	go func() {
		defer close(stopped)
		writer.CloseWithError(errors.Join(f.pass(writer, frames, failed, w), body.Close()))
	}()
	resp.Body = pipe{reader, body}
	return resp, nil
}

// pipe ends the watch when its reader does.
type pipe struct {
	*io.PipeReader
	body io.Closer
}

func (p pipe) Close() error { return errors.Join(p.PipeReader.Close(), p.body.Close()) }

// watched is one watch.
type watched struct {
	id, what string           // what is its side and resource
	withheld map[string]event // the last of each object
}

// pass returns nil, which is the end of the stream, when the watch has expired.
func (f *filter) pass(out io.Writer, frames <-chan json.RawMessage, failed <-chan error, w watched) error {
	for {
		f.mu.Lock()
		expire := f.expire
		ends := !f.shut && len(w.withheld) > 0
		f.mu.Unlock()
		if ends {
			_, err := io.WriteString(out, expired)
			return err
		}
		select {
		case err := <-failed:
			return err
		case <-expire:
		case frame := <-frames:
			var e event
			if err := json.Unmarshal(frame, &e); err != nil {
				return fmt.Errorf("watch event %s: %w", frame, err)
			}
			if f.withhold(e, w) {
				continue
			}
			if len(w.withheld) > 0 {
				continue // after the filter opened: what follows is in the next list
			}
			if _, err := out.Write(append(frame, '\n')); err != nil {
				return err
			}
		}
	}
}

// withhold says whether the filter is shut, and takes the event if so.
func (f *filter) withhold(e event, w watched) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.shut {
		return false
	}
	f.last = time.Now()
	if len(w.withheld) == 0 {
		f.away[w.id]++
	}
	if e.Type == "BOOKMARK" {
		w.withheld["bookmark"] = e // it may be the one that ends a first list
		return true
	}
	f.held.events++
	if before, ok := w.withheld[e.key()]; ok {
		f.held.intermediate++
		f.missed[w.what+"/"+e.Object.Name] = true
		if before.Type == "DELETED" && e.Type == "ADDED" {
			f.held.recreated++
		}
	}
	if e.Type == "DELETED" {
		f.held.deleted++
	}
	w.withheld[e.key()] = e
	return true
}
