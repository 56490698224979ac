package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slowPost sends a request whose body comes only when send is called: until then the server has begun to read it, and so has
// decided which definition it is for.
func (r *running) slowPost(t *testing.T, cluster logicalcluster.Name, path, body string) (send func() (status int, answer string)) {
	t.Helper()
	config := r.LoopbackConfig()
	client := &http.Client{Transport: &http.Transport{DialContext: config.Dial, ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	reads := make(chan struct{})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(reads) }})
	from, to := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+clustersPrefix+string(cluster)+path, from)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	req.Header.Set("Authorization", "Bearer "+config.BearerToken)
	req.Header.Set("Content-Type", "application/json")
	type answer struct {
		status int
		body   string
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		resp, err := client.Do(req)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		answers <- answer{resp.StatusCode, string(all), err}
	}()
	select {
	case <-reads:
	case got := <-answers:
		t.Fatalf("answered before the body was sent: %d %s (%v)", got.status, got.body, got.err)
	}
	return func() (int, string) {
		if _, err := io.WriteString(to, body); err != nil {
			t.Fatal(err)
		}
		to.Close()
		got := <-answers
		if got.err != nil {
			t.Fatal(got.err)
		}
		return got.status, got.body
	}
}

// TestCustomResourcesDoNotOutliveTheirDefinition: a create that began before its definition was deleted, on this server or on
// another one, and comes to be written when the definition is gone, is refused, also if there is a new one of that name.
func TestCustomResourcesDoNotOutliveTheirDefinition(t *testing.T) {
	one := startServer(t, nil)
	options := *one.options
	other := startServerOver(t, one.data, one.credentials, &options)
	c := one.custom(t, shop)
	const path, late = "/apis/shop.example/v1/widgets", `{"apiVersion":"shop.example/v1","kind":"Widget","metadata":{"name":"late"}}`
	rows := func() []string {
		t.Helper()
		got, err := one.data.Get(t.Context(), "/registry/shop.example/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, kv := range got.Kvs {
			keys = append(keys, string(kv.Key))
		}
		return keys
	}
	for _, tc := range []struct {
		reason string
		on     *running
		again  bool
	}{
		{"on the server that deletes", one, false},
		{"on another server", other, false},
		{"with a new definition since", one, true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			crd := c.define(t, clusterScoped(widgets(`{}`)))
			// Before it was deleted, the definition may change as it likes.
			send := tc.on.slowPost(t, shop, path, strings.ReplaceAll(late, "late", "early"))
			labeled, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), crd.Name, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if status, answer := send(); status != http.StatusCreated {
				t.Errorf("create while the definition changes: %d %s, want 201", status, answer)
			}
			send = tc.on.slowPost(t, shop, path, late)
			if err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			c.awaitGone(t, labeled)
			if tc.again {
				crd = c.define(t, clusterScoped(widgets(`{}`)))
			}
			refusal, why := http.StatusForbidden, "terminating"
			if tc.again { // it may be tried again, which a server that has not heard of the new one yet says, too
				refusal, why = http.StatusInternalServerError, `"reason":"ServerTimeout"`
			}
			if status, answer := send(); status != refusal || !strings.Contains(answer, why) {
				t.Errorf("create after the definition was deleted: %d %s, want %d %s", status, answer, refusal, why)
			}
			if left := rows(); len(left) > 0 {
				t.Errorf("rows without a definition: %q", left)
			}
			if tc.again {
				if err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestCustomResourcesNotServedCostLittle: to ask for a version that there is not decodes no definition, which may be megabytes.
func TestCustomResourcesNotServedCostLittle(t *testing.T) {
	r := startServer(t, nil)
	c := r.custom(t, shop)
	c.define(t, clusterScoped(widgets(`{}`)))
	none := widgetsV1
	none.Version = "v9"
	ask := func() {
		t.Helper()
		if _, err := c.objects.Resource(none).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Fatalf("list of a version that there is not: %v, want NotFound", err)
		}
	}
	reads := func() string {
		t.Helper()
		all, err := r.in(t, shop).CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(all), "\n") {
			if strings.HasPrefix(line, `etcd_request_duration_seconds_count{group="apiextensions.k8s.io",operation="get",resource="customresourcedefinitions"}`) {
				return line
			}
		}
		t.Fatal("no metric of definitions that are read")
		return ""
	}
	ask() // what was established may not have come back by the watch yet
	before := reads()
	for range 20 {
		ask()
	}
	if after := reads(); after != before {
		t.Errorf("before 20 requests for a version that there is not: %s, after: %s", before, after)
	}
}
