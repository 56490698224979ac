package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is what clients asked of one object and were answered, with the times of both. It is possible if each request
// can be given one moment between its call and its answer in which it took effect, such that all answers come out: then
// every acknowledged write happened, none happened twice, and no read was of a state that was over.

type requestKind string

const (
	createRequest requestKind = "create"
	updateRequest requestKind = "update"
	deleteRequest requestKind = "delete"
	getRequest    requestKind = "get"
)

// question is what was asked.
type question struct {
	kind  requestKind
	value string // of the object that is written, another for each write
	// expect is the resourceVersion that an update asks for; 0: any.
	expect uint64
}

type outcome string

const (
	done     outcome = "done"
	notFound outcome = "not found"
	exists   outcome = "already exists"
	conflict outcome = "conflict"
	// unknown is a write without an answer: it happened or it did not, but after the server is back it will not happen.
	unknown outcome = "no answer"
)

// reply to a request. After done, value and version are of the object as read or written; version is 0 for a delete.
type reply struct {
	outcome outcome
	value   string
	version uint64
}

// objectState is an object as the model has it.
type objectState struct {
	there bool
	value string
	// version is the object's resourceVersion; 0: not known, since the write that made it was not answered.
	version uint64
	// above is what the next resourceVersion is greater than.
	above uint64
}

// next returns the states in which the object may be after a request with that answer: none if the answer is wrong.
func (s objectState) next(r question, a reply) []objectState {
	written := objectState{there: true, value: r.value, version: a.version, above: max(s.above, a.version)}
	expected := r.expect == 0 || s.version == r.expect || s.version == 0 && r.expect > s.above
	var possible bool // that it took effect
	switch r.kind {
	case createRequest:
		possible = !s.there
	case updateRequest:
		possible = s.there && expected
	case deleteRequest:
		possible, written = s.there, objectState{above: max(s.above, s.version)}
	case getRequest:
		possible = s.there && s.value == a.value && (s.version == a.version || s.version == 0 && a.version > s.above)
		written.value = s.value
	}
	var right bool
	switch a.outcome {
	case unknown:
		if !possible {
			return []objectState{s}
		}
		return []objectState{s, written}
	case done:
		if writes := r.kind == createRequest || r.kind == updateRequest; possible && (!writes || a.version > s.above) {
			return []objectState{written}
		}
	case notFound:
		right = r.kind != createRequest && !s.there
	case exists:
		right = r.kind == createRequest && s.there
	case conflict:
		// Where the version is not known it may be any other.
		right = r.kind == updateRequest && r.expect != 0 && s.there && s.version != r.expect
	}
	if !right {
		return nil
	}
	return []objectState{s}
}

// operation is a request and its reply; call and returned are the times of a monotonic clock.
type operation struct {
	client         int
	request        question
	reply          reply
	call, returned time.Duration
}

// patienceOfCheck bounds the search of one history, which takes milliseconds.
const patienceOfCheck = time.Minute

// impossible says what is wrong with a history that begins in a state; "" if nothing is.
func impossible(began objectState, history []operation) string {
	model := (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{began} },
		Step: func(state, input, output any) []any {
			var next []any
			for _, s := range state.(objectState).next(input.(question), output.(reply)) {
				next = append(next, s)
			}
			return next
		},
	}).ToModel()
	var operations []porcupine.Operation
	for _, o := range history {
		operations = append(operations, porcupine.Operation{
			ClientId: o.client, Input: o.request, Call: int64(o.call), Output: o.reply, Return: int64(o.returned),
		})
	}
	result := porcupine.CheckOperationsTimeout(model, operations, patienceOfCheck)
	if result == porcupine.Ok {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: began as %+v", result, began)
	slices.SortFunc(history, func(a, b operation) int { return int(a.call - b.call) })
	for _, o := range history {
		fmt.Fprintf(&b, "\n  %v to %v, client %d: %+v -> %+v", o.call, o.returned, o.client, o.request, o.reply)
	}
	return b.String()
}

