package framework

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditEvent is one write that a physical cluster's apiserver answered.
type AuditEvent struct {
	AuditID     string
	User        string // of the certificate or token, for example system:serviceaccount:NS:NAME
	UserAgent   string
	Verb        string // create, update, patch, delete or deletecollection
	Group       string // empty: the core group
	Resource    string
	Subresource string
	Namespace   string
	Name        string    // empty for a deletecollection, and for a create with generateName
	Code        int32     // HTTP status of the answer
	Time        time.Time // when the request came in
}

// AuditFilter selects events: those that equal every field that is not empty.
type AuditFilter struct {
	User, Verb, Resource, Subresource, Namespace, Name string
}

func (f AuditFilter) matches(e AuditEvent) bool {
	eq := func(want, got string) bool { return want == "" || want == got }
	return eq(f.User, e.User) && eq(f.Verb, e.Verb) && eq(f.Resource, e.Resource) &&
		eq(f.Subresource, e.Subresource) && eq(f.Namespace, e.Namespace) && eq(f.Name, e.Name)
}

// AuditEvents returns the answered writes that match, in the order of the answers, since the cluster was made.
// Every write whose answer a client-go client has is among them: the apiserver writes the event before it ends the
// HTTP/2 stream of the answer.
func (p *Physical) AuditEvents(filter AuditFilter) []AuditEvent {
	p.t.Helper()
	f, err := os.Open(p.AuditLog)
	if err != nil {
		p.t.Fatalf("physical cluster %q: %v", p.Name, err)
	}
	defer f.Close()

	var events []AuditEvent
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events // what follows the last line end is still being written
		}
		if err != nil {
			p.t.Fatalf("physical cluster %q: read its audit log: %v", p.Name, err)
		}
		e, ok := p.parseAudit(line)
		if ok && filter.matches(e) {
			events = append(events, e)
		}
	}
}

// parseAudit reports false for what is not the answer to a request for an object.
func (p *Physical) parseAudit(line []byte) (AuditEvent, bool) {
	p.t.Helper()
	var in auditv1.Event
	if err := json.Unmarshal(line, &in); err != nil {
		p.t.Fatalf("physical cluster %q: parse its audit log: %v\n%s", p.Name, err, line)
	}
	if in.Stage != auditv1.StageResponseComplete || in.ObjectRef == nil {
		return AuditEvent{}, false
	}
	out := AuditEvent{
		AuditID:     string(in.AuditID),
		User:        in.User.Username,
		UserAgent:   in.UserAgent,
		Verb:        in.Verb,
		Group:       in.ObjectRef.APIGroup,
		Resource:    in.ObjectRef.Resource,
		Subresource: in.ObjectRef.Subresource,
		Namespace:   in.ObjectRef.Namespace,
		Name:        in.ObjectRef.Name,
		Time:        in.RequestReceivedTimestamp.Time,
	}
	if in.ResponseStatus != nil {
		out.Code = in.ResponseStatus.Code
	}
	return out, true
}
