package builtin

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"
)

func install(t *testing.T) map[string]rest.Storage {
	t.Helper()
	cfg := testConfig(t, startEtcd(t), &memoryPorts{})
	providers, err := Providers(cfg)
	if err != nil {
		t.Fatal(err)
	}
	getter := startEtcd(t)
	served := map[string]rest.Storage{}
	for _, p := range providers {
		if _, ok := p.(genericapiserver.PostStartHookProvider); ok {
			t.Errorf("the provider of %q shows its hook", p.GroupName())
		}
		info, err := p.NewRESTStorage(controlplane.DefaultAPIResourceConfigSource(), getter)
		if err != nil {
			t.Fatalf("group %q: %v", p.GroupName(), err)
		}
		for version, resources := range info.VersionedResourcesStorageMap {
			for resource, storage := range resources {
				served[schema.GroupVersion{Group: p.GroupName(), Version: version}.String()+" "+resource] = storage
			}
		}
	}
	return served
}

// What is served is what kube-apiserver's own documentation of its APIs lists, of the versions that are on by default.
func TestServedIsWhatUpstreamServes(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	documentation := filepath.Join(strings.TrimSpace(string(module)), "api", "discovery")
	var groups apidiscoveryv2.APIGroupDiscoveryList
	readJSON(t, filepath.Join(documentation, "aggregated_v2.json"), &groups)
	var core metav1.APIResourceList
	readJSON(t, filepath.Join(documentation, "api__v1.json"), &core)

	want := []string{}
	for _, resource := range core.APIResources {
		want = append(want, "v1 "+resource.Name)
	}
	enabled := controlplane.DefaultAPIResourceConfigSource()
	for _, group := range groups.Items {
		for _, version := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version.Version}
			for _, resource := range version.Resources {
				if !enabled.ResourceEnabled(gv.WithResource(resource.Resource)) {
					continue
				}
				want = append(want, gv.String()+" "+resource.Resource)
				for _, sub := range resource.Subresources {
					want = append(want, gv.String()+" "+resource.Resource+"/"+sub.Subresource)
				}
			}
		}
	}
	got := slices.Collect(maps.Keys(install(t)))
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("served resources (-upstream +here):\n%s", diff)
	}
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestWhatNeedsAWayToPodsIsRefused(t *testing.T) {
	served := install(t)
	ctx := in(t.Context(), "aa")
	pods := served["v1 pods"].(rest.Getter)
	if _, err := pods.Get(ctx, "web", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("get a pod that is not there: %v", err)
	}
	refused := func(err error) bool {
		status, ok := err.(apierrors.APIStatus)
		return ok && status.Status().Code == http.StatusNotImplemented
	}
	if _, err := served["v1 nodes/proxy"].(rest.Connecter).Connect(ctx, "web", nil, nil); !refused(err) {
		t.Errorf("v1 nodes/proxy: %v, want 501", err)
	}
	ofPods := []string{"v1 pods/exec", "v1 pods/attach", "v1 pods/portforward", "v1 pods/proxy"}
	for _, name := range append(ofPods, "v1 services/proxy") {
		if _, err := served[name].(rest.Connecter).Connect(ctx, "web", nil, nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s of what is not there: %v, want not found", name, err)
		}
	}
	pod := &api.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: api.PodSpec{
			Containers:    []api.Container{{Name: "c", Image: "i", TerminationMessagePolicy: api.TerminationMessageReadFile, ImagePullPolicy: api.PullAlways}},
			RestartPolicy: api.RestartPolicyAlways, DNSPolicy: api.DNSClusterFirst, SecurityContext: &api.PodSecurityContext{},
			TerminationGracePeriodSeconds: new(int64(30)), EnableServiceLinks: new(true),
		},
	}
	if _, err := served["v1 pods"].(rest.Creater).Create(ctx, runtime.Object(pod), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range ofPods {
		if _, err := served[name].(rest.Connecter).Connect(ctx, "web", nil, nil); !refused(err) {
			t.Errorf("%s: %v, want 501", name, err)
		}
	}
	if _, err := served["v1 pods/log"].(rest.GetterWithOptions).Get(ctx, "web", nil); !refused(err) {
		t.Errorf("v1 pods/log: %v, want 501", err)
	}
}
