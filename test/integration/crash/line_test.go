package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"k8s.io/apimachinery/pkg/util/sets"
)

var errCrashed = errors.New("the process of this controller has crashed")

// hubSide names the server among the sides of a line; the others are the physical clusters' names.
const hubSide = "hub"

// line is what one life of a controller has of the world: all its requests go over it, and the fault sits in it. The
// zero fault is none.
type line struct {
	// name is unique, and the beginning of the Audit-ID of every write.
	name string
	// counts says which writes count for crashAfter.
	counts func(write) bool
	// crashAfter is the number of the write that is the last one; 0 never crashes.
	crashAfter int
	// older is what first lists show of each side; nil shows the present.
	older map[string]past
	// only is the one list that shows the past; empty is all of them.
	only string
	// ours says of a namespace of a physical cluster whether what is in it counts where a list shows all there is: all worlds share the clusters, and
	// what others do there comes and goes. nil counts everything.
	ours func(namespace string) bool
	// filter withholds watch events, if it is not nil.
	filter *filter

	crashed  chan struct{} // closed by the crash
	released chan struct{} // closed by release

	mu       sync.Mutex // guards all below
	writes   []write
	counted  int
	inflight sync.WaitGroup // writes
	last     time.Time      // of any request, or answer but of a watch
	waiting  int            // requests that are not answered, but watches
	requests int
	listed   map[string]bool
	stale    []string // lists that were answered with something else than the present
	faults   []error  // of this harness
}

// past is what a side was at one time.
type past struct {
	revision string
	// lists are answers, in JSON, that no side gives of an earlier revision, by idOf.
	lists map[string][]byte
}

// write is one mutating request, in the order of the line.
type write struct {
	side string
	info *apirequest.RequestInfo
	// by is the controller, where several share the line.
	by string
	// taken says that a server answered that it was written. What was refused, or never got there, may be in no audit log.
	taken bool
}

func (w write) String() string { return w.kind() + " " + w.info.Name }

// kind is the same for what a controller writes at the same point of any run.
func (w write) kind() string {
	i := w.info
	s := w.side + " " + i.Verb + " " + i.Resource
	if i.Subresource != "" {
		s += "/" + i.Subresource
	}
	if w.by != "" {
		s += " by " + w.by
	}
	return s
}

// partOf is which of the controllers that share a line asks, empty where it has one alone.
func partOf(req *http.Request) string {
	if part, ok := strings.CutPrefix(req.Header.Get("User-Agent"), partAgent); ok && slices.Contains(partsOfTheHouse, part) {
		return part
	}
	return ""
}

func newLine(name string, counts func(write) bool) *line {
	return &line{name: name, counts: counts, crashed: make(chan struct{}), released: make(chan struct{}), last: time.Now(), listed: map[string]bool{}}
}

// over returns a configuration whose requests go over the line.
func (l *line) over(side string, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return end{l, side, next} })
	return config
}

// end is one side's end of a line.
type end struct {
	*line
	side string
	next http.RoundTripper
}

var paths = &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

func infoOf(req *http.Request) (*apirequest.RequestInfo, error) {
	plain := *req
	u := *req.URL
	if rest, ok := strings.CutPrefix(u.Path, "/clusters/"); ok {
		_, path, _ := strings.Cut(rest, "/")
		u.Path = "/" + path
	}
	plain.URL = &u
	return paths.NewRequestInfo(&plain)
}

func (e end) RoundTrip(req *http.Request) (*http.Response, error) {
	info, err := infoOf(req)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.requests++
	e.last = time.Now()
	if info.Verb != "watch" {
		e.waiting++
		defer func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waiting--
			e.last = time.Now()
		}()
	}
	e.mu.Unlock()
	if e.isCrashed() {
		return nil, errCrashed
	}
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		return e.write(req, info)
	case info.Verb == "list" && e.older != nil && req.URL.Query().Has("resourceVersion"):
		return e.olderList(req)
	case info.Verb == "watch" && e.older != nil:
		return e.lateWatch(req)
	case info.Verb == "watch" && e.filter != nil:
		return e.filter.watch(e.next, e.side, info, inJSON(req))
	}
	resp, err := e.next.RoundTrip(req)
	if err == nil && info.Verb != "watch" && e.isCrashed() {
		return nil, errors.Join(errCrashed, resp.Body.Close())
	}
	return resp, err
}

func (l *line) isCrashed() bool {
	select {
	case <-l.crashed:
		return true
	default:
		return false
	}
}

// begin numbers a write; it blocks what comes after the last one until the crash. The number is the write's, from 1; last
// says that it is the one before the crash.
func (l *line) begin(w write) (number int, last bool, err error) {
	l.mu.Lock()
	if l.crashAfter > 0 && l.counted == l.crashAfter {
		l.mu.Unlock()
		<-l.crashed
		return 0, false, errCrashed
	}
	defer l.mu.Unlock()
	l.writes = append(l.writes, w)
	if l.counts(w) {
		l.counted++
		last = l.crashAfter > 0 && l.counted == l.crashAfter
	}
	l.inflight.Add(1)
	return len(l.writes), last, nil
}

// finish is called when the server has answered a write.
func (l *line) finish(last bool) error {
	l.inflight.Done()
	if !last {
		return nil
	}
	l.inflight.Wait() // what was sent before it is answered as well
	close(l.crashed)
	return errCrashed
}

func (e end) write(req *http.Request, info *apirequest.RequestInfo) (*http.Response, error) {
	number, last, err := e.begin(write{side: e.side, info: info, by: partOf(req)})
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set(auditinternal.HeaderAuditID, e.auditID(number))
	resp, err := e.next.RoundTrip(req)
	if err == nil && resp.StatusCode < http.StatusMultipleChoices {
		e.took(number)
	}
	if err == nil && last {
		// The audit log has it when the answer has ended.
		_, drained := io.Copy(io.Discard, resp.Body)
		err = errors.Join(drained, resp.Body.Close())
	}
	if crash := e.finish(last); crash != nil {
		return nil, errors.Join(crash, err)
	}
	return resp, err
}

