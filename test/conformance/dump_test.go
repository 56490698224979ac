package conformance

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// manifests has an object of every resource that a workspace serves and stores.
const manifests = "../e2e/testdata/manifests.yaml"

// namespace of the objects of manifests that are in one.
const namespace = "iso"

// notFilled are kinds of manifests that are not written into the third workspace.
var notFilled = map[string]string{
	"CertificateSigningRequest": "it is no whole manifest",
	"LogicalCluster":            "the server writes it",
	"Placement":                 "the server writes it",
	"SyncTarget":                "its status tells the time",
}

func decode(data []byte, into any) error { return json.Unmarshal(data, into) }

// quietClients are clients of a logical cluster, without warnings of deprecated kinds.
func quietClients(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) (discovery.DiscoveryInterface, dynamic.Interface) {
	t.Helper()
	config := clients.ConfigFor(cluster)
	config.WarningHandler = rest.NoWarnings{}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return d, dyn
}

// fill writes one object of nearly every resource into a logical cluster.
func fill(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) {
	t.Helper()
	data, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	d, dyn := quietClients(t, clients, cluster)
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatalf("discover what is served: %v", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	objects := [][]byte{[]byte("{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}")}
	for i, doc := range append(objects, bytes.Split(data, []byte("\n---\n"))...) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &object.Object); err != nil {
			t.Fatalf("%s, document %d: %v", manifests, i, err)
		}
		if _, skip := notFilled[object.GetKind()]; skip {
			continue
		}
		gvk := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			t.Fatalf("%s, %s: %v", manifests, gvk, err)
		}
		var resource dynamic.ResourceInterface = dyn.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			resource = dyn.Resource(mapping.Resource).Namespace(namespace)
		}
		if _, err := resource.Create(t.Context(), object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("create %s %s: %v", gvk.Kind, object.GetName(), err)
		}
	}
}

// dump returns all objects of a logical cluster: resource, namespace and name to the object in JSON.
func dump(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) map[string]string {
	t.Helper()
	d, dyn := quietClients(t, clients, cluster)
	lists, err := d.ServerPreferredResources()
	if err != nil {
		t.Fatalf("discover what is served: %v", err)
	}
	objects := map[string]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") {
				continue // nothing is stored
			}
			all, err := dyn.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s of %s: %v", r.Name, cluster, err)
			}
			for _, o := range all.Items {
				text, err := json.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				objects[r.Name+"."+gv.Group+" "+o.GetNamespace()+"/"+o.GetName()] = string(text)
			}
		}
	}
	return objects
}

// settled returns the dump of a logical cluster once its controllers have nothing left to do there: it stays the same for
// two seconds.
func settled(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) map[string]string {
	t.Helper()
	const quiet = 2 * time.Second
	last, since := dump(t, clients, cluster), time.Now()
	framework.Eventually(t, time.Minute, "quiet in "+string(cluster), func() string {
		now := dump(t, clients, cluster)
		if change := cmp.Diff(last, now); change != "" {
			last, since = now, time.Now()
			return change
		}
		if time.Since(since) < quiet {
			return "it changed lately"
		}
		return ""
	})
	return last
}

// compare says in what two dumps differ.
func compare(before, after map[string]string) (differences []string) {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		switch now, ok := after[key]; {
		case !ok:
			differences = append(differences, key+" is gone")
		case now != before[key]:
			differences = append(differences, key+" changed:\n"+before[key]+"\n"+now)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[key]; !ok {
			differences = append(differences, key+" is new: "+after[key])
		}
	}
	return differences
}
