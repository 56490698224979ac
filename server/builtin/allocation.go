package builtin

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"

	"atoll.dev/atoll/internal/logicalcluster"
)

// idleDesks is how many desks are kept between writes. More are made when more Services are written at once.
const idleDesks = 8

// allocation runs upstream's hooks around writes of Services. The hooks call allocators that upstream passes neither a
// context nor the Service, so a write borrows a desk: a set of hooks with allocators of its own, told for the time of the
// write which transaction they serve. Desks hold nothing between writes.
type allocation struct {
	ips   *addresses
	ports *ports

	newDesk func() (*desk, error)
	idle    chan *desk
}

func (a *allocation) borrow(t *transaction) (*desk, error) {
	select {
	case d := <-a.idle:
		d.serving = t
		return d, nil
	default:
	}
	d, err := a.newDesk()
	if err != nil {
		return nil, fmt.Errorf("hooks for a write of a Service: %w", err)
	}
	d.serving = t
	return d, nil
}

func (a *allocation) giveBack(d *desk) {
	d.serving = nil
	select {
	case a.idle <- d:
	default:
	}
}

// beginCreate and beginUpdate stand in for upstream's hooks of the same names.
func (a *allocation) beginCreate(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj, func(d *desk) (genericregistry.FinishFunc, error) {
		return d.hooks.BeginCreate(ctx, obj, options)
	})
}

func (a *allocation) beginUpdate(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj, func(d *desk) (genericregistry.FinishFunc, error) {
		return d.hooks.BeginUpdate(ctx, obj, old, options)
	})
}

func (a *allocation) begin(ctx context.Context, obj runtime.Object, hook func(*desk) (genericregistry.FinishFunc, error)) (genericregistry.FinishFunc, error) {
	t, err := transactionFrom(ctx)
	if err != nil {
		return nil, err
	}
	svc := obj.(*api.Service)
	if t.cluster.Mirror {
		// The physical cluster allocates, and chooses IP families by what it has. Only the two spellings of an IP that
		// is given are brought together, without which validation would refuse it.
		if svc.Spec.ClusterIP != "" && len(svc.Spec.ClusterIPs) == 0 {
			svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		}
		return func(context.Context, bool) {}, nil
	}
	d, err := a.borrow(t)
	if err != nil {
		return nil, err
	}
	t.attempt(svc, a)
	finish, err := hook(d)
	if err != nil {
		t.failed()
		a.giveBack(d)
		return nil, err
	}
	return func(ctx context.Context, success bool) {
		finish(ctx, success)
		if !success {
			t.failed()
		}
		a.giveBack(d)
	}, nil
}

// afterDelete stands in for upstream's hook of that name, which gets no context: storage says in the object which
// logical cluster it was deleted from.
func (a *allocation) afterDelete(obj runtime.Object, options *metav1.DeleteOptions) {
	svc := obj.(*api.Service)
	logger := klog.Background().WithValues("service", klog.KObj(svc))
	name := logicalcluster.NameFrom(svc)
	if name == "" {
		logger.Error(nil, "A deleted Service does not say which logical cluster it was in; its endpoints and locks stay")
		return
	}
	cluster := logicalcluster.Cluster{Name: name}
	t := &transaction{
		ctx:     logicalcluster.WithCluster(klog.NewContext(context.Background(), logger), cluster),
		cluster: cluster,
		owner:   ownerOf(svc),
	}
	d, err := a.borrow(t)
	if err != nil {
		logger.Error(err, "The endpoints and locks of a deleted Service stay", "cluster", cluster)
		return
	}
	d.hooks.AfterDelete(obj, options)
	a.giveBack(d)
	t.finish(nil, a)
}

// desk is a set of upstream's hooks with allocators for one transaction at a time.
type desk struct {
	*allocation
	hooks   *servicestore.REST
	serving *transaction
}

// deskIPs is the desk's ipallocator.Interface.
type deskIPs struct {
	*desk
	dryRun bool
}

