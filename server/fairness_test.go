package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
)

// client is one with connections of its own.
func (r *running) client(t *testing.T) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (r *running) request(ctx context.Context, t *testing.T, method string, cluster logicalcluster.Name, path, token string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.URL()+clustersPrefix+string(cluster)+path, body)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	return req
}

// TestFairness: requests that take all that one workspace may have of the server, and never end, hold up nobody in another,
// nor administrators; who may not use the workspace takes nothing of it; and they go on when they can.
func TestFairness(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) {
		tokens(o)
		o.MaxRequestsInFlight, o.MaxRequestsInFlightPerWorkspace = 4, 2
	})
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, bank, "bob")
	const configMaps = "/api/v1/namespaces/ns/configmaps"
	r.place(t, shop).namespace(t, "ns", nil, "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// A request whose body does not come waits for it inside its handler. Twelve are many more than there are seats, and
	// may go on without.
	const stuck = 12
	var bodies []*io.PipeWriter
	var flood sync.WaitGroup
	codes := make([]string, stuck)
	for i := range stuck {
		body, write := io.Pipe()
		bodies = append(bodies, write)
		req := r.request(ctx, t, http.MethodPost, shop, configMaps, alice, body)
		httpClient := r.client(t)
		flood.Go(func() {
			response, err := httpClient.Do(req)
			if err != nil {
				codes[i] = err.Error()
				return
			}
			defer response.Body.Close()
			codes[i] = response.Status
		})
	}
	// code is that of a request with a small answer; it does not wait for longer than most.
	code := func(cluster logicalcluster.Name, token string, most time.Duration) string {
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		response, err := r.client(t).Do(r.request(ctx, t, http.MethodGet, cluster, configMaps+"/none", token, nil))
		if err != nil {
			return "none"
		}
		defer response.Body.Close()
		return fmt.Sprint(response.StatusCode)
	}
	waitFor(t, time.Minute, "requests in the flooded workspace wait", func() (seen string, ok bool) {
		seen = code(shop, alice, time.Second)
		return seen, seen == "none"
	})
	for _, test := range []struct {
		reason, token string
		cluster       logicalcluster.Name
		want          string
	}{
		{"another workspace", bob, bank, "404"},
		{"an administrator", root, shop, "404"},
		{"somebody who may not use the workspace", bob, shop, "403"},
	} {
		if got := code(test.cluster, test.token, time.Minute); got != test.want {
			t.Errorf("%s: answer %s, want %s", test.reason, got, test.want)
		}
	}
	for i, body := range bodies {
		if _, err := fmt.Fprintf(body, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"}}`, i); err == nil {
			must(t, body.Close())
		}
	}
	flood.Wait()
	for _, got := range codes {
		if got != "201 Created" && got != "429 Too Many Requests" { // after a quarter of a minute
			t.Errorf("a request of the flood: %s, want 201, or 429 if it waited for too long", got)
		}
	}
	waitFor(t, time.Minute, "the flooded workspace is served again", func() (seen string, ok bool) {
		seen = code(shop, alice, time.Minute)
		return seen, seen == "404"
	})
}

// TestWatchesOfAWorkspace: the watches of a workspace are bounded, those of others and of administrators are not affected, and
// who has one too many is told what to do.
func TestWatchesOfAWorkspace(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.MaxWatchesPerWorkspace = 2 })
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, bank, "bob")
	watch := func(cluster logicalcluster.Name, token string) (code int, says, retry string, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		response, err := r.client(t).Do(r.request(ctx, t, http.MethodGet, cluster, "/api/v1/namespaces?watch=1", token, nil))
		must(t, err)
		t.Cleanup(func() { response.Body.Close() })
		line, err := bufio.NewReader(response.Body).ReadString('\n')
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return response.StatusCode, line, response.Header.Get("Retry-After"), cancel
	}
	// There is a namespace for each watch to tell of.
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		r.place(t, cluster).namespace(t, "ns", nil, "")
	}
	_, _, _, end := watch(shop, alice)
	watch(shop, alice)
	code, says, retry, _ := watch(shop, alice)
	if code != http.StatusTooManyRequests || retry == "" || !strings.Contains(says, `workspace \"root:shop\" has 2 watches open`) {
		t.Errorf("one too many: %d, Retry-After %q: %s; want 429 with the workspace and its limit", code, retry, says)
	}
	for token, cluster := range map[string]logicalcluster.Name{bob: bank, root: shop} {
		if code, says, _, _ := watch(cluster, token); code != http.StatusOK {
			t.Errorf("a watch in %s by %s: %d %s, want 200", cluster, token, code, says)
		}
	}
	end()
	waitFor(t, time.Minute, "a watch may begin after one has ended", func() (seen string, ok bool) {
		code, says, _, _ := watch(shop, alice)
		return says, code == http.StatusOK
	})
}

// TestWatchesOfAMirror: who has the credential of a syncer opens a bounded number of watches, and nobody else is affected.
func TestWatchesOfAMirror(t *testing.T) {
	r := startServer(t, withTokens(t))
	watch := func(cluster logicalcluster.Name, token string) answer {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		response, err := r.client(t).Do(r.request(ctx, t, http.MethodGet, cluster, "/apis/certificates.k8s.io/v1/certificatesigningrequests?watch=1", token, nil))
		must(t, err)
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode == http.StatusOK {
			return answer{code: response.StatusCode}
		}
		says, err := io.ReadAll(response.Body)
		must(t, err)
		return answer{code: response.StatusCode, body: string(says)}
	}
	syncer := r.MirrorConfig(east).BearerToken
	open, got := 0, answer{code: http.StatusOK}
	for ; got.code == http.StatusOK && open < 1000; open++ {
		got = watch(east, syncer)
	}
	if open--; got.code != http.StatusTooManyRequests || open != 300 || !strings.Contains(got.body, fmt.Sprintf(`mirror \"%s\" has 300 watches open`, east)) {
		t.Errorf("after %d watches: %d %s, want 429 with the mirror after 300", open, got.code, got.body)
	}
	for token, cluster := range map[string]logicalcluster.Name{r.MirrorConfig(west).BearerToken: west, root: east} {
		if got := watch(cluster, token); got.code != http.StatusOK {
			t.Errorf("a watch in %s by another: %d %s, want 200", cluster, got.code, got.body)
		}
	}
}

