package operators

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"atoll.dev/atoll/test/framework"
)

// manyKinds are so many that nobody watches more with one factory.
const manyKinds = 30

// TestT10_Informers: one SharedInformerFactory of client-go over all built-in kinds, in both workspaces, with and without
// WatchList, over a server that is killed.
func TestT10_Informers(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList=%v", watchList), func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, features.WatchListClient, watchList)
			w := newWorld(t)
			followed := map[*workspace]*following{}
			for _, ws := range w.workspaces {
				ws.apply(t, some)
				followed[ws] = follow(t, ws)
			}
			for ws, f := range followed {
				f.agrees(t, ws.name+" at first")
			}
			w.Kill()
			w.Restart()
			for ws, f := range followed {
				ws.kubectl(t, "annotate", "deployment", "web-"+ws.name, "changed=after-a-restart")
				ws.kubectl(t, "delete", "configmap", "of-"+ws.name)
				f.agrees(t, ws.name+" after the server was killed")
			}
			done(t, "informers of all %d built-in kinds that can be watched are in step in both workspaces, also after the server was killed", len(followed[w.workspaces[0]].kinds))
			w.apart(t)
		})
	}
}

// some is of several kinds.
const some = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: of-WORKSPACE, namespace: default}}
---
{apiVersion: v1, kind: Secret, metadata: {name: of-WORKSPACE, namespace: default}}
---
{apiVersion: v1, kind: Service, metadata: {name: web-WORKSPACE, namespace: default}, spec: {ports: [{port: 80}]}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: of-WORKSPACE, namespace: default}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: of-WORKSPACE, namespace: default}, spec: {podSelector: {}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-WORKSPACE, namespace: default}
spec:
  selector: {matchLabels: {app: WORKSPACE}}
  template:
    metadata: {labels: {app: WORKSPACE}}
    spec: {containers: [{name: main, image: registry.example/WORKSPACE:1}]}
`

// following is a workspace and informers over it.
type following struct {
	ws      *workspace
	factory informers.SharedInformerFactory
	kinds   []schema.GroupVersionResource
}

// follow starts informers for every kind that client-go knows and the workspace lists and watches.
func follow(t *testing.T, ws *workspace) *following {
	t.Helper()
	clients, err := kubernetes.NewForConfig(ws.admin)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := clients.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	f := &following{ws: ws, factory: informers.NewSharedInformerFactory(clients, 0)}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			informer, err := f.factory.ForResource(gv.WithResource(r.Name))
			if err != nil {
				continue // of ours
			}
			informer.Informer()
			f.kinds = append(f.kinds, gv.WithResource(r.Name))
		}
	}
	if len(f.kinds) < manyKinds {
		t.Fatalf("%s: only %d kinds: %v", ws.name, len(f.kinds), f.kinds)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); f.factory.Shutdown() })
	f.factory.Start(ctx.Done())
	began := time.Now()
	within, over := context.WithTimeout(ctx, patience)
	defer over()
	for kind, synced := range f.factory.WaitForCacheSync(within.Done()) {
		if !synced {
			t.Errorf("%s: the informer of %s is not in step after %s", ws.name, kind, patience)
		}
	}
	t.Logf("%s: %d kinds after %s", ws.name, len(f.kinds), time.Since(began).Round(time.Millisecond))
	return f
}

// agrees waits until the informers hold what lists show, versions included.
func (f *following) agrees(t *testing.T, when string) {
	t.Helper()
	objects := f.ws.objects(t)
	framework.Eventually(t, patience, "the informers of "+when+" hold what is there", func() string {
		listed, held := map[string]string{}, map[string]string{}
		for _, kind := range f.kinds {
			all, err := objects.Resource(kind).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			for _, o := range all.Items {
				listed[kind.Resource+" "+o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
			}
			informer, err := f.factory.ForResource(kind)
			if err != nil {
				return err.Error()
			}
			cached, err := informer.Lister().List(labels.Everything())
			if err != nil {
				return err.Error()
			}
			maps.Copy(held, versions(kind, cached))
		}
		if len(listed) == 0 {
			return "nothing is listed"
		}
		return cmp.Diff(listed, held)
	})
}

func versions(kind schema.GroupVersionResource, objects []runtime.Object) map[string]string {
	all := map[string]string{}
	for _, o := range objects {
		accessor, err := meta.Accessor(o)
		if err != nil {
			panic(err) // typed objects have metadata
		}
		all[kind.Resource+" "+accessor.GetNamespace()+"/"+accessor.GetName()] = accessor.GetResourceVersion()
	}
	return all
}
