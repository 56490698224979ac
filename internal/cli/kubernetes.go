package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// NotAnAtoll returns an error that says so, and what to do, if the kubeconfig points to a Kubernetes cluster; nil if it is an
// Atoll, or nothing there says what it is. A Kubernetes cluster has nothing below /clusters, and says so (404), or that the
// user may not read it (403); an Atoll never names that part of a path.
func (h *Hub) NotAnAtoll(ctx context.Context) error {
	if h.config == nil {
		return nil
	}
	path := clustersPrefix + root + "/version"
	code, answer, err := h.look(ctx, path)
	if err != nil {
		return nil // whatever brought us here says that it cannot be asked
	}
	status := &metav1.Status{}
	switch {
	case code == http.StatusNotFound:
	case code == http.StatusForbidden && json.Unmarshal(answer, status) == nil && strings.Contains(status.Message, path):
	default:
		return nil
	}
	code, answer, err = h.look(ctx, "/version")
	info := &version.Info{}
	if err != nil || code != http.StatusOK || json.Unmarshal(answer, info) != nil || info.GitVersion == "" {
		return nil
	}
	return fmt.Errorf(`this is a Kubernetes cluster, not an Atoll: %s, version %s, which %s points to
Name the kubeconfig of an Atoll with --kubeconfig (cluster commands: --hub-kubeconfig) or KUBECONFIG, or run this where "%s start" runs.
To run what is in an Atoll on this cluster, add it there: "%s cluster add NAME --kubeconfig FILE"`, h.Base, info.GitVersion, h.source, Self, Self)
}

// look returns what the server answers at a path outside of all logical clusters.
func (h *Hub) look(ctx context.Context, path string) (code int, answer []byte, err error) {
	client, err := rest.HTTPClientFor(h.config)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Base+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	return resp.StatusCode, answer, err
}
