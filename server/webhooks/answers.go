package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"atoll.dev/atoll/internal/budget"
	"atoll.dev/atoll/internal/weight"
)

// Purpose is what webhooks are called for.
type Purpose int

// The purposes, by which answers are bounded.
const (
	Validating Purpose = iota
	Mutating
	Conversion
)

// bounds are of one answer.
type bounds struct {
	// text is how many bytes any answer may have, and perAsked how many more for each that was asked: some webhooks send the question
	// back with the answer.
	text, perAsked int64
	// perByte is how many bytes of memory a byte of text may take beyond what its weight says.
	perByte int64
}

var boundsOf = map[Purpose]bounds{
	// A verdict. Two bytes may become one of its causes.
	Validating: {text: 1 << 20, perAsked: 1, perByte: 30},
	// A patch that replaces an object as long as one may be, in base64, through which nobody sees: three of four bytes of it may be JSON,
	// of which seven may become an operation.
	Mutating: {text: 5 << 20, perAsked: 1, perByte: 42},
	// All objects of a list, which may be longer in the other version.
	Conversion: {text: 8 << 20, perAsked: 4},
}

const (
	// mostPerByte is how many bytes of memory an answer may take for each byte that its text may have. What is not made to take many takes
	// fewer.
	mostPerByte = 64
	// uncounted is what an answer takes that counts for nothing, in bytes: the call itself takes as much. What most webhooks answer is
	// less, so that those of others, whatever they answer, do not keep them from anything.
	uncounted = 64 << 10
	// mostOfError is how many bytes are read of an answer that is no success: people see some 2,000 of them.
	mostOfError = 16 << 10
	// unpackedPerSecond is how many bytes of memory are filled in a second by what is unpacked, on a CPU that does other things, too:
	// upstream does not say when it has unpacked an answer, so that it counts for as long as that takes.
	unpackedPerSecond = 64 << 20
)

// answers bounds what is read of answers, of which upstream reads all into memory and unpacks it.
type answers struct {
	next    http.RoundTripper
	bounds  bounds
	budget  *budget.Budget
	cluster logicalcluster.Name
}

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := turn(req.Context()); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as a RoundTripper has to; it is in memory
		}
		return nil, err
	}
	resp, err := a.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		resp.Body = beginning{io.LimitReader(resp.Body, mostOfError), resp.Body}
		return resp, nil
	}
	resp.Body = &answer{ReadCloser: resp.Body, answers: a, url: req.URL.Redacted(), most: a.bounds.text + a.bounds.perAsked*max(0, req.ContentLength)}
	return resp, nil
}

// beginning is a body of which more is not read.
type beginning struct {
	io.Reader
	io.Closer
}

// answer is a body that is weighed as it is read.
type answer struct {
	io.ReadCloser
	answers
	url  string
	most int64 // bytes of text

	scale  weight.Scale
	text   int64 // bytes that were read
	begun  bool  // something but space was read
	taken  int64 // bytes of the budget
	err    error // that ended it
	closed sync.Once
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	if left := a.most - a.text; int64(len(p)) > left+1 { // one more tells whether there is more
		p = p[:left+1]
	}
	n, err := a.ReadCloser.Read(p)
	if why := a.count(p[:n]); why != nil {
		a.err = fmt.Errorf("the webhook at %s: %w", a.url, why)
		return 0, a.err
	}
	return n, err
}

var errNotJSON = errors.New("it answers with something other than a JSON object")

// count counts what was read, and says why no more is read.
func (a *answer) count(text []byte) error {
	a.text += int64(len(text))
	if a.text > a.most {
		return fmt.Errorf("it answers with more than %d bytes", a.most)
	}
	if !a.begun {
		if first := bytes.TrimLeft(text, " \t\r\n"); len(first) > 0 {
			if a.begun = true; first[0] != '{' { // what upstream would unpack besides JSON is YAML and protobuf, which are not weighed
				return errNotJSON
			}
		}
	}
	a.scale.Add(text)
	weighs := a.scale.N + a.bounds.perByte*a.text
	if most := mostPerByte * a.most; weighs > most {
		return fmt.Errorf("it answers with what would take more than %d MiB of memory", most>>20)
	}
	want := max(0, weighs-uncounted)
	if err := a.budget.Take(a.cluster, want-a.taken); err != nil {
		return err
	}
	a.taken = want
	return nil
}

// Close implements io.Closer. What was read in whole is unpacked after that.
func (a *answer) Close() error {
	a.closed.Do(func() {
		taken := a.taken
		switch {
		case taken == 0:
		case a.err != nil:
			a.budget.Give(a.cluster, taken)
		default:
			time.AfterFunc(time.Duration(taken)*time.Second/unpackedPerSecond, func() { a.budget.Give(a.cluster, taken) })
		}
	})
	return a.ReadCloser.Close()
}
