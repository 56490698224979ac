package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// givenCertificate is what --tls-cert-file holds: the server shows it to who asks for one of its names, and its own to everybody
// else.
type givenCertificate struct {
	file  string
	leaf  *x509.Certificate
	chain []*x509.Certificate // those behind it
}

// readGivenCertificate reads the certificate of --tls-cert-file, and the key that belongs to it.
func readGivenCertificate(certFile, keyFile string) (*givenCertificate, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	return parseGivenCertificate(certFile, certPEM, keyPEM)
}

func parseGivenCertificate(file string, certPEM, keyPEM []byte) (*givenCertificate, error) {
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return nil, err
	}
	certificates, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return nil, err
	}
	return &givenCertificate{file, certificates[0], certificates[1:]}, nil
}

// authorities are those in the file that are nobody else's: what signed them is themselves. Which ones are between them and the
// certificate changes from one renewal to the next.
func (g *givenCertificate) authorities() []*x509.Certificate {
	var own []*x509.Certificate
	for _, c := range g.chain {
		if c.IsCA && c.CheckSignatureFrom(c) == nil {
			own = append(own, c)
		}
	}
	return own
}

// isShown says whether it is what clients are shown that call the server by a name or address. Upstream goes by the common name,
// too, and by a DNS name that is an address.
func (g *givenCertificate) isShown(name string) bool {
	if net.ParseIP(name) != nil {
		return slices.Contains(g.leaf.DNSNames, name)
	}
	if cn := g.leaf.Subject.CommonName; cn != "" {
		_, domain, _ := strings.Cut(name, ".")
		if cn == name || cn == strings.TrimSuffix("*."+domain, ".") {
			return true
		}
	}
	return g.leaf.VerifyHostname(name) == nil
}

// verifies returns an error unless who trusts authorities, by a kubeconfig of the server's or in a pod, verifies what he is shown
// under each of those names. When it ends is for who renews it: until then, all of its authorities have to be good now, and not
// all the time.
func (g *givenCertificate) verifies(authorities []*x509.Certificate, names []string, now time.Time) error {
	if len(g.leaf.DNSNames) == 0 {
		return fmt.Errorf("--tls-cert-file %q has no DNS names (subjectAltName), and clients look at nothing else: have one issued with those by which the server is called", g.file)
	}
	if now.Before(g.leaf.NotBefore) {
		now = g.leaf.NotBefore
	}
	if now.After(g.leaf.NotAfter) {
		now = g.leaf.NotAfter
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range authorities {
		roots.AddCert(c)
	}
	for _, c := range g.chain {
		between.AddCert(c)
	}
	for _, name := range names {
		if !g.isShown(name) {
			continue // there the server's own is shown
		}
		_, err := g.leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: between, CurrentTime: now})
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
			return fmt.Errorf("--tls-cert-file %q is what clients at %q are shown, and they could not verify it: append the certificate of its root authority, which then goes into kubeconfigs and pods", g.file, name)
		}
		if err != nil {
			return fmt.Errorf("--tls-cert-file %q is what clients at %q are shown, and they could not verify it: %w", g.file, name, err)
		}
	}
	return nil
}

// loadGivenCertificate reads --tls-cert-file, if there is one, and returns the authorities by which all that the server shows is
// verified, as PEM.
func (s *Server) loadGivenCertificate() ([]byte, error) {
	authorities := []*x509.Certificate{s.keys.ca}
	if o := s.options; o.TLSCertFile != "" {
		given, err := readGivenCertificate(o.TLSCertFile, o.TLSPrivateKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read --tls-cert-file %q, --tls-private-key-file %q: %w", o.TLSCertFile, o.TLSPrivateKeyFile, err)
		}
		authorities = append(authorities, given.authorities()...)
		if err := given.verifies(authorities, s.calledBy(), time.Now()); err != nil {
			return nil, err
		}
	}
	return cert.EncodeCertificates(authorities...)
}

// calledBy are the names and addresses that are in kubeconfigs of the server's, and those by which pods call it.
func (s *Server) calledBy() []string { return slices.Concat(s.ownHosts(), kubernetesNames) }

// renewedCertificate is what --tls-cert-file holds while the server runs, or held: one that those who trust the server's
// kubeconfigs do not verify is told of, and not shown.
type renewedCertificate struct {
	*dynamiccertificates.DynamicFileSNIContent // reads the files again
	verifies                                   func(certPEM, keyPEM []byte) error
	tell                                       func(error) // of what is not shown

	mu          sync.Mutex // guards what follows
	seen        []byte     // what was in the files last
	certificate []byte     // what is shown
	key         []byte
}

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (r *renewedCertificate) CurrentCertKeyContent() (certificate, key []byte) {
	certificate, key = r.DynamicFileSNIContent.CurrentCertKeyContent()
	r.mu.Lock()
	defer r.mu.Unlock()
	both := slices.Concat(certificate, key)
	if bytes.Equal(both, r.seen) {
		return r.certificate, r.key
	}
	r.seen = both
	if err := r.verifies(certificate, key); err != nil {
		r.tell(err)
	} else {
		r.certificate, r.key = certificate, key
	}
	return r.certificate, r.key
}

// renewed shows what --tls-cert-file holds, of which New has found that it can be, and then what it is renewed with.
func (s *Server) renewed(content *dynamiccertificates.DynamicFileSNIContent) (*renewedCertificate, error) {
	trusted, err := cert.ParseCertsPEM(s.trusted)
	if err != nil {
		return nil, fmt.Errorf("read the authorities in kubeconfigs: %w", err)
	}
	r := &renewedCertificate{DynamicFileSNIContent: content, verifies: func(certPEM, keyPEM []byte) error {
		given, err := parseGivenCertificate(s.options.TLSCertFile, certPEM, keyPEM)
		if err != nil {
			return err
		}
		own := append([]*x509.Certificate{s.keys.ca}, given.authorities()...)
		if err := given.verifies(own, s.calledBy(), time.Now()); err != nil {
			return fmt.Errorf("no server starts with it: %w", err)
		}
		if err := given.verifies(trusted, s.calledBy(), time.Now()); err != nil {
			return fmt.Errorf("its root authority is not in the kubeconfigs that there are; with the next start it is in new ones, and breaks the others: %w", err)
		}
		return nil
	}, tell: func(err error) {
		klog.Background().Error(err, "What --tls-cert-file holds by now is not shown. What it held before is, until the server ends")
	}}
	r.certificate, r.key = content.CurrentCertKeyContent()
	r.seen = slices.Concat(r.certificate, r.key)
	return r, r.verifies(r.certificate, r.key)
}

// ownHosts are the names and addresses in the certificate that the server issues to itself, besides kubernetesNames.
func (s *Server) ownHosts() []string {
	return []string{"localhost", "127.0.0.1", "::1", s.options.externalHost()}
}
