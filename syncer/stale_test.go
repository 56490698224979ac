package syncer

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestStaleMirror: a syncer whose watch of the mirror is behind, for instance because it was stopped while another took
// over, writes nothing on the ground of what it shows. Its watch of the physical cluster may be ahead of it.
func TestStaleMirror(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	now := metav1.Now()
	leaf := func(version, value string, deleted bool) *unstructured.Unstructured {
		l := configMap(version, value)
		l.SetUID("leaf-uid")
		l.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: "h-" + value})
		l.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
		if deleted {
			l.SetDeletionTimestamp(&now)
		}
		return l
	}
	another := leaf("9", "a", false)
	another.SetUID("another-leaf-uid")
	below := configMap("7", "b")
	for name, tc := range map[string]struct {
		seen, is, down *unstructured.Unstructured
		want           []string // verbs of writes downstream
		reason         string
	}{
		"Fresh":           {leaf("3", "a", false), leaf("3", "a", false), nil, []string{http.MethodPost}, "it is asked for"},
		"FreshTombstone":  {leaf("3", "a", true), leaf("3", "a", true), below, []string{http.MethodDelete}, "its end is asked for"},
		"GoneLong":        {leaf("3", "a", false), nil, nil, nil, "another syncer has carried out its tombstone"},
		"Deleted":         {leaf("3", "a", false), leaf("4", "a", true), nil, nil, "it is a tombstone"},
		"Changed":         {leaf("3", "a", false), leaf("4", "b", false), below, nil, "another syncer has applied what it says now"},
		"PlacedAnew":      {leaf("3", "a", true), another, below, nil, "the tombstone was carried out, and what is there is asked for"},
		"TombstoneIsGone": {leaf("3", "a", true), nil, below, nil, "what is there has nothing to do with that tombstone"},
	} {
		t.Run(name, func(t *testing.T) {
			var writes []string
			s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) {
				items := []any{}
				if tc.is != nil {
					items = append(items, tc.is.Object)
				}
				answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": items})
			}, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method != http.MethodGet:
					writes = append(writes, req.Method)
					answer(t, w, http.StatusOK, configMap("8", "a").Object)
				case tc.down == nil || !strings.HasSuffix(req.URL.Path, "/settings"):
					notFound(t, w)
				default:
					answer(t, w, http.StatusOK, tc.down.Object)
				}
			})
			if err := s.mirror.informers[configMapsGVR].Add(tc.seen); err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			if tc.seen.GetDeletionTimestamp() != nil {
				_, err := s.bury(t.Context(), k, tc.seen)
				t.Logf("bury: %v", err)
			} else if ok, err := s.mayWrite(t.Context(), k, tc.seen); ok {
				if _, err := s.apply(t.Context(), k, nil, render(tc.seen, "east-uid")); err != nil {
					t.Error(err)
				}
			} else {
				t.Logf("may not write: %v", err)
			}
			if !slices.Equal(writes, tc.want) {
				t.Errorf("%s: writes downstream are %v, want %v", tc.reason, writes, tc.want)
			}
		})
	}
}
