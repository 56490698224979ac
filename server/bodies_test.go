package server

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/weight"
)

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// TestBodiesAreBounded: what a request's body would take once decoded counts for its workspace until it is answered, but for
// small ones, which pass whatever others take; who is refused is told what to do, and when.
func TestBodiesAreBounded(t *testing.T) {
	const most = 3 << 20
	s := &Server{serializer: legacyscheme.Codecs}
	working, hold := make(chan struct{}), make(chan struct{})
	handler := s.withBodies(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if text, err := io.ReadAll(req.Body); err != nil || req.Header.Get("Length") != "" && fmt.Sprint(len(text)) != req.Header.Get("Length") {
			t.Errorf("the body that is handed on has %d bytes, want %s: %v", len(text), req.Header.Get("Length"), err)
		}
		if req.Header.Get("Hold") != "" {
			working <- struct{}{}
			<-hold
		}
		w.WriteHeader(http.StatusNoContent)
	}), func(_ *http.Request, info *request.RequestInfo) bool { return info.Subresource == "proxy" }, most)
	type sent struct {
		cluster     logicalcluster.Name
		body        string
		subresource string
		contentType string
		groups      []string
		hold        bool
	}
	send := func(is sent) *httptest.ResponseRecorder {
		t.Helper()
		req := httptest.NewRequest(http.MethodPost, definitionsPath, strings.NewReader(is.body))
		req.Header.Set("Content-Type", is.contentType)
		req.Header.Set("Length", fmt.Sprint(len(is.body)))
		if is.hold {
			req.Header.Set("Hold", "true")
		}
		ctx := lcctx.WithCluster(req.Context(), lcctx.Cluster{Name: is.cluster})
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "somebody", Groups: is.groups})
		ctx = request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Subresource: is.subresource})
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req.WithContext(ctx))
		return w
	}
	passes := func(what string, is sent) {
		t.Helper()
		if w := send(is); w.Code != http.StatusNoContent {
			t.Errorf("%s: %d %s, want that it passes", what, w.Code, w.Body)
		}
	}
	refused := func(what string, is sent, code int, says string) {
		t.Helper()
		w := send(is)
		if w.Code != code || !strings.Contains(w.Body.String(), says) || !strings.Contains(w.Body.String(), "create customresourcedefinitions.apiextensions.k8s.io: ") {
			t.Errorf("%s: %d %s, want %d and %q", what, w.Code, w.Body, code, says)
		}
		if retry := w.Header().Get("Retry-After"); (retry == "2") != (code == http.StatusTooManyRequests) {
			t.Errorf("%s: Retry-After %q", what, retry)
		}
	}
	const mib = 1 << 20 / weight.ElementBytes // elements
	var (
		small  = definitionOf("widgets", "", "},")
		usual  = nothings(12 * mib)
		large  = nothings(404 * mib)
		larger = nothings(most/3 - 10)
		again  = "a: &a [{}]\nb: [*a, *a]\n"
	)
	refused("one that is too large by itself", sent{cluster: "shop", body: larger}, http.StatusRequestEntityTooLarge, "of memory once decoded, and may take 512Mi")
	passes("one that is longer than any may be, which is refused by who reads it", sent{cluster: "shop", body: strings.Repeat(" ", most+7)})
	passes("one of an administrator", sent{cluster: "shop", body: larger, groups: []string{user.SystemPrivilegedGroup}})
	passes("one that is no object", sent{cluster: "shop", body: larger, subresource: "proxy"})

	var requests sync.WaitGroup
	begin := func(is sent) {
		t.Helper()
		is.hold = true
		ended := make(chan struct{})
		requests.Go(func() {
			defer close(ended)
			passes("one that lasts", is)
		})
		select {
		case <-working:
		case <-ended: // it was refused
		}
	}
	begin(sent{cluster: "shop", body: large})
	refused("a second one", sent{cluster: "shop", body: large}, http.StatusTooManyRequests, "the bodies of this workspace's requests, decoded, would take more memory at once than the 512Mi that they may: they have to be shorter, or fewer at a time")
	refused("one that multiplies itself", sent{cluster: "shop", body: again, contentType: "application/yaml"}, http.StatusTooManyRequests, "512Mi")
	passes("one of the usual size", sent{cluster: "shop", body: usual})
	passes("a second one of another workspace", sent{cluster: "bank", body: large})
	for _, hostile := range []logicalcluster.Name{"h1", "h2", "h3"} {
		begin(sent{cluster: hostile, body: large})
	}
	begin(sent{cluster: "h4", body: large})
	refused("a large one while others have all", sent{cluster: "bank", body: large}, http.StatusTooManyRequests, "the bodies of all requests to this server, decoded, take all of the 2Gi of memory that they may: try again")
	for range 2 {
		begin(sent{cluster: "h4", body: usual})
	}
	passes("one of the usual size while others have all", sent{cluster: "bank", body: usual})
	for i := range mostUsualBodies / mostUsualOfOne {
		for range 2 {
			begin(sent{cluster: logicalcluster.Name(fmt.Sprint("u", i)), body: nothings(15 * mib)})
		}
	}
	begin(sent{cluster: "v", body: nothings(15 * mib)})
	refused("one of the usual size while others have even that", sent{cluster: "bank", body: nothings(15 * mib)}, http.StatusTooManyRequests, "the bodies of all requests to this server")
	left := func(i int) bool { // room for one more that counts
		code := make(chan int, 1)
		requests.Go(func() {
			code <- send(sent{cluster: logicalcluster.Name(fmt.Sprint("w", i)), body: nothings(21 * mib / 10), hold: true}).Code
		})
		select {
		case <-working:
			return true
		case <-code:
			return false
		}
	}
	for i := 0; left(i); i++ {
	}
	passes("a small one while others have even that", sent{cluster: "bank", body: nothings(19 * mib / 10)})
	passes("one of the smallest", sent{cluster: "bank", body: small})
	close(hold)
	requests.Wait()
	passes("a large one when the others are answered", sent{cluster: "bank", body: large})
	passes("one that multiplies itself, alone", sent{cluster: "shop", body: again, contentType: "application/yaml"})
}

