package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// contests are how many tokens are fought for, and contestKilled those of them during which the leader is killed.
const contests = 24

var contestKilled = map[int]bool{8: true, 16: true}

// TestABootstrapTokenIsSpentOnce: two syncers, each with a key of its own, show one bootstrap token to two servers on an etcd at the same
// moment. One of them gets a certificate and the other never does, also where a server is killed over it.
func TestABootstrapTokenIsSpentOnce(t *testing.T) {
	t.Parallel()
	flags := framework.StartEtcd(t).Flags()
	first := framework.StartAtoll(t, flags...)
	r := &replicas{t: t, servers: []*framework.Atoll{first, first.StartReplica(t, flags...)}}
	for _, server := range r.servers {
		r.clients = append(r.clients, server.Clients())
	}
	var mirror string
	issued, wins := map[string]string{}, make([]int, len(r.servers)) // certificate by request, which has none if it was refused
	for i := range contests {
		kill := -1
		if contestKilled[i] {
			kill = r.leader()
		}
		token := bootstrapIn(t, first.MustStdout("cluster", "add", "west", "--manifest", "--allow-loopback"))
		_, mirror, _ = strings.Cut(token.Host, "/clusters/")
		for s, winner := range r.contest(i, mirror, token, kill, issued) {
			if winner {
				wins[s]++
			}
		}
		if kill >= 0 {
			r.servers[kill].Restart()
		}
	}
	t.Logf("of %d tokens %v were spent by who asked that server", contests, wins)

	// Who was refused has none later, whatever servers that start make of it.
	r.servers[1-r.leader()].Restart()
	for s := range r.servers {
		list, err := r.clients[s].Kube.CertificatesV1().CertificateSigningRequests().List(client.In(t.Context(), logicalcluster.Name(mirror)), metav1.ListOptions{})
		must(t, err)
		if len(list.Items) != len(issued) {
			t.Errorf("server %d has %d requests, want %d", s, len(list.Items), len(issued))
		}
		for _, q := range list.Items {
			if got := string(q.Status.Certificate); got != issued[q.Name] {
				t.Errorf("the certificate of request %s is another than before at server %d: %q, was %q", q.Name, s, got, issued[q.Name])
			}
		}
	}
}

// contest asks each server for a certificate with the same token, all at once, and kills one of them when the first has heard that it was
// asked, if kill >= 0. It adds to issued what became of the requests, and returns of which server that was that got a certificate.
func (r *replicas) contest(number int, mirror string, token *rest.Config, kill int, issued map[string]string) []bool {
	t := r.t
	t.Helper()
	id, _, _ := strings.Cut(token.BearerToken, ".")
	requests := make([]*certificatesv1.CertificateSigningRequest, len(r.servers))
	keys := make([][]byte, len(r.servers))
	for s := range r.servers {
		requests[s], keys[s] = signingRequest(t, fmt.Sprintf("contest-%d-%d", number, s), mirror, id)
		framework.Eventually(t, patience, "each server knows the token", func() string {
			_, err := at(t, token, r.servers[s], mirror).CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			return problemOf(err)
		})
	}
	live := make([]int, len(r.servers)) // whom the syncer at that server asks in the end
	var posted, killed sync.WaitGroup
	start, heard := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(heard) })
	for s := range r.servers {
		live[s] = s
		if kill >= 0 {
			live[s] = 1 - kill
		}
		here := at(t, token, r.servers[s], mirror).CertificatesV1().CertificateSigningRequests()
		there := at(t, token, r.servers[live[s]], mirror).CertificatesV1().CertificateSigningRequests()
		posted.Go(func() {
			<-start
			_, err := here.Create(t.Context(), requests[s], metav1.CreateOptions{})
			first()
			if err != nil && s == kill { // the server was killed: whether it took the request, nobody knows
				if _, err = there.Create(t.Context(), requests[s], metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
					err = nil
				}
			}
			if err != nil {
				t.Errorf("ask server %d with the token of contest %d: %v", s, number, err)
			}
		})
	}
	if kill >= 0 {
		killed.Go(func() { <-heard; r.servers[kill].Kill() })
	}
	close(start)
	posted.Wait()
	killed.Wait()
	if t.Failed() {
		t.FailNow()
	}

	winner, won := "", make([]bool, len(r.servers))
	for s, request := range requests {
		answered := awaitAnswer(t, r.clients[live[s]], mirror, request.Name)
		issued[request.Name] = string(answered.Status.Certificate)
		if len(answered.Status.Certificate) == 0 {
			if said := answered.Status.Conditions[0].Message; !strings.Contains(said, "used already") {
				t.Errorf("request %s is refused since %q, want that the token was used already", request.Name, said)
			}
			continue
		}
		if winner != "" {
			t.Errorf("contest %d: %s has a certificate, and so has %s, with one token", number, request.Name, winner)
		}
		winner, won[s] = request.Name, true
		target := &workloadv1alpha1.SyncTarget{}
		must(t, r.clients[live[s]].Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: "west"}, target))
		if want := id + "/" + string(answered.UID); target.Status.Credential != want {
			t.Errorf("contest %d: the token was spent on %q, and issued is %s", number, target.Status.Credential, want)
		}
		as := rest.AnonymousClientConfig(token)
		as.CertData, as.KeyData = answered.Status.Certificate, keys[s]
		framework.Eventually(t, patience, "the certificate is good", func() string {
			_, err := at(t, as, r.servers[live[s]], mirror).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
			return problemOf(err)
		})
	}
	if winner == "" {
		t.Errorf("contest %d: nobody has a certificate", number)
	}
	return won
}

// signingRequest is for the certificate of a mirror's syncer, by way of the token of that id, and returned with its key.
func signingRequest(t *testing.T, name, mirror, id string) (_ *certificatesv1.CertificateSigningRequest, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	must(t, err)
	pem, err := cert.MakeCSRFromTemplate(private, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: workloadv1alpha1.SyncerUserPrefix + mirror, SerialNumber: id},
	})
	must(t, err)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: workloadv1alpha1.SyncerSigner,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, key
}

// awaitAnswer waits until a request has a certificate or is refused.
func awaitAnswer(t *testing.T, c *client.Clients, mirror, name string) (request *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	framework.Eventually(t, patience, name+" is answered", func() string {
		ctx, cancel := context.WithTimeout(client.In(t.Context(), logicalcluster.Name(mirror)), 10*time.Second)
		defer cancel()
		var err error
		if request, err = c.Kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		for _, condition := range request.Status.Conditions {
			if condition.Type == certificatesv1.CertificateDenied && condition.Status == corev1.ConditionTrue {
				return ""
			}
		}
		if len(request.Status.Certificate) == 0 {
			return fmt.Sprintf("no answer yet: %+v", request.Status)
		}
		return ""
	})
	return request
}
