package storage

import (
	"bytes"
	"testing"
)

// A row of the installation is written by whoever read it last, is encrypted as Secrets are, and stays when logical clusters
// go.
func TestInstallationRow(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Transformers = oneKey{newEncryption(t)} })
	ctx, name := t.Context(), t.Name()
	row, err := s.ReadInstallation(ctx, name)
	if err != nil || row.Value != nil || row.Revision != 0 {
		t.Fatalf("a row that nobody wrote: %+v, %v", row, err)
	}
	write := func(value string, revision int64, want bool) {
		t.Helper()
		if written, err := s.WriteInstallation(ctx, name, []byte(value), revision); err != nil || written != want {
			t.Errorf("write %q at %d: %v, %v; want %v", value, revision, written, err, want)
		}
	}
	write("first", 0, true)
	write("late", 0, false)
	if row, err = s.ReadInstallation(ctx, name); err != nil || string(row.Value) != "first" {
		t.Fatalf("the row is %q, %v", row.Value, err)
	}
	write("second", row.Revision, true)
	write("late", row.Revision, false)
	if err := s.DeleteClusterData(ctx, "installation", nil); err != nil {
		t.Fatal(err)
	}
	if row, err = s.ReadInstallation(ctx, name); err != nil || string(row.Value) != "second" {
		t.Errorf("the row is %q, %v", row.Value, err)
	}
	got, err := etcd.Client.Get(ctx, installationKey+name)
	if err != nil || len(got.Kvs) != 1 || bytes.Contains(got.Kvs[0].Value, []byte("second")) {
		t.Errorf("etcd holds %q, %v; want it encrypted", got.Kvs, err)
	}
	if _, err := etcd.Client.Delete(ctx, installationKey+name); err != nil {
		t.Fatal(err)
	}
}
