package discovery

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

var openAPIPaths = []struct{ path, accept string }{
	{"/openapi/v2", ""}, {"/openapi/v2", v2Proto}, {"/openapi/v3", ""},
	{"/openapi/v3/apis/stable.example.com/v1", ""}, {"/openapi/v3/apis/stable.example.com/v1", v3Proto},
}

func TestFitting(t *testing.T) {
	small, large := define("ants.stable.example.com", "x", "v1", "v2"), define("bees.stable.example.com", "x", "v1")
	large.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = strings.Repeat("x", 100_000)
	s := byVersion(served(t, small, large), versions{})
	smallWeight := weigh(s[0].definitions[0], "v2")
	props := int(reflect.TypeFor[apiextensionsv1.JSONSchemaProps]().Size())
	if most := definitionWeight + 8*props + 1_000; smallWeight < definitionWeight+8*props || smallWeight > most {
		t.Errorf("the small definition weighs %d, and has 8 schemas: want some %d", smallWeight, most)
	}
	if got, want := weigh(s[1].definitions[1], "v1"), smallWeight+100_000; got < want-100 || got > want+100 {
		t.Errorf("the large definition weighs %d, and has 100,000 bytes more than the small: want %d", got, want)
	}
	for _, c := range []struct {
		reason string
		limit  int
		want   []string
	}{
		{"all fit", 1 << 20, []string{"v2 ants", "v1 ants", "v1 bees"}},
		{"what does not fit does not keep out what comes after", smallWeight + 100_000, []string{"v2 ants", "v1 ants"}},
		{"versions count one by one", smallWeight, []string{"v2 ants"}},
		{"nothing fits", smallWeight - 1, nil},
	} {
		var got []string
		fits := fitting(t.Context(), s, c.limit)
		for _, v := range fits {
			for _, d := range v.definitions {
				got = append(got, v.Version+" "+d.Spec.Names.Plural)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" || len(fits) != len(s) {
			t.Errorf("%s: %d versions (-want, +got)\n%s", c.reason, len(fits), diff)
		}
	}
}

// TestShortTextsWeighMuch: a document is bounded by what its definitions become, not by their text.
func TestShortTextsWeighMuch(t *testing.T) {
	short := define("shorts.stable.example.com", "x", "v1")
	short.Spec.Versions[0].Schema.OpenAPIV3Schema.AllOf = make([]apiextensionsv1.JSONSchemaProps, 10_000) // two bytes each as protobuf, three as JSON
	s := byVersion(served(t, short), versions{})
	if got, want := weigh(s[0].definitions[0], "v1"), 10_000*int(reflect.TypeFor[apiextensionsv1.JSONSchemaProps]().Size()); got < want {
		t.Errorf("10,000 schemas weigh %d bytes, and take %d", got, want)
	}
}

// TestDocumentsAreOfSoMuch defines more than a document is made of.
func TestDocumentsAreOfSoMuch(t *testing.T) {
	large := define("larges.stable.example.com", "x", "v1")
	large.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = strings.Repeat("x", 100_000)
	built := newUpstream(t)
	h := New(known{shop: served(t, define("ants.stable.example.com", "x", "v1"), large, define("zebras.stable.example.com", "x", "v1"))}, built.GenericAPIServer, built.swagger)
	h.openAPI.weight = 100_000
	handler := h.Around(built.endpoints(), customResources)
	for _, p := range openAPIPaths {
		got := ask(handler, lcctx.Cluster{Name: shop}, p.path, "Accept", p.accept)
		body := got.Body.String()
		if got.Code != http.StatusOK || strings.Contains(body, "Large") {
			t.Errorf("%s as %q answered %d and %d bytes, want 200 without the large definition", p.path, p.accept, got.Code, len(body))
		}
		if p.path != "/openapi/v3" && (!strings.Contains(body, "Ant") || !strings.Contains(body, "Zebra")) {
			t.Errorf("%s as %q leaves out those that fit", p.path, p.accept)
		}
	}
}

// TestOthersDoNotWait asks while a document of shop is made.
func TestOthersDoNotWait(t *testing.T) {
	built := newUpstream(t)
	h := New(known{
		shop: served(t, define("widgets.stable.example.com", "shopfield", "v1")),
		bank: served(t, define("widgets.stable.example.com", "bankfield", "v1")),
	}, built.GenericAPIServer, built.swagger)
	handler := h.Around(built.endpoints(), customResources)
	must := func(reason string, ctx context.Context, cluster lcctx.Cluster, want int) {
		t.Helper()
		for _, p := range openAPIPaths {
			if got := askWithin(ctx, handler, cluster, p.path, "Accept", p.accept); got.Code != want {
				t.Errorf("%s: %s as %q answered %d, want %d: %.200s", reason, p.path, p.accept, got.Code, want, got.Body)
			}
		}
	}
	inShop, inBank := lcctx.Cluster{Name: shop}, lcctx.Cluster{Name: bank}
	done := mustTake(t, h.openAPI.turns, shop)
	must("its own", ended(t), inShop, http.StatusGatewayTimeout)
	must("another's", t.Context(), inBank, http.StatusOK)
	others := mustTake(t, h.openAPI.turns, "other")
	must("what is kept", ended(t), inBank, http.StatusOK)
	must("not more than a few at a time", ended(t), inShop, http.StatusGatewayTimeout)
	others()
	done()
	must("afterwards", t.Context(), inShop, http.StatusOK)
	if n := h.openAPI.turns.Len(); n != 0 {
		t.Errorf("%d logical clusters are known with nobody left", n)
	}
}

// TestDocumentsLargerThanTheCache are answered, and not kept.
func TestDocumentsLargerThanTheCache(t *testing.T) {
	built := newUpstream(t)
	h := New(known{shop: served(t, define("widgets.stable.example.com", "x", "v1"))}, built.GenericAPIServer, built.swagger)
	h.openAPI.documents = newDocumentCache(1)
	handler := h.Around(built.endpoints(), customResources)
	for _, p := range openAPIPaths {
		first := ask(handler, lcctx.Cluster{Name: shop}, p.path, "Accept", p.accept)
		again := ask(handler, lcctx.Cluster{Name: shop}, p.path, "Accept", p.accept)
		if first.Code != http.StatusOK || again.Code != http.StatusOK || first.Header().Get("ETag") != again.Header().Get("ETag") {
			t.Errorf("%s as %q answered %d %s, then %d %s", p.path, p.accept, first.Code, first.Header().Get("ETag"), again.Code, again.Header().Get("ETag"))
		}
	}
	if c := h.openAPI.documents; c.size != 0 || len(c.byKey) != 0 {
		t.Errorf("%d bytes are kept in %d documents, of 1 byte at most", c.size, len(c.byKey))
	}
}

// TestTurnLastsWhileADocumentIsMade looks who has a turn meanwhile and afterwards.
func TestTurnLastsWhileADocumentIsMade(t *testing.T) {
	o := newOpenAPI()
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop})
	_, err := o.get(ctx, keyOf(1), func() (*document, error) {
		_, err := o.turns.Take(ended(t), shop)
		if n := o.turns.Len(); n != 1 || o.turns.Had() != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("meanwhile %d of all turns are taken, by %d logical clusters, and who asks for its turn gets: %v", o.turns.Had(), n, err)
		}
		return sized(1)()
	})
	if err != nil || o.turns.Len() != 0 || o.turns.Had() != 0 {
		t.Errorf("afterwards %d of all turns are taken, by %d logical clusters (%v)", o.turns.Had(), o.turns.Len(), err)
	}
}
