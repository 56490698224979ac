package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	clusterAnnotation = "kcp.io/cluster"

	isoNamespace = "iso"
	// isoLabel has "a" or "b" on every object that the isolation tests wrote.
	isoLabel = "iso"
	// canary stands in every object of workspace b; nobody in a may ever see it.
	canary = "canary-tweets-only-in-b"

	// Tenants: each is cluster-admin of the workspace of the same letter, and a stranger elsewhere.
	tokenA = "token-of-alice"
	tokenB = "token-of-bob"
)

// isoResource is a resource that workspaces serve and store.
type isoResource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
	verbs      []string
	hasStatus  bool
	manifest   *unstructured.Unstructured
}

func (r isoResource) can(verb string) bool { return slices.Contains(r.verbs, verb) }

// name is that of its object, in both workspaces.
func (r isoResource) name() string { return r.manifest.GetName() }

// bySystem says that the server's controllers write the object, and write it again when it is deleted.
func (r isoResource) bySystem() bool { return r.kind == "LogicalCluster" || r.isDecision() }

// isDecision says that nobody but the server may even change it. He may delete it.
func (r isoResource) isDecision() bool { return r.kind == "Placement" }

// path of the resource on the server, below /clusters/<cluster> unless that is empty. Empty name: all of namespace;
// empty namespace: of all namespaces.
func (r isoResource) path(cluster, namespace, name string) string {
	p := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		p = "/api/" + r.Version
	}
	if cluster != "" {
		p = "/clusters/" + cluster + p
	}
	if namespace != "" {
		p += "/namespaces/" + namespace
	}
	p += "/" + r.Resource
	if name != "" {
		p += "/" + name
	}
	return p
}

func (r isoResource) namespace() string {
	if r.namespaced {
		return isoNamespace
	}
	return ""
}

// isoWorld is a server with the workspaces root:a and root:b, which hold objects of equal names in every resource.
type isoWorld struct {
	*framework.Atoll
	clients   *client.Clients
	a, b      logicalcluster.Name
	resources []isoResource
	http      *http.Client // shows no client certificate
}

// newIsoWorld starts the server, with more flags, and fills it.
func newIsoWorld(t *testing.T, flags ...string) *isoWorld {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	rows := tokenA + ",alice,1\n" + tokenB + ",bob,2\n"
	if err := os.WriteFile(tokens, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &isoWorld{Atoll: framework.StartAtoll(t, append(flags, "--token-auth-file="+tokens)...)}
	config := w.Config()
	config.WarningHandler = rest.NoWarnings{} // of deprecated kinds
	var err error
	if w.clients, err = client.New(config); err != nil {
		t.Fatal(err)
	}
	w.http = anonymousHTTP(t, w.Atoll)
	w.a, w.b = framework.MakeWorkspace(t, w.clients, "root", "a"), framework.MakeWorkspace(t, w.clients, "root", "b")
	makeAdmin(t, w.clients, w.a, "alice")
	makeAdmin(t, w.clients, w.b, "bob")
	w.resources = servedResources(t, w.clients, w.a)
	for letter, cluster := range map[string]logicalcluster.Name{"a": w.a, "b": w.b} {
		w.fill(t, cluster, letter)
	}
	return w
}

// makeAdmin makes user cluster-admin of a logical cluster, and waits until the server knows it: rights are read from a cache.
func makeAdmin(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, user string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant-" + user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	ctx := client.In(t.Context(), cluster)
	if err := clients.Objects.Create(ctx, binding); err != nil {
		t.Fatalf("make %s admin of %s: %v", user, cluster, err)
	}
	framework.Eventually(t, patience, fmt.Sprintf("%s is admin of %s", user, cluster), func() string {
		review, err := clients.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "*"}},
		}, metav1.CreateOptions{})
		if err != nil || !review.Status.Allowed {
			return fmt.Sprintf("%+v, %v", review.Status, err)
		}
		return ""
	})
}

// anonymousHTTP trusts the server and shows no certificate.
func anonymousHTTP(t *testing.T, a *framework.Atoll) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.Config().CAData) {
		t.Fatal("the administrator's kubeconfig holds no CA")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// readManifests returns the objects of testdata/manifests.yaml.
func readManifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile("testdata/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for i, doc := range bytes.Split(data, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &object.Object); err != nil {
			t.Fatalf("testdata/manifests.yaml, document %d: %v", i+1, err)
		}
		if object.GetKind() == "CertificateSigningRequest" {
			setNested(t, object, certificateRequest(t), "spec", "request")
		}
		objects = append(objects, object)
	}
	return objects
}

// certificateRequest is a PEM in base64, as []byte becomes in JSON.
func certificateRequest(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "iso"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(string(out), `"`)
}

