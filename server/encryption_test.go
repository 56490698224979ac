package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	encryptionconfigcontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	testingclock "k8s.io/utils/clock/testing"

	"atoll.dev/atoll/server/storage"
)

// The keys of 32 bytes.
const (
	oldKey = "b2xkIGtleSBvZiBleGFjdGx5IHRoaXJ0eSB0d28gYi4="
	newKey = "bmV3IGtleSBvZiBleGFjdGx5IHRoaXJ0eSB0d28gYi4="
)

// encryptWith is an EncryptionConfiguration of Secrets and of a custom resource: what is written has the first key, of "name:secret".
func encryptWith(t *testing.T, file string, keys ...string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: [secrets, widgets.shop.example]\n  providers:\n  - aesgcm:\n      keys:\n")
	for _, key := range keys {
		name, secret, _ := strings.Cut(key, ":")
		fmt.Fprintf(&b, "      - {name: %s, secret: %s}\n", name, secret)
	}
	b.WriteString("  - identity: {}\n")
	mustWrite(t, file, b.String())
}

// row returns the value of a key of etcd.
func (r *running) row(t *testing.T, key string) []byte {
	t.Helper()
	got, err := r.data.Get(t.Context(), key)
	must(t, err)
	if len(got.Kvs) != 1 {
		t.Fatalf("%d rows %s", len(got.Kvs), key)
	}
	return got.Kvs[0].Value
}

// TestEncryptionAtRest: what etcd holds of Secrets, of custom resources and of the keys that sign tokens is ciphertext, bound to
// its logical cluster; keys are rotated; without them a server says what is missing.
func TestEncryptionAtRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	encryptWith(t, file, "old:"+oldKey)
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.Encryption.ConfigFile = file })
	secrets := func(r *running) []string {
		var found []string
		for _, c := range []struct {
			name string
			read func() (string, error)
		}{
			{"secret", func() (string, error) {
				s, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
				return string(s.Data["password"]), err
			}},
			{"widget", func() (string, error) {
				w, err := r.custom(t, shop).objects.Resource(widgetsV1).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
				if err != nil {
					return "", err
				}
				return fmt.Sprint(w.Object["spec"].(map[string]any)["password"]), nil
			}},
		} {
			text, err := c.read()
			found = append(found, fmt.Sprint(c.name, " ", text, " ", err))
		}
		return found
	}
	want := fmt.Sprint([]string{"secret hunter2 <nil>", "widget hunter3 <nil>"})

	r.makeNamespace(t, shop, "default")
	r.makeNamespace(t, bank, "default")
	_, err := r.in(t, shop).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"password": []byte("hunter2")},
	}, metav1.CreateOptions{})
	must(t, err)
	mine := r.custom(t, shop)
	mine.define(t, widgets(`{"password":{"type":"string"}}`))
	_, err = mine.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", map[string]any{"password": "hunter3"}), metav1.CreateOptions{})
	must(t, err)

	// Where nobody changes anything by hand: what is in a mirror, and in the logical cluster of the installation.
	for _, cluster := range []logicalcluster.Name{east, SystemAdminCluster} {
		r.makeNamespace(t, cluster, "leaves")
		_, err := r.in(t, cluster).CoreV1().Secrets("leaves").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
		must(t, err)
	}

	secretRow, widgetRow, keysRow := "/registry/secrets/shopname/default/s", "/registry/shop.example/widgets/shopname/default/w", "/atoll/installation/serviceaccount-keys"
	begins := func(r *running, key string) {
		t.Helper()
		for _, name := range []string{secretRow, widgetRow, keysRow} {
			if row := r.row(t, name); !bytes.HasPrefix(row, []byte("k8s:enc:aesgcm:v1:"+key+":")) {
				t.Errorf("%s begins with %.40q, want what key %q encrypted", name, row, key)
			}
		}
	}
	begins(r, "old")
	everything, err := r.data.Get(t.Context(), "\x00", clientv3.WithFromKey())
	must(t, err)
	for _, kv := range everything.Kvs {
		for _, plain := range []string{"hunter2", "hunter3", "PRIVATE KEY"} {
			if bytes.Contains(kv.Value, []byte(plain)) {
				t.Errorf("%s holds %q", kv.Key, plain)
			}
		}
	}
	if got := fmt.Sprint(secrets(r)); got != want {
		t.Errorf("read %s, want %s", got, want)
	}
	if got := r.ask(t, asked{path: "/readyz/encryption", token: root}); got.code != http.StatusOK || got.body != "ok" {
		t.Errorf("/readyz/encryption: %d %s", got.code, got.body)
	}

	// Whoever writes into etcd moves nothing to where he may read it.
	_, err = r.data.Put(t.Context(), "/registry/secrets/bankname/default/s", string(r.row(t, secretRow)))
	must(t, err)
	if s, err := r.in(t, bank).CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("copied into another logical cluster it is read: %v, %v", s.Data, err)
	}
	_, err = r.data.Delete(t.Context(), "/registry/secrets/bankname/default/s")
	must(t, err)

	// Rotation: the new key writes, the old one still reads, and the server writes everything anew: mirrors' rows, too, and the installation's.
	encryptWith(t, file, "new:"+newKey, "old:"+oldKey)
	r = r.restart(t)
	if got := fmt.Sprint(secrets(r)); got != want {
		t.Errorf("with both keys read %s, want %s", got, want)
	}
	waitFor(t, time.Minute, "every row has the new key", func() (string, bool) {
		all, err := r.data.Get(t.Context(), "\x00", clientv3.WithFromKey())
		must(t, err)
		var left []string
		for _, kv := range all.Kvs {
			if bytes.HasPrefix(kv.Value, []byte("k8s:enc:aesgcm:v1:old:")) {
				left = append(left, string(kv.Key))
			}
		}
		return fmt.Sprintf("with the old key: %q", left), len(left) == 0
	})
	begins(r, "new")
	encryptWith(t, file, "new:"+newKey)
	r = r.restart(t)
	if got := fmt.Sprint(secrets(r)); got != want {
		t.Errorf("with the new key read %s, want %s", got, want)
	}
	for _, cluster := range []logicalcluster.Name{east, SystemAdminCluster} {
		if _, err := r.in(t, cluster).CoreV1().Secrets("leaves").Get(t.Context(), "s", metav1.GetOptions{}); err != nil {
			t.Errorf("with the new key in %s: %v", cluster, err)
		}
	}

	// As after a restore without the file.
	must(t, r.stop())
	plain := *r.options
	plain.Encryption.ConfigFile = ""
	s, err := New(t.Context(), &plain, r.data)
	if err == nil {
		err = s.Close()
		t.Errorf("a server without the keys started; closed: %v", err)
	} else if !errors.Is(err, storage.ErrEncrypted) || !strings.Contains(err.Error(), "--encryption-provider-config") {
		t.Errorf("a server without the keys: %v", err)
	}
}

