package server

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
)

const (
	// leafValidity of server and client certificates; they are made anew with less than leafRenewal left, at a start and while a
	// server runs (ownCertificates).
	leafValidity = 365 * 24 * time.Hour
	leafRenewal  = 90 * 24 * time.Hour
)

// pki is the server's own certificate authority, with its files in one directory. Keys are readable by the owner alone.
type pki struct {
	directory string
	ca        *x509.Certificate
	caKey     crypto.Signer
	clock     clock.PassiveClock
}

// keyPair is a certificate and its key, in memory as PEM and on disk.
type keyPair struct {
	certFile, keyFile string
	certPEM, keyPEM   []byte
}

// loadPKI reads the authority from directory, or makes one.
func loadPKI(directory string) (*pki, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of keys: %w", err)
	}
	p := &pki{directory: directory, clock: clock.RealClock{}}
	certFile, keyFile := p.file("ca.crt"), p.file("ca.key")
	certs, err := cert.CertsFromFile(certFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, p.create(certFile, keyFile)
	case err != nil:
		return nil, fmt.Errorf("read the certificate authority %s: %w: bring back the file from a backup, or move it and %s away, and start once with --replace-certificate-authorities, to have a new one made", certFile, err, keyFile)
	}
	if p.ca = certs[0]; !p.ca.IsCA || time.Now().After(p.ca.NotAfter) {
		return nil, fmt.Errorf("%s is no valid certificate authority (valid until %s): put yours there, or move it and %s away to have a new one made, and start once with --replace-certificate-authorities; kubeconfigs other than the administrator's then need the new one",
			certFile, p.ca.NotAfter.Format(time.DateOnly), keyFile)
	}
	if err := ownersOnly(keyFile); err != nil {
		return nil, fmt.Errorf("protect the key of the certificate authority: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the key of the certificate authority %s: %w", certFile, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read the key of the certificate authority: %s holds a %T, which cannot sign", keyFile, key)
	}
	if public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(p.ca.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s: bring back the one that belongs to it", keyFile, certFile)
	}
	p.caKey = signer
	return p, nil
}

// create makes an authority, of the key that is there, if one is: a start may have ended before there was a certificate. Or that
// is lost, and without the key it would not be of use if it is found.
func (p *pki) create(certFile, keyFile string) error {
	for _, file := range []string{certFile, keyFile} {
		if err := leadsSomewhere(file); err != nil {
			return err
		}
	}
	keyPEM, err := os.ReadFile(keyFile)
	found := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		keyPEM, err = keyutil.MakeEllipticPrivateKeyPEM()
	}
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return fmt.Errorf("read the key of the certificate authority %s: %w: bring back the file from a backup, or move it away, and start once with --replace-certificate-authorities, to have a new authority made", keyFile, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("read the key of the certificate authority: %s holds a %T, which cannot sign", keyFile, key)
	}
	p.caKey = signer
	p.ca, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "atoll-ca"}, p.caKey)
	if err != nil {
		return fmt.Errorf("make a certificate authority: %w", err)
	}
	// The key first: a certificate without its key would be taken for an authority at the next start. One that was there stays
	// where it is: the file may be a link to what is not to be on this disk.
	if found {
		if err := ownersOnly(keyFile); err != nil {
			return fmt.Errorf("protect the key of the certificate authority: %w", err)
		}
	} else if err := writeWhole(keyFile, keyPEM, 0o600); err != nil {
		return fmt.Errorf("write the key of the certificate authority: %w", err)
	}
	if err := writeWhole(certFile, p.caPEM(), 0o644); err != nil {
		return fmt.Errorf("write the certificate authority: %w", err)
	}
	return nil
}

// leadsSomewhere returns an error for a link to what is not there, as when a volume is not mounted: in place of it nothing is
// made.
func leadsSomewhere(file string) error {
	link, err := os.Readlink(file)
	if err != nil {
		return nil // it is no link, or not there
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%s is a link to %s, which cannot be read (%w): bring that back, as by mounting its disk; or remove the link, and start once with --replace-certificate-authorities, to have a new authority made", file, link, err)
	}
	return nil
}

// writeWhole writes a file so that it is there whole or not at all, whenever the machine stops.
func writeWhole(name string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// ownersOnly takes a key away from everybody but its owner, as after a restore that forgot modes.
func ownersOnly(keyFile string) error {
	info, err := os.Stat(keyFile)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return os.Chmod(keyFile, 0o600)
}

func (p *pki) file(name string) string { return filepath.Join(p.directory, name) }

func (p *pki) caPEM() []byte {
	pem, err := cert.EncodeCertificates(p.ca)
	if err != nil {
		panic(err) // a parsed certificate can always be encoded
	}
	return pem
}

// kubernetesNames are what pods call the API of their cluster, by which those of workspaces find this server where their DNS says so (contrib/dns).
var kubernetesNames = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}

