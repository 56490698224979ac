package server

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	testingclock "k8s.io/utils/clock/testing"
)

// shows returns the certificate that a server shows to who asks for a name, and why those who trust its kubeconfigs do not verify
// it, if they do not.
func (r *running) shows(t *testing.T, name string) (*x509.Certificate, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", r.listener.Addr().String(), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	chain := conn.ConnectionState().PeerCertificates
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: between})
	return chain[0], err
}

// TestCertificatesAreMadeAnew: what the server issued to itself is another one well before its end, while it runs.
func TestCertificatesAreMadeAnew(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	var etcd TLSFiles
	r := startServer(t, func(o *Options) {
		o.clock = clock
		var err error
		etcd, err = EtcdTLS(o)
		must(t, err)
	})
	ends := func() (served, admin, ofEtcd time.Time) {
		t.Helper()
		shown, _ := r.shows(t, "localhost")
		config, err := clientcmd.LoadFromFile(r.options.AdminKubeconfig())
		must(t, err)
		certificates, err := cert.ParseCertsPEM(config.AuthInfos[adminUser].ClientCertificateData)
		must(t, err)
		files, err := cert.CertsFromFile(etcd.Cert)
		must(t, err)
		return shown.NotAfter, certificates[0].NotAfter, files[0].NotAfter
	}
	served, admin, ofEtcd := ends()
	waitFor(t, time.Minute, "the server waits until certificates are near their end", func() (string, bool) { return "nobody waits", clock.HasWaiters() })
	clock.Step(leafValidity - leafRenewal + 24*time.Hour)
	waitFor(t, time.Minute, "all certificates are others", func() (string, bool) {
		servedNow, adminNow, ofEtcdNow := ends()
		return fmt.Sprintf("served until %s, before %s; admin's %s, %s; etcd's %s, %s", servedNow, served, adminNow, admin, ofEtcdNow, ofEtcd),
			servedNow.After(served) && adminNow.After(admin) && ofEtcdNow.After(ofEtcd)
	})
}

// TestCertificatesAreTriedAgain: what cannot be made anew is tried again after an hour, and what is there is served with
// meanwhile.
func TestCertificatesAreTriedAgain(t *testing.T) {
	pairs := []keyPair{{certPEM: []byte("first")}, {}, {certPEM: []byte("second")}}
	asked := make(chan struct{})
	clock := testingclock.NewFakeClock(time.Now())
	o, err := newOwnCertificates(clock, func() (keyPair, error) {
		pair := pairs[0]
		pairs = pairs[1:]
		if pair.certPEM == nil {
			return pair, errors.New("the disk is full")
		}
		return pair, nil
	}, map[string]func() error{"another": func() error { asked <- struct{}{}; return nil }})
	must(t, err)
	heard := make(listener, 1)
	o.AddListener(heard)
	go o.Run(t.Context(), 1)
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{renewEvery, "first"}, {renewAgain, "second"}} {
		waitFor(t, time.Minute, "the next look is awaited", func() (string, bool) { return "it is not", clock.HasWaiters() })
		clock.Step(step.after)
		select {
		case <-asked: // after the one to serve with
		case <-time.After(10 * time.Second):
			t.Fatalf("%s later nothing is made anew", step.after)
		}
		if got, _ := o.CurrentCertKeyContent(); string(got) != step.want {
			t.Errorf("%s later it serves with the %s, want the %s", step.after, got, step.want)
		}
	}
	<-heard
}

type listener chan struct{}

func (l listener) Enqueue() { l <- struct{}{} }

