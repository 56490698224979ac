package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
}

// held is what was withheld, by all watches together.
type held struct {
	events int
	// intermediate are events whose states nobody ever sees: a later one was withheld as well.
	intermediate int
	// deleted are deletions, recreated are those after which an object of the same name came.
	deleted, recreated int
}

func newFilter() *filter { return &filter{expire: make(chan struct{})} }

func (f *filter) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut, f.last = true, time.Now()
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
func (f *filter) watch(next http.RoundTripper, side string, req *http.Request) (*http.Response, error) {
	resp, err := next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
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
	go func() {
		defer close(stopped)
		writer.CloseWithError(errors.Join(f.pass(writer, frames, failed), body.Close()))
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

// pass returns nil, which is the end of the stream, when the watch has expired.
func (f *filter) pass(out io.Writer, frames <-chan json.RawMessage, failed <-chan error) error {
	withheld := map[string]event{}
	for {
		f.mu.Lock()
		expire := f.expire
		shut := f.shut
		f.mu.Unlock()
		if !shut && len(withheld) > 0 {
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
			if f.withhold(e, withheld) {
				continue
			}
			if len(withheld) > 0 {
				continue // after the filter opened: what follows is in the next list
			}
			if _, err := out.Write(append(frame, '\n')); err != nil {
				return err
			}
		}
	}
}

// withhold says whether the filter is shut, and takes the event if so.
func (f *filter) withhold(e event, withheld map[string]event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.shut {
		return false
	}
	f.last = time.Now()
	if e.Type == "BOOKMARK" {
		withheld["bookmark"] = e // it may be the one that ends a first list
		return true
	}
	f.held.events++
	if before, ok := withheld[e.key()]; ok {
		f.held.intermediate++
		if before.Type == "DELETED" && e.Type == "ADDED" {
			f.held.recreated++
		}
	}
	if e.Type == "DELETED" {
		f.held.deleted++
	}
	withheld[e.key()] = e
	return true
}
