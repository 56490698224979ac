package discovery

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-openapi/pkg/handler3"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	shop  = logicalcluster.Name("shop")
	bank  = logicalcluster.Name("bank")
	empty = logicalcluster.Name("empty")

	v2Proto = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	v3Proto = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// world is a handler around a server of built-in types.
type world struct {
	builtin upstream
	handler http.Handler
}

func newWorld(t *testing.T, definitions Definitions) world {
	t.Helper()
	built := newUpstream(t)
	h := New(definitions, built.GenericAPIServer, built.swagger)
	return world{built, h.Around(built.endpoints(), customResources)}
}

// customResources answers in the place of those.
var customResources = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
	_, _ = fmt.Fprintf(w, "custom %s", req.URL.Path)
})

// endpoints are those that clients of the server find, the list of groups among them.
func (u upstream) endpoints() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/apis" && wantsAggregated(req):
			u.AggregatedDiscoveryGroupManager.ServeHTTP(w, req)
		case req.URL.Path == "/apis":
			u.DiscoveryGroupManager.ServeHTTP(w, req)
		default:
			u.Handler.ServeHTTP(w, req)
		}
	})
}

// ask sends a GET with headers, given as pairs.
func ask(handler http.Handler, cluster lcctx.Cluster, path string, header ...string) *httptest.ResponseRecorder {
	return askWithin(context.Background(), handler, cluster, path, header...)
}

// askWithin is ask by a client that waits as long as ctx.
func askWithin(ctx context.Context, handler http.Handler, cluster lcctx.Cluster, path string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	req = req.WithContext(lcctx.WithCluster(req.Context(), cluster))
	filters.WithRequestInfo(handler, resolver).ServeHTTP(answer, req)
	return answer
}

func (w world) get(cluster logicalcluster.Name, path string, header ...string) *httptest.ResponseRecorder {
	return ask(w.handler, lcctx.Cluster{Name: cluster}, path, header...)
}

// decoded is the answer, which must be JSON.
func decoded[T any](t *testing.T, answer *httptest.ResponseRecorder) T {
	t.Helper()
	var into T
	if answer.Code != http.StatusOK {
		t.Fatalf("answered %d: %s", answer.Code, answer.Body)
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &into); err != nil {
		t.Fatalf("answered what is no JSON: %v: %.200s", err, answer.Body)
	}
	return into
}

var paths = []struct{ path, accept string }{
	{"/api", ""}, {"/api", aggregatedMediaType},
	{"/apis", ""}, {"/apis", aggregatedMediaType},
	{"/apis/apiextensions.k8s.io", ""}, {"/apis/apiextensions.k8s.io/v1", ""},
	{"/openapi/v2", ""}, {"/openapi/v2", v2Proto},
	{"/openapi/v3", ""}, {"/openapi/v3/apis/apiextensions.k8s.io/v1", ""}, {"/openapi/v3/apis/apiextensions.k8s.io/v1", v3Proto},
	{"/apis/stable.example.com", ""}, {"/apis/stable.example.com/v1", ""}, {"/openapi/v3/apis/stable.example.com/v1", ""},
}