// TestGivenCertificate: who asks for a name in --tls-cert-file is shown that, whichever is in it, and all others the server's
// own; and who trusts the server's kubeconfigs verifies both.
func TestGivenCertificate(t *testing.T) {
	authority := mustPKI(t, t.TempDir())
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	give := func(names ...string) {
		t.Helper()
		pair, err := authority.issue(fmt.Sprint("given", names), &x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		must(t, err)
		mustWrite(t, keyFile, string(pair.keyPEM))
		mustWrite(t, certFile, string(slices.Concat(pair.certPEM, authority.caPEM())))
	}
	give("atoll.example")
	r := startServer(t, func(o *Options) {
		o.ExternalHostname, o.TLSCertFile, o.TLSPrivateKeyFile = "atoll.example", certFile, keyFile
	})
	for name, given := range map[string]bool{"atoll.example": true, "localhost": false, "kubernetes.default.svc": false} {
		shown, err := r.shows(t, name)
		if is := shown.CheckSignatureFrom(authority.ca) == nil; is != given || err != nil {
			t.Errorf("%s: shown the given one: %v, want %v; verified: %v", name, is, given, err)
		}
	}
	config, err := clientcmd.LoadFromFile(r.options.AdminKubeconfig())
	must(t, err)
	if got := config.Clusters["root"].CertificateAuthorityData; !bytes.Equal(got, slices.Concat(r.keys.caPEM(), authority.caPEM())) {
		t.Errorf("the administrator trusts %s, want the server's own authority and the given one", got)
	}
	give("atoll.example", "www.atoll.example")
	waitFor(t, 2*time.Minute, "the file is read again", func() (string, bool) {
		shown, err := r.shows(t, "www.atoll.example")
		return fmt.Sprint(shown.DNSNames, err), err == nil
	})
}

// TestGivenCertificateOfNobody: a certificate that the server's kubeconfigs would not verify under a name in them is refused, and
// what is to be done is said.
func TestGivenCertificateOfNobody(t *testing.T) {
	authority, own := mustPKI(t, t.TempDir()), mustPKI(t, t.TempDir())
	dir := t.TempDir()
	for what, test := range map[string]struct {
		name   string
		behind []byte
		says   string
	}{
		"without its authority":        {"atoll.example", nil, "append the certificate of its root authority"},
		"with another authority":       {"atoll.example", own.caPEM(), "append the certificate of its root authority"},
		"with it":                      {"atoll.example", authority.caPEM(), ""},
		"of a name in no kubeconfig":   {"www.atoll.example", nil, ""},
		"of what pods call the server": {"kubernetes.default.svc", nil, `"kubernetes.default.svc"`},
		// Common names, which upstream goes by and clients do not, are behind a slash.
		"of a common name alone":             {"/atoll.example", authority.caPEM(), "subjectAltName"},
		"of a common name, and another name": {"www.atoll.example/atoll.example", authority.caPEM(), `"atoll.example"`},
		"of a common name for all such":      {"www.atoll.example/*.example", authority.caPEM(), `"atoll.example"`},
		"of one for everything":              {"www.atoll.example/*", authority.caPEM(), `"localhost"`},
		"of one in no kubeconfig":            {"www.atoll.example/www.atoll.example", nil, ""},
		"of an address that is a name":       {"127.0.0.1", authority.caPEM(), `"127.0.0.1"`},
	} {
		t.Run(what, func(t *testing.T) {
			template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			name, common, _ := strings.Cut(test.name, "/")
			if template.Subject.CommonName = common; name != "" {
				template.DNSNames = []string{name}
			}
			pair, err := authority.issue(strings.NewReplacer("/", "_", "*", "all").Replace(test.name), template)
			must(t, err)
			o := NewOptions()
			o.ExternalHostname = "atoll.example"
			o.TLSCertFile, o.TLSPrivateKeyFile = filepath.Join(dir, "tls.crt"), pair.keyFile
			mustWrite(t, o.TLSCertFile, string(slices.Concat(pair.certPEM, test.behind)))
			_, err = (&Server{options: o, keys: own}).loadGivenCertificate()
			if (err == nil) != (test.says == "") || err != nil && (!strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "--tls-cert-file")) {
				t.Errorf("error %v, want %q", err, test.says)
			}
		})
	}
}

