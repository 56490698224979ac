package builtin

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
)

// staleAfter is the age from which a lock whose Service does not hold it counts as left by a crash. Between the two
// writes lies at most one request, which the server ends after a minute; the second minute is for clocks that differ
// between servers.
const staleAfter = 2 * time.Minute

// randomTries is how many random candidates are tried before the allocation asks which are taken.
const randomTries = 16

// addressStore is the registry of IPAddresses.
type addressStore interface {
	rest.Getter
	rest.Lister
	rest.Creater
	rest.GracefulDeleter
}

// addresses locks cluster IPs with the IPAddresses of the context's logical cluster.
type addresses struct {
	prefix   netip.Prefix
	store    *atomic.Pointer[addressStore]
	services rest.Getter
	now      func() time.Time
}

// host returns the i-th address of the prefix; 0 is the network itself.
func (a *addresses) host(i uint32) netip.Addr {
	base := a.prefix.Addr().As4()
	binary.BigEndian.PutUint32(base[:], binary.BigEndian.Uint32(base[:])+i)
	return netip.AddrFrom4(base)
}

// hosts is the number of addresses that a Service can have: all but the network and the broadcast address.
func (a *addresses) hosts() uint32 { return 1<<(32-a.prefix.Bits()) - 2 }

// reserved is how many addresses at the low end are taken only when the others are, so that users have some to choose
// from without meeting allocated ones; upstream's formula.
func (a *addresses) reserved() uint32 { return staticBand(a.hosts(), 16, 16, 256) }

// staticBand is size/step, within least and most, and nothing of a range that is smaller than least.
func staticBand(size, step, least, most uint32) uint32 {
	if size < least {
		return 0
	}
	return min(max(size/step, least), most)
}

// check returns upstream's error unless ip can be the cluster IP of a Service.
func (a *addresses) check(ip netip.Addr) error {
	if !a.prefix.Contains(ip) {
		return ipallocator.ErrMismatchedNetwork
	}
	if ip == a.host(0) || ip == a.host(a.hosts()+1) {
		return &ipallocator.ErrNotInRange{IP: ip.AsSlice(), ValidRange: a.prefix.String()}
	}
	return nil
}

// claim locks ip for o: ipallocator.ErrAllocated if it is taken.
func (a *addresses) claim(ctx context.Context, ip netip.Addr, o owner) error {
	if err := a.check(ip); err != nil {
		return err
	}
	err := a.create(ctx, ip, o)
	if err != ipallocator.ErrAllocated {
		return err
	}
	free, err := a.dropStale(ctx, ip)
	if err != nil {
		return err
	}
	if !free {
		return ipallocator.ErrAllocated
	}
	return a.create(ctx, ip, o)
}

// claimAny locks a free address for o: ipallocator.ErrFull if there is none.
func (a *addresses) claimAny(ctx context.Context, o owner) (netip.Addr, error) {
	low, size := a.reserved()+1, a.hosts()-a.reserved()
	for range randomTries {
		ip := a.host(low + rand.Uint32N(size))
		if err := a.create(ctx, ip, o); err != ipallocator.ErrAllocated {
			return ip, err
		}
	}
	taken, err := a.taken(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	// The range is filled from a random point on, the reserved band last, and stale locks after everything.
	start := rand.Uint32N(size)
	candidates := make([]netip.Addr, 0, a.hosts())
	for i := range size {
		candidates = append(candidates, a.host(low+(start+i)%size))
	}
	for i := uint32(1); i < low; i++ {
		candidates = append(candidates, a.host(i))
	}
	for _, ip := range candidates {
		if taken[ip] {
			continue
		}
		if err := a.create(ctx, ip, o); err != ipallocator.ErrAllocated {
			return ip, err
		}
	}
	for _, ip := range candidates {
		if err := a.claim(ctx, ip, o); err != ipallocator.ErrAllocated {
			return ip, err
		}
	}
	return netip.Addr{}, ipallocator.ErrFull
}

// release gives ip back if it is locked for o's Service.
func (a *addresses) release(ctx context.Context, ip netip.Addr, o owner) error {
	address, err := a.get(ctx, ip)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ref, managed := serviceOf(address)
	if !managed || ref.Namespace != o.Namespace || ref.Name != o.Name {
		return nil
	}
	return a.delete(ctx, address)
}

// dropStale removes the lock of ip if its Service does not hold it and it is old, and says whether ip may be free now.
func (a *addresses) dropStale(ctx context.Context, ip netip.Addr) (bool, error) {
	address, err := a.get(ctx, ip)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	ref, managed := serviceOf(address)
	if !managed || a.now().Sub(address.CreationTimestamp.Time) < staleAfter {
		return false, nil
	}
	svc, err := readService(ctx, a.services, ref.Namespace, ref.Name)
	if err != nil {
		return false, err
	}
	if svc != nil && slices.Contains(svc.Spec.ClusterIPs, address.Name) {
		return false, nil
	}
	// The precondition on its UID lets one of several that judge this very lock win.
	if err := a.delete(ctx, address); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, err
	}
	return true, nil
}

