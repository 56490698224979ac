package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/discovery"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// widgets defines widgets.stable.example.com with one field of its own, and a kind beside it that only that workspace has.
func widgets(field string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wdg%[1]s], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What is wanted of %[1]s.
            properties: {%[1]s: {type: string, description: The %[1]s of a widget.}}
          status: {type: object}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: only%[1]ss.stable.example.com}
spec:
  group: stable.example.com
  scope: Cluster
  names: {plural: only%[1]ss, singular: only%[1]s, kind: Only%[1]s}
  versions:
  - name: v1%[1]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`, field)
}

// TestT1_KubectlKnowsCustomResources uses custom resources as people do, in two workspaces that define one name
// differently: kubectl finds them by their names, knows their fields, and asks about no field twice.
func TestT1_KubectlKnowsCustomResources(t *testing.T) {
	t.Parallel()
	atoll := framework.StartAtoll(t)
	for workspace, field := range map[string]string{"a": "colour", "b": "weight"} {
		framework.MakeWorkspace(t, atoll.Clients(), "root", workspace)
		cache := filepath.Join(t.TempDir(), "cache")
		kubectl := func(input string, args ...string) (string, error) {
			return atoll.RunWithInput(input, append([]string{"kubectl", "--cache-dir=" + cache, "--server=" + atoll.URL + "/clusters/root:" + workspace}, args...)...)
		}
		must := func(input string, args ...string) string {
			t.Helper()
			out, err := kubectl(input, args...)
			if err != nil {
				t.Fatalf("in %s: kubectl %s: %v\n%s", workspace, strings.Join(args, " "), err, out)
			}
			return out
		}
		says := func(out string, words ...string) {
			t.Helper()
			for _, word := range words {
				if !strings.Contains(out, word) {
					t.Errorf("in %s the output lacks %q:\n%s", workspace, word, out)
				}
			}
		}
		must(widgets(field), "apply", "-f", "-")
		must("", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")

		resources := must("", "api-resources", "--api-group=stable.example.com", "-o", "wide")
		says(resources, "wdg"+field, "Widget", "Only"+field, "deletecollection", "all")
		says(must("", "api-versions"), "stable.example.com/v1\n", "stable.example.com/v1"+field, "apps/v1\n")
		says(must("", "explain", "widget.spec"), "What is wanted of "+field, field+"\t<string>")
		says(must("", "explain", "wdg"+field+".spec."+field), "The "+field+" of a widget.")
		says(must("", "explain", "deployment.spec.strategy"), "rollingUpdate")

		widget := fmt.Sprintf("apiVersion: stable.example.com/v1\nkind: Widget\nmetadata: {name: one}\nspec: {%s: much}\n", field)
		out, err := kubectl(strings.Replace(widget, field+":", "mistaken:", 1), "apply", "-f", "-")
		if err == nil {
			t.Errorf("in %s an unknown field was taken:\n%s", workspace, out)
		}
		says(out, `unknown field "spec.mistaken"`)
		says(must(widget, "apply", "-f", "-"), "widget.stable.example.com/one created")
		says(must(widget, "apply", "-f", "-"), "widget.stable.example.com/one unchanged")
		says(must(widget, "apply", "--server-side", "--force-conflicts", "-f", "-"), "serverside-applied")
		says(must("", "get", "wdg"+field), "one")
		says(must("", "get", "all"), "widget.stable.example.com/one")

		// The namespace goes, and what is in it first.
		must("", "create", "namespace", "passing")
		must(widget, "apply", "-n", "passing", "-f", "-")
		must("", "delete", "namespace", "passing", "--timeout=60s")
		if out := must("", "get", "widgets", "-A"); strings.Contains(out, "passing") || !strings.Contains(out, "one") {
			t.Errorf("in %s after the deletion of a namespace there are\n%s", workspace, out)
		}
	}
}

// TestI1_NoBleed_Discovery reads all that tells what is served, in two workspaces with definitions of one name, in one
// without any, and on no workspace, and looks for what the others define.
func TestI1_NoBleed_Discovery(t *testing.T) {
	t.Parallel()
	atoll := framework.StartAtoll(t)
	clients := atoll.Clients()
	fields := map[string]string{"a": "canarycolour", "b": "canaryweight", "none": ""}
	clusters := map[string]logicalcluster.Name{"wildcard": "*"}
	for workspace, field := range fields {
		clusters[workspace] = framework.MakeWorkspace(t, clients, "root", workspace)
		if field == "" {
			continue
		}
		server := "--server=" + atoll.URL + "/clusters/root:" + workspace
		atoll.MustRunWithInput(widgets(field), "kubectl", server, "apply", "-f", "-")
		atoll.MustRun("kubectl", server, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	}
	const (
		aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		v2Proto    = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
		v3Proto    = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	)
	documents := []struct{ path, accept string }{
		{"/", ""}, {"/api", aggregated}, {"/apis", ""}, {"/apis", aggregated},
		{"/apis/stable.example.com", ""}, {"/apis/stable.example.com/v1", ""},
		{"/openapi/v2", ""}, {"/openapi/v2", v2Proto}, {"/openapi/v3", ""},
		{"/openapi/v3/apis/stable.example.com/v1", ""}, {"/openapi/v3/apis/stable.example.com/v1", v3Proto},
	}
	for _, field := range fields {
		documents = append(documents, struct{ path, accept string }{"/apis/stable.example.com/v1" + field, ""},
			struct{ path, accept string }{"/openapi/v3/apis/stable.example.com/v1" + field, ""})
	}
	for _, round := range []string{"first", "again"} { // what is kept is asked for again
		for workspace, cluster := range clusters {
			for _, document := range documents {
				code, body := readDocument(t, clients, cluster, document.path, document.accept)
				for other, field := range fields {
					// The path of what does not exist is named in the answer.
					shows := code == http.StatusOK && strings.Contains(body, field)
					if other != workspace && field != "" && shows {
						t.Errorf("%s: %s as %q in %s shows what %s defines", round, document.path, document.accept, workspace, other)
					}
				}
				own := fields[workspace]
				if own != "" && code == http.StatusOK && strings.HasPrefix(document.path, "/openapi") && document.accept != "" && !strings.Contains(body, own) {
					t.Errorf("%s: %s as %q in %s does not show what it defines", round, document.path, document.accept, workspace)
				}
				if exists := own != "" || !strings.Contains(document.path, "stable"); exists && code != http.StatusOK && !strings.Contains(document.path, "canary") {
					t.Errorf("%s: %s as %q in %s answered %d: %.300s", round, document.path, document.accept, workspace, code, body)
				}
			}
		}
	}
	for _, workspace := range []string{"a", "b"} {
		_, resources, err := discovery.NewDiscoveryClientForConfigOrDie(clients.ConfigFor(clusters[workspace])).ServerGroupsAndResources()
		if err != nil {
			t.Errorf("discover in %s: %v", workspace, err)
		}
		found := fmt.Sprint(resources)
		if !strings.Contains(found, "only"+fields[workspace]+"s") {
			t.Errorf("what is discovered in %s lacks what it defines", workspace)
		}
	}
}

// readDocument reads a path of a logical cluster as the administrator.
func readDocument(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, path, accept string) (code int, body string) {
	t.Helper()
	config := clients.ConfigFor(cluster)
	rest := discovery.NewDiscoveryClientForConfigOrDie(config).RESTClient()
	result := rest.Get().AbsPath(path).SetHeader("Accept", accept).Do(t.Context())
	raw, err := result.Raw()
	result.StatusCode(&code)
	if err != nil {
		return code, err.Error()
	}
	return code, string(raw)
}
