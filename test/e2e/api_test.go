package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// ownGroups are what a workspace serves beyond kube-apiserver.
var ownGroups = []string{"core.kcp.io", "tenancy.kcp.io", "workload.kcp.io", "placement.atoll.dev", "metrics.k8s.io"}

// TestT1_ServesWhatKubeAPIServerServes compares the columns of `kubectl api-resources -o wide`, and the subresources, of
// a workspace with a real cluster's. What is missing is what server/builtin/missing.txt says, no more and no less.
func TestT1_ServesWhatKubeAPIServerServes(t *testing.T) {
	t.Parallel()
	physical := framework.StartPhysical(t, "reference")
	atoll := framework.StartAtoll(t)
	clients := atoll.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "a")
	there, here := apiResources(t, physical.RESTConfig()), apiResources(t, clients.ConfigFor(cluster))

	known := missingResources(t)
	missing := map[string]bool{}
	for key, want := range there {
		got, ok := here[key]
		switch {
		case !ok && known[want.resource]:
			missing[want.resource] = true // its subresources as well
		case !ok:
			missing[want.resource+want.subresource] = true
		case got != want:
			t.Errorf("%s differs (- kube-apiserver, + workspace):\n%s", key, cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)))
		}
	}
	if diff := cmp.Diff(known, missing); diff != "" {
		t.Errorf("missing.txt says - and + is missing:\n%s", diff)
	}
	for key, got := range here {
		if _, ok := there[key]; !ok && !slices.Contains(ownGroups, got.group) {
			t.Errorf("%s is served and kube-apiserver does not serve it", key)
		}
	}
}

// apiResource is a line of `kubectl api-resources -o wide`.
type apiResource struct {
	group, resource, subresource, kind, verbs, shortNames, categories, singular string
	namespaced                                                                  bool
}

// apiResources returns what a server serves, by group, version and name, subresources too.
func apiResources(t *testing.T, config *rest.Config) map[string]apiResource {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The unaggregated form has everything that there is to compare.
	_, lists, err := d.WithLegacy().ServerGroupsAndResources()
	if err != nil {
		t.Fatalf("discover %s: %v", config.Host, err)
	}
	all := map[string]apiResource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			name, subresource, ok := strings.Cut(r.Name, "/")
			if ok {
				subresource = "/" + subresource
			}
			slices.Sort(r.Verbs)
			all[list.GroupVersion+" "+r.Name] = apiResource{
				group: gv.Group, resource: schema.GroupResource{Group: gv.Group, Resource: name}.String(),
				subresource: subresource, kind: r.Kind, namespaced: r.Namespaced,
				verbs: strings.Join(r.Verbs, ","), shortNames: strings.Join(r.ShortNames, ","), categories: strings.Join(r.Categories, ","), singular: r.SingularName,
			}
		}
	}
	return all
}

func missingResources(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("../../server/builtin/missing.txt")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		resource, reason, ok := strings.Cut(line, "\t")
		if !ok || reason == "" {
			t.Errorf("missing.txt: no reason in %q", line)
		}
		missing[resource] = true
	}
	return missing
}

