package server

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// kms is a key management: a plugin of KMS v2 on a unix socket, with keys of its own.
type kms struct {
	socket string
	server *grpc.Server
	ended  chan error

	mu   sync.Mutex
	keys map[string]cipher.AEAD // by id
	id   string                 // of the key that encrypts
}

// startKMS starts one with a key of that id.
func startKMS(t *testing.T, id string) *kms {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // a socket's path is at most 108 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	k := &kms{socket: filepath.Join(dir, "kms.sock"), keys: map[string]cipher.AEAD{}}
	k.rotate(t, id)
	k.start(t)
	t.Cleanup(func() { k.stop(t) })
	return k
}

// rotate makes a key, which encrypts from now on.
func (k *kms) rotate(t *testing.T, id string) {
	t.Helper()
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	block, err := aes.NewCipher(secret)
	must(t, err)
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	must(t, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[id], k.id = gcm, id
}

// destroy makes away with a key.
func (k *kms) destroy(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, id)
}

// start begins to answer, until stop.
func (k *kms) start(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", k.socket)
	must(t, err)
	k.server, k.ended = grpc.NewServer(), make(chan error, 1)
	kmsapi.RegisterKeyManagementServiceServer(k.server, service.NewGRPCService(k.socket, time.Minute, k))
	go func() { k.ended <- k.server.Serve(listener) }()
}

// stop ends it and its connections, with what is asked in them.
func (k *kms) stop(t *testing.T) {
	t.Helper()
	if k.server == nil {
		return
	}
	k.server.Stop()
	if err := <-k.ended; err != nil {
		t.Errorf("serve the key management: %v", err)
	}
	k.server = nil
}

// Status implements service.Service.
func (k *kms) Status(context.Context) (*service.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &service.StatusResponse{Version: kmsv2.KMSAPIVersionv2, Healthz: "ok", KeyID: k.id}, nil
}

// Encrypt implements service.Service.
func (k *kms) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &service.EncryptResponse{Ciphertext: k.keys[k.id].Seal(nil, nil, data, nil), KeyID: k.id}, nil
}

// Decrypt implements service.Service.
func (k *kms) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[req.KeyID]
	if !ok {
		return nil, fmt.Errorf("there is no key %q", req.KeyID)
	}
	return key.Open(nil, nil, req.Ciphertext, nil)
}