// took notes that a server has written what a write asked for.
func (l *line) took(number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes[number-1].taken = true
}

func (l *line) auditID(number int) string { return fmt.Sprintf("%s-%d", l.name, number) }

// call is a write that is no request.
func (l *line) call(name string, do func() error) error {
	if l.isCrashed() {
		return errCrashed
	}
	_, last, err := l.begin(write{side: hubSide, info: &apirequest.RequestInfo{Verb: "call", Resource: name}})
	if err != nil {
		return err
	}
	err = do()
	return errors.Join(l.finish(last), err)
}

// inJSON asks for an answer in JSON.
func inJSON(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	accept := req.Header.Get("Accept")
	if strings.Contains(accept, "protobuf") {
		req.Header.Set("Accept", strings.ReplaceAll(accept, "application/vnd.kubernetes.protobuf", "application/json"))
	}
	return req
}

// olderList answers the first list of each resource from an earlier revision, and holds it against the present.
func (e end) olderList(req *http.Request) (*http.Response, error) {
	id := idOf(e.side, req)
	if e.only != "" && e.only != id {
		return e.next.RoundTrip(req)
	}
	e.mu.Lock()
	first := !e.listed[id]
	e.listed[id] = true
	e.mu.Unlock()
	if !first {
		return e.next.RoundTrip(req)
	}
	was := e.older[e.side]
	resp, then, err := e.listOf(req, "")
	now := then
	if body, kept := was.lists[id]; err == nil && kept {
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		then, err = versionsOf(body, "", nil)
	} else if err == nil {
		resp, then, err = e.listOf(req, was.revision)
	}
	if err != nil {
		err = fmt.Errorf("list %s: %w", id, err)
		if req.Context().Err() == nil {
			e.mu.Lock()
			e.faults = append(e.faults, err)
			e.mu.Unlock()
		}
		return nil, err
	}
	if different(then, now) {
		e.mu.Lock()
		e.stale = append(e.stale, id)
		e.mu.Unlock()
	}
	return resp, nil
}

// listOf asks for a list as it was at a revision, or, if that is empty, as it is, and returns the versions of its objects by UID, too.
func (e end) listOf(req *http.Request, revision string) (*http.Response, map[string]string, error) {
	req = inJSON(req)
	u := *req.URL
	q := u.Query()
	q.Del("resourceVersion")
	if revision != "" {
		q.Set("resourceVersion", revision)
		q.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	u.RawQuery = q.Encode()
	req.URL = &u
	resp, err := e.next.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("at %q: %s: %s", revision, resp.Status, body)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	var counts func(namespace string) bool
	if e.side != hubSide && !q.Has("labelSelector") {
		counts = e.ours
	}
	versions, err := versionsOf(body, revision, counts)
	return resp, versions, err
}

// versionsOf reads the versions of a list's objects by UID, of a whole list, and of a revision, if it is not empty; of those in namespaces that count, if
// that is not nil.
func versionsOf(body []byte, revision string, counts func(namespace string) bool) (map[string]string, error) {
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if revision != "" && list.ResourceVersion != revision {
		return nil, fmt.Errorf("at %q is of %q", revision, list.ResourceVersion)
	}
	if list.Continue != "" {
		return nil, errors.New("it has more than a page")
	}
	versions := map[string]string{}
	for _, o := range list.Items {
		if counts == nil || o.Namespace == "" || counts(o.Namespace) {
			versions[string(o.UID)] = o.ResourceVersion
		}
	}
	return versions, nil
}

// idOf is the same for equal lists and watches in all lives.
func idOf(side string, req *http.Request) string {
	query := req.URL.Query()
	id := side + " " + req.URL.Path
	for _, selector := range []string{"fieldSelector", "labelSelector"} {
		if s := query.Get(selector); s != "" {
			id += " " + s
		}
	}
	if part := partOf(req); part != "" { // each has its own
		id += " by " + part
	}
	return id
}

func different(a, b map[string]string) bool {
	for uid, version := range a {
		if b[uid] != version {
			return true
		}
	}
	return len(a) != len(b)
}

// lateWatch makes a client list instead of streaming its first list, and holds its watches back until release.
func (e end) lateWatch(req *http.Request) (*http.Response, error) {
	if e.only != "" && e.only != idOf(e.side, req) {
		return e.next.RoundTrip(req)
	}
	if req.URL.Query().Has("sendInitialEvents") {
		status, err := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: "no streaming lists here",
		})
		if err != nil {
			return nil, err
		}
		return &http.Response{
			Status: "422 Unprocessable Entity", StatusCode: http.StatusUnprocessableEntity, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(status)), Request: req,
		}, nil
	}
	select {
	case <-e.released:
		return e.next.RoundTrip(req)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// release lets watches catch up.
func (l *line) release() { close(l.released) }

// quietFor is how long a line has had no request since its first, and none that is not answered.
func (l *line) quietFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == 0 || l.waiting > 0 {
		return 0
	}
	return time.Since(l.last)
}

// hasListed says whether a list has been asked for, the first of any if it is "".
func (l *line) hasListed(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listed[id] || id == "" && len(l.listed) > 0
}

// sent returns the writes until now, and how many of them count.
func (l *line) sent() ([]write, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.writes), l.counted
}

// staleLists returns which lists differed from the present, of how many, and what went wrong with them.
func (l *line) staleLists() (stale []string, lists int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.stale), len(l.listed), errors.Join(l.faults...)
}