// TestT1_Kubectl uses a workspace as people do.
func TestT1_Kubectl(t *testing.T) {
	t.Parallel()
	atoll := framework.StartAtoll(t)
	framework.MakeWorkspace(t, atoll.Clients(), "root", "a")
	kubectl := func(input string, args ...string) (string, error) {
		return atoll.RunWithInput(input, append([]string{"kubectl", "--server=" + atoll.URL + "/clusters/root:a"}, args...)...)
	}
	must := func(input string, args ...string) string {
		t.Helper()
		out, err := kubectl(input, args...)
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	says := func(out string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(out, word) {
				t.Errorf("the output lacks %q:\n%s", word, out)
			}
		}
	}
	deployment := `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: registry.invalid/web:1}]
`
	says(must("", "explain", "deployment.spec.strategy"), "rollingUpdate", "RollingUpdate")
	says(must("", "explain", "workspace.spec"), "KIND:", "Workspace")
	says(must("", "api-resources", "-o", "wide"), "deployments", "deploy", "deletecollection")

	out, err := kubectl(strings.Replace(deployment, "replicas: 2", "replicsa: 2", 1), "apply", "-f", "-")
	if err == nil {
		t.Errorf("an unknown field was taken:\n%s", out)
	}
	says(out, `unknown field "spec.replicsa"`)

	says(must(deployment, "apply", "--dry-run=server", "-f", "-"), "created (server dry run)")
	if out, err := kubectl("", "get", "deployment", "web"); err == nil {
		t.Errorf("a dry run wrote:\n%s", out)
	}
	says(must(deployment, "apply", "-f", "-"), "deployment.apps/web created")
	says(must(deployment, "apply", "-f", "-"), "deployment.apps/web unchanged")
	says(must("", "get", "deployments"), "READY", "UP-TO-DATE", "AVAILABLE", "0/2")
	says(must("", "get", "deployments", "-o", "wide"), "registry.invalid/web:1")
	says(must("", "describe", "deployment", "web"), "StrategyType:")
	says(must("", "scale", "deployment", "web", "--replicas=5"), "scaled")
	says(must("", "get", "deployment", "web", "-o", "jsonpath={.spec.replicas}"), "5")
	says(must("", "set", "image", "deployment/web", "main=registry.invalid/web:2"), "updated")
	says(must("", "auth", "can-i", "create", "deployments"), "yes")
	says(must("", "create", "configmap", "one", "--from-literal=a=b"), "created")
	says(must("", "get", "configmap", "one", "-o", "yaml"), "a: b")
	says(must("", "delete", "configmap", "one"), "deleted")
	says(must("", "delete", "deployment", "web"), "deleted")
}

// TestT1_ServiceAccountTokens: a token from kubectl is its ServiceAccount in its workspace, found by the server's address
// alone as well, and nobody in another workspace that has the same ServiceAccount.
func TestT1_ServiceAccountTokens(t *testing.T) {
	t.Parallel()
	atoll := framework.StartAtoll(t)
	clients := atoll.Clients()
	framework.MakeWorkspace(t, clients, "root", "a")
	framework.MakeWorkspace(t, clients, "root", "b")
	in := func(workspace string, args ...string) []string {
		return append([]string{"kubectl", "--server=" + atoll.URL + "/clusters/root:" + workspace}, args...)
	}
	for _, workspace := range []string{"a", "b"} {
		atoll.MustRun(in(workspace, "create", "serviceaccount", "robot")...)
		atoll.MustRun(in(workspace, "create", "configmap", "of-"+workspace)...)
		atoll.MustRun(in(workspace, "create", "rolebinding", "robot", "--clusterrole=view", "--serviceaccount=default:robot")...)
	}
	token := strings.TrimSpace(atoll.MustStdout(in("a", "create", "token", "robot", "--duration=10m")...))
	who := atoll.MustRun(in("a", "--token="+token, "auth", "whoami")...)
	for _, want := range []string{"system:serviceaccount:default:robot", "system:serviceaccounts:default", "system:authenticated", "credential-id"} {
		if !strings.Contains(who, want) {
			t.Errorf("kubectl auth whoami lacks %q:\n%s", want, who)
		}
	}
	home := []string{"kubectl", "--server=" + atoll.URL, "--token=" + token}
	framework.Eventually(t, patience, "the token alone leads to workspace a", func() string {
		out, err := atoll.Run(append(home, "get", "configmaps", "-o", "name")...)
		if err != nil || !strings.Contains(out, "of-a") || strings.Contains(out, "of-b") {
			return fmt.Sprintf("%v\n%s", err, out)
		}
		return ""
	})
	if out, err := atoll.Run(in("b", "--token="+token, "get", "configmaps")...); err == nil || !strings.Contains(out, "Unauthorized") && !strings.Contains(out, "logged in") {
		t.Errorf("in workspace b: %v\n%s", err, out)
	}
	atoll.MustRun(in("a", "delete", "serviceaccount", "robot")...)
	if out, err := atoll.Run(append(home, "get", "configmaps")...); err == nil {
		t.Errorf("after its ServiceAccount was deleted:\n%s", out)
	}
}