func (d deskIPs) Allocate(ip net.IP) error {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return fmt.Errorf("%q is not an IP address", ip)
	}
	addr = addr.Unmap()
	if d.dryRun {
		return d.ips.check(addr)
	}
	t := d.serving
	if t.ips.reuse(addr) {
		return nil
	}
	if err := d.ips.claim(t.ctx, addr, t.owner); err != nil {
		return err
	}
	t.ips.hold(addr)
	return nil
}

func (d deskIPs) AllocateNext() (net.IP, error) {
	if d.dryRun {
		// As upstream: an address that no Service can have, to show that one would be given.
		return d.ips.prefix.Addr().AsSlice(), nil
	}
	t := d.serving
	if addr, ok := t.ips.reuseAny(); ok {
		return addr.AsSlice(), nil
	}
	addr, err := d.ips.claimAny(t.ctx, t.owner)
	if err != nil {
		return nil, err
	}
	t.ips.hold(addr)
	return addr.AsSlice(), nil
}

func (d deskIPs) Release(ip net.IP) error {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return fmt.Errorf("%q is not an IP address", ip)
	}
	if !d.dryRun {
		d.serving.ips.letGo(addr.Unmap())
	}
	return nil
}

func (d deskIPs) CIDR() net.IPNet {
	return net.IPNet{IP: d.ips.prefix.Addr().AsSlice(), Mask: net.CIDRMask(d.ips.prefix.Bits(), 32)}
}

func (d deskIPs) IPFamily() api.IPFamily        { return api.IPv4Protocol }
func (d deskIPs) DryRun() ipallocator.Interface { return deskIPs{desk: d.desk, dryRun: true} }
func (d deskIPs) Destroy()                      {}
func (d deskIPs) EnableMetrics()                {}

// Has and ForEach serve upstream's repair loops, which do not run here.
func (d deskIPs) Has(net.IP) bool      { return false }
func (d deskIPs) ForEach(func(net.IP)) {}

// deskPorts is the desk's portallocator.Interface. Upstream keeps dry runs away from all of it but Has.
type deskPorts struct{ *desk }

func (d deskPorts) Allocate(port int) error {
	t := d.serving
	if t.ports.reuse(port) {
		return nil
	}
	if err := d.ports.claim(t.ctx, port, t.owner); err != nil {
		return err
	}
	t.ports.hold(port)
	return nil
}

func (d deskPorts) AllocateNext() (int, error) {
	t := d.serving
	if port, ok := t.ports.reuseAny(); ok {
		return port, nil
	}
	port, err := d.ports.claimAny(t.ctx, t.owner)
	if err != nil {
		return 0, err
	}
	t.ports.hold(port)
	return port, nil
}

func (d deskPorts) Release(port int) error {
	d.serving.ports.letGo(port)
	return nil
}

// Has says in a dry run whether a port is taken; if that cannot be read the dry run passes and the real one decides.
func (d deskPorts) Has(port int) bool {
	held, err := d.ports.held(d.serving.ctx, port)
	if err != nil {
		klog.FromContext(d.serving.ctx).Error(err, "Reading whether a node port is taken", "cluster", d.serving.cluster, "nodePort", port)
	}
	return held
}

// ForEach serves upstream's repair loop, which does not run here.
func (d deskPorts) ForEach(func(int)) {}
func (d deskPorts) Destroy()          {}
func (d deskPorts) EnableMetrics()    {}

// deskEndpoints deletes the Endpoints of a deleted Service: upstream makes a context with the namespace alone.
type deskEndpoints struct {
	servicestore.EndpointsStorage
	desk *desk
}

func (d deskEndpoints) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	ctx, cancel := context.WithTimeout(logicalcluster.WithCluster(ctx, d.desk.serving.cluster), releaseTimeout)
	defer cancel()
	return d.EndpointsStorage.Delete(ctx, name, validate, options)
}
