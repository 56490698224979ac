package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditLog reads an audit log on from where it stopped reading. test/framework reads a whole one each time, which after
// a hundred runs is most of what this would do.
type auditLog struct {
	path   string
	offset int64
	writes []audited
}

// audited is one write that was answered.
type audited struct {
	id       string
	cluster  string // the logical one that was asked
	user     string
	verb     string
	resource string
	space    string // namespace; the name itself for a namespace
	name     string
	code     int32
	// answer is what it was, of a Job that was deleted: the log of the hub has it.
	answer []byte
}

func (a audited) String() string { return fmt.Sprintf("%s/%s", a.resource, a.name) }

// read returns every write since the log began.
func (l *auditLog) read(t testing.TB) []audited {
	t.Helper()
	f, err := os.Open(l.path)
	must(t, err)
	defer f.Close()
	_, err = f.Seek(l.offset, io.SeekStart)
	must(t, err)
	data, err := io.ReadAll(f)
	must(t, err)
	end := bytes.LastIndexByte(data, '\n') + 1 // what follows is still being written
	l.offset += int64(end)
	for line := range bytes.Lines(data[:end]) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v\n%s", l.path, err, line)
		}
		if e.Stage != auditv1.StageResponseComplete || e.ObjectRef == nil || e.ResponseStatus == nil {
			continue
		}
		a := audited{id: string(e.AuditID), user: e.User.Username, verb: e.Verb, resource: e.ObjectRef.Resource,
			space: e.ObjectRef.Namespace, name: e.ObjectRef.Name, code: e.ResponseStatus.Code}
		if rest, ok := strings.CutPrefix(e.RequestURI, "/clusters/"); ok {
			a.cluster, _, _ = strings.Cut(rest, "/")
		}
		if a.resource == "jobs" && a.verb == "delete" && e.ResponseObject != nil {
			a.answer = e.ResponseObject.Raw
		}
		if a.resource == "namespaces" {
			a.space = a.name
		}
		if e.ObjectRef.Subresource != "" {
			a.resource += "/" + e.ObjectRef.Subresource
		}
		l.writes = append(l.writes, a)
	}
	return l.writes
}

// numbers returns the numbers of a line's writes that a log shows.
func numbers(t testing.TB, l *line, log []audited) map[int]bool {
	t.Helper()
	found := map[int]bool{}
	for _, a := range log {
		if text, ok := strings.CutPrefix(a.id, l.name+"-"); ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(errors.Join(fmt.Errorf("audit id %q", a.id), err))
			}
			found[n] = true
		}
	}
	return found
}

// hubPolicy makes the server write what the physical clusters write: who changed what; and of a Job that is deleted how it was.
const hubPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  verbs: [get, list, watch]
- level: RequestResponse
  verbs: [delete]
  resources: [{group: batch, resources: [jobs]}]
- level: Metadata
`