// TestT1_Protocol: what client libraries use of the API beyond plain requests.
func TestT1_Protocol(t *testing.T) {
	t.Parallel()
	w := &isoWorld{Atoll: framework.StartAtoll(t)}
	w.clients = w.Clients()
	w.a = framework.MakeWorkspace(t, w.clients, "root", "a")
	p := &protocol{isoWorld: w, admin: adminHTTP(t, w), base: "/clusters/" + w.a.String(), ctx: client.In(t.Context(), w.a)}
	for i := range 5 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cm-%d", i)}, Data: map[string]string{"k": "v"}}
		if err := w.clients.Objects.Create(p.ctx, withNamespace(cm)); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]func(*protocol, *testing.T){
		"openapi": (*protocol).openapi, "discovery": (*protocol).discovery, "table": (*protocol).table, "protobuf": (*protocol).protobuf,
		"watchlist": (*protocol).watchList, "chunks": (*protocol).chunks, "apply": (*protocol).apply, "scale": (*protocol).scale,
		"patches": (*protocol).patches, "dryrun": (*protocol).dryRun,
	} {
		t.Run(name, func(t *testing.T) { test(p, t) })
	}
}

type protocol struct {
	*isoWorld
	admin func(request) answer
	base  string
	ctx   context.Context
}

func withNamespace(cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm.Namespace = "default"
	return cm
}

const configMapsPath = "/api/v1/namespaces/default/configmaps"

func (p *protocol) get(t *testing.T, path, accept string) answer {
	t.Helper()
	got := p.admin(request{path: p.base + path, header: map[string]string{"Accept": accept}})
	if got.code != http.StatusOK {
		t.Fatalf("%s as %s: %d %s", path, accept, got.code, got.message())
	}
	return got
}

func (p *protocol) openapi(t *testing.T) {
	v2 := p.get(t, "/openapi/v2", "application/json")
	for _, word := range []string{"io.k8s.api.apps.v1.Deployment", "tenancy", "x-kubernetes-group-version-kind"} {
		if !strings.Contains(v2.body, word) {
			t.Errorf("OpenAPI v2 lacks %q", word)
		}
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal([]byte(p.get(t, "/openapi/v3", "application/json").body), &index); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"api/v1", "apis/apps/v1", "apis/tenancy.kcp.io/v1alpha1", "apis/placement.atoll.dev/v1alpha1"} {
		entry, ok := index.Paths[group]
		if !ok {
			t.Errorf("OpenAPI v3 lacks %s", group)
			continue
		}
		// The URL is relative to the server, which for a client is the workspace.
		url := strings.TrimPrefix(entry.ServerRelativeURL, p.base)
		if got := p.get(t, url, "application/json"); !strings.Contains(got.body, `"openapi"`) {
			t.Errorf("%s is no OpenAPI v3 document: %.200s", url, got.body)
		}
	}
}

