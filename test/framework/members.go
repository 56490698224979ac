package framework

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// EtcdMembers is an etcd of several members, each a process of its own and, where that can be, a host of its own.
type EtcdMembers struct {
	Members []*EtcdMember
	network *Network // nil: they are all on this host
	clients *clientv3.Client
}

// EtcdMember is one of them.
type EtcdMember struct {
	*Etcd
	address string // of its clients, on its host
	way     *Proxy // to it, from this host
}

// StartEtcdMembers starts an etcd of n members, waits until it serves, and stops it at the end of the test. They are on hosts
// of their own if CanLink returns nil.
func StartEtcdMembers(t testing.TB, n int) *EtcdMembers {
	t.Helper()
	m := &EtcdMembers{}
	if CanLink() == nil {
		m.network = StartNetwork(t, n+1) // the last one is where clients are
	}
	dir := t.TempDir()
	names, peers := make([]string, n), make([]string, n)
	addresses, peerPorts := make([]string, n), make([]int, n)
	for i := range n {
		names[i], addresses[i], peerPorts[i] = fmt.Sprintf("member-%d", i), "127.0.0.1", FreePort(t)
		if m.network != nil {
			addresses[i] = networkAddress(i)
		}
		peers[i] = fmt.Sprintf("%s=https://%s", names[i], net.JoinHostPort(addresses[i], strconv.Itoa(peerPorts[i])))
		if err := copyAuthority(filepath.Join(dir, names[0]), filepath.Join(dir, names[i])); err != nil {
			t.Fatalf("make the authority of an etcd: %v", err)
		}
	}
	for i, name := range names {
		port := FreePort(t)
		member := &EtcdMember{address: net.JoinHostPort(addresses[i], strconv.Itoa(port))}
		member.Etcd = &Etcd{newPhysical(t, name, etcdIn(filepath.Join(dir, name),
			"--etcd-member="+name, "--etcd-address="+addresses[i], fmt.Sprintf("--etcd-client-port=%d", port),
			fmt.Sprintf("--etcd-peer-port=%d", peerPorts[i]), "--etcd-cluster="+strings.Join(peers, ",")))}
		// Those that are left at the end cannot agree on anything.
		t.Cleanup(member.Kill)
		member.way = StartProxy(t, member.address)
		if m.network != nil {
			m.network.hosts[i].put(member.Process)
			member.way.Through(m.network.hosts[n].dialer(member.address))
		}
		member.launch()
		m.Members = append(m.Members, member)
	}
	for _, member := range m.Members {
		member.await()
	}
	m.connect(t)
	return m
}

// copyAuthority makes the authority of an etcd's certificates in the directory first, or copies it from there.
func copyAuthority(first, to string) error {
	certFile, keyFile := filepath.Join("pki", "etcd-ca.crt"), filepath.Join("pki", "etcd-ca.key")
	if err := os.MkdirAll(filepath.Join(to, "pki"), 0o700); err != nil {
		return err
	}
	if first != to {
		for _, file := range []string{certFile, keyFile} {
			data, err := os.ReadFile(filepath.Join(first, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, file), data, 0o600)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "etcd-ca"}, key)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, keyFile), keyPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, certFile), pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: ca.Raw}), 0o600)
}

// urls of the members, as they are reached from this host.
func (m *EtcdMembers) urls() []string {
	var urls []string
	for _, member := range m.Members {
		urls = append(urls, "https://"+member.way.Address)
	}
	return urls
}

// Flags are those of `atoll start` with which a server uses all members.
func (m *EtcdMembers) Flags() []string { return m.Members[0].FlagsThrough(strings.Join(m.urls(), ",")) }

// connect makes the client that asks who leads.
func (m *EtcdMembers) connect(t testing.TB) {
	t.Helper()
	m.clients = m.Members[0].connect(t, m.urls()...)
	t.Cleanup(func() { _ = m.clients.Close() }) // its connections may be cut
}

// Leader waits until the members agree on a leader, and returns its index.
func (m *EtcdMembers) Leader(t testing.TB) int {
	t.Helper()
	leader := -1
	Eventually(t, time.Minute, "the members of an etcd have a leader", func() string {
		var said []string
		for i, url := range m.urls() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			status, err := m.clients.Status(ctx, url)
			cancel()
			if err != nil {
				said = append(said, err.Error())
				continue
			}
			if status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = i
				return ""
			}
			said = append(said, fmt.Sprintf("%x follows %x", status.Header.MemberId, status.Leader))
		}
		return strings.Join(said, "; ")
	})
	return leader
}

// CanCutOff says whether the members are on hosts of their own.
func (m *EtcdMembers) CanCutOff() bool { return m.network != nil }

// CutOff keeps a member from the others and from clients: what is sent is lost, and nobody is told. Rejoin ends it.
func (m *EtcdMembers) CutOff(member int) { m.network.CutOff(member) }

// Rejoin ends CutOff.
func (m *EtcdMembers) Rejoin(member int) { m.network.Rejoin(member) }
