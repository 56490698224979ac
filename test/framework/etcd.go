package framework

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd is an etcd in a process of its own, contrib/physical without the rest. It waits for the disk.
type Etcd struct {
	*Physical
}

// StartEtcd starts an etcd with further flags of contrib/physical, waits until it serves, and stops it at the end of the test.
func StartEtcd(t testing.TB, flags ...string) *Etcd {
	t.Helper()
	return &Etcd{StartPhysical(t, "store", etcdIn(filepath.Join(t.TempDir(), "store"), flags...))}
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

// SetQuota is the size of its store at which it takes no more writes, from its next start on.
func (e *Etcd) SetQuota(bytes int64) {
	e.args = append(e.args, fmt.Sprintf("--etcd-quota-bytes=%d", bytes)) // the last one counts
}

// MakeRoom does what etcd's documents tell who runs one that is full, when something of it has been deleted: `etcdctl compact`,
// `etcdctl defrag` and `etcdctl alarm disarm`.
func (e *Etcd) MakeRoom(t testing.TB) {
	t.Helper()
	clients := e.connect(t, e.URL)
	defer clients.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	now, err := clients.Get(ctx, "/revision")
	if err == nil {
		_, err = clients.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = clients.Defragment(ctx, e.URL)
	}
	if err == nil {
		_, err = clients.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatalf("make room in an etcd: %v", err)
	}
}