// TestNothingOfItsOwn asks where there are no definitions, or no logical cluster to have any.
func TestNothingOfItsOwn(t *testing.T) {
	w := newWorld(t, known{shop: served(t, sample()...), "": served(t, sample()...)})
	for _, p := range paths {
		want := ask(w.builtin.endpoints(), lcctx.Cluster{}, p.path, "Accept", p.accept)
		for _, cluster := range []lcctx.Cluster{{Name: empty}, {Wildcard: true}} {
			got := ask(w.handler, cluster, p.path, "Accept", p.accept)
			if got.Code != want.Code || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) || got.Header().Get("ETag") != want.Header().Get("ETag") {
				t.Errorf("%s as %q in %q: not what the server says of built-in types:\n%d %.200s\nwant\n%d %.200s",
					p.path, p.accept, cluster, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
}

// TestAsUpstream compares each document with the one that Kubernetes makes of the same definitions.
func TestAsUpstream(t *testing.T) {
	definitions := sample()
	ours, theirs := newWorld(t, known{shop: served(t, definitions...)}), newUpstream(t, definitions...)
	waitForDocuments(t, theirs)

	for _, accept := range []string{aggregatedMediaType, strings.Replace(aggregatedMediaType, "v=v2", "v=v2beta1", 1)} {
		t.Run(accept, func(t *testing.T) {
			got, want := ours.get(shop, "/apis", "Accept", accept), ask(theirs.endpoints(), lcctx.Cluster{}, "/apis", "Accept", accept)
			if got.Code != want.Code {
				t.Fatalf("answered %d, want %d: %s", got.Code, want.Code, got.Body)
			}
			if want.Code != http.StatusOK {
				return // no longer served
			}
			if diff := cmp.Diff(decoded[any](t, want), decoded[any](t, got)); diff != "" {
				t.Errorf("(-upstream, +ours)\n%s", diff)
			}
			for _, header := range []string{"Content-Type", "Vary", "Cache-Control"} {
				if got.Header().Get(header) != want.Header().Get(header) {
					t.Errorf("%s is %q, want %q", header, got.Header().Get(header), want.Header().Get(header))
				}
			}
		})
	}
	for _, path := range []string{
		"/apis/stable.example.com", "/apis/zoo.example.com", "/apis/zoo.example.com/v1",
		"/apis/stable.example.com/v1", "/apis/stable.example.com/v1beta1", "/apis/stable.example.com/v2beta1", "/apis/stable.example.com/v10",
		"/apis/apiextensions.k8s.io/v1",
		"/apis/stable.example.com/v1alpha1", "/apis/stable.example.com/v3", "/apis/none.example.com",
		"/openapi/v2", "/openapi/v3",
		"/openapi/v3/apis/stable.example.com/v1", "/openapi/v3/apis/stable.example.com/v2beta1", "/openapi/v3/apis/apiextensions.k8s.io/v2",
	} {
		t.Run(path, func(t *testing.T) {
			got, want := ours.get(shop, path), ask(theirs.endpoints(), lcctx.Cluster{}, path)
			if got.Code != want.Code {
				t.Fatalf("answered %d, want %d: %s", got.Code, want.Code, got.Body)
			}
			if want.Code != http.StatusOK {
				return
			}
			gotBody, wantBody := decoded[map[string]any](t, got), decoded[map[string]any](t, want)
			sortResources(gotBody)
			sortResources(wantBody)
			if diff := cmp.Diff(wantBody, gotBody); diff != "" {
				t.Errorf("(-upstream, +ours)\n%s", diff)
			}
			if strings.HasPrefix(path, "/openapi") && (got.Header().Get("Etag") == "" || got.Header().Get("Content-Type") != want.Header().Get("Content-Type")) {
				t.Errorf("headers are %v, want those of %v", got.Header(), want.Header())
			}
		})
	}
}

// waitForDocuments waits until upstream's controllers have told of all definitions.
func waitForDocuments(t *testing.T, u upstream) {
	t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		for path, want := range map[string][]string{
			"/openapi/v3": {"stable.example.com/v10", "stable.example.com/foo", "zoo.example.com/v1", "apiextensions.k8s.io/v2alpha1"},
			"/openapi/v2": {"stable.v10.Widget", "zoo.v1.Zebra"},
			"/apis":       {"v2beta1", "zoo.example.com", "foo", "v2alpha1"},
		} {
			got := ask(u.endpoints(), lcctx.Cluster{}, path, "Accept", map[bool]string{true: aggregatedMediaType, false: "application/json"}[path == "/apis"])
			for _, part := range want {
				if !strings.Contains(got.Body.String(), part) {
					last = fmt.Sprintf("%s does not show %s", path, part)
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatalf("upstream does not serve the definitions: %s", last)
	}
}

// sortResources orders what upstream lists in the order of a map.
func sortResources(document map[string]any) {
	resources, ok := document["resources"].([]any)
	if !ok {
		return
	}
	byName := map[string]any{}
	for _, r := range resources {
		byName[r.(map[string]any)["name"].(string)] = r
	}
	document["resources"] = byName
}

// TestGroups is of /apis as clients without the aggregated document read it, which upstream's aggregator makes.
func TestGroups(t *testing.T) {
	w := newWorld(t, known{shop: served(t, sample()...)})
	list := decoded[metav1.APIGroupList](t, w.get(shop, "/apis"))
	var got []string
	for _, group := range list.Groups {
		line := group.Name + ":"
		for _, version := range group.Versions {
			line += " " + version.GroupVersion
		}
		got = append(got, line+", preferred "+group.PreferredVersion.GroupVersion)
		if len(group.ServerAddressByClientCIDRs) == 0 {
			t.Errorf("%s: no address", group.Name)
		}
	}
	want := []string{
		"apiextensions.k8s.io: apiextensions.k8s.io/v2 apiextensions.k8s.io/v2alpha1 apiextensions.k8s.io/v1, preferred apiextensions.k8s.io/v2",
		"stable.example.com: stable.example.com/v10 stable.example.com/v1 stable.example.com/v2beta1 stable.example.com/v1beta1 stable.example.com/foo, preferred stable.example.com/v10",
		"zoo.example.com: zoo.example.com/v1, preferred zoo.example.com/v1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want, +got)\n%s", diff)
	}
	one := decoded[metav1.APIGroup](t, w.get(shop, "/apis/apiextensions.k8s.io"))
	if one.PreferredVersion.Version != "v2" || len(one.Versions) != 3 || one.ServerAddressByClientCIDRs != nil {
		t.Errorf("the group that definitions add to is %v", one)
	}
}

// TestBuiltinVersionIsTheServers defines a resource in a version that is built in.
func TestBuiltinVersionIsTheServers(t *testing.T) {
	w := newWorld(t, known{
		shop: served(t, define("things.apiextensions.k8s.io", "secretfield", "v1")),
		bank: served(t, define("things.apiextensions.k8s.io", "secretfield", "v1"), define("zebras.zoo.example.com", "stripes", "v1")),
	})
	for _, p := range paths {
		for _, cluster := range []logicalcluster.Name{shop, bank} {
			if got := w.get(cluster, p.path, "Accept", p.accept); strings.Contains(got.Body.String(), "things") || strings.Contains(got.Body.String(), "secretfield") {
				t.Errorf("%s as %q in %s shows a resource that no path reaches", p.path, p.accept, cluster)
			}
		}
	}
}

// TestNoBleed asks two logical clusters with definitions of the same name for everything, in both orders.
func TestNoBleed(t *testing.T) {
	shops := served(t, define("widgets.stable.example.com", "shopfield", "v1", "v1shop"), define("shopthings.stable.example.com", "x", "v1"))
	banks := served(t, define("widgets.stable.example.com", "bankfield", "v1", "v1bank"), define("bankthings.stable.example.com", "x", "v1"))
	all := append(paths[:len(paths):len(paths)],
		struct{ path, accept string }{"/openapi/v3/apis/stable.example.com/v1", v3Proto},
		struct{ path, accept string }{"/apis/stable.example.com/v1shop", ""}, struct{ path, accept string }{"/apis/stable.example.com/v1bank", ""},
		struct{ path, accept string }{"/openapi/v3/apis/stable.example.com/v1shop", ""}, struct{ path, accept string }{"/openapi/v3/apis/stable.example.com/v1bank", ""})
	for _, order := range [][]logicalcluster.Name{{shop, bank, empty}, {bank, shop, empty}, {empty, bank, shop}} {
		w := newWorld(t, known{shop: shops, bank: banks})
		for _, p := range all {
			etags := map[string]logicalcluster.Name{}
			for _, cluster := range order {
				got := w.get(cluster, p.path, "Accept", p.accept)
				for _, foreign := range []string{"shop", "bank"} {
					if string(cluster) != foreign && got.Code == http.StatusOK && strings.Contains(strings.ToLower(got.Body.String()), foreign) {
						t.Errorf("%s as %q in %s shows what %s defines", p.path, p.accept, cluster, foreign)
					}
				}
				etag := got.Header().Get("ETag")
				if other, same := etags[etag]; same && etag != "" && strings.Contains(p.path, "stable") {
					t.Errorf("%s as %q has one ETag in %s and %s", p.path, p.accept, cluster, other)
				}
				etags[etag] = cluster
				if cluster != empty && got.Code == http.StatusOK && strings.HasSuffix(p.path, "stable.example.com/v1") && p.accept == "" &&
					!strings.Contains(got.Body.String(), string(cluster)) {
					t.Errorf("%s in %s does not show what it defines: %.300s", p.path, cluster, got.Body)
				}
			}
		}
	}
}

// TestUnchanged asks again with the ETag of the answer, before and after definitions change.
func TestUnchanged(t *testing.T) {
	defined := known{shop: served(t, sample()...)}
	w := newWorld(t, defined)
	for _, p := range []struct{ path, accept string }{
		{"/apis", aggregatedMediaType}, {"/openapi/v2", ""}, {"/openapi/v2", v2Proto}, {"/openapi/v3", ""},
		{"/openapi/v3/apis/stable.example.com/v1", ""}, {"/openapi/v3/apis/stable.example.com/v1", v3Proto},
	} {
		t.Run(p.path+" "+p.accept, func(t *testing.T) {
			defined[shop] = served(t, sample()...)
			first := w.get(shop, p.path, "Accept", p.accept)
			etag := first.Header().Get("ETag")
			again := w.get(shop, p.path, "Accept", p.accept, "If-None-Match", etag)
			if again.Code != http.StatusNotModified || again.Body.Len() > 0 || etag == "" {
				t.Errorf("with the ETag %q answered %d and %d bytes, want 304 and none", etag, again.Code, again.Body.Len())
			}
			changed := sample()
			changed[4].Spec.Versions[1].Schema = schemaOf("other")
			changed[4].Status.AcceptedNames.ShortNames = []string{"wdg"}
			defined[shop] = served(t, changed...)
			after := w.get(shop, p.path, "Accept", p.accept, "If-None-Match", etag)
			if after.Code != http.StatusOK || after.Header().Get("ETag") == etag {
				t.Errorf("after a change answered %d with ETag %q, before it %q", after.Code, after.Header().Get("ETag"), etag)
			}
		})
	}
}

// TestIndexLeadsToDocuments follows the addresses in the index of OpenAPI v3, with the right hash and with another.
func TestIndexLeadsToDocuments(t *testing.T) {
	w := newWorld(t, known{shop: served(t, sample()...)})
	index := decoded[handler3.OpenAPIV3Discovery](t, w.get(shop, "/openapi/v3"))
	if len(index.Paths) < 8 {
		t.Fatalf("the index has %d paths: %v", len(index.Paths), index.Paths)
	}
	for path, item := range index.Paths {
		got := w.get(shop, item.ServerRelativeURL)
		if got.Code != http.StatusOK || !strings.Contains(got.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %s answered %d, cached as %q", path, item.ServerRelativeURL, got.Code, got.Header().Get("Cache-Control"))
		}
	}
	path := "/openapi/v3/apis/stable.example.com/v1"
	moved := w.get(shop, path+"?hash=OLD")
	location := moved.Header().Get("Location")
	if moved.Code != http.StatusMovedPermanently || !strings.HasSuffix(index.Paths[path[len("/openapi/v3/"):]].ServerRelativeURL, location) || !strings.HasPrefix(location, "?hash=") {
		t.Errorf("with another hash answered %d, Location %q", moved.Code, location)
	}
}

// TestForms asks for documents in forms that exist and in one that does not, and compressed.
func TestForms(t *testing.T) {
	w := newWorld(t, known{shop: served(t, sample()...)})
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/stable.example.com/v1"} {
		if got := w.get(shop, path, "Accept", "text/html"); got.Code != http.StatusNotAcceptable {
			t.Errorf("%s as text/html answered %d, want 406", path, got.Code)
		}
		plain, small := w.get(shop, path), w.get(shop, path, "Accept-Encoding", "br, gzip")
		if small.Header().Get("Content-Encoding") != "gzip" {
			t.Fatalf("%s is not compressed: %v", path, small.Header())
		}
		r, err := gzip.NewReader(small.Body)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(body, plain.Body.Bytes()) || plain.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s differs where it is compressed", path)
		}
		deprecated := strings.Replace(map[bool]string{true: v2Proto, false: v3Proto}[path == "/openapi/v2"], ".v1.0+", "@v1.0+", 1)
		if got := w.get(shop, path, "Accept", deprecated); got.Code != http.StatusOK || !strings.Contains(got.Header().Get("Content-Type"), ".v1.0+protobuf") {
			t.Errorf("%s as %s answered %d %s", path, deprecated, got.Code, got.Header().Get("Content-Type"))
		}
	}
}

// notSynced does not know all definitions yet.
type notSynced struct{ known }

func (notSynced) WaitSynced(context.Context) error { return context.DeadlineExceeded }

// TestNoPartOfTheWhole asks a server that starts.
func TestNoPartOfTheWhole(t *testing.T) {
	w := newWorld(t, notSynced{known{shop: served(t, sample()...)}})
	for _, cluster := range []logicalcluster.Name{shop, empty} {
		if got := w.get(cluster, "/apis", "Accept", aggregatedMediaType); got.Code != http.StatusServiceUnavailable {
			t.Errorf("in %s answered %d, want 503: %.200s", cluster, got.Code, got.Body)
		}
	}
}

// TestBuiltinGroupsAreFirst has a definition whose group is before the built-in ones by name: who asks for a resource
// without its group means the built-in one.
func TestBuiltinGroupsAreFirst(t *testing.T) {
	w := newWorld(t, known{shop: served(t, define("customresourcedefinitions.aaa.example.com", "x", "v1"))})
	list := decoded[apidiscoveryv2.APIGroupDiscoveryList](t, w.get(shop, "/apis", "Accept", aggregatedMediaType))
	if len(list.Items) != 2 || list.Items[0].Name != "apiextensions.k8s.io" {
		t.Errorf("the groups are %v", list.Items)
	}
}

// TestBesideBuiltin asks for custom resources in built-in groups, which the generic server takes for its own.
func TestBesideBuiltin(t *testing.T) {
	w := newWorld(t, known{shop: served(t, define("things.apiextensions.k8s.io", "more", "v2", "v1", "-v3"))})
	for path, wantCustom := range map[string]bool{
		"/apis/apiextensions.k8s.io/v2/namespaces/default/things/one": true,
		"/apis/apiextensions.k8s.io/v1/namespaces/default/things/one": false,
		"/apis/apiextensions.k8s.io/v3/namespaces/default/things/one": false,
		"/apis/stable.example.com/v1/widgets":                         false, // the generic server asks by itself
	} {
		for _, cluster := range []logicalcluster.Name{shop, empty} {
			got := w.get(cluster, path).Body.String()
			if want := wantCustom && cluster == shop; strings.HasPrefix(got, "custom") != want {
				t.Errorf("%s in %s: custom resources were asked: %t, want %t", path, cluster, !want, want)
			}
		}
	}
}