func (p *protocol) discovery(t *testing.T) {
	for _, path := range []string{"/api", "/apis"} {
		got := p.get(t, path, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		if !strings.Contains(got.body, `"kind":"APIGroupDiscoveryList"`) {
			t.Errorf("%s is not aggregated: %.200s", path, got.body)
		}
		tag := got.header.Get("Etag")
		again := p.admin(request{path: p.base + path, header: map[string]string{
			"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "If-None-Match": tag}})
		if tag == "" || again.code != http.StatusNotModified {
			t.Errorf("%s with the ETag %q: %d, want 304", path, tag, again.code)
		}
	}
}

func (p *protocol) table(t *testing.T) {
	got := p.get(t, configMapsPath, "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	if err := json.Unmarshal([]byte(got.body), &table); err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) < 3 || table.ColumnDefinitions[0].Name != "Name" || len(table.Rows) < 5 {
		t.Errorf("table: columns %v, %d rows", table.ColumnDefinitions, len(table.Rows))
	}
	partial := p.get(t, configMapsPath, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	if !strings.Contains(partial.body, `"kind":"PartialObjectMetadataList"`) || strings.Contains(partial.body, `"data"`) {
		t.Errorf("metadata only: %.300s", partial.body)
	}
}

func (p *protocol) protobuf(t *testing.T) {
	got := p.get(t, configMapsPath+"/cm-0", "application/vnd.kubernetes.protobuf")
	if !bytes.HasPrefix([]byte(got.body), []byte("k8s\x00")) {
		t.Errorf("a ConfigMap in protobuf begins with %.20q", got.body)
	}
	// The typed client writes and reads protobuf.
	cm, err := p.clients.Kube.CoreV1().ConfigMaps("default").Get(p.ctx, "cm-0", metav1.GetOptions{})
	if err != nil || cm.Data["k"] != "v" {
		t.Errorf("by protobuf: %v, %v", cm, err)
	}
}

func (p *protocol) watchList(t *testing.T) {
	yes := true
	watching, err := p.clients.Kube.CoreV1().ConfigMaps("default").Watch(p.ctx, metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true, LabelSelector: "!none",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	seen := map[string]bool{}
	for timeout := time.After(30 * time.Second); ; {
		select {
		case <-timeout:
			t.Fatalf("no bookmark after the initial events %v", seen)
		case event, ok := <-watching.ResultChan():
			cm, isMap := event.Object.(*corev1.ConfigMap)
			switch {
			case !ok || !isMap:
				t.Fatalf("the watch ended: %v", event)
			case event.Type == watch.Added:
				seen[cm.Name] = true
				continue
			case event.Type != watch.Bookmark || cm.Annotations[metav1.InitialEventsAnnotationKey] != "true":
				t.Fatalf("got %v before the bookmark", event)
			}
			for i := range 5 {
				if !seen[fmt.Sprintf("cm-%d", i)] {
					t.Errorf("the initial events lack cm-%d: %v", i, seen)
				}
			}
			if cm.ResourceVersion == "" || cm.ResourceVersion == "0" {
				t.Errorf("the bookmark is at resourceVersion %q", cm.ResourceVersion)
			}
			return
		}
	}
}

func (p *protocol) chunks(t *testing.T) {
	maps := p.clients.Kube.CoreV1().ConfigMaps("default")
	whole, err := maps.List(p.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	version, options := "", metav1.ListOptions{Limit: 2}
	for {
		page, err := maps.List(p.ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = page.ResourceVersion
			// What is written between pages is not in them.
			late := withNamespace(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "zz-late"}})
			if err := p.clients.Objects.Create(p.ctx, late); err != nil {
				t.Fatal(err)
			}
			if page.RemainingItemCount == nil || *page.RemainingItemCount != int64(len(whole.Items)-2) {
				t.Errorf("the first page of 2 of %d says that %v remain", len(whole.Items), page.RemainingItemCount)
			}
		}
		if page.ResourceVersion != version || len(page.Items) > 2 {
			t.Errorf("a page of %d at %s, want 2 at %s", len(page.Items), page.ResourceVersion, version)
		}
		for _, cm := range page.Items {
			names = append(names, cm.Name)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	var want []string
	for _, cm := range whole.Items {
		want = append(want, cm.Name)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("pages differ from the list (- list):\n%s", diff)
	}
}

func (p *protocol) deployment(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": name}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": name}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "registry.invalid/a:1"}}}},
		},
	}}
}

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