// serving returns the server's certificate for those hosts (names or addresses), and for kubernetesNames.
func (p *pki) serving(hosts ...string) (keyPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "atoll"},
		DNSNames:    slices.Clone(kubernetesNames),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return p.issue("apiserver", template)
}

// client returns a client certificate of a user in groups.
func (p *pki) client(name, user string, groups ...string) (keyPair, error) {
	return p.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issue returns name.crt and name.key, making them where they are absent, near their end, or not as template wants.
func (p *pki) issue(name string, template *x509.Certificate) (keyPair, error) {
	pair := keyPair{certFile: p.file(name + ".crt"), keyFile: p.file(name + ".key")}
	if p.reuse(&pair, template) {
		return pair, ownersOnly(pair.keyFile)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return keyPair{}, fmt.Errorf("make a serial number: %w", err)
	}
	template.SerialNumber = serial
	now := p.clock.Now()
	template.NotBefore = now.Add(-5 * time.Minute) // clocks differ
	template.NotAfter = now.Add(leafValidity)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if pair.keyPEM, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return keyPair{}, fmt.Errorf("make a key: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(pair.keyPEM)
	if err != nil {
		return keyPair{}, fmt.Errorf("read the key just made: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, key.(crypto.Signer).Public(), p.caKey)
	if err != nil {
		return keyPair{}, fmt.Errorf("sign certificate %q: %w", name, err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return keyPair{}, fmt.Errorf("read the certificate just signed: %w", err)
	}
	if pair.certPEM, err = cert.EncodeCertificates(signed); err != nil {
		return keyPair{}, fmt.Errorf("encode certificate %q: %w", name, err)
	}
	if err := writeWhole(pair.keyFile, pair.keyPEM, 0o600); err != nil {
		return keyPair{}, fmt.Errorf("write key: %w", err)
	}
	if err := writeWhole(pair.certFile, pair.certPEM, 0o644); err != nil {
		return keyPair{}, fmt.Errorf("write certificate: %w", err)
	}
	return pair, nil
}

// reuse reads the pair from disk, and says whether it is what template asks for. One that cannot be read is made anew:
// nothing depends on it but what reads it from here. So is a certificate without its key, left by a crash between both.
func (p *pki) reuse(pair *keyPair, template *x509.Certificate) bool {
	certs, err := cert.CertsFromFile(pair.certFile)
	if err != nil || !p.fits(certs[0], template) {
		return false
	}
	if pair.certPEM, err = os.ReadFile(pair.certFile); err != nil {
		return false
	}
	if pair.keyPEM, err = os.ReadFile(pair.keyFile); err != nil {
		return false
	}
	_, err = tls.X509KeyPair(pair.certPEM, pair.keyPEM)
	return err == nil
}

// fits says whether a certificate found on disk is still what template asks for.
func (p *pki) fits(have, template *x509.Certificate) bool {
	if have.CheckSignatureFrom(p.ca) != nil || have.NotAfter.Sub(p.clock.Now()) < leafRenewal {
		return false
	}
	if have.Subject.CommonName != template.Subject.CommonName || !slices.Equal(have.Subject.Organization, template.Subject.Organization) {
		return false
	}
	for _, name := range template.DNSNames {
		if !slices.Contains(have.DNSNames, name) {
			return false
		}
	}
	for _, ip := range template.IPAddresses {
		if !slices.ContainsFunc(have.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// TLSFiles are a certificate, its key and the authority that peers must have, on disk.
type TLSFiles struct{ Cert, Key, CA string }

// EtcdTLS returns the files with which an embedded etcd serves clients and peers on loopback. A server that runs with these
// options makes them anew before they end; etcd reads them for each connection.
func EtcdTLS(o *Options) (TLSFiles, error) {
	p, err := loadPKI(o.pkiDirectory())
	if err != nil {
		return TLSFiles{}, err
	}
	o.etcdTLS = true
	pair, err := p.etcd()
	return TLSFiles{Cert: pair.certFile, Key: pair.keyFile, CA: p.file("ca.crt")}, err
}

// etcd returns the certificate of an embedded etcd, which is its client's, too.
func (p *pki) etcd() (keyPair, error) {
	return p.issue("etcd", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "etcd"},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}
