package webhooks

import (
	"fmt"
	"io"
	"net/http"
)

// The most bytes that a webhook may answer: some for any answer, such as a patch that replaces an object, and a multiple of what
// it was asked, since a conversion answers with all objects of a list, which may be longer in the other version.
const (
	maxAnswer         = 8 << 20
	maxAnswerPerAsked = 4
)

// shortAnswers makes an error of an answer that is too long: upstream reads all of it into memory.
type shortAnswers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s shortAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	most := maxAnswer + maxAnswerPerAsked*max(0, req.ContentLength)
	resp.Body = &bounded{ReadCloser: resp.Body, url: req.URL.Redacted(), most: most, left: most}
	return resp, nil
}

// bounded is a body of which no more than most bytes can be read.
type bounded struct {
	io.ReadCloser
	url        string
	most, left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("the webhook at %s answers with more than %d bytes", b.url, b.most)
	}
	if int64(len(p)) > b.left+1 { // one more tells whether there is more
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left >= 0 {
		return n, err
	}
	return n - 1, fmt.Errorf("the webhook at %s answers with more than %d bytes", b.url, b.most)
}
