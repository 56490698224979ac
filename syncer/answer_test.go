package syncer

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/internal/weight"
)

// fill returns a text of that length, about, of items between its beginning and its end.
func fill(length int, beginning, item, end string) string {
	return beginning + strings.Repeat(item, max(0, length-len(beginning)-len(end))/len(item)) + end
}

// TestMemoryOfAnswer: no answer, error or event takes more memory than mostUnpacked, whatever is in it, and of whatever type it says
// that it is, for all ways in which a physical cluster is asked.
func TestMemoryOfAnswer(t *testing.T) {
	const lease = `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1",`
	texts := map[string]func(length int) string{
		"Maps":    func(n int) string { return fill(n, lease+`"spec":[`, `{},`, `0]}`) },
		"Keys":    func(n int) string { return fill(n, lease+`"spec":[`, `{"":0},`, `0]}`) },
		"Numbers": func(n int) string { return fill(n, lease+`"spec":[`, `999,`, `0]}`) },
		"NoUTF8":  func(n int) string { return fill(n, lease+`"spec":"`, "\xff", `"}`) },
		"Managed": func(n int) string { return fill(n, lease+`"metadata":{"managedFields":[`, `0,`, `0]}}`) },
		"Pods":    func(n int) string { return fill(n, `{"kind":"PodList","apiVersion":"v1","items":[`, `0,`, `0]}`) },
		"Partial": func(n int) string {
			return fill(n, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[`, `{},`, `{}]}`)
		},
		"Status": func(n int) string {
			return fill(n, `{"kind":"Status","apiVersion":"v1","status":"Failure","details":{"causes":[`, `0,`, `0]}}`)
		},
		"YAML": func(n int) string {
			return fill(n, "kind: Lease\napiVersion: coordination.k8s.io/v1\nspec:\n", "- []\n", "")
		},
	}
	var text, contentType string
	var code int
	s := newIdle(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		if r.URL.Query().Has("watch") && code == http.StatusOK {
			_, _ = io.WriteString(w, `{"type":"ADDED","object":`+text+"}\n")
			return
		}
		_, _ = io.WriteString(w, text)
	})
	ways := map[string]func(){
		"Lease":  func() { _, _ = s.physical.kube.Leases("n").Get(t.Context(), "n", metav1.GetOptions{}) },
		"Object": func() { _, _ = s.physical.dynamic.Resource(configMapsGVR).Get(t.Context(), "n", metav1.GetOptions{}) },
		"Watch": func() {
			w, err := s.physical.dynamic.Resource(configMapsGVR).Watch(t.Context(), metav1.ListOptions{})
			if err == nil {
				for range w.ResultChan() {
				}
			}
		},
		"Error": func() {
			code = http.StatusForbidden
			_, _ = s.physical.dynamic.Resource(configMapsGVR).Get(t.Context(), "n", metav1.GetOptions{})
		},
	}
	try := func(name, way string, ask func(), of func(length int) string, length int) {
		t.Run(fmt.Sprintf("%s/%s/%d", name, way, length), func(t *testing.T) {
			text, code, contentType = of(length), http.StatusOK, "application/json"
			for weight.Of([]byte(text)) > mostUnpacked*99/100 {
				text = of(len(text) * 9 / 10) // just not refused
			}
			if name == "YAML" {
				contentType = "application/yaml"
			}
			peak := peakOf(ask)
			t.Logf("%d bytes, which weigh %d, take %d", len(text), weight.Of([]byte(text)), peak)
			if peak > mostUnpacked {
				t.Errorf("they take more than %d", mostUnpacked)
			}
		})
	}
	for name, of := range texts {
		for way, ask := range ways {
			try(name, way, ask, of, mostOfAnswer-100)
		}
		try(name, "Lease", ways["Lease"], of, mostTyped)
	}
	t.Run("TooHeavy", func(t *testing.T) {
		text, code, contentType = texts["Keys"](mostOfAnswer-100), http.StatusOK, "application/json"
		_, err := s.physical.dynamic.Resource(configMapsGVR).Get(t.Context(), "n", metav1.GetOptions{})
		if err == nil {
			t.Fatalf("%d bytes, which weigh %d, are taken", len(text), weight.Of([]byte(text)))
		}
		if r := refusalOf(err); r == nil || r.reason != refusedUnreachable || !strings.Contains(r.message, "more memory than 128Mi") {
			t.Errorf("the error is %v, taken for %+v", err, r)
		}
	})
}