// TestEncryptionLostKeys: what cannot be decrypted ends the start, of whatever resource it is, and names a row and the flag; one
// spoilt row among others does not.
func TestEncryptionLostKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	configMapsWith := func(secret string) {
		mustWrite(t, file, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"+
			"- resources: [configmaps]\n  providers:\n  - aescbc: {keys: [{name: k, secret: "+secret+"}]}\n  - identity: {}\n")
	}
	configMapsWith(oldKey)
	r := startServer(t, func(o *Options) { o.Encryption.ConfigFile = file })
	r.makeNamespace(t, shop, "default")
	for _, name := range []string{"a", "b"} {
		_, err := r.in(t, shop).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	row := "/registry/configmaps/shopname/default/a"
	if got := r.row(t, row); !bytes.HasPrefix(got, []byte("k8s:enc:aescbc:v1:k:")) {
		t.Fatalf("%s begins with %.30q", row, got)
	}
	must(t, r.stop())
	refused := func(o Options, want error) {
		t.Helper()
		s, err := New(t.Context(), &o, r.data)
		if err == nil {
			t.Fatalf("the server started; closed: %v", s.Close())
		}
		if !errors.Is(err, want) || !strings.Contains(err.Error(), row) || !strings.Contains(err.Error(), "--encryption-provider-config") {
			t.Errorf("%v, want %v that names %s", err, want, row)
		}
	}
	plain := *r.options
	plain.Encryption.ConfigFile = ""
	refused(plain, storage.ErrEncrypted)
	configMapsWith(newKey)
	refused(*r.options, storage.ErrUnreadable)

	// With its key, and one row that no key reads.
	configMapsWith(oldKey)
	_, err := r.data.Put(t.Context(), row, "k8s:enc:aescbc:v1:k:spoilt")
	must(t, err)
	r = r.restart(t)
	if _, err := r.in(t, shop).CoreV1().ConfigMaps("default").Get(t.Context(), "b", metav1.GetOptions{}); err != nil {
		t.Errorf("beside a spoilt row: %v", err)
	}
}

