package storage

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/storage/value"
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

// A row in plain is read whatever became of the keys; one that was encrypted is, as long as its key is there, and says so.
func TestPlainInstallationRow(t *testing.T) {
	with := func(key string) func(*Config) {
		return func(c *Config) {
			c.Transformers = oneKey{value.NewPrefixTransformers(errors.New("no such key"), value.PrefixTransformer{
				Prefix: []byte(encryptedPrefix + key + ":"), Transformer: newEncryption(t),
			})}
		}
	}
	s := serve(t, prefixOf(t), with("old"))
	ctx, name := t.Context(), t.Name()
	t.Cleanup(func() {
		if _, err := etcd.Client.Delete(context.Background(), installationKey+name); err != nil {
			t.Log(err)
		}
	})
	if row, err := s.ReadPlainInstallation(ctx, name); err != nil || row.Value != nil || row.Revision != 0 {
		t.Fatalf("a row that nobody wrote: %+v, %v", row, err)
	}
	if written, err := s.WriteInstallation(ctx, name, []byte("first"), 0); err != nil || !written {
		t.Fatalf("write it encrypted: %v, %v", written, err)
	}
	row, err := s.ReadPlainInstallation(ctx, name)
	if err != nil || string(row.Value) != "first" || !row.Stale {
		t.Fatalf("the encrypted row is %q, stale: %v, %v", row.Value, row.Stale, err)
	}
	if written, err := s.WritePlainInstallation(ctx, name, []byte("second"), row.Revision); err != nil || !written {
		t.Fatalf("write it in plain: %v, %v", written, err)
	}
	if written, err := s.WritePlainInstallation(ctx, name, []byte("late"), row.Revision); err != nil || written {
		t.Errorf("written by who read it before another wrote: %v, %v", written, err)
	}
	for _, encrypt := range []func(*Config){nil, with("new")} {
		if row, err := serve(t, prefixOf(t), encrypt).ReadPlainInstallation(ctx, name); err != nil || string(row.Value) != "second" || row.Stale {
			t.Errorf("with other keys or none the row is %q, stale: %v, %v", row.Value, row.Stale, err)
		}
	}
}