// TestI7_HistoriesAreJudged holds the judge: what must not happen is found.
func TestI7_HistoriesAreJudged(t *testing.T) {
	t.Parallel()
	create := question{kind: createRequest, value: "a"}
	update := question{kind: updateRequest, value: "b"}
	get, remove := question{kind: getRequest}, question{kind: deleteRequest}
	op := func(from, to int, r question, a reply) operation {
		return operation{request: r, reply: a, call: time.Duration(from), returned: time.Duration(to)}
	}
	created := op(1, 2, create, reply{outcome: done, value: "a", version: 5})
	tests := map[string]struct {
		history  []operation
		possible bool
		reason   string
	}{
		"in order": {
			[]operation{created, op(3, 4, update, reply{done, "b", 7}), op(5, 6, get, reply{done, "b", 7}), op(7, 8, remove, reply{outcome: done}), op(9, 10, get, reply{outcome: notFound})},
			true, "nothing is wrong",
		},
		"acknowledged and gone": {
			[]operation{created, op(3, 4, get, reply{outcome: notFound})},
			false, "an acknowledged create is lost",
		},
		"acknowledged and undone": {
			[]operation{created, op(3, 4, update, reply{done, "b", 7}), op(5, 6, get, reply{done, "a", 5})},
			false, "an acknowledged update is lost",
		},
		"deleted and back": {
			[]operation{created, op(3, 4, remove, reply{outcome: done}), op(5, 6, get, reply{done, "a", 5})},
			false, "an acknowledged delete is lost",
		},
		"read beside a write": {
			[]operation{created, op(3, 6, update, reply{done, "b", 7}), op(4, 5, get, reply{done, "a", 5})},
			true, "the update may happen after the read",
		},
		"read back and forth": {
			[]operation{created, op(3, 10, update, reply{done, "b", 7}), op(4, 5, get, reply{done, "b", 7}), op(6, 7, get, reply{done, "a", 5})},
			false, "who reads later sees an older state",
		},
		"version back": {
			[]operation{created, op(3, 4, update, reply{done, "b", 4})},
			false, "resourceVersions only grow",
		},
		"version back over a delete": {
			[]operation{created, op(3, 4, remove, reply{outcome: done}), op(5, 6, create, reply{done, "a", 5})},
			false, "they grow over the death of the object, too",
		},
		"version changed by nobody": {
			[]operation{created, op(3, 4, get, reply{done, "a", 6})},
			false, "nobody wrote",
		},
		"unanswered and done": {
			[]operation{created, op(3, 9, update, reply{outcome: unknown}), op(10, 11, get, reply{done, "b", 9}), op(12, 13, get, reply{done, "b", 9})},
			true, "a write without an answer may have happened",
		},
		"unanswered and not done": {
			[]operation{created, op(3, 9, update, reply{outcome: unknown}), op(10, 11, get, reply{done, "a", 5})},
			true, "or not",
		},
		"unanswered and then both": {
			[]operation{created, op(3, 9, update, reply{outcome: unknown}), op(10, 11, get, reply{done, "a", 5}), op(12, 13, get, reply{done, "b", 9})},
			false, "it does not happen after the server was away",
		},
		"unanswered, of an older version": {
			[]operation{created, op(3, 9, update, reply{outcome: unknown}), op(10, 11, get, reply{done, "b", 4})},
			false, "what happened has a greater version",
		},
		"two win": {
			[]operation{created, op(3, 6, question{updateRequest, "b", 5}, reply{done, "b", 7}), op(4, 5, question{updateRequest, "c", 5}, reply{done, "c", 8})},
			false, "of two updates of one version one is refused",
		},
		"one wins": {
			[]operation{created, op(3, 6, question{updateRequest, "b", 5}, reply{done, "b", 7}), op(4, 5, question{updateRequest, "c", 5}, reply{outcome: conflict})},
			true, "the other is",
		},
		"conflict with nobody": {
			[]operation{created, op(3, 4, question{updateRequest, "b", 5}, reply{outcome: conflict})},
			false, "nobody changed it",
		},
		"created twice": {
			[]operation{created, op(3, 4, create, reply{done, "a", 6})},
			false, "it is there",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			problem := impossible(objectState{}, tc.history)
			if (problem == "") != tc.possible {
				t.Errorf("possible: %v, want %v: %s\n%s", problem == "", tc.possible, tc.reason, problem)
			}
		})
	}
}
