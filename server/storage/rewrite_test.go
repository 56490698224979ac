package storage

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// reloaded encrypts all resources as transformer says now.
type reloaded struct {
	transformer atomic.Pointer[value.Transformer]
}

func (r *reloaded) TransformerForResource(schema.GroupResource) value.Transformer { return r }

func (r *reloaded) TransformFromStorage(ctx context.Context, data []byte, key value.Context) ([]byte, bool, error) {
	return (*r.transformer.Load()).TransformFromStorage(ctx, data, key)
}

func (r *reloaded) TransformToStorage(ctx context.Context, data []byte, key value.Context) ([]byte, error) {
	return (*r.transformer.Load()).TransformToStorage(ctx, data, key)
}

// keysOf encrypts with the first of some keys, each a letter, and reads what the others encrypted.
func keysOf(t *testing.T, letters string) value.Transformer {
	t.Helper()
	var all []value.PrefixTransformer
	for _, letter := range letters {
		block, err := aes.NewCipher(bytes.Repeat([]byte(string(letter)), 32))
		if err != nil {
			t.Fatal(err)
		}
		gcm, err := aestransformer.NewGCMTransformer(block)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, value.PrefixTransformer{Prefix: []byte("k8s:enc:aesgcm:v1:" + string(letter) + ":"), Transformer: gcm})
	}
	all = append(all, value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()})
	return value.NewPrefixTransformers(errors.New("no matching key"), all...)
}

// TestRewriteStale: after it, the first key alone reads every row of every logical cluster, and what rows say, and when
// they end, is as before.
func TestRewriteStale(t *testing.T) {
	prefix := prefixOf(t)
	old, transformers := keysOf(t, "o"), &reloaded{}
	transformers.transformer.Store(&old)
	s := serve(t, prefix, func(c *Config) { c.Transformers = transformers })
	ctx := t.Context()
	secret := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"default","name":%q}}`, name)
	}
	want := map[string]string{}
	put := func(key, plain string, encrypted bool, options ...clientv3.OpOption) {
		t.Helper()
		data := []byte(plain)
		if encrypted {
			var err error
			if data, err = old.TransformToStorage(ctx, data, value.DefaultContext(key)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := etcd.Client.Put(ctx, key, string(data), options...); err != nil {
			t.Fatal(err)
		}
		want[key] = plain
	}
	for i := range 3*maxPage + 5 { // more than one page
		name := fmt.Sprint("s", i)
		put(prefix+"/secrets/shop/default/"+name, secret(name), true)
	}
	put(prefix+"/secrets/mirror-of-shop/default/s", secret("s"), true)
	put(prefix+"/secrets/system:admin/default/s", secret("s"), true)
	put(prefix+"/configmaps/root/default/c", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"c"}}`, false)
	// Nobody has opened a store of these; the definition of gadgets is gone, and that of widgets is from before records.
	gadgets := schema.GroupResource{Group: "rewrite.example", Resource: "gadgets"}
	if err := s.RecordCustom(ctx, logicalName("rewrite"), gadgets); err != nil {
		t.Fatal(err)
	}
	put(prefix+"/rewrite.example/gadgets/rewrite/default/g", "gadget", true)
	if err := s.rememberPrefix("/apiextensions.k8s.io/customresourcedefinitions"); err != nil { // nobody has opened a store of definitions
		t.Fatal(err)
	}
	put(prefix+"/apiextensions.k8s.io/customresourcedefinitions/rewrite/widgets.rewrite.example", "definition", false)
	put(prefix+"/rewrite.example/widgets/rewrite/w", "widget", true)
	installation := installationKey + t.Name()
	put(installation, "keys", true)
	lease, err := etcd.Client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	event := prefix + "/events/shop/default/e"
	put(event, "event", true, clientv3.WithLease(lease.ID))
	inPlain := installationKey + LevelRow
	if _, err := etcd.Client.Put(ctx, inPlain, "7"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, key := range []string{installation, inPlain, customRecord(logicalName("rewrite"), gadgets)} {
			if _, err := etcd.Client.Delete(context.Background(), key); err != nil {
				t.Error(err)
			}
		}
	})
	foreign := prefix + "/secrets/shop/default/foreign"
	if _, err := etcd.Client.Put(ctx, foreign, "k8s:enc:aesgcm:v1:x:nobody's"); err != nil {
		t.Fatal(err)
	}

	both := keysOf(t, "no")
	transformers.transformer.Store(&both)
	got, err := s.RewriteStale(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got.Unreadable != 1 || len(got.Named) != 1 || got.Named[0] != foreign {
		t.Errorf("cannot be decrypted: %d, %v; want %s alone", got.Unreadable, got.Named, foreign)
	}
	if int(got.Written) < len(want) {
		t.Errorf("%d rows written, want no less than %d", got.Written, len(want))
	}
	if row, err := s.ReadPlainInstallation(ctx, LevelRow); err != nil || string(row.Value) != "7" || row.Stale {
		t.Errorf("the level is %+v, error %v: it is for servers with whichever keys", row, err)
	}
	only := keysOf(t, "n")
	rows, err := etcd.Client.Get(ctx, prefix+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	more, err := etcd.Client.Get(ctx, installation)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range append(rows.Kvs, more.Kvs...) {
		key := string(kv.Key)
		if key == foreign {
			continue
		}
		plain, stale, err := only.TransformFromStorage(ctx, kv.Value, value.DefaultContext(key))
		if err != nil || stale {
			t.Errorf("with the first key alone %s is stale %v, %v", key, stale, err)
		}
		if text, ok := want[key]; ok && text != string(plain) {
			t.Errorf("%s says %q, want %q", key, plain, text)
		}
		delete(want, key)
		if key == event && kv.Lease != int64(lease.ID) {
			t.Errorf("%s has lease %x, want %x", key, kv.Lease, lease.ID)
		}
	}
	if len(want) != 0 {
		t.Errorf("gone: %v", want)
	}
	if got, err := s.RewriteStale(ctx); err != nil || got.Written != 0 {
		t.Errorf("once more: %+v, %v; want nothing written", got, err)
	}
}

// neverNew is what it looks like when another server writes every row with another key at once.
type neverNew struct{ value.Transformer }

func (n neverNew) TransformFromStorage(ctx context.Context, data []byte, key value.Context) ([]byte, bool, error) {
	plain, _, err := n.Transformer.TransformFromStorage(ctx, data, key)
	return plain, true, err
}

// TestRewriteStaleAgainstAnother: servers that disagree about the first key do not write for ever.
func TestRewriteStaleAgainstAnother(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Transformers = oneKey{neverNew{newEncryption(t)}} })
	key := prefixOf(t) + "/secrets/shop/default/s"
	encrypted, err := newEncryption(t).TransformToStorage(t.Context(), []byte("{}"), value.DefaultContext(key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Client.Put(t.Context(), key, string(encrypted)); err != nil {
		t.Fatal(err)
	}
	got, err := s.RewriteStale(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does another server of this etcd write with another first key?") {
		t.Errorf("%+v, %v; want an error that says what may be", got, err)
	}
	if got.Written != rewritePasses {
		t.Errorf("%d rows written, want one in each of %d passes", got.Written, rewritePasses)
	}
}
