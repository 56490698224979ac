package splitter

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestPickCandidate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason     string
		candidates []Candidate
		want       string // "" for none
	}{
		"none":      {"there is no cluster", nil, ""},
		"first":     {"equal input gives equal output", []Candidate{{Name: "west", Weight: 1}, {Name: "east", Weight: 1}}, "east"},
		"heaviest":  {"what is bound once cannot be divided", []Candidate{{Name: "east", Weight: 1}, {Name: "west", Weight: 3}}, "west"},
		"peers":     {"members reach each other's addresses", []Candidate{{Name: "east", Weight: 3}, {Name: "west", Weight: 1, Peers: true}}, "west"},
		"barred":    {"its syncer would let the pod lie", []Candidate{{Name: "east", Barred: true, Peers: true}, {Name: "west"}}, "west"},
		"unheard":   {"nobody would run it now", []Candidate{{Name: "east", Unheard: true, Weight: 9}, {Name: "west"}}, "west"},
		"no choice": {"it waits", []Candidate{{Name: "east", Unheard: true}, {Name: "west", Barred: true}}, ""},
	} {
		got := ""
		if i, ok := PickCandidate(tc.candidates); ok {
			got = tc.candidates[i].Name
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}

// TestBindInANamespaceThatEnds: that a pod is not bound any more, since its namespace is being deleted, is no error.
func TestBindInANamespaceThatEnds(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "p", UID: "p", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	m := newMirrored(t, pod, spaceIn(mirrorEast), placementOf("", "Placed", mirrorEast))
	refusal := apierrors.NewForbidden(corev1.Resource("pods"), pod.Name, errors.New("namespace front is being terminated"))
	asked := 0
	m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{
		SubResourceCreate: func(context.Context, ctrlclient.Client, string, ctrlclient.Object, ctrlclient.Object, ...ctrlclient.SubResourceCreateOption) error {
			asked++
			return refusal
		},
	})
	if ready, err := m.bindTo(t.Context(), pod, mirrorEast, "east"); err == nil || ready || asked != 1 {
		t.Errorf("asked %d times, it is refused for something else: %t, %v", asked, ready, err)
	}
	refusal.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	if ready, err := m.bindTo(t.Context(), pod, mirrorEast, "east"); err != nil || ready || asked != 2 {
		t.Errorf("asked %d times, the namespace ends: %t, %v", asked, ready, err)
	}
}