// A body that cannot be read fails for who reads it as it did.
func TestBodyThatFails(t *testing.T) {
	why := errors.New("of the test")
	s := &Server{serializer: legacyscheme.Codecs}
	handler := s.withBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if text, err := io.ReadAll(req.Body); string(text) != "{}" || !errors.Is(err, why) {
			t.Errorf("%q, %v: want what was sent until it failed, and why", text, err)
		}
	}), func(*http.Request, *request.RequestInfo) bool { return false }, 100)
	req := httptest.NewRequest(http.MethodPost, definitionsPath, io.MultiReader(strings.NewReader("{}"), failed{why}))
	handler.ServeHTTP(httptest.NewRecorder(), req.WithContext(request.WithRequestInfo(req.Context(), &request.RequestInfo{IsResourceRequest: true})))
}

// TestElementBytes: no element of any list or map of any type that is decoded takes more than it counts for, in the version that
// is sent and as the server has it.
func TestElementBytes(t *testing.T) {
	definitions := apiruntime.NewScheme()
	apiextensionsinstall.Install(definitions)
	type where struct{ internal, item bool }
	type inside struct {
		reflect.Type
		repeated bool
	}
	for _, s := range []*apiruntime.Scheme{legacyscheme.Scheme, definitions} {
		largest, names := map[where]uintptr{}, map[where]string{}
		saw := func(of reflect.Type, at where) {
			if size := of.Size(); size > largest[at] {
				largest[at], names[at] = size, of.String()
			}
		}
		seen := map[inside]bool{}
		var walk func(of reflect.Type, internal, repeated bool)
		walk = func(of reflect.Type, internal, repeated bool) {
			if seen[inside{of, repeated}] {
				return
			}
			seen[inside{of, repeated}] = true
			switch of.Kind() {
			case reflect.Slice, reflect.Map:
				saw(of.Elem(), where{internal: internal})
				walk(of.Elem(), internal, true)
			case reflect.Pointer:
				if repeated {
					saw(of.Elem(), where{internal: internal})
				}
				walk(of.Elem(), internal, repeated)
			case reflect.Array:
				walk(of.Elem(), internal, repeated)
			case reflect.Struct:
				for i := range of.NumField() {
					walk(of.Field(i).Type, internal, repeated)
				}
			}
		}
		for gvk, of := range s.AllKnownTypes() {
			internal := gvk.Version == apiruntime.APIVersionInternal
			if items, ok := of.FieldByName("Items"); ok && items.Type.Kind() == reflect.Slice {
				saw(items.Type.Elem(), where{internal, true}) // what is in it is a kind by itself
				continue
			}
			walk(of, internal, false)
		}
		for item, counts := range map[bool]uintptr{false: weight.ElementBytes, true: weight.ItemBytes} {
			sent, has := where{false, item}, where{true, item}
			if sum := largest[sent]*3/2 + largest[has]; sum == 0 || sum > counts { // a list has room for half as many more when it has grown
				t.Errorf("a %s and a %s take %d and %d bytes, counted for %d", names[sent], names[has], largest[sent], largest[has], counts)
			}
		}
	}
}

