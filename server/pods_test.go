package server

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// heard keeps the warnings of a client.
type heard struct {
	mu   sync.Mutex // guards text
	text []string
}

func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, text)
}

// TestWherePodsAre: who waits for the pods of a namespace, as kubectl logs deployment/web does for a minute, is told at once why there are none.
func TestWherePodsAre(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, team)
	for name, tc := range map[string]struct {
		reason, path, namespace, selector string
		told                              bool
	}{
		"by selector": {"as kubectl logs and exec ask", clustersPrefix + string(shop), team, "app=web", true},
		"all":         {"as kubectl get pods asks", clustersPrefix + string(shop), team, "", true},
		"everywhere":  {"as controllers ask, to whom it says nothing", clustersPrefix + string(shop), "", "", false},
		"mirror":      {"nobody looks there for pods of his own", clustersPrefix + string(east), team, "", false},
	} {
		said := &heard{}
		config := rest.CopyConfig(r.LoopbackConfig())
		config.WarningHandler = said
		if _, err := r.as(t, config, tc.path).CoreV1().Pods(tc.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: tc.selector}); err != nil {
			t.Fatal(err)
		}
		told := len(said.text) == 1 && strings.Contains(said.text[0], "run in physical clusters and are not shown in a workspace yet")
		if diff := cmp.Diff(tc.told, told); diff != "" || !tc.told && len(said.text) > 0 {
			t.Errorf("%s: %q: %s", name, said.text, tc.reason)
		}
	}
}
