package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
)

// The authorities of a cluster, as kubeadm makes them. Each is a NAME.crt and a NAME.key.
const (
	clusterCA    = "ca"             // the apiserver and its clients
	etcdCA       = "etcd-ca"        // etcd and its client
	frontProxyCA = "front-proxy-ca" // the aggregator towards extension apiservers
	kubeletCA    = "kubelet-ca"     // the kubelet of the simulated nodes and its client, and nobody who asks the cluster for a certificate
)

// The kubelet's certificate, and the apiserver's for it.
const (
	kubeletServer = "kubelet"
	kubeletClient = "apiserver-kubelet-client"
)

// validity of all certificates. A development cluster should outlive the project it helps.
const validity = 10 * 365 * 24 * time.Hour

// pki is a directory of keys and certificates, made on the first start. Keys are 0600.
type pki struct{ dir string }

func (p pki) cert(name string) string { return filepath.Join(p.dir, name+".crt") }
func (p pki) key(name string) string  { return filepath.Join(p.dir, name+".key") }

// openPKI makes what is missing in dir. etcd is where an etcd is reached beside loopback.
func openPKI(dir string, etcd net.IP, node realNode) (pki, error) {
	p := pki{dir: dir}
	for _, ca := range []string{clusterCA, etcdCA, frontProxyCA, kubeletCA} {
		if err := p.ensure(ca, "", cert.Config{CommonName: ca}); err != nil {
			return p, err
		}
	}
	loopback := cert.AltNames{
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(firstServiceIP)},
	}
	onNode := loopback // the apiserver and the kubelet
	if node.name != "" {
		onNode.IPs = append(slices.Clone(loopback.IPs), node.address)
	}
	member := loopback
	member.IPs = append(slices.Clone(loopback.IPs), etcd)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	type leaf struct {
		name, ca string
		config   cert.Config
	}
	leaves := []leaf{
		{"apiserver", clusterCA, cert.Config{CommonName: "kube-apiserver", AltNames: onNode, Usages: server}},
		{"etcd", etcdCA, cert.Config{CommonName: "etcd", AltNames: member, Usages: both}},
		{"apiserver-etcd-client", etcdCA, cert.Config{CommonName: "kube-apiserver", Usages: client}},
		{kubeletServer, kubeletCA, cert.Config{CommonName: kubeletServer, AltNames: onNode, Usages: server}},
		// In that group, since a real kubelet asks the apiserver what who asks it may do. The authority is nobody's but the kubelet's.
		{kubeletClient, kubeletCA, cert.Config{CommonName: "kube-apiserver", Organization: []string{"system:masters"}, Usages: client}},
		{"front-proxy-client", frontProxyCA, cert.Config{CommonName: "front-proxy-client", Usages: client}},
		{adminUser, clusterCA, cert.Config{CommonName: adminUser, Organization: []string{"system:masters"}, Usages: client}},
		{kwokUser, clusterCA, cert.Config{CommonName: kwokUser, Organization: []string{"system:masters"}, Usages: client}},
		{controllerManagerUser, clusterCA, cert.Config{CommonName: "system:" + controllerManagerUser, Usages: client}},
		{schedulerUser, clusterCA, cert.Config{CommonName: "system:" + schedulerUser, Usages: client}},
	}
	if node.name != "" {
		leaves = append(leaves,
			leaf{nodeUser, clusterCA, cert.Config{CommonName: "system:node:" + node.name, Organization: []string{"system:nodes"}, Usages: client}},
			leaf{kubeProxyUser, clusterCA, cert.Config{CommonName: "system:" + kubeProxyUser, Usages: client}},
			leaf{dnsUser, clusterCA, cert.Config{CommonName: dnsUser, Usages: client}},
		)
	}
	for _, leaf := range leaves {
		if err := p.ensure(leaf.name, leaf.ca, leaf.config); err != nil {
			return p, err
		}
	}
	return p, p.ensureServiceAccountKey()
}

// ensure makes NAME.key and NAME.crt, signed by the authority ca, or by itself if ca is empty.
// The certificate is written last: if it is there, both are.
func (p pki) ensure(name, ca string, config cert.Config) error {
	if _, err := os.Stat(p.cert(name)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make the key of %q: %w", name, err)
	}
	var der []byte
	if ca == "" {
		self, err := cert.NewSelfSignedCACert(config, key)
		if err != nil {
			return fmt.Errorf("make the authority %q: %w", name, err)
		}
		der = self.Raw
	} else if der, err = p.sign(config, key.Public(), ca); err != nil {
		return fmt.Errorf("make the certificate %q: %w", name, err)
	}
	if err := p.writeKey(name, key); err != nil {
		return err
	}
	return writeFile(p.cert(name), pemCert(der))
}

func (p pki) sign(config cert.Config, public crypto.PublicKey, ca string) ([]byte, error) {
	caCerts, err := cert.CertsFromFile(p.cert(ca))
	if err != nil {
		return nil, err
	}
	caKey, err := keyutil.PrivateKeyFromFile(p.key(ca))
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject:      pkix.Name{CommonName: config.CommonName, Organization: config.Organization},
		DNSNames:     config.AltNames.DNSNames,
		IPAddresses:  config.AltNames.IPs,
		SerialNumber: serial,
		NotBefore:    now.Add(-time.Minute), // clients on other clocks
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  config.Usages,
	}, caCerts[0], public, caKey)
}

// ensureServiceAccountKey makes the pair that signs and checks service account tokens; it has no certificate.
func (p pki) ensureServiceAccountKey() error {
	if _, err := os.Stat(p.key(serviceAccountKey)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make the service account key: %w", err)
	}
	return p.writeKey(serviceAccountKey, key)
}

const serviceAccountKey = "service-account"

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func (p pki) writeKey(name string, key *ecdsa.PrivateKey) error {
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode the key of %q: %w", name, err)
	}
	return writeFile(p.key(name), pem)
}