// TestBodiesTakeWhatTheyCount: what a request takes at any moment is about what its body counts for at most, however it is
// written.
func TestBodiesTakeWhatTheyCount(t *testing.T) {
	if !alone(t) {
		return
	}
	tokens := withTokens(t)
	r := startServer(t, tokens)
	r.makeAdmin(t, shop, "alice")
	at := clustersPrefix + string(shop)
	nested := strings.Repeat(`{"properties":{"a":`, 3000) + `{}` + strings.Repeat(`}}`, 3000)
	const n = 100_000
	pod := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":{"containers":` + nothings(n) + `}}`
	field := func(number byte, content string) string {
		return string(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(content)))) + content
	}
	// An empty container, in protobuf, has two bytes.
	inProtobuf := "k8s\x00" + field(1, field(1, "v1")+field(2, "Pod")) + field(2, field(1, field(1, "p"))+field(2, strings.Repeat(field(2, ""), n)))
	asYAML := func(from string) string {
		text, err := yaml.JSONToYAML([]byte(from))
		must(t, err)
		return string(text)
	}
	definition := func(n int) string {
		return definitionOf("larges", `,"properties":{"spec":{"type":"object","allOf":`+nothings(n)+`}}`, "},")
	}
	// What the first one needs is there for all.
	if got := r.ask(t, asked{method: http.MethodPost, path: at + definitionsPath, token: alice, body: definitionOf("smalls", "", "},")}); got.code != http.StatusCreated {
		t.Fatalf("a small one: %d %.300s", got.code, got.body)
	}
	for _, test := range []struct {
		name        string
		method      string
		path        string
		body        string
		contentType string
	}{
		{"definition", http.MethodPost, definitionsPath, definition(n), ""},
		{"nested definition", http.MethodPost, definitionsPath, definitionOf("larges", `,"properties":{"spec":{"type":"object","allOf":[`+strings.TrimSuffix(strings.Repeat(nested+",", 30), ",")+`]}}`, "},"), ""},
		{"definition in YAML", http.MethodPost, definitionsPath, asYAML(definition(n / 4)), "application/yaml"},
		{"applied definition", http.MethodPatch, definitionsPath + "/larges.shop.example?fieldManager=test", definition(n), string(types.ApplyYAMLPatchType)},
		{"pod", http.MethodPost, "/api/v1/namespaces/default/pods", pod, ""},
		{"list where there is none", http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"kind":"PodList","apiVersion":"v1","items":` + nothings(n/2) + `}`, ""},
		{"pod in protobuf", http.MethodPost, "/api/v1/namespaces/default/pods", inProtobuf, "application/vnd.kubernetes.protobuf"},
	} {
		t.Run(test.name, func(t *testing.T) {
			header := map[string]string{}
			if test.contentType != "" {
				header["Content-Type"] = test.contentType
			}
			counts := bodyBytes(test.contentType, []byte(test.body))
			takes := mostTaken(t, func() {
				got := r.ask(t, asked{method: test.method, path: at + test.path, token: alice, header: header, body: test.body})
				if got.code == http.StatusRequestEntityTooLarge || got.code == http.StatusTooManyRequests {
					t.Errorf("%d %.300s, want that it is decoded", got.code, got.body)
				}
			})
			t.Logf("%d bytes of text take %d MiB, and count for %d", len(test.body), takes>>20, counts>>20)
			if takes > counts+counts/4 { // what is made while the collector marks is in use to it
				t.Errorf("%d bytes of text take %d bytes, and count for %d", len(test.body), takes, counts)
			}
		})
	}
}

// mostTaken is how many bytes were in use more at any moment of a call than before it, about: as the collector of garbage found
// them, which is at work all the time, so that what it is behind with does not count.
func mostTaken(t *testing.T, call func()) int64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	heap := func() int64 {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		return int64(live[0].Value.Uint64())
	}
	runtime.GC()
	before, most := heap(), int64(0)
	done := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		for {
			most = max(most, heap()-before)
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	call()
	close(done)
	looks.Wait()
	return most
}

// TestLongBodiesAreNotDecoded: a body that would take a gigabyte takes little more than its text, and who sends it is told.
func TestLongBodiesAreNotDecoded(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, tokens)
	r.makeAdmin(t, shop, "alice")
	at := clustersPrefix + string(shop) + definitionsPath
	long := definitionOf("larges", `,"properties":{"spec":{"type":"object","allOf":`+nothings(1_000_000)+`}}`, "},")
	for _, a := range []asked{
		{method: http.MethodPost, path: at, body: long},
		{method: http.MethodPost, path: at + "?dryRun=All", body: long},
		{method: http.MethodPut, path: at + "/larges.shop.example", body: long},
		{method: http.MethodPatch, path: at + "/larges.shop.example?fieldManager=test", body: long, header: map[string]string{"Content-Type": string(types.ApplyYAMLPatchType)}},
		{method: http.MethodPatch, path: at + "/larges.shop.example", body: `{"spec":{"versions":` + nothings(1_000_000) + `}}`, header: map[string]string{"Content-Type": string(types.MergePatchType)}},
	} {
		a.token = alice
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := r.ask(t, a)
		runtime.ReadMemStats(&after)
		var status metav1.Status
		if err := json.Unmarshal([]byte(got.body), &status); err != nil || got.code != http.StatusRequestEntityTooLarge || !strings.Contains(status.Message, "customresourcedefinitions.apiextensions.k8s.io") {
			t.Errorf("%s %s: %d %.300s %v, want 413", a.method, a.path, got.code, got.body, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
			t.Errorf("%s %s: %d MiB were allocated", a.method, a.path, took>>20)
		}
	}
}
