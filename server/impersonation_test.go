package server

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// A watch ends with the credential that it was begun with, also where that let its holder be somebody else, whose own credential
// nobody has seen.
func TestImpersonatedWatchEndsWithTheCredential(t *testing.T) {
	t.Parallel()
	r := startServer(t, withTokens(t))
	const lifetime = 8 * time.Second
	as := map[string]string{authenticationv1.ImpersonateUserHeader: "somebody"}
	r.makeAdmin(t, shop, "x")
	r.makeAdmin(t, shop, "somebody")
	r.makeAdmin(t, shop, robotUser)
	_ = r.makeRobot(t, shop)
	a := newAsker(t, r)
	block, _ := pem.Decode(a.pem(t, pkix.Name{CommonName: "x"}))
	asks, err := x509.ParseCertificateRequest(block.Bytes)
	must(t, err)
	made := time.Now()
	ofWorkspace := func(lifetime time.Duration) asked {
		signed, err := r.SignForWorkspace(shop, asks, nil, lifetime)
		must(t, err)
		return asked{certificate: a.with(t, signed)}
	}
	ofAuthority := func(lifetime time.Duration) asked {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(lifetime),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
		}, r.keys.ca, a.key.Public(), r.keys.caKey)
		must(t, err)
		return asked{certificate: a.with(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	}
	ofRobot := func(lifetime time.Duration) asked { return asked{token: r.tokenFor(t, lifetime)} }
	type begun struct {
		ended chan time.Time
		until time.Time // not before
	}
	begin := func(shows asked, header map[string]string, lifetime time.Duration) begun {
		shows.path, shows.header = clustersPrefix+string(shop)+pods, header
		events, ended := r.watchBy(t, shows, false), make(chan time.Time, 1)
		go func() {
			for range events {
			}
			ended <- time.Now()
		}()
		return begun{ended, made.Add(lifetime - time.Second)} // credentials end at whole seconds
	}
	watches := map[string]begun{}
	for what, credential := range map[string]func(time.Duration) asked{
		"a certificate of the workspace": ofWorkspace, "a certificate of the server's authority": ofAuthority, "a token of a ServiceAccount": ofRobot,
	} {
		for who, header := range map[string]map[string]string{"": nil, ", impersonating": as} {
			watches[what+who] = begin(credential(lifetime), header, lifetime)
		}
	}
	lasts := begin(ofWorkspace(time.Hour), as, time.Hour)

	patience := time.After(time.Minute)
	for what, w := range watches {
		select {
		case at := <-w.ended:
			if at.Before(w.until) {
				t.Errorf("a watch with %s ended %s before it", what, w.until.Sub(at))
			}
		case <-patience:
			t.Fatalf("a watch with %s goes on a minute after it", what)
		}
	}
	select {
	case <-lasts.ended:
		t.Error("a watch ended whose credential lasts")
	default:
	}
}

// Who may impersonate in one workspace may in no other, however soon he asks for the same there.
func TestImpersonationIsOfItsWorkspace(t *testing.T) {
	t.Parallel()
	r := startServer(t, withTokens(t))
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		_ = r.makeRobot(t, cluster)
		r.makeAdmin(t, cluster, "olga")
		r.makeAdmin(t, cluster, robotUser)
	}
	r.makeAdmin(t, shop, "bob")
	for _, who := range []string{"olga", robotUser} {
		as := func(cluster logicalcluster.Name) asked {
			return asked{
				path: clustersPrefix + string(cluster) + "/api/v1/namespaces/team/serviceaccounts/robot", token: bob,
				header: map[string]string{authenticationv1.ImpersonateUserHeader: who},
			}
		}
		waitForCode(t, r, as(shop), http.StatusOK)
		if got := r.ask(t, as(bank)); got.code != http.StatusForbidden {
			t.Errorf("as %s, whom bob may be in shop alone, in bank: %d, want 403", who, got.code)
		}
	}
}

// A server does not start with a feature that would remember of one workspace what counts in others.
func TestFeaturesThatAreRefused(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ConstrainedImpersonation, true)
	_, err := New(t.Context(), NewOptions(), nil)
	if err == nil || !strings.Contains(err.Error(), "ConstrainedImpersonation") {
		t.Errorf("error %v, want the feature named", err)
	}
}
