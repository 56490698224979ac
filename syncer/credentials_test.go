package syncer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	testMirror = "2abcdefghijklmno"
	asSyncer   = workloadv1alpha1.SyncerUserPrefix + testMirror
	asStranger = workloadv1alpha1.BootstrapUserPrefix + testMirror
)

func certificateRequest(t *testing.T, username, id string, template *x509.CertificateRequest) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := cert.MakeCSRFromTemplate(key, template)
	if err != nil {
		t.Fatal(err)
	}
	r := &certificatesv1.CertificateSigningRequest{}
	r.UID = "request"
	r.Spec = certificatesv1.CertificateSigningRequestSpec{
		Request: request, Username: username, SignerName: workloadv1alpha1.SyncerSigner,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
	if id != "" {
		r.Spec.Extra = map[string]certificatesv1.ExtraValue{workloadv1alpha1.CredentialExtra: {id}}
	}
	return r
}

func TestJudge(t *testing.T) {
	right := func(id string) *x509.CertificateRequest {
		return &x509.CertificateRequest{Subject: pkix.Name{CommonName: asSyncer, SerialNumber: id}}
	}
	for _, tc := range []struct {
		reason     string
		user, id   string
		template   *x509.CertificateRequest
		usages     []certificatesv1.KeyUsage
		credential string
		noTarget   bool
		token      string
		want       ruling
	}{
		{reason: "a fresh token is spent on this request", user: asStranger, id: "aaaaaa", template: right("aaaaaa"), token: "aaaaaa",
			want: ruling{spend: "aaaaaa/request"}},
		{reason: "a token that replaces another is spent, too", user: asStranger, id: "bbbbbb", template: right("bbbbbb"), token: "bbbbbb", credential: "aaaaaa/other",
			want: ruling{spend: "bbbbbb/request"}},
		{reason: "we stopped after spending the token on this very request", user: asStranger, id: "aaaaaa", template: right("aaaaaa"), token: "aaaaaa", credential: "aaaaaa/request"},
		{reason: "the token was spent on another request", user: asStranger, id: "aaaaaa", template: right("aaaaaa"), token: "aaaaaa", credential: "aaaaaa/other",
			want: ruling{refused: "used already"}},
		{reason: "the token was replaced before it was spent", user: asStranger, id: "aaaaaa", template: right("aaaaaa"), token: "bbbbbb",
			want: ruling{refused: "was replaced"}},
		{reason: "the syncer renews its certificate", user: asSyncer, id: "aaaaaa", template: right("aaaaaa"), token: "aaaaaa", credential: "aaaaaa/other"},
		{reason: "a syncer that was replaced", user: asSyncer, id: "aaaaaa", template: right("aaaaaa"), token: "bbbbbb", credential: "bbbbbb/other",
			want: ruling{refused: "was replaced"}},
		{reason: "a syncer that asks for the identity of a token that is not its own", user: asSyncer, id: "aaaaaa", template: right("bbbbbb"), credential: "aaaaaa/other",
			want: ruling{refused: "want common name"}},
		{reason: "another mirror's syncer", user: workloadv1alpha1.SyncerUserPrefix + "other", id: "aaaaaa", template: right("aaaaaa"), credential: "aaaaaa/other",
			want: ruling{refused: "Only the syncer of this mirror"}},
		{reason: "an administrator is no syncer", user: "admin", template: right("aaaaaa"), credential: "aaaaaa/other",
			want: ruling{refused: "Only a syncer"}},
		{reason: "no SyncTarget is synced from outside here", user: asSyncer, id: "aaaaaa", template: right("aaaaaa"), noTarget: true,
			want: ruling{refused: "No cluster"}},
		{reason: "a certificate with a group would be more than a syncer", user: asStranger, id: "aaaaaa", token: "aaaaaa",
			template: &x509.CertificateRequest{Subject: pkix.Name{CommonName: asSyncer, SerialNumber: "aaaaaa", Organization: []string{"system:masters"}}},
			want:     ruling{refused: "no other name"}},
		{reason: "a certificate for a server", user: asStranger, id: "aaaaaa", token: "aaaaaa",
			template: &x509.CertificateRequest{Subject: pkix.Name{CommonName: asSyncer, SerialNumber: "aaaaaa"}, DNSNames: []string{"atoll.example"}},
			want:     ruling{refused: "no other name"}},
		{reason: "usages that are not a client's", user: asStranger, id: "aaaaaa", template: right("aaaaaa"), token: "aaaaaa",
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			want:   ruling{refused: "usages"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			request := certificateRequest(t, tc.user, tc.id, tc.template)
			if tc.usages != nil {
				request.Spec.Usages = tc.usages
			}
			target := &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{Credential: tc.credential}}
			if tc.noTarget {
				target = nil
			}
			got := judge(request, testMirror, target, tc.token)
			if got.spend != tc.want.spend || (got.refused == "") != (tc.want.refused == "") || !strings.Contains(got.refused, tc.want.refused) {
				t.Errorf("judge = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestReadToken(t *testing.T) {
	good := func() *corev1.Secret {
		return &corev1.Secret{Type: workloadv1alpha1.BootstrapTokenSecretType, Data: map[string][]byte{
			workloadv1alpha1.BootstrapTokenID: []byte("aaaaaa"), workloadv1alpha1.BootstrapTokenHash: []byte("00"),
			workloadv1alpha1.BootstrapTokenExpiration: []byte("2030-01-02T03:04:05Z"),
		}}
	}
	if got := readToken(good()); got.id != "aaaaaa" || got.hash != "00" || got.expiration.Year() != 2030 {
		t.Errorf("readToken = %+v", got)
	}
	opaque := good()
	opaque.Type = corev1.SecretTypeOpaque
	if got := readToken(opaque); got.id != "" {
		t.Errorf("a Secret of another type is a token: %+v", got)
	}
	endless := good()
	delete(endless.Data, workloadv1alpha1.BootstrapTokenExpiration)
	if got := readToken(endless); got.id != "" {
		t.Errorf("a token without an end is a token: %+v", got)
	}
}

func TestCredentialName(t *testing.T) {
	id, request := splitCredential(joinCredential("aaaaaa", types.UID("u")))
	if id != "aaaaaa" || request != "u" {
		t.Errorf("split %q, %q", id, request)
	}
	if id, request := splitCredential(""); id != "" || request != "" {
		t.Errorf("split of nothing: %q, %q", id, request)
	}
}

// What is known of a bootstrap token goes with its Secret, and with the last word of the SyncTarget that refers to it.
func TestTokensAreForgotten(t *testing.T) {
	home := map[string]string{lcctx.Annotation: "root"}
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "token", Annotations: home}}
	target := func(ref string) *workloadv1alpha1.SyncTarget {
		st := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", Annotations: home}}
		if ref != "" {
			st.Spec.BootstrapTokenSecretRef = &corev1.SecretReference{Namespace: "default", Name: ref}
		}
		return st
	}
	targetEvent := func(was, is *workloadv1alpha1.SyncTarget) func(*Credentials) {
		return func(c *Credentials) { c.onSyncTarget(client.Event[*workloadv1alpha1.SyncTarget]{Old: was, New: is}) }
	}
	secretEvent := func(was, is ctrlclient.Object) func(*Credentials) {
		return func(c *Credentials) { c.onSecret(client.Event[ctrlclient.Object]{Old: was, New: is}) }
	}
	for _, tc := range []struct {
		reason string
		event  func(*Credentials)
		kept   bool
	}{
		{"the Secret changed, which its version tells", secretEvent(secret, secret), true},
		{"the Secret is gone", secretEvent(secret, nil), false},
		{"the SyncTarget is new", targetEvent(nil, target("token")), true},
		{"the SyncTarget changed elsewhere", targetEvent(target("token"), target("token")), true},
		{"the SyncTarget refers to another", targetEvent(target("token"), target("second")), false},
		{"the SyncTarget refers to none", targetEvent(target("token"), target("")), false},
		{"the SyncTarget is gone", targetEvent(target("token"), nil), false},
		{"a SyncTarget without a token is gone", targetEvent(target(""), nil), true},
	} {
		c := &Credentials{tokens: map[client.Key]storedToken{{Cluster: "root", Namespace: "default", Name: "token"}: {id: "x"}}}
		tc.event(c)
		if kept := len(c.tokens) == 1; kept != tc.kept {
			t.Errorf("%s: kept %v, want %v", tc.reason, kept, tc.kept)
		}
	}
}

// While nothing is known yet, a token is neither good nor bad.
func TestTokenOfAServerThatStarts(t *testing.T) {
	clients, informers := idleClients(t)
	c, err := NewCredentials(CredentialsConfig{
		Clients: clients, Informers: informers, Clock: clock.RealClock{},
		Sign: func([]byte) ([]byte, error) { return nil, errors.New("nothing is signed") },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, ok, err := c.Token(ctx, testMirror, "aaaaaa.0123456789abcdef"); ok || err == nil {
		t.Errorf("Token = %v, %v; want an error", ok, err)
	}
}

// TestLateRefusals: several servers on one etcd rule on a request, of which one has let the syncer in. A syncer that is refused gives up,
// so that only what the store holds refuses, whatever the others have seen.
func TestLateRefusals(t *testing.T) {
	const token, replaced = "aaaaaa", "bbbbbb"
	home, in := map[string]string{lcctx.Annotation: "root"}, map[string]string{lcctx.Annotation: testMirror}
	target := func(credential string) *workloadv1alpha1.SyncTarget {
		st := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "east-uid", ResourceVersion: "7", Annotations: home}}
		st.Spec.BootstrapTokenSecretRef = &corev1.SecretReference{Namespace: "default", Name: "token"}
		st.Status = workloadv1alpha1.SyncTargetStatus{Mirror: testMirror, Credential: credential}
		return st
	}
	secret := func(version, id string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "token", UID: "token-uid", ResourceVersion: version, Annotations: home},
			Type:       workloadv1alpha1.BootstrapTokenSecretType,
			Data: map[string][]byte{
				workloadv1alpha1.BootstrapTokenID: []byte(id), workloadv1alpha1.BootstrapTokenExpiration: []byte("2030-01-02T03:04:05Z"),
			},
		}
	}
	for _, tc := range []struct {
		reason               string
		user                 string
		seenTarget, target   *workloadv1alpha1.SyncTarget
		seenSecret, isSecret *corev1.Secret
		owner                types.UID // of the mirror
		want                 certificatesv1.RequestConditionType
	}{
		{"the SyncTarget was not seen yet", asStranger, nil, target(""), secret("1", token), secret("1", token), "east-uid", certificatesv1.CertificateApproved},
		{"the token was not seen yet", asStranger, target(""), target(""), nil, secret("1", token), "east-uid", certificatesv1.CertificateApproved},
		{"the token that replaces another was not seen yet", asStranger, target(""), target(""), secret("1", replaced), secret("2", token), "east-uid",
			certificatesv1.CertificateApproved},
		{"that the syncer has its certificate was not seen yet", asSyncer, target(replaced + "/x"), target(token + "/x"), nil, nil, "east-uid",
			certificatesv1.CertificateApproved},
		{"the SyncTarget is gone", asStranger, nil, nil, secret("1", token), secret("1", token), "east-uid", certificatesv1.CertificateDenied},
		{"the mirror is another SyncTarget's", asStranger, nil, target(""), secret("1", token), secret("1", token), "another", certificatesv1.CertificateDenied},
		{"the token is gone", asStranger, target(""), target(""), nil, nil, "east-uid", certificatesv1.CertificateDenied},
		{"the token was replaced", asStranger, target(""), target(""), secret("1", replaced), secret("2", replaced), "east-uid", certificatesv1.CertificateDenied},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			request := certificateRequest(t, tc.user, token, &x509.CertificateRequest{Subject: pkix.Name{CommonName: asSyncer, SerialNumber: token}})
			request.Name, request.Annotations, request.ResourceVersion = "syncer", in, "3"
			mirror := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: in}}
			mirror.Spec = corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseMirror,
				Owner: &corev1alpha1.LogicalClusterOwner{Resource: "synctargets", Cluster: "root", Name: "east", UID: tc.owner}}
			hub := lateHub{
				"synctargets": {seen: one(tc.seenTarget), is: one(tc.target)}, "secrets": {seen: one(tc.seenSecret), is: one(tc.isSecret)},
				"certificatesigningrequests": {seen: one(request)}, "logicalclusters": {is: one(mirror)},
			}
			answers := make(chan certificatesv1.RequestConditionType, 1)
			clients, informers := hub.clients(t, func(answered *certificatesv1.CertificateSigningRequest) {
				answers <- answered.Status.Conditions[0].Type
			})
			c, err := NewCredentials(CredentialsConfig{
				Clients: clients, Informers: informers, Clock: clock.RealClock{},
				Sign: func([]byte) ([]byte, error) { return nil, errors.New("nothing is signed") },
			})
			if err != nil {
				t.Fatal(err)
			}
			if tc.seenSecret != nil { // as when it let a syncer in
				known := readToken(tc.seenSecret)
				known.version = "token-uid/" + tc.seenSecret.ResourceVersion
				c.tokens[client.Key{Cluster: "root", Namespace: "default", Name: "token"}] = known
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			running.Go(func() { informers.Run(ctx) })
			running.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			if got := <-answers; got != tc.want {
				t.Errorf("the request is %s, want %s", got, tc.want)
			}
		})
	}
}

