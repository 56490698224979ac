package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

func mustPKI(t *testing.T, dir string) *pki {
	t.Helper()
	p, err := loadPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustServing(t *testing.T, p *pki, hosts ...string) keyPair {
	t.Helper()
	pair, err := p.serving(hosts...)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestPKISurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	first := mustPKI(t, dir)
	serving := mustServing(t, first, "localhost", "127.0.0.1")
	admin, err := first.client("admin", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}

	second := mustPKI(t, dir)
	if !bytes.Equal(first.caPEM(), second.caPEM()) {
		t.Error("the certificate authority changed")
	}
	if diff := cmp.Diff(serving, mustServing(t, second, "localhost", "127.0.0.1"), cmp.AllowUnexported(keyPair{})); diff != "" {
		t.Errorf("the server's certificate changed (-before +after):\n%s", diff)
	}
	again, err := second.client("admin", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(admin, again, cmp.AllowUnexported(keyPair{})); diff != "" {
		t.Errorf("the administrator's certificate changed (-before +after):\n%s", diff)
	}
	// No temporary files stay.
	if got := fileNames(t, dir); !cmp.Equal(got, []string{"admin.crt", "admin.key", "apiserver.crt", "apiserver.key", "ca.crt", "ca.key"}) {
		t.Errorf("files: %v", got)
	}
}

func fileNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPKIKeysAreTheOwners(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	mustServing(t, mustPKI(t, dir), "localhost")
	check := func(when string) {
		t.Helper()
		for _, name := range []string{"ca.key", "apiserver.key"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s has mode %o, want 600", when, name, info.Mode().Perm())
			}
		}
	}
	check("made")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v (%v), want 700", info.Mode(), err)
	}
	// As after a restore that forgot modes.
	for _, name := range []string{"ca.key", "apiserver.key"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mustServing(t, mustPKI(t, dir), "localhost")
	check("found readable by all")
}

func TestPKIIssuesAnew(t *testing.T) {
	hosts := []string{"localhost", "127.0.0.1"}
	tests := map[string]struct {
		spoil  func(t *testing.T, p *pki, have keyPair)
		hosts  []string
		anew   bool
		reason string
	}{
		"same":          {hosts: hosts, reason: "nothing changed"},
		"fewer hosts":   {hosts: hosts[:1], reason: "it still answers for all that is asked"},
		"other name":    {hosts: append(hosts, "atoll.example.com"), anew: true, reason: "clients of that name would refuse it"},
		"other address": {hosts: append(hosts, "10.0.0.1"), anew: true, reason: "clients of that address would refuse it"},
		"near its end":  {hosts: hosts, spoil: endsIn(leafRenewal - time.Hour), anew: true, reason: "it would end before a likely restart"},
		"far from it":   {hosts: hosts, spoil: endsIn(leafRenewal + time.Hour), reason: "renewing is for later"},
		"corrupt": {hosts: hosts, anew: true, reason: "nothing but this process reads it from here",
			spoil: func(t *testing.T, _ *pki, have keyPair) { mustWrite(t, have.certFile, "rubbish") }},
		"no key": {hosts: hosts, anew: true, reason: "a certificate needs its key",
			spoil: func(t *testing.T, _ *pki, have keyPair) {
				if err := os.Remove(have.keyFile); err != nil {
					t.Fatal(err)
				}
			}},
		"another key": {hosts: hosts, anew: true, reason: "a crash after the key was written leaves the old certificate",
			spoil: func(t *testing.T, _ *pki, have keyPair) {
				key, err := keyutil.MakeEllipticPrivateKeyPEM()
				if err != nil {
					t.Fatal(err)
				}
				mustWrite(t, have.keyFile, string(key))
			}},
		"another authority": {hosts: hosts, anew: true, reason: "kubeconfigs trust the authority that is there now",
			spoil: func(t *testing.T, _ *pki, have keyPair) {
				other := mustServing(t, mustPKI(t, t.TempDir()), hosts...)
				mustWrite(t, have.certFile, string(other.certPEM))
				mustWrite(t, have.keyFile, string(other.keyPEM))
			}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := mustPKI(t, t.TempDir())
			have := mustServing(t, p, hosts...)
			if test.spoil != nil {
				test.spoil(t, p, have)
			}
			before, err := os.ReadFile(have.certFile)
			if err != nil {
				t.Fatal(err)
			}
			got := mustServing(t, p, test.hosts...)
			if anew := !bytes.Equal(before, got.certPEM); anew != test.anew {
				t.Errorf("made anew: %v, want %v: %s", anew, test.anew, test.reason)
			}
			onDisk, err := tls.LoadX509KeyPair(got.certFile, got.keyFile)
			if err != nil {
				t.Fatalf("the files do not fit: %v", err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(p.ca)
			for _, host := range append([]string{"kubernetes.default", "kubernetes.default.svc"}, test.hosts...) { // as pods may call it
				if _, err := onDisk.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
					t.Errorf("as %s: %v", host, err)
				}
			}
		})
	}
}

// endsIn replaces a certificate by one of the same key that ends after d.
func endsIn(d time.Duration) func(*testing.T, *pki, keyPair) {
	return func(t *testing.T, p *pki, have keyPair) {
		certs, err := cert.ParseCertsPEM(have.certPEM)
		if err != nil {
			t.Fatal(err)
		}
		certs[0].NotAfter = time.Now().Add(d)
		der, err := x509.CreateCertificate(rand.Reader, certs[0], p.ca, certs[0].PublicKey, p.caKey)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		pem, err := cert.EncodeCertificates(signed)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, have.certFile, string(pem))
	}
}

