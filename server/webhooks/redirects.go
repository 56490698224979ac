package webhooks

import (
	"fmt"
	"net/http"
)

// noRedirects keeps calls at the URL that was given: where it answers with a redirect to another one, which might be inside
// of the network that the server is in, the call fails.
type noRedirects struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	if err != nil || resp.StatusCode < 300 || resp.StatusCode > 399 {
		return resp, err
	}
	_ = resp.Body.Close() // nothing of it is read
	return nil, fmt.Errorf("the webhook at %s answers with a redirect (%s): redirects are not followed", req.URL.Redacted(), resp.Status)
}