// lateHub is a server whose lists of a resource are not what it holds; it has one object of a resource at most.
type lateHub map[string]struct{ seen, is []any }

func one[T any](object *T) []any {
	if object == nil {
		return nil
	}
	return []any{object}
}

// clients of the hub, whose informers are to be run. answered is called with each request that was answered.
func (h lateHub) clients(t *testing.T, answered func(*certificatesv1.CertificateSigningRequest)) (*client.Clients, *client.Informers) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		resource, name := path.Base(req.URL.Path), ""
		if _, ok := h[resource]; !ok {
			resource, name = path.Base(path.Dir(req.URL.Path)), resource
		}
		switch {
		case req.Method == http.MethodPut: // of an approval or a status
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Error(err)
			}
			written, _, err := serializer.NewCodecFactory(client.Scheme).UniversalDeserializer().Decode(body, nil, nil)
			if err != nil {
				t.Error(err)
			}
			if request, ok := written.(*certificatesv1.CertificateSigningRequest); ok {
				answered(request)
			}
			answer(t, w, http.StatusOK, written)
		case req.URL.Query().Has("watch"):
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		case strings.HasPrefix(req.URL.Path, "/clusters/*/"):
			list := map[string]any{"metadata": map[string]any{"resourceVersion": "5"}, "items": append([]any{}, h[resource].seen...)}
			if strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadataList") {
				list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
			}
			answer(t, w, http.StatusOK, list)
		case len(h[resource].is) == 0 || name == "":
			notFound(t, w)
		default:
			answer(t, w, http.StatusOK, h[resource].is[0])
		}
	}))
	t.Cleanup(server.Close)
	clients, err := client.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	return clients, informers
}
