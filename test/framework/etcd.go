package framework

import (
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd is an etcd in a process of its own, contrib/physical without the rest. It waits for the disk.
type Etcd struct {
	*Physical
}

// StartEtcd starts an etcd, waits until it serves, and stops it at the end of the test.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	return &Etcd{StartPhysical(t, "store", etcdIn(filepath.Join(t.TempDir(), "store")))}
}

// Client returns a client of it, which sees what servers write.
func (e *Etcd) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	etcd := e.connect(t, e.URL)
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Errorf("close the client of an etcd: %v", err)
		}
	})
	return etcd
}

// connect makes a client of what is at some URLs, with its credentials.
func (e *Etcd) connect(t testing.TB, urls ...string) *clientv3.Client {
	t.Helper()
	file := func(name string) string { return filepath.Join(e.Dir, "pki", name) }
	tls, err := transport.TLSInfo{
		CertFile: file("apiserver-etcd-client.crt"), KeyFile: file("apiserver-etcd-client.key"), TrustedCAFile: file("etcd-ca.crt"),
	}.ClientConfig()
	if err != nil {
		t.Fatalf("make a client of an etcd: %v", err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: urls, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("make a client of an etcd: %v", err)
	}
	return etcd
}

func etcdIn(dir string, flags ...string) PhysicalOption {
	return func(p *Physical) {
		p.args = append(append(p.args, "--only-etcd", "--etcd-fsync"), flags...)
		p.Dir = dir
	}
}

// Flags are those of `atoll start` with which a server uses it.
func (e *Etcd) Flags() []string { return e.FlagsThrough(e.URL) }

// FlagsThrough are Flags with another way to it.
func (e *Etcd) FlagsThrough(url string) []string {
	file := func(name string) string { return filepath.Join(e.Dir, "pki", name) }
	return []string{
		"--etcd-servers=" + url, "--etcd-cafile=" + file("etcd-ca.crt"),
		fmt.Sprintf("--etcd-certfile=%s", file("apiserver-etcd-client.crt")),
		fmt.Sprintf("--etcd-keyfile=%s", file("apiserver-etcd-client.key")),
	}
}
