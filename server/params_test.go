package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestReadsAreWeighed: what policies read is told of as it comes in, and no more comes once that is too much; nor is anything
// made of it.
func TestReadsAreWeighed(t *testing.T) {
	ended := make(chan struct{})
	var path atomic.Value
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(ended)
		path.Store(req.URL.String())
		w.Header().Set("Content-Type", "application/json")
		for { // until nobody reads
			if _, err := w.Write([]byte(strings.Repeat("{", 1<<10))); err != nil {
				return
			}
		}
	}))
	defer api.Close()
	r, err := newRequester(&rest.Config{Host: api.URL})
	must(t, err)
	tooMuch, read := errors.New("too much"), 0
	_, err = r.List(t.Context(), shop, schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "widgets"}, "ns", labels.SelectorFromSet(labels.Set{"a": "b"}), func(text []byte) error {
		if read += len(text); read > 1<<20 {
			return tooMuch
		}
		return nil
	})
	if !errors.Is(err, tooMuch) || read > 2<<20 {
		t.Errorf("%v after %d bytes", err, read)
	}
	<-ended
	if got, want := path.Load(), clustersPrefix+string(shop)+"/apis/shop.example/v1/namespaces/ns/widgets?labelSelector=a%3Db&resourceVersion=0"; got != want {
		t.Errorf("read %v, want %s", got, want)
	}
}

// TestReadsStayInTheirLogicalCluster: what would be another path is not asked for, and if it was, it would not be sent.
func TestReadsStayInTheirLogicalCluster(t *testing.T) {
	var asked atomic.Value
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Store(req.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"APIResourceList","metadata":{"name":"a"},"items":[],"paths":{}}`))
	}))
	defer api.Close()
	r, err := newRequester(&rest.Config{Host: api.URL})
	must(t, err)
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	nothing := func([]byte) error { return nil }
	get := func(resource schema.GroupVersionResource, namespace, name string) error {
		_, err := r.Get(t.Context(), shop, resource, namespace, name, nothing)
		return err
	}
	list := func(namespace string) error {
		_, err := r.List(t.Context(), shop, configMaps, namespace, labels.Everything(), nothing)
		return err
	}
	find := func(gv schema.GroupVersion) error {
		_, _, err := r.Find(t.Context(), shop, gv.WithKind("ConfigMap"))
		return err
	}
	send := func(path string) error {
		client, err := r.requests(shop)
		must(t, err)
		return client.Get().AbsPath(path).Do(t.Context()).Error()
	}
	for _, test := range []struct {
		what string
		do   func() error
		path string // that is sent, none where that fails
	}{
		{"a name", func() error { return get(configMaps, "ns", "a") }, "/api/v1/namespaces/ns/configmaps/a"},
		{"a name in no namespace", func() error { return get(configMaps, "", "a") }, "/api/v1/configmaps/a"},
		{"a namespace", func() error { return list("ns") }, "/api/v1/namespaces/ns/configmaps"},
		{"all", func() error { return list("") }, "/api/v1/configmaps"},
		{"a name that leads up", func() error { return get(configMaps, "ns", "..") }, ""},
		{"a name that leads elsewhere", func() error { return get(configMaps, "ns", "../../../bank") }, ""},
		{"no name", func() error { return get(configMaps, "ns", "") }, ""},
		{"a namespace that leads up", func() error { return get(configMaps, "..", "a") }, ""},
		{"a namespace that leads elsewhere", func() error { return get(configMaps, "../x", "a") }, ""},
		{"a namespace of which all is read that leads elsewhere", func() error { return list("../../../../bank/api/v1/namespaces/ns") }, ""},
		{"a namespace that stays here", func() error { return list(".") }, ""},
		{"what leads elsewhere once more is decoded", func() error { return list("..%2f..") }, ""},
		{"a resource that leads elsewhere", func() error {
			return get(schema.GroupVersionResource{Version: "v1", Resource: "../secrets"}, "ns", "a")
		}, ""},
		{"a group that leads elsewhere", func() error { return find(schema.GroupVersion{Group: "../../bank/apis/apps", Version: "v1"}) }, ""},
		{"a version that leads elsewhere", func() error { return find(schema.GroupVersion{Group: "apps", Version: ".."}) }, ""},
		{"a path that stays here, sent", func() error { return send("/api/v1/../../apis") }, "/apis"},
		{"a path that leads elsewhere, sent", func() error { return send("../bank/api") }, ""},
		{"a path of all, sent", func() error { return send("../*/api") }, ""},
		{"a path of another that is called alike, sent", func() error { return send("../" + string(shop) + "2/api") }, ""},
		{"a path of no logical cluster, sent", func() error { return send("../../api") }, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			asked.Store("")
			err, want := test.do(), ""
			if test.path != "" {
				want = clustersPrefix + string(shop) + test.path
			}
			if got := asked.Load(); got != want || (err == nil) != (want != "") {
				t.Errorf("%v: %q is read, want %q", err, got, want)
			}
		})
	}
}
