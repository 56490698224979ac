package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// fakeAtoll is as much of a server as the commands see: logical clusters, each with its objects, addressed by path;
// workspaces are ready as soon as they are created.
type fakeAtoll struct {
	mu       sync.Mutex
	clusters map[logicalcluster.Name]ctrlclient.WithWatch
	uids     int
	// refuse, if set, is asked before each write.
	refuse func(cluster logicalcluster.Name, obj ctrlclient.Object) error
	// hidden are the logical clusters in which the person may read no SyncTargets.
	hidden map[logicalcluster.Name]bool
	// closed are those of which the person is a stranger, as a ServiceAccount outside of its own; "*" is all at once.
	closed map[logicalcluster.Name]bool
	// unreadable, if set, says which lists are refused.
	unreadable func(ctrlclient.ObjectList) bool
	// watchable: the person may watch what he may list.
	watchable bool
	hub       *cli.Hub
	file      string
}

var unauthorized = apierrors.NewUnauthorized("not known here")

var forbidden = apierrors.NewForbidden(schema.GroupResource{Group: workloadv1alpha1.GroupVersion.Group, Resource: "synctargets"}, "", errors.New("not yours"))

// newFakeAtoll has the workspaces root and those given, and a kubeconfig whose context is root.
func newFakeAtoll(t *testing.T, workspaces ...string) *fakeAtoll {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["root"] = &clientcmdapi.Cluster{Server: "https://atoll.test/clusters/root"}
	config.Contexts["root"] = &clientcmdapi.Context{Cluster: "root", AuthInfo: "admin"}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "t"}
	config.CurrentContext = "root"
	f := &fakeAtoll{clusters: map[logicalcluster.Name]ctrlclient.WithWatch{}, file: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := clientcmd.WriteToFile(*config, f.file); err != nil {
		t.Fatal(err)
	}
	f.reopen(t)
	f.born("root")
	for _, w := range workspaces {
		f.put(t, "root", &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: w}})
	}
	return f
}

// reopen reads the kubeconfig again, as the next command does.
func (f *fakeAtoll) reopen(t *testing.T) {
	t.Helper()
	files := clientcmd.NewDefaultPathOptions()
	files.LoadingRules.ExplicitPath = f.file
	config, err := files.GetStartingConfig()
	if err != nil {
		t.Fatal(err)
	}
	address, err := cli.ParseAddress(config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server)
	if err != nil {
		t.Fatal(err)
	}
	f.hub = cli.New(address, f.objects(), files)
}

// call runs a command line and returns what it printed.
func (f *fakeAtoll) call(t *testing.T, command newCommand, args ...string) (out, errOut string, err error) {
	t.Helper()
	f.reopen(t)
	streams, _, o, e := genericiooptions.NewTestIOStreams()
	cmd := command(func() (*cli.Hub, error) { return f.hub, nil }, streams)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

type newCommand func(hubOpener, genericiooptions.IOStreams) *cobra.Command

func (f *fakeAtoll) put(t *testing.T, cluster logicalcluster.Name, obj ctrlclient.Object) {
	t.Helper()
	if err := f.objects().Create(client.In(t.Context(), cluster), obj); err != nil {
		t.Fatalf("put %s in %s: %v", obj.GetName(), cluster, err)
	}
}

func (f *fakeAtoll) born(path string) {
	f.clusters[logicalcluster.Name(path)] = fake.NewClientBuilder().WithScheme(client.Scheme).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(obj ctrlclient.Object) []string {
			return []string{string(obj.(*corev1.Event).InvolvedObject.UID)}
		}).
		WithObjects(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
			Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{lcctx.PathAnnotation: path},
		}}).Build()
}

