package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
)

// What a controller writes has its name in managedFields and in the audit log.
func TestControllersWriteUnderTheirNames(t *testing.T) {
	agents := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		agents <- req.UserAgent()
		http.NotFound(w, req)
	}))
	defer server.Close()
	clients, err := client.New(&rest.Config{Host: server.URL, UserAgent: "atoll-server"})
	if err != nil {
		t.Fatal(err)
	}
	splitter := controller{name: "splitter", run: func(ctx context.Context) error {
		err := clients.Objects.Get(client.In(ctx, "a1"), ctrlclient.ObjectKey{Namespace: "a", Name: "b"}, &corev1.ConfigMap{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read what is not there: %w", err)
		}
		return nil
	}}
	if err := (&crew{}).run(t.Context(), []controller{splitter}); err != nil {
		t.Fatal(err)
	}
	if got := <-agents; got != "atoll-splitter" {
		t.Errorf("the splitter asks as %q", got)
	}
}
