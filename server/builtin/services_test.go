package builtin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/logicalcluster"
)

func TestParallelCreatesNeverShareAnAddress(t *testing.T) {
	getter := startEtcd(t)
	rows := &memoryPorts{}
	// 62 addresses for 50 Services make the random tries meet.
	small := func(c *Config) {
		c.ServiceIPRange = netip.MustParsePrefix("10.255.0.0/26")
		c.NodePortRange = utilnet.PortRange{Base: 30000, Size: 60}
	}
	servers := []*testServer{newServer(t, getter, rows, small), newServer(t, getter, rows, small)}

	const count = 50
	created := make([]*api.Service, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			svc, err := servers[i%2].create(in(t.Context(), "aa"), newService(fmt.Sprintf("s%d", i), nodePort(0)))
			if err != nil {
				t.Errorf("create s%d: %v", i, err)
				return
			}
			created[i] = svc
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	ips, ports := map[string]string{}, map[int32]string{}
	for _, svc := range created {
		if other := ips[svc.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s both have %s", other, svc.Name, svc.Spec.ClusterIP)
		}
		if other := ports[svc.Spec.Ports[0].NodePort]; other != "" {
			t.Errorf("%s and %s both have node port %d", other, svc.Name, svc.Spec.Ports[0].NodePort)
		}
		ips[svc.Spec.ClusterIP], ports[svc.Spec.Ports[0].NodePort] = svc.Name, svc.Name
	}
	if got := len(servers[0].locked(t, in(t.Context(), "aa"))); got != count {
		t.Errorf("%d IPAddresses for %d Services", got, count)
	}
	if got := len(rows.taken("aa")); got != count {
		t.Errorf("%d node ports locked for %d Services", got, count)
	}
}

func TestParallelClaimsOfOneAddressHaveOneWinner(t *testing.T) {
	getter := startEtcd(t)
	rows := &memoryPorts{}
	servers := []*testServer{newServer(t, getter, rows), newServer(t, getter, rows)}
	won := make([]bool, 20)
	var wg sync.WaitGroup
	for i := range won {
		wg.Go(func() {
			_, err := servers[i%2].create(in(t.Context(), "aa"), newService(fmt.Sprintf("s%d", i), clusterIP("10.255.7.7"), nodePort(30007)))
			if err != nil && !apierrors.IsInvalid(err) {
				t.Errorf("create s%d: %v, want 422", i, err)
			}
			won[i] = err == nil
		})
	}
	wg.Wait()
	if got := count(won); got != 1 {
		t.Errorf("%d Services got 10.255.7.7, want 1", got)
	}
	if diff := cmp.Diff([]string{"10.255.7.7"}, servers[0].locked(t, in(t.Context(), "aa"))); diff != "" {
		t.Errorf("IPAddresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"30007"}, rows.taken("aa")); diff != "" {
		t.Errorf("node ports (-want +got):\n%s", diff)
	}
}

func TestLogicalClustersDoNotShareAddresses(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	for _, cluster := range []string{"aa", "bb"} {
		s.mustCreate(t, in(t.Context(), cluster), newService("web", clusterIP("10.255.1.1"), nodePort(30001)))
	}
	endpoints := func(cluster string) error {
		_, err := s.endpoints.Get(in(t.Context(), cluster), "web", &metav1.GetOptions{})
		return err
	}
	for _, cluster := range []string{"aa", "bb"} {
		e := &api.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
		if _, err := s.endpoints.Create(in(t.Context(), cluster), e, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	s.remove(t, in(t.Context(), "aa"), "web")

	if diff := cmp.Diff([]string{}, s.locked(t, in(t.Context(), "aa"))); diff != "" {
		t.Errorf("IPAddresses in aa after the deletion (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.255.1.1"}, s.locked(t, in(t.Context(), "bb"))); diff != "" {
		t.Errorf("IPAddresses in bb after a deletion in aa (-want +got):\n%s", diff)
	}
	if a, b := rows.taken("aa"), rows.taken("bb"); len(a) != 0 || len(b) != 1 {
		t.Errorf("node ports after a deletion in aa: aa %v, bb %v, want none and one", a, b)
	}
	if err := endpoints("aa"); !apierrors.IsNotFound(err) {
		t.Errorf("endpoints of the deleted Service: %v, want not found", err)
	}
	if err := endpoints("bb"); err != nil {
		t.Errorf("endpoints of the other logical cluster: %v", err)
	}
	s.mustCreate(t, in(t.Context(), "aa"), newService("again", clusterIP("10.255.1.1"), nodePort(30001)))
}

func TestChosenAddresses(t *testing.T) {
	s := newServer(t, startEtcd(t), &memoryPorts{})
	ctx := in(t.Context(), "aa")
	s.mustCreate(t, ctx, newService("first", clusterIP("10.255.1.1"), nodePort(30001)))
	tests := map[string]struct {
		service *api.Service
		message string
		reason  string
	}{
		"taken IP":      {newService("x", clusterIP("10.255.1.1")), "failed to allocate IP 10.255.1.1: provided IP is already allocated", "upstream's words"},
		"foreign IP":    {newService("x", clusterIP("10.96.0.10")), "the provided network does not match the current range", "upstream's words of several ranges"},
		"network":       {newService("x", clusterIP("10.255.0.0")), "is not in the valid range", "the network is no host"},
		"broadcast":     {newService("x", clusterIP("10.255.255.255")), "is not in the valid range", "the broadcast address is no host"},
		"IPv6":          {newService("x", clusterIP("fd00::1")), "IPv6 is not configured on this cluster", "one family"},
		"taken port":    {newService("x", nodePort(30001)), "provided port is already allocated", "upstream's words"},
		"foreign port":  {newService("x", nodePort(80)), "provided port is not in the valid range. The range of valid ports is 30000-32767", "upstream's words"},
		"taken by self": {newService("x", nodePort(30005), func(s *api.Service) { s.Spec.Ports = append(s.Spec.Ports, port("b", 81, 30005)) }), "provided port is already allocated", "two ports of one Service"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := s.create(ctx, tc.service)
			if !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), tc.message) {
				t.Errorf("%s: error %v, want 422 with %q", tc.reason, err, tc.message)
			}
			if diff := cmp.Diff([]string{"10.255.1.1"}, s.locked(t, ctx)); diff != "" {
				t.Errorf("IPAddresses after a refusal (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceTypes(t *testing.T) {
	tests := map[string]struct {
		service *api.Service
		ips     int
		ports   int
	}{
		"ClusterIP":    {newService("web"), 1, 0},
		"headless":     {newService("web", clusterIP(api.ClusterIPNone)), 0, 0},
		"ExternalName": {newService("web", externalName), 0, 0},
		"NodePort":     {newService("web", nodePort(0)), 1, 1},
		"LoadBalancer": {newService("web", loadBalancer), 1, 1},
		"LoadBalancer without node ports": {newService("web", loadBalancer, func(s *api.Service) {
			no := false
			s.Spec.AllocateLoadBalancerNodePorts = &no
		}), 1, 0},
		"health check": {newService("web", loadBalancer, func(s *api.Service) { s.Spec.ExternalTrafficPolicy = api.ServiceExternalTrafficPolicyLocal }), 1, 2},
	}
	getter := startEtcd(t)
	rows := &memoryPorts{}
	s := newServer(t, getter, rows)
	i := 0
	for name, tc := range tests {
		i++
		ctx := in(t.Context(), fmt.Sprintf("c%d", i))
		t.Run(name, func(t *testing.T) {
			cluster, _ := logicalcluster.ClusterFrom(ctx)
			check := func(when string, ips, ports int) {
				t.Helper()
				if got := s.locked(t, ctx); len(got) != ips {
					t.Errorf("%s: IPAddresses %v, want %d", when, got, ips)
				}
				if got := rows.taken(cluster.Name); len(got) != ports {
					t.Errorf("%s: node ports %v, want %d", when, got, ports)
				}
			}
			dry, err := s.services.Create(ctx, tc.service.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatalf("dry run: %v", err)
			}
			if got := dry.(*api.Service).Spec.ClusterIP != ""; got != (tc.ips > 0 || name == "headless") {
				t.Errorf("dry run shows cluster IP %q", dry.(*api.Service).Spec.ClusterIP)
			}
			check("after a dry run", 0, 0)
			s.mustCreate(t, ctx, tc.service)
			check("after the creation", tc.ips, tc.ports)
			s.remove(t, ctx, "web")
			check("after the deletion", 0, 0)
		})
	}
}

func TestChangesOfTypeRelease(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	ctx := in(t.Context(), "aa")
	steps := []struct {
		name       string
		change     func(*api.Service)
		ips, ports int
	}{
		{"to NodePort", nodePort(0), 1, 1},
		{"another port", func(s *api.Service) { s.Spec.Ports = append(s.Spec.Ports, port("b", 81, 0)) }, 1, 2},
		{"chosen port", func(s *api.Service) { s.Spec.Ports[1].NodePort = 32000 }, 1, 2},
		{"one port less", func(s *api.Service) { s.Spec.Ports = s.Spec.Ports[:1] }, 1, 1},
		{"to LoadBalancer", loadBalancer, 1, 1},
		{"to ClusterIP", func(s *api.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.AllocateLoadBalancerNodePorts = api.ServiceTypeClusterIP, "", nil
			s.Spec.Ports[0].NodePort = 0
		}, 1, 0},
		{"to ExternalName", func(s *api.Service) {
			externalName(s)
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy, s.Spec.InternalTrafficPolicy = "", nil, nil, nil, nil
		}, 0, 0},
		{"to ClusterIP again", func(s *api.Service) {
			s.Spec.Type, s.Spec.ExternalName = api.ServiceTypeClusterIP, ""
			cluster := api.ServiceInternalTrafficPolicyCluster
			s.Spec.InternalTrafficPolicy = &cluster
		}, 1, 0},
	}
	s.mustCreate(t, ctx, newService("web"))
	for _, step := range steps {
		svc, err := s.change(ctx, "web", step.change)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		ips, ports := s.locked(t, ctx), rows.taken("aa")
		if len(ips) != step.ips || len(ports) != step.ports {
			t.Errorf("%s: IPAddresses %v, node ports %v, want %d and %d", step.name, ips, ports, step.ips, step.ports)
		}
		if step.ips == 1 && !slices.Contains(ips, svc.Spec.ClusterIP) {
			t.Errorf("%s: the Service has %q, locked is %v", step.name, svc.Spec.ClusterIP, ips)
		}
	}
}

// A refused update must not give up what the stored Service still holds, nor keep what it does not.
func TestRefusedUpdateChangesNoLock(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	ctx := in(t.Context(), "aa")
	s.mustCreate(t, ctx, newService("web", clusterIP("10.255.3.3"), nodePort(30003)))
	refuse := func(context.Context, runtime.Object, runtime.Object) error {
		return apierrors.NewForbidden(api.Resource("services"), "web", errors.New("by admission"))
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		svc := old.DeepCopyObject().(*api.Service)
		svc.Spec.Ports = []api.ServicePort{port("http", 80, 30004)}
		return svc, nil
	})
	_, _, err := s.services.Update(ctx, "web", info, rest.ValidateAllObjectFunc, refuse, false, &metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("update: %v, want forbidden", err)
	}
	if diff := cmp.Diff([]string{"30003"}, rows.taken("aa")); diff != "" {
		t.Errorf("node ports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.255.3.3"}, s.locked(t, ctx)); diff != "" {
		t.Errorf("IPAddresses (-want +got):\n%s", diff)
	}
}

// Upstream commits an update's allocations before etcd has taken it. When etcd does not, and the update is tried again,
// the Service must end with as many locks as it holds.
func TestRetriedUpdateKeepsOneLock(t *testing.T) {
	rows := &memoryPorts{}
	getter := startEtcd(t)
	s, other := newServer(t, getter, rows), newServer(t, getter, rows)
	ctx := in(t.Context(), "aa")
	s.mustCreate(t, ctx, newService("web", externalName))

	attempts := 0
	meddle := func(_ context.Context, obj, _ runtime.Object) error {
		if attempts++; attempts > 1 {
			return nil
		}
		_, err := other.change(ctx, "web", func(s *api.Service) { s.Labels = map[string]string{"meanwhile": "changed"} })
		return err
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		svc := newService("web", nodePort(0))
		svc.Labels = old.(*api.Service).Labels
		svc.ResourceVersion = "" // unconditional, so that the registry tries again
		return svc, nil
	})
	obj, _, err := s.services.Update(ctx, "web", info, rest.ValidateAllObjectFunc, meddle, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if attempts != 2 {
		t.Fatalf("%d attempts, want 2: the test meddled in vain", attempts)
	}
	svc := obj.(*api.Service)
	if diff := cmp.Diff([]string{svc.Spec.ClusterIP}, s.locked(t, ctx)); diff != "" {
		t.Errorf("IPAddresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{fmt.Sprint(svc.Spec.Ports[0].NodePort)}, rows.taken("aa")); diff != "" {
		t.Errorf("node ports (-want +got):\n%s", diff)
	}
}

// lockOnly leaves what a crash between the locks and the Service leaves.
func lockOnly(t *testing.T, s *testServer, ctx context.Context, ip string, port int) {
	t.Helper()
	gone := owner{Namespace: "default", Name: "crashed", UID: "uid-of-crashed"}
	if err := s.services.alloc.ips.claim(ctx, netip.MustParseAddr(ip), gone); err != nil {
		t.Fatal(err)
	}
	if err := s.services.alloc.ports.claim(ctx, port, gone); err != nil {
		t.Fatal(err)
	}
}

func TestStaleLocksAreTakenOver(t *testing.T) {
	rows := &memoryPorts{}
	getter := startEtcd(t)
	s := newServer(t, getter, rows)
	ctx := in(t.Context(), "aa")
	lockOnly(t, s, ctx, "10.255.4.4", 30004)
	s.mustCreate(t, ctx, newService("holder", clusterIP("10.255.5.5"), nodePort(30005)))

	if _, err := s.create(ctx, newService("early", clusterIP("10.255.4.4"))); !apierrors.IsInvalid(err) {
		t.Errorf("a fresh lock without a Service: %v, want 422: its request may still be running", err)
	}
	s.setClock(2 * staleAfter)
	if _, err := s.create(ctx, newService("thief", clusterIP("10.255.5.5"))); !apierrors.IsInvalid(err) {
		t.Errorf("an old lock that its Service holds: %v, want 422", err)
	}
	if _, err := s.create(ctx, newService("thief", nodePort(30005))); !apierrors.IsInvalid(err) {
		t.Errorf("an old node port that its Service holds: %v, want 422", err)
	}

	// Of many that want the stale locks at once, through two servers, one gets them.
	second := newServer(t, getter, rows)
	second.setClock(2 * staleAfter)
	won := make([]bool, 12)
	var wg sync.WaitGroup
	for i := range won {
		wg.Go(func() {
			_, err := []*testServer{s, second}[i%2].create(ctx, newService(fmt.Sprintf("heir%d", i), clusterIP("10.255.4.4"), nodePort(30004)))
			if err != nil && !apierrors.IsInvalid(err) {
				t.Errorf("heir%d: %v", i, err)
			}
			won[i] = err == nil
		})
	}
	wg.Wait()
	if got := count(won); got > 1 {
		t.Errorf("%d Services took the stale locks over, want one", got)
	} else if got == 0 {
		// The IP's winner and the port's may differ and both be refused; then all locks are free again.
		s.mustCreate(t, ctx, newService("heir", clusterIP("10.255.4.4"), nodePort(30004)))
	}
}

// meddling is a getter that lets something else happen between a caller's earlier reads and its own.
type meddling struct {
	rest.Getter
	once sync.Once
	do   func()
}

func (m *meddling) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	m.once.Do(m.do)
	return m.Getter.Get(ctx, name, options)
}

// Between the judgement that a lock is stale and its removal another server takes it over: the removal must not hit
// that server's lock.
func TestSlowTakeoverSparesTheNewLock(t *testing.T) {
	tests := map[string]func(*api.Service){"cluster IP": clusterIP("10.255.4.4"), "node port": nodePort(30004)}
	for name, wish := range tests {
		t.Run(name, func(t *testing.T) {
			getter, rows := startEtcd(t), &memoryPorts{}
			slow, quick := newServer(t, getter, rows), newServer(t, getter, rows)
			ctx := in(t.Context(), "aa")
			lockOnly(t, slow, ctx, "10.255.4.4", 30004)
			slow.setClock(2 * staleAfter)
			quick.setClock(2 * staleAfter)
			m := &meddling{Getter: slow.services.alloc.ips.services, do: func() { quick.mustCreate(t, ctx, newService("quick", wish)) }}
			slow.services.alloc.ips.services, slow.services.alloc.ports.services = m, m
			if _, err := slow.create(ctx, newService("slow", wish)); !apierrors.IsInvalid(err) {
				t.Errorf("the slower of two takeovers: %v, want 422", err)
			}
		})
	}
}

func TestFullRange(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows, func(c *Config) {
		c.ServiceIPRange = netip.MustParsePrefix("10.255.0.0/29")
		c.NodePortRange = utilnet.PortRange{Base: 30000, Size: 20}
	})
	ctx := in(t.Context(), "aa")
	for i := range 5 {
		s.mustCreate(t, ctx, newService(fmt.Sprintf("s%d", i), nodePort(0)))
	}
	lockOnly(t, s, ctx, freeOf(s.locked(t, ctx)), 30010)
	_, err := s.create(ctx, newService("late"))
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("create in a full range: %v, want upstream's error", err)
	}
	s.setClock(2 * staleAfter)
	s.mustCreate(t, ctx, newService("heir"))
}

func freeOf(taken []string) string {
	for i := 1; ; i++ {
		if ip := fmt.Sprintf("10.255.0.%d", i); !slices.Contains(taken, ip) {
			return ip
		}
	}
}

func TestGeneratedNameRetriesKeepNoLock(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	ctx := in(t.Context(), "aa")
	calls := 0
	clash := func(ctx context.Context, obj runtime.Object) error {
		if calls++; calls > 3 {
			return nil
		}
		return apierrors.NewAlreadyExists(api.Resource("services"), obj.(*api.Service).Name)
	}
	svc := newService("")
	svc.GenerateName = "web-"
	obj, err := s.services.Create(ctx, svc, clash, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 4 {
		t.Fatalf("%d attempts, want 4", calls)
	}
	if diff := cmp.Diff([]string{obj.(*api.Service).Spec.ClusterIP}, s.locked(t, ctx)); diff != "" {
		t.Errorf("IPAddresses (-want +got):\n%s", diff)
	}
}

func TestMirrorsAllocateNothing(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	ctx := logicalcluster.WithCluster(in(t.Context(), "mirror"), logicalcluster.Cluster{Name: "mirror", Mirror: true})
	for _, svc := range []*api.Service{newService("plain"), newService("ports", nodePort(0)), newService("headless", clusterIP(api.ClusterIPNone))} {
		want := svc.Spec.DeepCopy()
		got := s.mustCreate(t, ctx, svc)
		if svc.Name == "headless" {
			want.ClusterIPs = []string{api.ClusterIPNone}
			// The registry fills families of a headless Service on read.
			want.IPFamilies, want.IPFamilyPolicy = got.Spec.IPFamilies, got.Spec.IPFamilyPolicy
		}
		got.Spec.IPFamilies = emptyToNil(got.Spec.IPFamilies)
		if diff := cmp.Diff(want, &got.Spec); diff != "" {
			t.Errorf("Service %q in a mirror (-sent +stored):\n%s", svc.Name, diff)
		}
		if _, err := s.change(ctx, svc.Name, func(s *api.Service) { s.Spec.Ports[0].Port = 8080 }); err != nil {
			t.Errorf("update of %q in a mirror: %v", svc.Name, err)
		}
		s.remove(t, ctx, svc.Name)
	}
	if ips, ports := s.locked(t, ctx), rows.taken("mirror"); len(ips)+len(ports) != 0 {
		t.Errorf("a mirror locked %v and %v", ips, ports)
	}
}

func emptyToNil(f []api.IPFamily) []api.IPFamily {
	if len(f) == 0 {
		return nil
	}
	return f
}

func TestStatusUpdateThatDeletesReleases(t *testing.T) {
	rows := &memoryPorts{}
	s := newServer(t, startEtcd(t), rows)
	ctx := in(t.Context(), "aa")
	s.mustCreate(t, ctx, newService("web", nodePort(0), func(s *api.Service) { s.Finalizers = []string{"example.com/hold"} }))
	s.remove(t, ctx, "web")
	if got := s.locked(t, ctx); len(got) != 1 {
		t.Errorf("IPAddresses of a Service that a finalizer holds: %v, want its own", got)
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		svc := old.DeepCopyObject().(*api.Service)
		svc.Finalizers = nil
		return svc, nil
	})
	if _, _, err := s.status.Update(ctx, "web", info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ips, ports := s.locked(t, ctx), rows.taken("aa"); len(ips)+len(ports) != 0 {
		t.Errorf("after the finalizer is gone: %v and %v are locked", ips, ports)
	}
}

func TestWritesWithoutLogicalClusterAreRefused(t *testing.T) {
	s := newServer(t, startEtcd(t), &memoryPorts{})
	bare := genericapirequest.WithNamespace(t.Context(), "default")
	wildcard := logicalcluster.WithCluster(bare, logicalcluster.Cluster{Wildcard: true})
	for name, ctx := range map[string]context.Context{"none": bare, "wildcard": wildcard} {
		if _, err := s.create(ctx, newService("web")); !apierrors.IsInternalError(err) {
			t.Errorf("%s: create: %v, want an internal error", name, err)
		}
	}
	if _, err := s.services.REST.Create(in(t.Context(), "aa"), newService("web"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("create past the wrapper: %v, want an internal error", err)
	}
}

func TestOutcomeOf(t *testing.T) {
	gr := api.Resource("services")
	tests := map[string]struct {
		err  error
		want outcome
	}{
		"no error":       {nil, written},
		"exists":         {apierrors.NewAlreadyExists(gr, "x"), refused},
		"invalid":        {apierrors.NewInvalid(api.Kind("Service"), "x", nil), refused},
		"conflict":       {apierrors.NewConflict(gr, "x", errors.New("changed")), refused},
		"forbidden":      {apierrors.NewForbidden(gr, "x", errors.New("quota")), refused},
		"server timeout": {apierrors.NewServerTimeout(gr, "create", 1), uncertain},
		"timeout":        {apierrors.NewTimeoutError("slow", 1), uncertain},
		"408":            {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusRequestTimeout}}, uncertain},
		"internal":       {apierrors.NewInternalError(errors.New("etcd")), uncertain},
		"cancelled":      {context.Canceled, uncertain},
		"any other":      {errors.New("etcdserver: request timed out"), uncertain},
	}
	for name, tc := range tests {
		if got := outcomeOf(tc.err); got != tc.want {
			t.Errorf("%s: outcomeOf(%v) = %d, want %d", name, tc.err, got, tc.want)
		}
	}
}

func TestClaims(t *testing.T) {
	type result struct{ Written, Refused, Uncertain []int }
	tests := map[string]struct {
		do     func(*claims[int])
		want   result
		reason string
	}{
		"one attempt":   {func(c *claims[int]) { c.hold(1) }, result{Refused: []int{1}}, "a refused Service holds nothing"},
		"replace":       {func(c *claims[int]) { c.hold(2); c.letGo(1) }, result{Written: []int{1}, Refused: []int{2}}, "the old one goes with success only"},
		"revert":        {func(c *claims[int]) { c.hold(1); c.letGo(1); c.retry() }, result{Written: []int{1}, Refused: []int{1}}, "what an attempt reverts is spare"},
		"retry reuses":  {func(c *claims[int]) { c.hold(1); c.retry(); c.reuseAny() }, result{Refused: []int{1}}, "the second attempt holds it"},
		"retry differs": {func(c *claims[int]) { c.hold(1); c.letGo(9); c.retry(); c.hold(2) }, result{Written: []int{1}, Refused: []int{2, 1}}, "releases of a failed attempt do not count"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var c claims[int]
			tc.do(&c)
			got := result{c.unlock(written), c.unlock(refused), c.unlock(uncertain)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: unlock (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func BenchmarkServiceCreateDelete(b *testing.B) {
	s := newServer(b, startEtcd(b), &memoryPorts{})
	ctx := in(b.Context(), "aa")
	for b.Loop() {
		s.mustCreate(b, ctx, newService("web"))
		s.remove(b, ctx, "web")
	}
}

func BenchmarkNewDesk(b *testing.B) {
	s := newServer(b, startEtcd(b), &memoryPorts{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.services.alloc.newDesk(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBorrowDesk(b *testing.B) {
	s := newServer(b, startEtcd(b), &memoryPorts{})
	b.ReportAllocs()
	for b.Loop() {
		d, err := s.services.alloc.borrow(&transaction{})
		if err != nil {
			b.Fatal(err)
		}
		s.services.alloc.giveBack(d)
	}
}

func clusterIP(ip string) func(*api.Service) {
	return func(s *api.Service) { s.Spec.ClusterIP = ip }
}

func nodePort(number int32) func(*api.Service) {
	return func(s *api.Service) {
		s.Spec.Type = api.ServiceTypeNodePort
		s.Spec.ExternalTrafficPolicy = api.ServiceExternalTrafficPolicyCluster
		s.Spec.Ports[0].NodePort = number
	}
}

func loadBalancer(s *api.Service) {
	yes := true
	s.Spec.Type = api.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = api.ServiceExternalTrafficPolicyCluster
	s.Spec.AllocateLoadBalancerNodePorts = &yes
}

func externalName(s *api.Service) {
	s.Spec.Type, s.Spec.ExternalName = api.ServiceTypeExternalName, "example.com"
}

func port(name string, number, nodePort int32) api.ServicePort {
	return api.ServicePort{Name: name, Port: number, TargetPort: intstr.FromInt32(number), NodePort: nodePort, Protocol: api.ProtocolTCP}
}

func count(won []bool) (n int) {
	for _, w := range won {
		if w {
			n++
		}
	}
	return n
}