func (p *protocol) apply(t *testing.T) {
	resource := p.clients.Dynamic.Resource(deployments).Namespace("default")
	options := metav1.ApplyOptions{FieldManager: "tester"}
	if _, err := resource.Apply(p.ctx, "applied", p.deployment("applied"), options); err != nil {
		t.Fatal(err)
	}
	// The controllers may have something to say about a new Deployment.
	var last *unstructured.Unstructured
	since := time.Now()
	framework.Eventually(t, 30*time.Second, "a quiet Deployment", func() string {
		got, err := resource.Get(p.ctx, "applied", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if last == nil || last.GetResourceVersion() != got.GetResourceVersion() {
			last, since = got, time.Now()
		}
		if time.Since(since) < time.Second {
			return "it changed a moment ago"
		}
		return ""
	})
	again, err := resource.Apply(p.ctx, "applied", p.deployment("applied"), options)
	if err != nil || again.GetResourceVersion() != last.GetResourceVersion() {
		t.Errorf("a second apply went from resourceVersion %s to %s: %v", last.GetResourceVersion(), again.GetResourceVersion(), err)
	}
	other := p.deployment("applied")
	if err := unstructured.SetNestedField(other.Object, int64(3), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	if _, err := resource.Apply(p.ctx, "applied", other, metav1.ApplyOptions{FieldManager: "another"}); err == nil || !strings.Contains(err.Error(), "spec.replicas") {
		t.Errorf("another manager's apply: %v, want a conflict that names spec.replicas", err)
	}
}

func (p *protocol) scale(t *testing.T) {
	resource := p.clients.Dynamic.Resource(deployments).Namespace("default")
	if _, err := resource.Create(p.ctx, p.deployment("scaled"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apps := p.clients.Kube.AppsV1().Deployments("default")
	if _, err := apps.UpdateScale(p.ctx, "scaled", &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "scaled"}, Spec: autoscalingv1.ScaleSpec{Replicas: 7},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := apps.GetScale(p.ctx, "scaled", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 7 || scale.Status.Selector != "app=scaled" {
		t.Errorf("scale: %+v, %v", scale, err)
	}
}

func (p *protocol) patches(t *testing.T) {
	resource := p.clients.Dynamic.Resource(deployments).Namespace("default")
	if _, err := resource.Create(p.ctx, p.deployment("patched"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A strategic merge patch merges lists of containers by name; a merge patch replaces them.
	strategic := `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.invalid/a:2"},{"name":"side","image":"registry.invalid/b:1"}]}}}}`
	if _, err := resource.Patch(p.ctx, "patched", types.StrategicMergePatchType, []byte(strategic), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	added := `{"spec":{"template":{"spec":{"containers":[{"name":"third","image":"registry.invalid/c:1"}]}}}}`
	got, err := resource.Patch(p.ctx, "patched", types.StrategicMergePatchType, []byte(added), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(got.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 3 {
		t.Errorf("after strategic merge patches: %v, %v, want three containers", containers, err)
	}
	if got, err = resource.Patch(p.ctx, "patched", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/replicas","value":9}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if replicas, _, _ := unstructured.NestedInt64(got.Object, "spec", "replicas"); replicas != 9 {
		t.Errorf("after a JSON patch: %d replicas", replicas)
	}
}

func (p *protocol) dryRun(t *testing.T) {
	maps := p.clients.Kube.CoreV1().ConfigMaps("default")
	all := []string{metav1.DryRunAll}
	made, err := maps.Create(p.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: all})
	if err != nil || made.UID == "" {
		t.Errorf("create: %v, %v", made, err)
	}
	before, err := maps.Get(p.ctx, "cm-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(p.ctx, "cm-1", types.MergePatchType, []byte(`{"data":{"k":"dry"}}`), metav1.PatchOptions{DryRun: all}); err != nil {
		t.Error(err)
	}
	if err := maps.Delete(p.ctx, "cm-1", metav1.DeleteOptions{DryRun: all}); err != nil {
		t.Error(err)
	}
	if err := maps.DeleteCollection(p.ctx, metav1.DeleteOptions{DryRun: all}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	after, err := maps.Get(p.ctx, "cm-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("dry runs changed an object:\n%s", diff)
	}
	list, err := maps.List(p.ctx, metav1.ListOptions{FieldSelector: "metadata.name=dry"})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("a dry run wrote: %v, %v", list, err)
	}
}
