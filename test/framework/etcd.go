package framework

import (
	"fmt"
	"path/filepath"
	"testing"
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
