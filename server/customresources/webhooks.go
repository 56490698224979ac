package customresources

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// withoutRedirects keeps calls to conversion webhooks at the URL of the definition: where it answers with a redirect to
// another one, which might be inside of the network that the server is in, the call fails.
func withoutRedirects(anonymous webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			config, err := anonymous.ClientConfigFor(hostPort)
			if err != nil {
				return nil, err
			}
			config = rest.CopyConfig(config)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return noRedirects{next} })
			return config, nil
		},
		ClientConfigForServiceFunc: anonymous.ClientConfigForService,
	}
}

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
