// Package etcdtest starts an etcd with TLS on loopback for tests of what is done through an external one. It writes below
// the test's temporary directory, and everything ends with the test.
package etcdtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

// StartTLS starts an etcd that wants client certificates, and returns it and how to reach it from outside.
func StartTLS(t testing.TB) (*embeddedetcd.Etcd, embeddedetcd.ExternalOptions) {
	t.Helper()
	certFile, keyFile, caFile := Certificates(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Somebody else may take the free port before etcd does.
	var err error
	for range 5 {
		port := freePort(t)
		var etcd *embeddedetcd.Etcd
		etcd, err = embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: t.TempDir(), ClientPort: port, CertFile: certFile, KeyFile: keyFile, CAFile: caFile})
		if err == nil {
			t.Cleanup(func() {
				if err := etcd.Stop(); err != nil {
					t.Error(err)
				}
			})
			return etcd, embeddedetcd.ExternalOptions{
				Endpoints: []string{fmt.Sprintf("https://127.0.0.1:%d", port)},
				CertFile:  certFile, KeyFile: keyFile, CAFile: caFile,
			}
		}
	}
	t.Fatal(err)
	return nil, embeddedetcd.ExternalOptions{}
}

// Connect opens a client for the time of the test.
func Connect(t testing.TB, o embeddedetcd.ExternalOptions) *embeddedetcd.Etcd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd, err := embeddedetcd.Connect(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

// Certificates writes a new authority and a certificate of it for 127.0.0.1, good for servers and clients.
func Certificates(t testing.TB) (certFile, keyFile, caFile string) {
	t.Helper()
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leafTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"},
		NotBefore: caTemplate.NotBefore, NotAfter: caTemplate.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, leafKey := newKey(t), newKey(t)
	ca := sign(t, caTemplate, caTemplate, caKey, caKey)
	leaf := sign(t, leafTemplate, caTemplate, leafKey, caKey)
	key, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("tls.crt", "CERTIFICATE", leaf), write("tls.key", "EC PRIVATE KEY", key), write("ca.crt", "CERTIFICATE", ca)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
