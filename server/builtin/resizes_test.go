package builtin

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// speechless are Kubelets of a physical cluster that says nothing, however long it is waited for.
type speechless struct{ asked int }

func (s *speechless) Reach(ctx context.Context, _ metav1.Object) (func() net.Conn, error) {
	s.asked++
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestMayResizePatience: however often a resize is tried, and whatever else of the pod is resized meanwhile, who asks for it
// waits ten seconds for a physical cluster in all. The next one does anew.
func TestMayResizePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubelets := &speechless{}
		ways := NewWays(kubelets)
		pod := func(resized string) *api.Pod {
			return &api.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels:      map[string]string{workloadv1alpha1.MirrorLabel: "east"},
				Annotations: map[string]string{workloadv1alpha1.PodUIDAnnotation: "uid", workloadv1alpha1.ResizedAnnotation: resized},
			}, Spec: api.PodSpec{NodeName: "east"}}
		}
		for request := 1; request <= 2; request++ {
			began := time.Now()
			ctx := withResizeAnswers(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"}))
			for _, resized := range []string{"a", "a", "b", "a", "b"} {
				if err := ways.MayResize(ctx, pod(resized)); err != nil {
					t.Errorf("%s: %v, want that nothing is refused", resized, err)
				}
			}
			if took := time.Since(began); took != mayResizePatience || kubelets.asked != request {
				t.Errorf("request %d: it took %s, want %s; %d were asked", request, took, mayResizePatience, kubelets.asked)
			}
		}
	})
}

// TestRefusesResize: what is no answer to what was asked refuses nothing.
func TestRefusesResize(t *testing.T) {
	for code, want := range map[int]bool{
		0: false, http.StatusOK: false, http.StatusBadRequest: true, http.StatusForbidden: true, http.StatusNotFound: false, http.StatusConflict: false,
		http.StatusUnprocessableEntity: true, http.StatusTooManyRequests: false, http.StatusInternalServerError: false, http.StatusNotImplemented: true, http.StatusServiceUnavailable: false,
	} {
		if got := refusesResize(code, "no"); got != want {
			t.Errorf("%d refuses: %v, want %v", code, got, want)
		}
	}
	if refusesResize(http.StatusBadRequest, `physical cluster "east": admission webhook "w" does not support dry run`) {
		t.Error("a webhook that cannot be asked for nothing refuses")
	}
}