// TestGivenCertificateOutlivesItsAuthority: one that everybody verifies now is no reason not to start, though its authority ends
// first.
func TestGivenCertificateOutlivesItsAuthority(t *testing.T) {
	own, dir := mustPKI(t, t.TempDir()), t.TempDir()
	for what, test := range map[string]struct {
		ends time.Duration // of the authority, from now
		says string
	}{
		"in ten days": {10 * 24 * time.Hour, ""},
		"yesterday":   {-24 * time.Hour, "expired"},
	} {
		t.Run(what, func(t *testing.T) {
			authority := mustPKI(t, t.TempDir())
			template := *authority.ca
			template.NotBefore, template.NotAfter = time.Now().Add(-30*24*time.Hour), time.Now().Add(test.ends)
			der, err := x509.CreateCertificate(rand.Reader, &template, &template, authority.ca.PublicKey, authority.caKey)
			must(t, err)
			authority.ca, err = x509.ParseCertificate(der)
			must(t, err)
			pair, err := authority.issue("given", &x509.Certificate{DNSNames: []string{"atoll.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			must(t, err)
			o := NewOptions()
			o.ExternalHostname = "atoll.example"
			o.TLSCertFile, o.TLSPrivateKeyFile = filepath.Join(dir, "tls.crt"), pair.keyFile
			mustWrite(t, o.TLSCertFile, string(slices.Concat(pair.certPEM, authority.caPEM())))
			_, err = (&Server{options: o, keys: own}).loadGivenCertificate()
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %q", err, test.says)
			}
		})
	}
}

// TestGivenCertificateIsRenewed: what --tls-cert-file is renewed with is shown if those who trust the server's kubeconfigs verify
// it. Else what was there before is, and once it is said why.
func TestGivenCertificateIsRenewed(t *testing.T) {
	authority, another, dir := mustPKI(t, t.TempDir()), mustPKI(t, t.TempDir()), t.TempDir()
	o := NewOptions()
	o.ExternalHostname = "atoll.example"
	o.TLSCertFile, o.TLSPrivateKeyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	renewals := 0
	give := func(by *pki, name string, behind []byte) (certificate string) {
		t.Helper()
		renewals++
		pair, err := by.issue(fmt.Sprint("given", renewals), &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		must(t, err)
		mustWrite(t, o.TLSPrivateKeyFile, string(pair.keyPEM))
		mustWrite(t, o.TLSCertFile, string(slices.Concat(pair.certPEM, behind)))
		return string(slices.Concat(pair.certPEM, behind))
	}
	first := give(authority, "atoll.example", authority.caPEM())
	s := &Server{options: o, keys: mustPKI(t, t.TempDir())}
	var err error
	s.trusted, err = s.loadGivenCertificate()
	must(t, err)
	content, err := dynamiccertificates.NewDynamicSNIContentFromFiles("serving-cert", o.TLSCertFile, o.TLSPrivateKeyFile)
	must(t, err)
	renewed, err := s.renewed(content)
	must(t, err)
	var told []error
	renewed.tell = func(err error) { told = append(told, err) }
	shown := func(reason, want, says string) {
		t.Helper()
		told = nil
		must(t, content.RunOnce(t.Context()))
		for range 2 {
			certificate, key := renewed.CurrentCertKeyContent()
			if string(certificate) != want {
				t.Errorf("%s: shown is %s, want %s", reason, certificate, want)
			}
			if _, err := tls.X509KeyPair(certificate, key); err != nil {
				t.Errorf("%s: %v", reason, err)
			}
		}
		if (len(told) == 0) != (says == "") || len(told) > 1 || len(told) == 1 && !strings.Contains(told[0].Error(), says) {
			t.Errorf("%s: told is %v, want %q, once", reason, told, says)
		}
	}
	shown("at the start", first, "")
	give(authority, "atoll.example", nil)
	shown("without its root", first, "append the certificate of its root authority")
	give(another, "atoll.example", another.caPEM())
	shown("by another authority", first, "its root authority is not in the kubeconfigs that there are")
	next := give(authority, "atoll.example", authority.caPEM())
	shown("as before", next, "")
	other := give(another, "www.atoll.example", nil)
	shown("of a name in no kubeconfig", other, "")
}