// TestDefinitionsOfAWorkspace: a workspace has as many definitions as it may, and no more; another one has its own.
func TestDefinitionsOfAWorkspace(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.MaxDefinitionsPerWorkspace = 1 })
	r.makeAdmin(t, shop, "alice")
	r.custom(t, shop).define(t, widgets(`{}`))
	crd := widgets(`{}`)
	crd.Name, crd.Spec.Names.Plural, crd.Spec.Names.Kind, crd.Spec.Names.ShortNames = "gadgets.shop.example", "gadgets", "Gadget", nil
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	post := asked{method: http.MethodPost, path: clustersPrefix + string(shop) + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", token: alice, body: mustJSON(t, crd)}
	if got := r.ask(t, post); got.code != http.StatusForbidden || !strings.Contains(got.body, `workspace \"root:shop\" has 1 CustomResourceDefinitions, and may have 1`) {
		t.Errorf("one too many: %d %s, want 403 with the limit", got.code, got.body)
	}
	r.custom(t, bank).define(t, widgets(`{}`))
	post.token = root
	if got := r.ask(t, post); got.code != http.StatusCreated {
		t.Errorf("one more by an administrator: %d %s, want 201", got.code, got.body)
	}
}

// TestLimitsOfAWorkspace: a workspace has as many objects and bytes as it may, over a restart, too, and is told what to do; what
// its users delete makes room; another workspace, and administrators, are not affected.
func TestLimitsOfAWorkspace(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.MaxObjectsPerWorkspace, o.MaxBytesPerWorkspace = 20, 64<<10 })
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, bank, "bob")
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		r.place(t, cluster).namespace(t, "ns", nil, "")
	}
	path := func(cluster logicalcluster.Name) string {
		return clustersPrefix + string(cluster) + "/api/v1/namespaces/ns/configmaps"
	}
	post := func(cluster logicalcluster.Name, token, name, value string) answer {
		return r.ask(t, asked{method: http.MethodPost, path: path(cluster), token: token,
			body: fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"v":%q}}`, name, value)})
	}
	drop := func(name string) {
		t.Helper()
		if got := r.ask(t, asked{method: http.MethodDelete, path: path(shop) + "/" + name, token: alice}); got.code != http.StatusOK {
			t.Errorf("delete %s: %d %s, want 200", name, got.code, got.body)
		}
	}
	var made int
	var refused answer
	for ; made <= 20; made++ {
		if refused = post(shop, alice, fmt.Sprint("x", made), ""); refused.code != http.StatusCreated {
			break
		}
	}
	if refused.code != http.StatusForbidden || made < 10 || !strings.Contains(refused.body, `workspace \"root:shop\" has 20 objects, and may have 20: delete some`) {
		t.Fatalf("after %d: %d %s, want 403 with the limit after 10 or more", made, refused.code, refused.body)
	}
	if got := post(bank, bob, "x", ""); got.code != http.StatusCreated {
		t.Errorf("in another workspace: %d %s, want 201", got.code, got.body)
	}
	crd := widgets(`{}`)
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	define := asked{method: http.MethodPost, path: clustersPrefix + string(shop) + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", token: alice, body: mustJSON(t, crd)}
	if got := r.ask(t, define); got.code != http.StatusForbidden {
		t.Errorf("a definition: %d %s, want 403", got.code, got.body)
	}
	if got := post(shop, root, "admins", ""); got.code != http.StatusCreated {
		t.Errorf("by an administrator: %d %s, want 201", got.code, got.body)
	}
	r = r.restart(t)
	if got := post(shop, alice, "more", ""); got.code != http.StatusForbidden || !strings.Contains(got.body, "has 21 objects") {
		t.Errorf("after a restart: %d %s, want 403 with what there is", got.code, got.body)
	}
	drop("x0")
	drop("x1")
	large := strings.Repeat("v", 40<<10)
	if got := post(shop, alice, "large", large); got.code != http.StatusCreated {
		t.Errorf("after deletions: %d %s, want 201", got.code, got.body)
	}
	patch := func(name, value string) answer {
		return r.ask(t, asked{method: http.MethodPatch, path: path(shop) + "/" + name, token: alice, body: mustJSON(t, map[string]any{"data": map[string]string{"v": value}}),
			header: map[string]string{"Content-Type": "application/merge-patch+json"}})
	}
	if got := patch("x2", large); got.code != http.StatusForbidden || !strings.Contains(got.body, "--max-bytes-per-workspace") {
		t.Errorf("what grows: %d %s, want 403", got.code, got.body)
	}
	if got := patch("large", "v"); got.code != http.StatusOK {
		t.Errorf("what shrinks: %d %s, want 200", got.code, got.body)
	}
	if got := patch("x2", large); got.code != http.StatusOK {
		t.Errorf("what grows into the room: %d %s, want 200", got.code, got.body)
	}
}