// in returns the objects of the logical cluster of the context, none for one that does not exist.
func (f *fakeAtoll) in(ctx context.Context) (logicalcluster.Name, ctrlclient.WithWatch, error) {
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok {
		return "", nil, fmt.Errorf("a request without a logical cluster")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.clusters[cluster.Name]
	if !ok {
		return cluster.Name, fake.NewClientBuilder().WithScheme(client.Scheme).Build(), nil
	}
	return cluster.Name, c, nil
}

func (f *fakeAtoll) objects() ctrlclient.WithWatch {
	base := fake.NewClientBuilder().WithScheme(client.Scheme).Build()
	return interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, _ ctrlclient.WithWatch, key ctrlclient.ObjectKey, obj ctrlclient.Object, opts ...ctrlclient.GetOption) error {
			name, c, err := f.in(ctx)
			if err != nil {
				return err
			}
			if _, ok := obj.(*workloadv1alpha1.SyncTarget); ok && f.hidden[name] {
				return forbidden
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, _ ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
			if cluster, _ := lcctx.ClusterFrom(ctx); !cluster.Wildcard {
				name, c, err := f.in(ctx)
				if err != nil {
					return err
				}
				if _, ok := list.(*workloadv1alpha1.SyncTargetList); ok && f.hidden[name] {
					return forbidden
				}
				if f.closed[name] {
					return unauthorized
				}
				if f.unreadable != nil && f.unreadable(list) {
					return forbidden
				}
				return c.List(ctx, list, opts...)
			}
			if f.closed["*"] {
				return unauthorized
			}
			var items []runtime.Object
			for _, c := range f.clusters {
				if err := c.List(ctx, list, opts...); err != nil {
					return err
				}
				some, err := meta.ExtractList(list)
				if err != nil {
					return err
				}
				items = append(items, some...)
			}
			return meta.SetList(list, items)
		},
		Watch: func(ctx context.Context, _ ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) (watch.Interface, error) {
			_, c, err := f.in(ctx)
			if err == nil && !f.watchable {
				err = forbidden
			}
			if err != nil {
				return nil, err
			}
			return c.Watch(ctx, list, opts...)
		},
		Create: func(ctx context.Context, _ ctrlclient.WithWatch, obj ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
			name, c, err := f.in(ctx)
			if err != nil {
				return err
			}
			if f.refuse != nil {
				if err := f.refuse(name, obj); err != nil {
					return err
				}
			}
			f.uids++
			if obj.GetUID() == "" {
				obj.SetUID(types.UID(fmt.Sprint("uid-", f.uids)))
			}
			annotations := maps.Clone(obj.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[lcctx.Annotation] = string(name)
			obj.SetAnnotations(annotations)
			switch obj := obj.(type) {
			case *tenancyv1alpha1.Workspace:
				obj.Status.Phase, obj.Spec.Cluster = corev1alpha1.LogicalClusterPhaseReady, "c"+fmt.Sprint(f.uids)
				f.born(string(name) + ":" + obj.Name)
			case *workloadv1alpha1.SyncTarget:
				if obj.Status.ClusterUID == "" && obj.Name != "slow" {
					obj.Status = workloadv1alpha1.SyncTargetStatus{
						Version: "v1.36.3", Nodes: 3,
						Conditions: []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: "HeartbeatSeen"}},
					}
				}
			}
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, _ ctrlclient.WithWatch, obj ctrlclient.Object, opts ...ctrlclient.UpdateOption) error {
			_, c, err := f.in(ctx)
			if err != nil {
				return err
			}
			return c.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, _ ctrlclient.WithWatch, obj ctrlclient.Object, patch ctrlclient.Patch, opts ...ctrlclient.PatchOption) error {
			name, c, err := f.in(ctx)
			if err != nil {
				return err
			}
			if f.refuse != nil {
				if err := f.refuse(name, obj); err != nil {
					return err
				}
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		Delete: func(ctx context.Context, _ ctrlclient.WithWatch, obj ctrlclient.Object, opts ...ctrlclient.DeleteOption) error {
			name, c, err := f.in(ctx)
			if err != nil {
				return err
			}
			if f.refuse != nil {
				if err := f.refuse(name, obj); err != nil {
					return err
				}
			}
			if _, ok := obj.(*tenancyv1alpha1.Workspace); ok && len(obj.GetFinalizers()) == 0 {
				delete(f.clusters, name+":"+logicalcluster.Name(obj.GetName()))
			}
			return c.Delete(ctx, obj, opts...)
		},
	})
}

// server returns what the kubeconfig's current context points to.
func (f *fakeAtoll) server(t *testing.T) string {
	t.Helper()
	c, err := clientcmd.LoadFromFile(f.file)
	if err != nil {
		t.Fatal(err)
	}
	return c.Clusters[c.Contexts[c.CurrentContext].Cluster].Server
}
