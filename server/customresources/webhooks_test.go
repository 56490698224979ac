package customresources

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// A webhook is called at its URL, and nobody else for it.
func TestWebhooksAreNotRedirected(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer other.Close()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/moved" {
			http.Redirect(w, req, other.URL, http.StatusTemporaryRedirect)
		}
	}))
	defer hook.Close()
	anonymous, err := webhook.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		t.Fatal(err)
	}
	config, err := withoutRedirects(anonymous).ClientConfigFor(strings.TrimPrefix(hook.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(hook.URL+"/here", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	resp, err = client.Post(hook.URL+"/moved", "application/json", strings.NewReader("{}"))
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
		t.Errorf("a redirect: %v, want an error that says why", err)
	}
}