// TestEncryptionKMS: Secrets, and the keys that sign tokens, are encrypted by a key management (KMS v2). When its key changes, what is
// written from then on has the new one, and after a start all has. While it is away what was read before is read, writing ends after
// some minutes, /readyz says why, and nothing has to be done when it is back.
func TestEncryptionKMS(t *testing.T) {
	t.Parallel()
	const name = "vault" // the upstream hook for time is by name
	k := startKMS(t, "first")
	file, tokens := filepath.Join(t.TempDir(), "encryption.yaml"), withTokens(t)
	mustWrite(t, file, fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: %s, endpoint: "unix://%s", timeout: 1s}
  - identity: {}
`, name, k.socket))
	r := startServer(t, func(o *Options) { tokens(o); o.Encryption.ConfigFile = file })
	r.makeNamespace(t, shop, "default")
	r.makeNamespace(t, bank, "default")
	create := func(secret string) error {
		_, err := r.in(t, shop).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: secret}, Data: map[string][]byte{"password": []byte("hunter2")},
		}, metav1.CreateOptions{})
		return err
	}
	rowOf := func(secret string) string { return "/registry/secrets/shopname/default/" + secret }
	keyOf := func(row string) string {
		t.Helper()
		data, ok := bytes.CutPrefix(r.row(t, row), []byte("k8s:enc:kms:v2:"+name+":"))
		if !ok {
			t.Fatalf("%s begins with %.40q, want what the key management encrypted", row, r.row(t, row))
		}
		encrypted := &kmstypes.EncryptedObject{}
		must(t, proto.Unmarshal(data, encrypted))
		return encrypted.KeyID
	}
	reads := func(secret string) error {
		t.Helper()
		for _, version := range []string{"", "0"} { // from etcd, and from the watch cache
			s, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), secret, metav1.GetOptions{ResourceVersion: version})
			if err != nil {
				return err
			}
			if got := string(s.Data["password"]); got != "hunter2" {
				return fmt.Errorf("the password is %q", got)
			}
		}
		list, err := r.in(t, shop).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			if s.Name == secret {
				return nil
			}
		}
		return fmt.Errorf("a list of %d has no %s", len(list.Items), secret)
	}
	ready := func(check string) answer {
		t.Helper()
		return r.ask(t, asked{path: "/readyz" + check, token: root})
	}
	readyAgain := func() {
		t.Helper()
		waitFor(t, time.Minute, "the server is ready", func() (string, bool) {
			got := ready("?verbose")
			return got.body, got.code == http.StatusOK
		})
	}

	must(t, create("one"))
	must(t, create("two"))
	const signing = "/atoll/installation/serviceaccount-keys"
	for _, row := range []string{rowOf("one"), signing} {
		if got := keyOf(row); got != "first" {
			t.Errorf("%s has the key %q, want first", row, got)
		}
	}
	everything, err := r.data.Get(t.Context(), "\x00", clientv3.WithFromKey())
	must(t, err)
	for _, kv := range everything.Kvs {
		for _, plain := range []string{"hunter2", "PRIVATE KEY"} {
			if bytes.Contains(kv.Value, []byte(plain)) {
				t.Errorf("%s holds %q", kv.Key, plain)
			}
		}
	}
	must(t, reads("one"))
	if got := ready("?verbose"); !strings.Contains(got.body, "[+]kms-providers ok") {
		t.Errorf("/readyz says nothing of the key management: %s", got.body)
	}
	// As of any other provider, a row is nothing in another place.
	_, err = r.data.Put(t.Context(), "/registry/secrets/bankname/default/one", string(r.row(t, rowOf("one"))))
	must(t, err)
	if s, err := r.in(t, bank).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("copied into another logical cluster it is read: %v, %v", s.Data, err)
	}
	_, err = r.data.Delete(t.Context(), "/registry/secrets/bankname/default/one")
	must(t, err)

	// Another key: it is asked for each minute, and by who asks for the health, every 20 s.
	k.rotate(t, "second")
	n := 0
	waitFor(t, time.Minute, "the second key writes", func() (string, bool) {
		if got := ready("/kms-providers"); got.code != http.StatusOK {
			t.Fatalf("while its key changes the key management is %d %s", got.code, got.body)
		}
		n++
		secret := fmt.Sprint("later", n)
		must(t, create(secret))
		key := keyOf(rowOf(secret))
		return key, key == "second"
	})
	if got := keyOf(rowOf("one")); got != "first" {
		t.Errorf("what nobody wrote has the key %q, want first", got)
	}
	must(t, reads("one"))
	one, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{})
	must(t, err)
	_, err = r.in(t, shop).CoreV1().Secrets("default").Update(t.Context(), one, metav1.UpdateOptions{}) // the same
	must(t, err)
	if got := keyOf(rowOf("one")); got != "second" {
		t.Errorf("what was written again, as it was, has the key %q, want second", got)
	}
	if got := keyOf(rowOf("two")); got != "first" {
		t.Errorf("what nobody wrote has the key %q, want first", got)
	}
	r = r.restart(t)
	waitFor(t, time.Minute, "every row has the second key", func() (string, bool) {
		secrets, err := r.data.Get(t.Context(), rowOf(""), clientv3.WithPrefix(), clientv3.WithKeysOnly())
		must(t, err)
		for _, row := range append(secrets.Kvs, &mvccpb.KeyValue{Key: []byte(signing)}) { // many are written at once, in any order
			if key := keyOf(string(row.Key)); key != "second" {
				return fmt.Sprintf("%s has the key %q", row.Key, key), false
			}
		}
		return "", true
	})
	k.destroy("first")
	r = r.restart(t) // which has seen no key yet
	for _, secret := range []string{"one", "two"} {
		must(t, reads(secret))
	}

	// What another server writes has another key of data, which this one has to ask for.
	transformer, ofAnother, _, err := kmsv2.GenerateTransformer(t.Context(), "another", k, true)
	must(t, err)
	ofAnother.EncryptedData, err = transformer.TransformToStorage(t.Context(), []byte(`{"apiVersion":"v1","kind":"Secret",
		"metadata":{"namespace":"default","name":"kept","uid":"kept"},"data":{"password":"aHVudGVyMg=="}}`), value.DefaultContext(rowOf("kept")))
	must(t, err)
	row, err := proto.Marshal(ofAnother)
	must(t, err)

	// The key management is away.
	var ahead atomic.Int64 // of the time that upstream's transformer sees
	t.Cleanup(kmsv2.SetNowFuncForTests(name, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
	k.stop(t)
	waitFor(t, time.Minute, "/readyz says that the key management is away", func() (string, bool) {
		all, this := ready("?verbose"), ready("/kms-providers")
		return fmt.Sprintf("%d %s\n%d %s", all.code, all.body, this.code, this.body), all.code == http.StatusInternalServerError &&
			strings.Contains(all.body, "[-]kms-providers failed") && this.code == http.StatusInternalServerError &&
			strings.Contains(this.body, name) && strings.Contains(this.body, "failed to perform status section of the healthz check")
	})
	if got := r.ask(t, asked{path: "/livez"}); got.code != http.StatusOK {
		t.Errorf("/livez while the key management is away: %d %s", got.code, got.body)
	}
	for _, secret := range []string{"one", "two"} {
		if err := reads(secret); err != nil {
			t.Errorf("while the key management is away %s is %v", secret, err)
		}
	}
	if err := create("meanwhile"); err != nil { // with the key of data that it has
		t.Errorf("write soon after the key management went: %v", err)
	}
	_, err = r.data.Put(t.Context(), rowOf("kept"), "k8s:enc:kms:v2:"+name+":"+string(row))
	must(t, err)
	// From the watch cache, too, once that has seen it.
	waitFor(t, time.Minute, "what the key management would have to be asked for is an error that says so", func() (string, bool) {
		for _, version := range []string{"", "0"} {
			_, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "kept", metav1.GetOptions{ResourceVersion: version})
			if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "failed to decrypt DEK") {
				return fmt.Sprint(err), false
			}
		}
		return "", true
	})
	if _, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("beside what cannot be read: %v", err)
	}
	ahead.Store(int64(5 * time.Minute)) // upstream's limit is 3 m
	if err := create("late"); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("write when the key of data has ended: %v, want that it has expired", err)
	}
	if got := ready("/encryption"); got.code != http.StatusInternalServerError || !strings.Contains(got.body, "expired at") {
		t.Errorf("/readyz/encryption when the key of data has ended: %d %s", got.code, got.body)
	}
	if _, err := r.in(t, shop).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("read when the key of data has ended: %v", err)
	}
	_, err = r.in(t, shop).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("what is not encrypted: %v", err)
	}

	// It is back.
	k.start(t)
	readyAgain()
	must(t, create("late"))
	if got := keyOf(rowOf("late")); got != "second" {
		t.Errorf("written with the key %q when the key management is back", got)
	}
	for _, secret := range []string{"one", "kept", "meanwhile", "late"} {
		waitFor(t, time.Minute, secret+" is read when the key management is back", func() (string, bool) {
			err := reads(secret)
			return fmt.Sprint(err), err == nil
		})
	}

	// A server that starts without it says so.
	must(t, r.stop())
	k.stop(t)
	s, err := New(t.Context(), r.options, r.data)
	if err == nil {
		t.Fatalf("a server started without its key management; closed: %v", s.Close())
	}
	for _, want := range []string{"--encryption-provider-config", file, k.socket, "key management"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("a server without its key management says %q, want %q in it", err, want)
		}
	}
	// It waits a moment for one that is started with it.
	late := time.AfterFunc(2*time.Second, func() { k.start(t) })
	defer late.Stop()
	r = startServerOver(t, r.data, r.credentials, r.options)
	must(t, reads("one"))
}
