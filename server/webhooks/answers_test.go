package webhooks

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/internal/budget"
)

// An answer without end is an error, and so is one that would be without end if it were unpacked.
func TestAnswersAreBounded(t *testing.T) {
	spaces := bytes.Repeat([]byte(" "), 1<<20)
	write := func(w io.Writer, text []byte) bool {
		_, err := w.Write(text)
		return err == nil // or the client had enough
	}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/endless", "/error":
			if req.URL.Path == "/error" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			for ok := write(w, []byte("{")); ok && req.Context().Err() == nil; {
				ok = write(w, spaces)
			}
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			bomb := gzip.NewWriter(w)
			for range 16 {
				write(bomb, spaces)
			}
			if err := bomb.Close(); err != nil {
				t.Error(err)
			}
		case "/list":
			write(w, []byte("\n{"))
			for range boundsOf[Conversion].text>>20 + 3 {
				write(w, spaces)
			}
		case "/yaml":
			write(w, []byte("kind: AdmissionReview\n"))
		}
	}))
	defer hook.Close()
	const free = "" // it is read to its end
	for _, tc := range []struct {
		path   string
		to     Purpose
		asked  int
		most   int64 // bytes that may be read
		want   string
		reason string
	}{
		{"/endless", Conversion, 2, 8<<20 + 8, "answers with more than", "an answer without end"},
		{"/endless", Mutating, 2, 5<<20 + 2, "answers with more than", "a patch without end"},
		{"/endless", Validating, 2, 1<<20 + 2, "answers with more than", "a verdict without end"},
		{"/endless", Validating, len(spaces), 2 << 20, "answers with more than", "a verdict without end, with what was asked"},
		{"/error", Validating, 2, mostOfError, free, "an error without end"},
		{"/bomb", Conversion, 2, 0, "other than a JSON object", "an answer that is packed is not unpacked"},
		{"/yaml", Mutating, 2, 0, "other than a JSON object", "YAML is not weighed"},
		{"/list", Conversion, len(spaces), 12 << 20, free, "a long question may have a long answer"},
		{"/list", Conversion, 2, 8<<20 + 8, "answers with more than", "a short question may not"},
	} {
		config, err := NewCaller(loopback()).Resolver(tc.to, "shop", nil)(nil).ClientConfigFor("")
		if err != nil {
			t.Fatal(err)
		}
		c, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseIdleConnections()
		resp, err := c.Post(hook.URL+tc.path, "application/json", bytes.NewReader(spaces[:tc.asked]))
		if err != nil {
			t.Fatal(err)
		}
		read, err := io.CopyN(io.Discard, resp.Body, 32<<20) // without a bound, enough to see that there is none
		resp.Body.Close()
		if tc.want == free && !errors.Is(err, io.EOF) || tc.want != free && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %d bytes, then %v", tc.reason, read, err)
		}
		if read > tc.most {
			t.Errorf("%s: %d bytes were read, want at most %d", tc.reason, read, tc.most)
		}
	}
}

// says is a webhook that always answers the same.
type says string

// RoundTrip implements http.RoundTripper.
func (s says) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(s)))}, nil
}

// begin returns an answer of which nothing is read.
func begin(t *testing.T, text string, to Purpose, cluster logicalcluster.Name, b *budget.Budget) *answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://webhook.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := answers{says(text), boundsOf[to], b, cluster}.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body.(*answer)
}

// taken is what all logical clusters have taken.
func taken(b *budget.Budget) (all int64) {
	for _, n := range b.Taken() {
		all += n
	}
	return all
}