func setNested(t *testing.T, object *unstructured.Unstructured, value any, fields ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(object.Object, value, fields...); err != nil {
		t.Fatal(err)
	}
}

// servedResources returns every resource of a workspace that can be listed and created, with its manifest. It fails the
// test for a resource without manifest and for a manifest without resource.
func servedResources(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) []isoResource {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(clients.ConfigFor(cluster))
	if err != nil {
		t.Fatal(err)
	}
	lists, err := d.ServerPreferredResources()
	if err != nil {
		t.Fatalf("discover what is served: %v", err)
	}
	_, all, err := d.ServerGroupsAndResources()
	if err != nil {
		t.Fatalf("discover what is served: %v", err)
	}
	status := map[schema.GroupVersionResource]bool{}
	for _, list := range all {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if resource, ok := strings.CutSuffix(r.Name, "/status"); ok {
				status[gv.WithResource(resource)] = true
			}
		}
	}
	manifests := map[schema.GroupVersionKind]*unstructured.Unstructured{}
	for _, m := range readManifests(t) {
		manifests[m.GroupVersionKind()] = m
	}
	var resources []isoResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
				continue // reviews, bindings, and componentstatuses, which stores nothing
			}
			if r.Name == "nodes" {
				continue // nobody writes one: they show physical clusters
			}
			gvk := gv.WithKind(r.Kind)
			m := manifests[gvk]
			if m == nil {
				t.Errorf("resource %s is served and has no object in testdata/manifests.yaml", gv.WithResource(r.Name))
				continue
			}
			delete(manifests, gvk)
			resources = append(resources, isoResource{
				GroupVersionResource: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced,
				verbs: r.Verbs, hasStatus: status[gv.WithResource(r.Name)], manifest: m,
			})
		}
	}
	for gvk := range manifests {
		t.Errorf("testdata/manifests.yaml has a %s, which is not served in this version", gvk)
	}
	if t.Failed() {
		t.FailNow()
	}
	return resources
}

