package builtin

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/embedded-etcd/etcdtest"
	"atoll.dev/atoll/server/storage"
)

// rowPorts are NodePorts over the server's storage.
type rowPorts struct{ rows *storage.Backend }

func (p rowPorts) Claim(ctx context.Context, port int, holder string) (bool, error) {
	won, _, err := p.rows.Exclusive(ctx, "nodeports/"+strconv.Itoa(port), holder)
	return won, err
}

func (p rowPorts) Holder(ctx context.Context, port int) (string, bool, error) {
	return p.rows.Holder(ctx, "nodeports/"+strconv.Itoa(port))
}

func (p rowPorts) Release(ctx context.Context, port int, holder string) error {
	_, err := p.rows.Release(ctx, "nodeports/"+strconv.Itoa(port), holder)
	return err
}

func newBackend(t *testing.T, etcd *embeddedetcd.Etcd) *storage.Backend {
	t.Helper()
	config := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(compatibility.DefaultBuildEffectiveVersion())
	config.APIResourceConfig = controlplane.DefaultAPIResourceConfigSource()
	factory, err := config.Complete(genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))).New()
	if err != nil {
		t.Fatal(err)
	}
	backend, err := storage.New(storage.Config{Client: etcd.Client, StorageFactory: factory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Destroy)
	return backend
}

// What the other tests show over the least storage holds over the server's own, with its caches, for two servers: above
// all that a deleted Service says which logical cluster it was in.
func TestOverTheServersStorage(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		etcd := startEtcd(t).etcd
		overTheServersStorage(t, etcd, etcd)
	})
	t.Run("external", func(t *testing.T) {
		_, options := etcdtest.StartTLS(t)
		overTheServersStorage(t, etcdtest.Connect(t, options), etcdtest.Connect(t, options))
	})
}

func overTheServersStorage(t *testing.T, one, two *embeddedetcd.Etcd) {
	backends := []*storage.Backend{newBackend(t, one), newBackend(t, two)}
	var servers []*testServer
	for _, backend := range backends {
		servers = append(servers, newServer(t, backend, rowPorts{backend}))
		if err := backend.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	won := map[string][]bool{"aa": make([]bool, 8), "bb": make([]bool, 8)}
	var wg sync.WaitGroup
	for cluster := range won {
		for i := range won[cluster] {
			wg.Go(func() {
				svc := newService(fmt.Sprintf("s%d", i), clusterIP("10.255.9.9"), nodePort(30009))
				_, err := servers[i%2].create(in(t.Context(), cluster), svc)
				if err != nil && !apierrors.IsInvalid(err) {
					t.Errorf("create s%d in %s: %v", i, cluster, err)
				}
				won[cluster][i] = err == nil
			})
		}
	}
	wg.Wait()
	for cluster := range won {
		if got := count(won[cluster]); got != 1 {
			t.Fatalf("%d Services in %s got 10.255.9.9 and 30009, want 1", got, cluster)
		}
	}
	held := func(cluster string) string {
		_, port, err := rowPorts{backends[0]}.Holder(in(t.Context(), cluster), 30009)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(servers[0].locked(t, in(t.Context(), cluster)), port)
	}
	for i, ok := range won["aa"] {
		if ok {
			servers[1].remove(t, in(t.Context(), "aa"), fmt.Sprintf("s%d", i))
		}
	}
	if got := held("aa"); got != "[] false" {
		t.Errorf("locks in aa after the deletion: %s", got)
	}
	if got := held("bb"); got != "[10.255.9.9] true" {
		t.Errorf("locks in bb after a deletion in aa: %s", got)
	}

	// All at once, too: DeleteCollection has its own way to the hooks.
	for i := range 3 {
		servers[0].mustCreate(t, in(t.Context(), "aa"), newService(fmt.Sprintf("n%d", i), nodePort(0)))
	}
	if _, err := servers[0].services.DeleteCollection(in(t.Context(), "aa"), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := servers[0].locked(t, in(t.Context(), "aa")); len(got) != 0 {
		t.Errorf("IPAddresses after all Services are deleted: %v", got)
	}
	svc := servers[0].mustCreate(t, in(t.Context(), "aa"), newService("last", clusterIP("10.255.9.9"), nodePort(30009)))
	if svc.Spec.Type != api.ServiceTypeNodePort {
		t.Errorf("stored type %q", svc.Spec.Type)
	}
}
