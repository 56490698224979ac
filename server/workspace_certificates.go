package server

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Certificates of workspaces are signed by an authority that signs nothing else, for requests that were approved in one
// workspace. Each says which by a URI, its one alternative name of that kind, and is somebody there alone. As no other
// authenticator takes that authority, forgetting to compare would lock out, not let in.

const (
	workspaceScheme = "atoll"
	workspacePath   = "/clusters/"
)

// workspaceURI names a workspace in a certificate: atoll:/clusters/<name>.
func workspaceURI(name logicalcluster.Name) *url.URL {
	return &url.URL{Scheme: workspaceScheme, Path: workspacePath + string(name), OmitHost: true}
}

// workspaceOf returns the workspace in which a certificate is somebody.
func workspaceOf(c *x509.Certificate) (logicalcluster.Name, error) {
	if len(c.URIs) != 1 {
		return "", fmt.Errorf("the certificate of %q has %d URIs, not one that says its workspace", c.Subject.CommonName, len(c.URIs))
	}
	name := logicalcluster.Name(strings.TrimPrefix(c.URIs[0].Path, workspacePath))
	if lcctx.ValidateName(string(name)) != nil || c.URIs[0].String() != workspaceURI(name).String() {
		return "", fmt.Errorf("the certificate of %q has the URI %q, which names no workspace", c.Subject.CommonName, c.URIs[0])
	}
	return name, nil
}

// certifiedUser is somebody by a certificate of a workspace, and known by this type until he impersonates another.
type certifiedUser struct {
	user.DefaultInfo
	workspace logicalcluster.Name
}

// ReservedInWorkspaces says whether a user or group cannot be somebody by a certificate of a workspace: the server's
// administrators and parts, who watches it (Kubernetes believes what they say of traces and shows them its health), and
// ServiceAccounts, which have tokens.
func ReservedInWorkspaces(name string) bool {
	return name == user.SystemPrivilegedGroup || name == user.MonitoringGroup || reserved(name) ||
		strings.HasPrefix(name, serviceAccountsPrefix) || strings.HasPrefix(name, foreignAccountsPrefix)
}

// workspaceCertificates authenticates users of workspaces by certificates of the authority that signs for them alone.
func (s *Server) workspaceCertificates() authenticator.Request {
	pool := x509.NewCertPool()
	pool.AddCert(s.workspaceKeys.ca)
	options := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	return ofAuthority{s.workspaceKeys.ca, inTheirWorkspace{x509request.New(options, x509request.UserConversionFunc(certified))}}
}

func certified(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
	found, ok, err := x509request.CommonNameUserConversion(chain)
	if err != nil || !ok {
		return nil, false, err
	}
	workspace, err := workspaceOf(chain[0])
	if err != nil {
		return nil, false, err
	}
	who := &certifiedUser{workspace: workspace, DefaultInfo: user.DefaultInfo{
		Name: found.User.GetName(), UID: found.User.GetUID(), Extra: map[string][]string{lcctx.UserExtra: {string(workspace)}},
		Groups: append(slices.Clone(found.User.GetGroups()), user.AllAuthenticated),
	}}
	for key, values := range found.User.GetExtra() {
		if key != lcctx.UserExtra {
			who.Extra[key] = values
		}
	}
	for _, name := range append([]string{who.Name}, who.Groups...) {
		if ReservedInWorkspaces(name) {
			return nil, false, fmt.Errorf("the certificate of a workspace claims to be %q, which nobody can be by it", name)
		}
	}
	return &authenticator.Response{User: who}, true, nil
}

// inTheirWorkspace refuses users of a workspace in every other place.
type inTheirWorkspace struct{ authenticator.Request }

func (a inTheirWorkspace) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	found, ok, err := a.Request.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, false, err
	}
	who, ok := found.User.(*certifiedUser)
	if !ok {
		return nil, false, fmt.Errorf("%q is no user of a workspace", found.User.GetName())
	}
	cluster, named := lcctx.ClusterFrom(req.Context())
	if !named || cluster.Wildcard || cluster.Mirror || cluster.Name != who.workspace {
		return nil, false, fmt.Errorf("the certificate of %q is one of workspace %q, and nobody's elsewhere", who.Name, who.workspace)
	}
	return found, true, nil
}

// ofAuthority asks only about certificates that name an authority as theirs. To verify all others in vain would cost time in every
// request of everybody else.
type ofAuthority struct {
	ca *x509.Certificate
	authenticator.Request
}

func (a ofAuthority) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 || !bytes.Equal(req.TLS.PeerCertificates[0].AuthorityKeyId, a.ca.SubjectKeyId) {
		return nil, false, nil
	}
	return a.Request.AuthenticateRequest(req)
}

// SignForWorkspace returns the client certificate, as PEM, for a request of somebody in a workspace, who was judged before. It
// ends with its authority at the latest.
func (s *Server) SignForWorkspace(workspace logicalcluster.Name, request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, lifetime time.Duration) ([]byte, error) {
	if workspace.Empty() {
		return nil, errors.New("sign a certificate: of no workspace")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("sign a certificate of workspace %q: %w", workspace, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: request.Subject,
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses, EmailAddresses: request.EmailAddresses,
		URIs:      []*url.URL{workspaceURI(workspace)},
		NotBefore: now.Add(-min(clockSkew, lifetime/10)), NotAfter: now.Add(lifetime),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	if last := s.workspaceKeys.ca.NotAfter; template.NotAfter.After(last) {
		template.NotAfter = last
	}
	for _, usage := range usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature:
			template.KeyUsage |= x509.KeyUsageDigitalSignature
		case certificatesv1.UsageKeyEncipherment:
			template.KeyUsage |= x509.KeyUsageKeyEncipherment
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.workspaceKeys.ca, request.PublicKey, s.workspaceKeys.caKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate of workspace %q: %w", workspace, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), nil
}