func mustWrite(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPKIRefusesABrokenAuthority(t *testing.T) {
	tests := map[string]struct {
		spoil  func(t *testing.T, dir string)
		wants  []string
		reason string
	}{
		"corrupt certificate": {
			spoil:  func(t *testing.T, dir string) { mustWrite(t, filepath.Join(dir, "ca.crt"), "rubbish") },
			wants:  []string{"ca.crt", "move it and"},
			reason: "a new authority would make every kubeconfig worthless, so a person decides",
		},
		"empty certificate": {
			spoil: func(t *testing.T, dir string) { mustWrite(t, filepath.Join(dir, "ca.crt"), "") },
			wants: []string{"ca.crt", "move it and"},
		},
		"corrupt key": {
			spoil: func(t *testing.T, dir string) { mustWrite(t, filepath.Join(dir, "ca.key"), "rubbish") },
			wants: []string{"ca.key"},
		},
		"no key": {
			spoil: func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
					t.Fatal(err)
				}
			},
			wants: []string{"ca.key"},
		},
		"another's key": {
			spoil: func(t *testing.T, dir string) {
				other := t.TempDir()
				mustPKI(t, other)
				key, err := os.ReadFile(filepath.Join(other, "ca.key"))
				if err != nil {
					t.Fatal(err)
				}
				mustWrite(t, filepath.Join(dir, "ca.key"), string(key))
			},
			wants: []string{"ca.key", "ca.crt"},
		},
		"no authority": {
			spoil: func(t *testing.T, dir string) {
				leaf := mustServing(t, mustPKI(t, dir), "localhost")
				mustWrite(t, filepath.Join(dir, "ca.crt"), string(leaf.certPEM))
			},
			wants: []string{"ca.crt", "no valid certificate authority"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustPKI(t, dir)
			test.spoil(t, dir)
			_, err := loadPKI(dir)
			if err == nil {
				t.Fatalf("no error: %s", test.reason)
			}
			for _, want := range test.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
	t.Run("a key without its certificate", func(t *testing.T) {
		// As a crash in the middle of the first start leaves it.
		dir := t.TempDir()
		mustPKI(t, dir)
		key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
			t.Fatal(err)
		}
		mustServing(t, mustPKI(t, dir), "localhost")
		// Or it was lost, and is found again.
		if now, err := os.ReadFile(filepath.Join(dir, "ca.key")); err != nil || !bytes.Equal(now, key) {
			t.Errorf("the key is another one: %v", err)
		}
	})
}

// TestPKIOfLinks: what is elsewhere by links is not copied to this disk, and what cannot be reached there is not made anew in its
// place.
func TestPKIOfLinks(t *testing.T) {
	made, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "mounted")
	mustPKI(t, made)
	must(t, os.Rename(made, elsewhere))
	key, err := os.ReadFile(filepath.Join(elsewhere, "ca.key"))
	must(t, err)
	dir := t.TempDir()
	isLink := func(name string) bool {
		t.Helper()
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		return info.Mode()&os.ModeSymlink != 0
	}
	for _, name := range []string{"ca.crt", "ca.key"} {
		must(t, os.Symlink(filepath.Join(elsewhere, name), filepath.Join(dir, name)))
	}
	must(t, os.Rename(elsewhere, elsewhere+".away"))
	for _, name := range []string{"ca.crt", "ca.key"} { // both, and the key alone
		_, err := loadPKI(dir)
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)+" is a link") || !strings.Contains(err.Error(), "mounting") {
			t.Errorf("error %v, want that %s leads nowhere", err, name)
		}
		if !isLink("ca.key") {
			t.Error("a key was made in place of the link")
		}
		if name == "ca.crt" {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	must(t, os.Rename(elsewhere+".away", elsewhere))
	mustServing(t, mustPKI(t, dir), "localhost")
	if now, err := os.ReadFile(filepath.Join(elsewhere, "ca.key")); err != nil || !bytes.Equal(now, key) || !isLink("ca.key") {
		t.Errorf("the key is another one, or a copy of it is here: %v", err)
	}
}

func TestEtcdTLS(t *testing.T) {
	o := NewOptions()
	o.RootDirectory = t.TempDir()
	files, err := EtcdTLS(o)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := cert.NewPool(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1", KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("usage %v: %v", usage, err)
		}
	}

	// With these names, docs/operations/access.md says how to end all tokens of ServiceAccounts.
	pki := filepath.Join(o.RootDirectory, "pki")
	if want := (TLSFiles{Cert: filepath.Join(pki, "etcd.crt"), Key: filepath.Join(pki, "etcd.key"), CA: filepath.Join(pki, "ca.crt")}); files != want {
		t.Errorf("the files are %+v, want %+v", files, want)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{
		Dir: t.TempDir(), ClientPort: port, CertFile: files.Cert, KeyFile: files.Key, CAFile: files.CA,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	}()
	const row = "/atoll/installation/serviceaccount-keys"
	if _, err := etcd.Client.Put(t.Context(), row, "keys"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	outside, err := embeddedetcd.Connect(ctx, embeddedetcd.ExternalOptions{
		Endpoints: []string{fmt.Sprintf("https://127.0.0.1:%d", port)}, CertFile: files.Cert, KeyFile: files.Key, CAFile: files.CA,
	})
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := outside.Client.Delete(ctx, row); err != nil || gone.Deleted != 1 {
		t.Errorf("delete the row by the port: %v, %v", gone, err)
	}
	if err := outside.Stop(); err != nil {
		t.Error(err)
	}
}