// fill writes the manifest of every resource; in b each carries the canary, but Placements, which the server alone writes.
func (w *isoWorld) fill(t *testing.T, cluster logicalcluster.Name, letter string) {
	t.Helper()
	ctx := client.In(t.Context(), cluster)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: isoNamespace}}
	if err := w.clients.Objects.Create(ctx, namespace); err != nil {
		t.Fatalf("create namespace %s in %s: %v", isoNamespace, letter, err)
	}
	var written []isoResource // by the system
	for _, r := range w.resources {
		if r.bySystem() {
			written = append(written, r)
			continue
		}
		object := w.object(r, letter)
		if _, err := w.in(r).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create %s %s in %s: %v", r.Resource, r.name(), letter, err)
		}
		if r.kind == "Deployment" { // another, which stays, so that its namespace keeps its Placement
			object.SetName("stays")
			if _, err := w.clients.Dynamic.Resource(r.GroupVersionResource).Namespace("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
				t.Fatalf("create a Deployment in namespace default of %s: %v", letter, err)
			}
		}
	}
	for _, r := range written {
		object := w.object(r, letter)
		metadata := map[string]any{"labels": object.GetLabels()}
		if annotations := object.GetAnnotations(); annotations != nil { // null would remove what the system wrote
			metadata["annotations"] = annotations
		}
		patch := mustJSON(t, map[string]any{"metadata": metadata})
		framework.Eventually(t, 30*time.Second, "the system wrote "+r.Resource+" "+r.name(), func() string {
			_, err := w.in(r).Get(ctx, r.name(), metav1.GetOptions{})
			if err == nil && !r.isDecision() {
				_, err = w.in(r).Patch(ctx, r.name(), types.MergePatchType, patch, metav1.PatchOptions{})
			}
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

// change changes the object of r in the logical cluster of ctx, or has the server write another, and returns how a watch shows that.
func (w *isoWorld) change(t *testing.T, r isoResource, ctx context.Context) (isShown func(watch.Event) bool) {
	t.Helper()
	if r.isDecision() {
		old, err := w.in(r).Get(ctx, r.name(), metav1.GetOptions{})
		if err == nil {
			err = w.in(r).Delete(ctx, r.name(), now())
		}
		if err != nil {
			t.Fatalf("delete %s %s: %v", r.Resource, r.name(), err)
		}
		framework.Eventually(t, 30*time.Second, "the system wrote "+r.Resource+" "+r.name()+" again", func() string {
			if _, err := w.in(r).Get(ctx, r.name(), metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
		return func(e watch.Event) bool {
			object, ok := e.Object.(*unstructured.Unstructured)
			return ok && e.Type == watch.Deleted && object.GetUID() == old.GetUID()
		}
	}
	sentinel := fmt.Sprintf("sentinel-%d", time.Now().UnixNano())
	if _, err := w.in(r).Patch(ctx, r.name(), types.MergePatchType, []byte(`{"metadata":{"labels":{"sentinel":"`+sentinel+`"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("patch %s %s: %v", r.Resource, r.name(), err)
	}
	return func(e watch.Event) bool {
		object, ok := e.Object.(*unstructured.Unstructured)
		return ok && object.GetLabels()["sentinel"] == sentinel
	}
}

// object returns the manifest of r for workspace a or b.
func (w *isoWorld) object(r isoResource, letter string) *unstructured.Unstructured {
	object := r.manifest.DeepCopy()
	labels := map[string]string{isoLabel: letter, "group": "core"}
	if r.Group != "" {
		labels["group"] = r.Group
	}
	if letter == "b" {
		labels["canary"] = canary
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations["example.invalid/canary"] = canary
		object.SetAnnotations(annotations)
		switch r.kind {
		case "ConfigMap":
			object.Object["data"] = map[string]any{"key": canary}
		case "Secret":
			object.Object["stringData"] = map[string]any{"key": canary}
		}
	}
	object.SetLabels(labels)
	return object
}

// in returns the administrator's client of r; the context says of which logical cluster.
func (w *isoWorld) in(r isoResource) dynamic.ResourceInterface {
	if r.namespaced {
		return w.clients.Dynamic.Resource(r.GroupVersionResource).Namespace(isoNamespace)
	}
	return w.clients.Dynamic.Resource(r.GroupVersionResource)
}

// dump returns all that a logical cluster holds: resource, namespace and name to the object in JSON.
func (w *isoWorld) dump(t *testing.T, cluster logicalcluster.Name) map[string]string {
	t.Helper()
	dump := map[string]string{}
	for _, r := range w.resources {
		list, err := w.clients.Dynamic.Resource(r.GroupVersionResource).List(client.In(t.Context(), cluster), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list %s of %s: %v", r.Resource, cluster, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			dump[r.Resource+"."+r.Group+" "+o.GetNamespace()+"/"+o.GetName()] = string(mustJSON(t, o.Object))
		}
	}
	return dump
}

// settled returns the dump of a logical cluster once its controllers have nothing left to do there: a second of quiet.
func (w *isoWorld) settled(t *testing.T, cluster logicalcluster.Name) map[string]string {
	t.Helper()
	last, since := w.dump(t, cluster), time.Now()
	framework.Eventually(t, 30*time.Second, "the controllers are done in "+cluster.String(), func() string {
		next := w.dump(t, cluster)
		if diff := cmp.Diff(last, next); diff != "" {
			last, since = next, time.Now()
			return diff
		}
		if quiet := time.Since(since); quiet < time.Second {
			return fmt.Sprintf("quiet for %s only", quiet)
		}
		return ""
	})
	return last
}

// answer is what an HTTP request got.
type answer struct {
	code   int
	header http.Header
	body   string
}

// message is that of a Status, else the body.
func (a answer) message() string {
	var status metav1.Status
	if err := json.Unmarshal([]byte(a.body), &status); err == nil && status.Message != "" {
		return status.Message
	}
	return a.body
}

// items of a list.
func (a answer) items(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	var list unstructured.UnstructuredList
	if err := list.UnmarshalJSON([]byte(a.body)); err != nil {
		t.Fatalf("parse a list: %v\n%s", err, a.body)
	}
	return list.Items
}

// request is one that a test makes without client-go, so that nothing is cleaned up on the way.
type request struct {
	method, path string // method: default GET; path: with query
	token        string // empty: anonymous
	header       map[string]string
	body         string
}

func (w *isoWorld) do(t *testing.T, r request) answer {
	t.Helper()
	got, err := send(t.Context(), w.http, w.URL, r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return got
}

// send sends the path as it is: no cleaning, no re-encoding.
func send(ctx context.Context, c *http.Client, server string, r request) (answer, error) {
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	u, err := url.Parse(server)
	if err != nil {
		return answer{}, err
	}
	path, query, _ := strings.Cut(r.path, "?")
	u.Opaque, u.RawQuery = "//"+u.Host+path, query
	req, err := http.NewRequestWithContext(ctx, method, server, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	req.URL = u
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	return answer{code: resp.StatusCode, header: resp.Header, body: string(body)}, nil
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// adminHTTP sends requests with the administrator's certificate.
func adminHTTP(t *testing.T, w *isoWorld) func(request) answer {
	t.Helper()
	c, err := rest.HTTPClientFor(w.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return func(r request) answer {
		t.Helper()
		got, err := send(t.Context(), c, w.URL, r)
		if err != nil {
			t.Fatalf("%s %s: %v", r.method, r.path, err)
		}
		return got
	}
}