// TestEncryptionReload: a changed file counts without a restart, for what was there before, too, and a broken one changes
// nothing.
func TestEncryptionReload(t *testing.T) {
	before := encryptionconfigcontroller.EncryptionConfigFileChangePollDuration
	encryptionconfigcontroller.EncryptionConfigFileChangePollDuration = 50 * time.Millisecond
	t.Cleanup(func() { encryptionconfigcontroller.EncryptionConfigFileChangePollDuration = before })
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	encryptWith(t, file, "old:"+oldKey)
	r := startServer(t, func(o *Options) { o.Encryption = EncryptionOptions{ConfigFile: file, AutomaticReload: true} })
	r.makeNamespace(t, shop, "default")
	write := func(name string) []byte {
		_, err := r.in(t, shop).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
		return r.row(t, "/registry/secrets/shopname/default/"+name)
	}
	mustWrite(t, file, "resources: nonsense")
	if row := write("one"); !bytes.HasPrefix(row, []byte("k8s:enc:aesgcm:v1:old:")) {
		t.Errorf("with a broken file written is %.30q", row)
	}
	n := 0
	for _, order := range [][]string{{"new:" + newKey, "old:" + oldKey}, {"old:" + oldKey, "new:" + newKey}} { // more than once
		encryptWith(t, file, order...)
		name, _, _ := strings.Cut(order[0], ":")
		waitFor(t, time.Minute, "the key "+name+" writes", func() (string, bool) {
			n++
			row := write(fmt.Sprint("s", n))
			return fmt.Sprintf("%.30q", row), bytes.HasPrefix(row, []byte("k8s:enc:aesgcm:v1:"+name+":"))
		})
		waitFor(t, time.Minute, "what was there is written anew with the key "+name, func() (string, bool) {
			row := r.row(t, "/registry/secrets/shopname/default/one")
			return fmt.Sprintf("%.30q", row), bytes.HasPrefix(row, []byte("k8s:enc:aesgcm:v1:"+name+":"))
		})
	}
	if _, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("what the old key wrote: %v", err)
	}
}

// TestEncryptionReloadKeepsItsKeys: a changed file with which what is stored cannot be decrypted is not taken up.
func TestEncryptionReloadKeepsItsKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	encryptWith(t, file, "new:"+newKey)
	r := &reload{
		file: file, server: "s", taken: "of before",
		took:  func(hash string) { t.Errorf("took %s", hash) },
		reads: func(context.Context, value.ResourceTransformers) error { return storage.ErrUnreadable },
	}
	if err := r.once(t.Context()); !errors.Is(err, storage.ErrUnreadable) || r.taken != "of before" {
		t.Errorf("%v, took %s", err, r.taken)
	}
}

// deaf encrypts what it cannot decrypt.
type deaf struct{ value.Transformer }

func (deaf) TransformerForResource(schema.GroupResource) value.Transformer {
	return deaf{identity.NewEncryptCheckTransformer()}
}

func (deaf) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, errors.New("no key")
}

func TestEncryptionCheck(t *testing.T) {
	if err := encrypts(t.Context(), deaf{}); err == nil || !strings.Contains(err.Error(), "decrypt what was encrypted: no key") {
		t.Errorf("what cannot decrypt is well: %v", err)
	}
}

// counted counts how often something is encrypted.
type counted struct {
	value.Transformer
	times *atomic.Int64
}

func (c counted) TransformerForResource(schema.GroupResource) value.Transformer { return c }

func (c counted) TransformToStorage(ctx context.Context, data []byte, of value.Context) ([]byte, error) {
	c.times.Add(1)
	return c.Transformer.TransformToStorage(ctx, data, of)
}

// TestEncryptionCheckIsBounded: however many look, the key management is called once a second.
func TestEncryptionCheckIsBounded(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	keys := counted{identity.NewEncryptCheckTransformer(), &atomic.Int64{}}
	check := checksEncryption(keys, clock)
	for range 2 {
		for range 100 {
			must(t, check.Check(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz/encryption", nil)))
		}
		clock.SetTime(clock.Now().Add(time.Second))
	}
	if got := keys.times.Load(); got != 2 {
		t.Errorf("it was called %d times, want twice", got)
	}
}