const verdict = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}`

// causes is a verdict that takes many times its length to unpack.
func causes(n int, one string) string {
	return `{"response":{"status":{"details":{"causes":[` + strings.Repeat(one+",", n-1) + one + `]}}}}`
}

// TestAnswersTogether: all answers that are read and unpacked at once, of one logical cluster and of all, take no more than they may, and
// short ones are read whatever others take.
func TestAnswersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(mostOfAll, mostOfOne)
		large := causes(200_000, "{}")
		var open []*answer
		try := func(cluster logicalcluster.Name, text string) error {
			a := begin(t, text, Validating, cluster, b)
			if _, err := io.Copy(io.Discard, a); err != nil {
				a.Close()
				return err
			}
			open = append(open, a)
			return nil
		}
		refused := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d bytes are taken: %v, want %q", taken(b), err, want)
			}
		}
		for try("loud", large) == nil {
			if len(open) == 100 {
				t.Fatal("a hundred are read at once")
			}
		}
		one := open[0].taken
		refused(try("loud", large), "more memory at once than the 256Mi")
		if n, all := int64(len(open)), taken(b); all != n*one || all > mostOfOne || all+one <= mostOfOne {
			t.Errorf("%d answers take %d bytes, want as many as fit into %d", n, all, int64(mostOfOne))
		}
		if err := try("quiet", large); err != nil {
			t.Errorf("another logical cluster has no room: %v", err)
		}
		for i := range 5 {
			for try(logicalcluster.Name(fmt.Sprint("loud", i)), large) == nil {
			}
		}
		refused(try("quiet", large), "all of the 1Gi of memory")
		for _, cluster := range []logicalcluster.Name{"quiet", "loud"} {
			if err := try(cluster, verdict); err != nil {
				t.Errorf("a short answer in %s: %v", cluster, err)
			}
		}
		for _, a := range open {
			a.Close()
			a.Close()
		}
		if taken(b) == 0 {
			t.Error("what is not yet unpacked does not count")
		}
		time.Sleep(2 * time.Duration(one) * time.Second / unpackedPerSecond)
		synctest.Wait()
		if len(b.Taken()) != 0 {
			t.Errorf("%v bytes are taken after the last answer", b.Taken())
		}
	})
}

// inUse is how many bytes are in use.
func inUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestWhatAnswersTake: what upstream makes of an answer takes no more memory than counted for it, whatever is in it, and what would take too
// much is not read.
func TestWhatAnswersTake(t *testing.T) {
	scheme := kuberuntime.NewScheme()
	if err := errors.Join(admissionv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(admissionv1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
	const admission, conversion = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":`, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":`
	patch := func(operation string, n int) string {
		return admission + `{"patch":"` + base64.StdEncoding.EncodeToString([]byte("["+strings.Repeat(operation+",", n)+operation+"]")) + `"}}`
	}
	of := func(list string, one string, n int) string { return fmt.Sprintf(list, strings.Repeat(one+",", n)+one) }
	for name, tc := range map[string]struct {
		to      Purpose
		text    string
		refused bool
	}{
		"Short":        {Validating, verdict, false},
		"Causes":       {Validating, of(admission+`{"status":{"details":{"causes":[%s]}}}}`, `{}`, 200_000), false},
		"No causes":    {Validating, of(admission+`{"status":{"details":{"causes":[%s]}}}}`, `0`, 200_000), false},
		"Warnings":     {Validating, of(admission+`{"warnings":[%s]}}`, `""`, 200_000), false},
		"No UTF-8":     {Validating, admission + `{"warnings":["` + strings.Repeat("\xff", 500_000) + `"]}}`, false},
		"Many causes":  {Validating, of(admission+`{"status":{"details":{"causes":[%s]}}}}`, `{}`, 340_000), true},
		"Patch":        {Mutating, patch(`{"":0}`, 100_000), false},
		"Maps":         {Mutating, patch(`{}`, 200_000), false},
		"Large":        {Mutating, patch(`{"op":"add","path":"/data","value":"`+strings.Repeat("x", 3_500_000)+`"}`, 0), false},
		"Objects":      {Conversion, of(conversion+`{"convertedObjects":[{"kind":"A","spec":[%s]}]}}`, `{}`, 300_000), false},
		"Keys":         {Conversion, of(conversion+`{"convertedObjects":[{"kind":"A","spec":[%s]}]}}`, `{"":0}`, 100_000), false},
		"Many objects": {Conversion, of(conversion+`{"convertedObjects":[{"kind":"A","spec":[%s]}]}}`, `{"":0}`, 1_000_000), true},
	} {
		t.Run(name, func(t *testing.T) {
			a := begin(t, tc.text, tc.to, "shop", newBudget(mostOfAll, mostOfOne))
			before := inUse()
			data, err := io.ReadAll(a)
			if tc.refused {
				if err == nil || !strings.Contains(err.Error(), "memory") {
					t.Errorf("%d bytes are read, then %v", len(data), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			made := []any{data}
			if tc.to == Conversion {
				review := &apiextensionsv1.ConversionReview{}
				_ = kuberuntime.DecodeInto(codec, data, review)
				for _, o := range review.Response.ConvertedObjects {
					object := &unstructured.Unstructured{}
					_ = object.UnmarshalJSON(o.Raw)
					made = append(made, object)
				}
				made = append(made, review)
			} else {
				review := &admissionv1.AdmissionReview{}
				_ = kuberuntime.DecodeInto(codec, data, review)
				var operations []map[string]*json.RawMessage // as upstream's patches are
				_ = json.Unmarshal(review.Response.Patch, &operations)
				made = append(made, review, operations)
			}
			took, counted := inUse()-before, a.taken+uncounted
			runtime.KeepAlive(made)
			t.Logf("%d bytes take %d, and count for %d", len(tc.text), took, counted)
			if took > counted {
				t.Errorf("%d bytes take %d, and count for %d", len(tc.text), took, counted)
			}
		})
	}
}
