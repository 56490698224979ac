package framework

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/atoll/internal/netns"
)

// Addresses of the two hosts of a Link. Nothing outside their namespaces sees them.
const (
	nearAddress = "10.254.0.2"
	farAddress  = "10.254.0.1"
)

// packetSize covers a TUN device's MTU of 1500.
const packetSize = 2048

// Link joins two hosts by a line that loses packets and takes time. A host is a network namespace that belongs to this
// process alone and ends with it; the line is a goroutine between their TUN devices, so that it needs neither tools nor
// what a kernel may lack (netem). The near host is a client's, the far one stands before servers of this machine.
type Link struct {
	t         testing.TB
	near, far *host
	lost      atomic.Int64
	passed    atomic.Int64
	wg        sync.WaitGroup
}

// host is a network namespace with a TUN device.
type host struct {
	namespace *os.File
	device    *os.File
}

// CanLink returns an error where network namespaces or TUN devices cannot be made.
func CanLink() error {
	h, err := newHost(nearAddress)
	if err != nil {
		return err
	}
	return h.close()
}

// StartLink makes the hosts. loss, from 0 to 1, is the share of packets that are lost in each direction, delay what a
// packet takes in each. It ends with the test.
func StartLink(t testing.TB, loss float64, delay time.Duration) *Link {
	t.Helper()
	l := &Link{t: t}
	var err error
	if l.near, err = newHost(nearAddress); err != nil {
		t.Fatalf("make a host: %v", err)
	}
	if l.far, err = newHost(farAddress); err != nil {
		t.Fatalf("make a host: %v", errors.Join(err, l.near.close()))
	}
	l.wg.Go(func() { l.line(l.near, l.far, loss, delay) })
	l.wg.Go(func() { l.line(l.far, l.near, loss, delay) })
	t.Cleanup(func() {
		if err := errors.Join(l.near.close(), l.far.close()); err != nil {
			t.Errorf("end a link: %v", err)
		}
		l.wg.Wait()
		t.Logf("the link passed %d packets and lost %d", l.passed.Load(), l.lost.Load())
	})
	return l
}

// Lost is how many packets were lost.
func (l *Link) Lost() int64 { return l.lost.Load() }

// line carries packets one way until a device is closed.
func (l *Link) line(from, to *host, loss float64, delay time.Duration) {
	type packet struct {
		data []byte
		due  time.Time
	}
	// As much as a line of 50 ms holds at a few hundred megabits; what comes on top is lost, as in a router.
	under := make(chan packet, 2048)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for p := range under {
			time.Sleep(time.Until(p.due))
			if _, err := to.device.Write(p.data); err == nil {
				l.passed.Add(1)
			}
		}
	})
	defer close(under)
	buffer := make([]byte, packetSize)
	for {
		n, err := from.device.Read(buffer)
		if err != nil {
			return // closed
		}
		if rand.Float64() < loss {
			l.lost.Add(1)
			continue
		}
		select {
		case under <- packet{append([]byte(nil), buffer[:n]...), time.Now().Add(delay)}:
		default:
			l.lost.Add(1)
		}
	}
}

// Dialer returns how to reach a TCP address of this machine over the link, for Proxy.Through.
func (l *Link) Dialer(target string) func(context.Context) (net.Conn, error) {
	l.t.Helper()
	return l.near.dialer(l.serve(l.far, net.JoinHostPort(farAddress, "0"), target))
}

// dialer returns how to reach a TCP address from that host.
func (h *host) dialer(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (conn net.Conn, err error) {
		inErr := h.in(func() { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address) })
		return conn, errors.Join(inErr, err)
	}
}

// serve makes a host answer at an address there with what a TCP address of this machine answers.
func (l *Link) serve(h *host, address, target string) string {
	l.t.Helper()
	return serveProxy(l.t, l.listen(h, address), target).Address
}

func (l *Link) listen(h *host, address string) (listener net.Listener) {
	l.t.Helper()
	var err error
	if inErr := h.in(func() { listener, err = net.Listen("tcp", address) }); inErr != nil || err != nil {
		l.t.Fatalf("listen at %s of another host: %v", address, errors.Join(inErr, err))
	}
	return listener
}

// Move makes a syncer go on in the near host, from where it reaches the hub over the link and its physical cluster
// without. Its manifest must have been written for a hub at https://localhost:PORT: localhost is the far host there.
func (l *Link) Move(s *Syncer, p *Physical, hubURL string) {
	l.t.Helper()
	hub, err := url.Parse(hubURL)
	if err != nil {
		l.t.Fatalf("parse the address of the hub: %v", err)
	}
	physical, err := url.Parse(p.URL)
	if err != nil {
		l.t.Fatalf("parse the address of %s: %v", p.Name, err)
	}
	l.serve(l.far, net.JoinHostPort(farAddress, hub.Port()), net.JoinHostPort("127.0.0.1", hub.Port()))
	l.serve(l.near, physical.Host, physical.Host)
	s.Kill()
	hosts := filepath.Join(s.Dir, "files", "etc", "hosts")
	if err := os.WriteFile(hosts, []byte(farAddress+" localhost\n"), 0o600); err != nil {
		l.t.Fatalf("tell the syncer of %s where the hub is: %v", p.Name, err)
	}
	l.near.put(s.Process)
	s.Start()
}

// Put makes a server that does not run yet start on the near host. It is reached from this machine as any other.
func (l *Link) Put(a *Atoll) {
	l.t.Helper()
	server, err := url.Parse(a.URL)
	if err != nil {
		l.t.Fatalf("parse the address of the server: %v", err)
	}
	listener, err := net.Listen("tcp", server.Host)
	if err != nil {
		l.t.Fatalf("listen for a server on another host: %v", err)
	}
	serveProxy(l.t, listener, server.Host).Through(l.near.dialer(server.Host))
	l.near.put(a.Process)
}

// Listen listens for TCP at an address of the far host.
func (l *Link) Listen() net.Listener {
	l.t.Helper()
	return l.listen(l.far, net.JoinHostPort(farAddress, "0"))
}

// put makes a process that does not run yet start on that host.
func (h *host) put(p *Process) {
	namespace := "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(h.namespace.Fd()))
	p.args = append([]string{"--net=" + namespace, p.binary}, p.args...)
	p.binary = "nsenter"
}

// newHost makes a network namespace with loopback and a TUN device that has an address in a network of 256.
func newHost(address string) (*host, error) {
	h := &host{}
	var err error
	h.namespace, err = netns.New(func() (err error) {
		h.device, err = openTUN(address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (h *host) close() error {
	var errs []error
	for _, f := range []*os.File{h.device, h.namespace} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// in calls f as if on that host. Sockets that f makes stay there.
func (h *host) in(f func()) error { return netns.In(h.namespace, f) }

// openTUN makes a TUN device in the thread's namespace, and brings it and loopback up.
func openTUN(address string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("link0")
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(fmt.Errorf("make a TUN device: %w", err), unix.Close(fd))
	}
	device := os.NewFile(uintptr(fd), "link0") // polled, so that Close ends a Read
	if err := netns.Up("lo", nil, nil); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	if err := netns.Up("link0", net.ParseIP(address), net.IPv4Mask(255, 255, 255, 0)); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}
