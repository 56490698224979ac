package syncer

import (
	"context"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

// TestGateCloses whenever who answers may be another than before: a physical cluster, or a hub, that was restored within
// the ten seconds between two heartbeats is not written to before they were compared.
func TestGateCloses(t *testing.T) {
	list := func(ctx context.Context, c dynamic.ResourceInterface) error {
		_, err := c.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err
	}
	watch := func(ctx context.Context, c dynamic.ResourceInterface) error {
		w, err := c.Watch(ctx, metav1.ListOptions{})
		if err == nil {
			w.Stop()
		}
		return err
	}
	get := func(ctx context.Context, c dynamic.ResourceInterface) error {
		_, err := c.Get(ctx, "settings", metav1.GetOptions{})
		return err
	}
	update := func(ctx context.Context, c dynamic.ResourceInterface) error {
		_, err := c.Update(ctx, configMap("3", "a"), metav1.UpdateOptions{})
		return err
	}
	answers := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if code != http.StatusOK {
				answer(t, w, code, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code)})
				return
			}
			if req.Method == http.MethodGet && shows(req) {
				answer(t, w, code, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": []any{}})
				return
			}
			answer(t, w, code, configMap("3", "a").Object)
		}
	}
	hangsUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, tc := range map[string]struct {
		does   func(context.Context, dynamic.ResourceInterface) error
		server http.HandlerFunc
		closes bool
		reason string
	}{
		"List":             {list, answers(http.StatusOK), true, "it shows another history if a restored one answers"},
		"Watch":            {watch, answers(http.StatusOK), true, "as a list; the one before may have ended without an error, and waited before it began anew"},
		"WatchRefused":     {watch, answers(http.StatusServiceUnavailable), true, "who answers next may be another"},
		"Get":              {get, answers(http.StatusOK), false, "the connection goes on"},
		"Write":            {update, answers(http.StatusOK), false, "the connection goes on"},
		"WriteRefused":     {update, answers(http.StatusForbidden), false, "the cluster is there, and says no"},
		"WriteConflicts":   {update, answers(http.StatusConflict), false, "the cluster is there, and says no"},
		"WriteWithoutEtcd": {update, answers(http.StatusServiceUnavailable), true, "what the server stores to may come back restored"},
		"WriteFails":       {update, answers(http.StatusInternalServerError), false, "a webhook there may answer so for ever"},
		"WriteCut":         {update, hangsUp, true, "who answers next may be another"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newIdle(t, tc.server, tc.server)
			for side, c := range map[string]dynamic.Interface{"mirror": s.mirror.dynamic, "physical cluster": s.physical.dynamic} {
				s.gate.open(s.gate.begin(), fine)
				began := s.gate.begin()
				err := tc.does(t.Context(), c.Resource(configMapsGVR).Namespace("shop-1"))
				if closed := s.gate.begin() != began; closed != tc.closes {
					t.Errorf("%s: %s: the gate closed: %t (the request: %v)", tc.reason, side, closed, err)
				}
			}
		})
	}
}

// TestGateStaysOpen when nobody wants an answer any more.
func TestGateStaysOpen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newIdle(t, nil, func(_ http.ResponseWriter, req *http.Request) {
		cancel()
		<-req.Context().Done()
	})
	s.gate.open(s.gate.begin(), fine)
	began := s.gate.begin()
	if _, err := s.physical.dynamic.Resource(configMapsGVR).Namespace("shop-1").Get(ctx, "settings", metav1.GetOptions{}); err == nil {
		t.Fatal("a request that was cancelled succeeded")
	}
	if s.gate.begin() != began {
		t.Error("the gate closed")
	}
}

// TestGateClosesWhenAWatchEnds, which is the first that is seen of a side that goes away.
func TestGateClosesWhenAWatchEnds(t *testing.T) {
	end := make(chan struct{})
	s := newIdle(t, nil, func(w http.ResponseWriter, req *http.Request) {
		w.(http.Flusher).Flush()
		<-end
	})
	w, err := s.physical.dynamic.Resource(configMapsGVR).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.gate.open(s.gate.begin(), fine)
	began := s.gate.begin()
	close(end)
	for range w.ResultChan() {
	}
	if s.gate.begin() == began {
		t.Error("the gate stays open")
	}
}