func (a *addresses) registry() (addressStore, error) {
	store := a.store.Load()
	if store == nil {
		return nil, ipallocator.ErrNotReady
	}
	return *store, nil
}

func (a *addresses) create(ctx context.Context, ip netip.Addr, o owner) error {
	store, err := a.registry()
	if err != nil {
		return err
	}
	_, err = store.Create(aboutAddresses(ctx), &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(api.IPv4Protocol),
				networkingv1.LabelManagedBy:       ipallocator.ControllerName,
			},
		},
		Spec: networking.IPAddressSpec{
			ParentRef: &networking.ParentReference{Resource: "services", Namespace: o.Namespace, Name: o.Name},
		},
	}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return ipallocator.ErrAllocated
	}
	return err
}

func (a *addresses) get(ctx context.Context, ip netip.Addr) (*networking.IPAddress, error) {
	store, err := a.registry()
	if err != nil {
		return nil, err
	}
	obj, err := store.Get(aboutAddresses(ctx), ip.String(), &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	address, ok := obj.(*networking.IPAddress)
	if !ok {
		return nil, fmt.Errorf("store of ipaddresses returned %T", obj)
	}
	return address, nil
}

func (a *addresses) delete(ctx context.Context, address *networking.IPAddress) error {
	store, err := a.registry()
	if err != nil {
		return err
	}
	_, _, err = store.Delete(aboutAddresses(ctx), address.Name, rest.ValidateAllObjectFunc, metav1.NewPreconditionDeleteOptions(string(address.UID)))
	return err
}

// taken returns the addresses that have an IPAddress.
func (a *addresses) taken(ctx context.Context) (map[netip.Addr]bool, error) {
	store, err := a.registry()
	if err != nil {
		return nil, err
	}
	obj, err := store.List(aboutAddresses(ctx), &metainternalversion.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the IPAddresses in use: %w", err)
	}
	list, ok := obj.(*networking.IPAddressList)
	if !ok {
		return nil, fmt.Errorf("store of ipaddresses returned %T", obj)
	}
	taken := make(map[netip.Addr]bool, len(list.Items))
	for i := range list.Items {
		// Names are canonical addresses, which validation sees to; any other would not lock an address of ours.
		if ip, err := netip.ParseAddr(list.Items[i].Name); err == nil {
			taken[ip] = true
		}
	}
	return taken, nil
}

func aboutAddresses(ctx context.Context) context.Context {
	return about(ctx, networking.GroupName, "ipaddresses", metav1.NamespaceNone)
}

// serviceOf returns the Service that address locks a cluster IP for, and false for an address that a user made for
// something else.
func serviceOf(address *networking.IPAddress) (*networking.ParentReference, bool) {
	ref := address.Spec.ParentRef
	if ref == nil || ref.Group != "" || ref.Resource != "services" {
		return nil, false
	}
	return ref, address.Labels[networkingv1.LabelManagedBy] == ipallocator.ControllerName
}

// readService returns the stored Service, nil if there is none.
func readService(ctx context.Context, services rest.Getter, namespace, name string) (*api.Service, error) {
	obj, err := services.Get(about(ctx, "", "services", namespace), name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Service that holds a lock: %w", err)
	}
	svc, ok := obj.(*api.Service)
	if !ok {
		return nil, fmt.Errorf("store of services returned %T", obj)
	}
	return svc, nil
}
