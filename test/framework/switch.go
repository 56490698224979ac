package framework

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// networkAddress is that of the n-th host of a Network.
func networkAddress(n int) string { return fmt.Sprintf("10.254.0.%d", n+1) }

// Network joins hosts, as a Link does two, by a switch that loses nothing until a host is cut off. Hosts count from 0.
type Network struct {
	hosts []*host
	cut   []atomic.Bool
}

// StartNetwork makes a network of that many hosts, 200 at most. It ends with the test.
func StartNetwork(t testing.TB, hosts int) *Network {
	t.Helper()
	n := &Network{cut: make([]atomic.Bool, hosts)}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		var errs []error
		for _, h := range n.hosts {
			errs = append(errs, h.close())
		}
		if err := errors.Join(errs...); err != nil {
			t.Errorf("end a network: %v", err)
		}
		wg.Wait()
	})
	for i := range hosts {
		h, err := newHost(networkAddress(i))
		if err != nil {
			t.Fatalf("make host %d of a network: %v", i, err)
		}
		n.hosts = append(n.hosts, h)
	}
	for i := range hosts {
		wg.Go(func() { n.forward(i) })
	}
	return n
}

// CutOff keeps a host from every other: what is sent is lost, and nobody is told.
func (n *Network) CutOff(host int) { n.cut[host].Store(true) }

// Rejoin ends CutOff.
func (n *Network) Rejoin(host int) { n.cut[host].Store(false) }

// forward carries what a host sends until its device is closed.
func (n *Network) forward(from int) {
	buffer := make([]byte, packetSize)
	for {
		size, err := n.hosts[from].device.Read(buffer)
		if err != nil {
			return // closed
		}
		const destination = 16 // in the header of IPv4
		if size < destination+4 || buffer[0]>>4 != 4 {
			continue
		}
		to := int(buffer[destination+3]) - 1
		if to < 0 || to >= len(n.hosts) || n.cut[from].Load() || n.cut[to].Load() {
			continue
		}
		// What a host that has ended does not take is lost.
		_, _ = n.hosts[to].device.Write(buffer[:size])
	}
}
