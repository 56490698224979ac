package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// bootstrapIn returns the access that a manifest gives its syncer to begin with.
func bootstrapIn(t *testing.T, manifest string) *rest.Config {
	t.Helper()
	for _, document := range strings.Split(manifest, "\n---\n") {
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(document), &secret); err != nil || secret.Kind != "Secret" || secret.StringData["kubeconfig"] == "" {
			continue
		}
		cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(secret.StringData["kubeconfig"]))
		if err != nil {
			t.Fatalf("read the bootstrap kubeconfig: %v", err)
		}
		return cfg
	}
	t.Fatalf("the manifest has no bootstrap kubeconfig:\n%s", manifest)
	return nil
}

// credentialIn returns the access of the certificate that a syncer keeps in its cluster, and when it ends.
func credentialIn(t *testing.T, p *framework.Physical, hub *rest.Config) (*rest.Config, time.Time) {
	t.Helper()
	list, err := p.Clientset().CoreV1().Secrets(workloadv1alpha1.HeartbeatNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list the Secrets of %s: %v", p.Name, err)
	}
	for _, secret := range list.Items {
		pem := secret.Data[corev1.TLSCertKey]
		if len(pem) == 0 {
			continue
		}
		certs, err := cert.ParseCertsPEM(pem)
		if err != nil {
			t.Fatalf("read the certificate in Secret %s: %v", secret.Name, err)
		}
		cfg := rest.AnonymousClientConfig(hub)
		cfg.CertData, cfg.KeyData = pem, secret.Data[corev1.TLSPrivateKeyKey]
		return cfg, certs[0].NotAfter
	}
	t.Fatalf("no Secret of %s holds a certificate", p.Name)
	return nil, time.Time{}
}

// at is cfg at the logical cluster of that name or path.
func at(t *testing.T, cfg *rest.Config, a *framework.Atoll, cluster string) kubernetes.Interface {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.Host = a.URL + "/clusters/" + cluster
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// TestT16_CredentialOfASyncerOutside follows the credential of a syncer from its token to its end.
func TestT16_CredentialOfASyncerOutside(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	a := framework.StartAtoll(t, "--syncer-signing-duration=2m")
	f := &fleet{Atoll: a, clusters: map[string]*framework.Physical{"west": framework.StartPhysical(t, "west")}}
	west := f.clusters["west"]
	manifest := a.MustStdout("cluster", "add", "west", "--manifest", "--allow-loopback")
	bootstrap := bootstrapIn(t, manifest)
	_, mirror, _ := strings.Cut(bootstrap.Host, "/clusters/")

	// The token serves for a certificate request in its mirror and for nothing else.
	lists := func(kube kubernetes.Interface) (secrets, requests error) {
		_, secrets = kube.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		_, requests = kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		return secrets, requests
	}
	framework.Eventually(t, patience, "the token is known in the mirror", func() string {
		if secrets, requests := lists(at(t, bootstrap, a, mirror)); !apierrors.IsForbidden(secrets) || requests != nil {
			return fmt.Sprintf("with the token: Secrets %v, want 403; requests %v, want none", secrets, requests)
		}
		return ""
	})
	for _, other := range []string{"root", "system:admin", "*", "root:nosuch"} {
		if secrets, requests := lists(at(t, bootstrap, a, other)); !apierrors.IsUnauthorized(secrets) || !apierrors.IsUnauthorized(requests) {
			t.Errorf("with the token, in %s: Secrets %v, requests %v; want 401", other, secrets, requests)
		}
	}

	first := framework.StartSyncer(t, a, west, manifest)
	f.clusterReady(t, "west")
	certificate, end := credentialIn(t, west, bootstrap)

	// A second use of the token gets no certificate.
	if problem := requestCertificate(t, at(t, bootstrap, a, mirror), mirror, bootstrap.BearerToken); !strings.Contains(problem, "used already") {
		t.Errorf("the second use of the token: %s, want a refusal since it was used already", problem)
	}

	// The certificate serves in its mirror, for what a syncer does.
	syncerIn := at(t, certificate, a, mirror)
	if _, err := syncerIn.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Get(t.Context(), workloadv1alpha1.HeartbeatName, metav1.GetOptions{}); err != nil {
		t.Errorf("with the certificate, its heartbeat: %v", err)
	}
	if err := syncerIn.CoreV1().Secrets("default").Delete(t.Context(), "any", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("with the certificate, delete a leaf: %v, want 403", err)
	}
	for _, other := range []string{"root", "system:admin", "*"} {
		if secrets, requests := lists(at(t, certificate, a, other)); !apierrors.IsForbidden(secrets) || !apierrors.IsForbidden(requests) {
			t.Errorf("with the certificate, in %s: Secrets %v, requests %v; want 403", other, secrets, requests)
		}
	}

	// What it may do below is what it does.
	for _, c := range []struct {
		verb, group, resource, namespace string
		want                             bool
	}{
		{"patch", "apps", "deployments", "", true},
		{"delete", "", "namespaces", "", true},
		{"patch", "networking.k8s.io", "networkpolicies", "", true},
		{"delete", "networking.k8s.io", "networkpolicies", "", true}, // those of workspaces go
		{"create", "rbac.authorization.k8s.io", "clusterroles", "", false},
		{"create", "", "pods", "", true}, // those of workspaces are made
		{"watch", "", "pods", "", true},  // they are shown
		{"delete", "", "pods", "", true}, // where a workspace deletes them
		{"patch", "", "pods", "", true},  // labels, where a workspace changes them
		{"update", "", "pods", "", false},
		{"get", "", "pods/log", "", true},
		{"create", "", "pods/exec", "", true}, // where a workspace's user asks for that
		{"create", "", "pods/eviction", "", false},
		{"watch", "", "events", "", true}, // they are told
		{"create", "", "events", "", false},
		{"watch", "storage.k8s.io", "storageclasses", "", true}, // they are shown
		{"patch", "storage.k8s.io", "storageclasses", "", false},
		{"patch", "", "persistentvolumes", "", false},
		{"update", "coordination.k8s.io", "leases", "kube-system", false},
		{"update", "coordination.k8s.io", "leases", workloadv1alpha1.HeartbeatNamespace, false}, // any, but two by name
		{"create", "", "serviceaccounts/token", "", false},
	} {
		resource, sub, _ := strings.Cut(c.resource, "/")
		review, err := west.Clientset().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + workloadv1alpha1.HeartbeatNamespace + ":" + syncerAccount(t, west),
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: c.verb, Group: c.group, Resource: resource, Subresource: sub, Namespace: c.namespace},
			},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != c.want {
			t.Errorf("the syncer may %s %s/%s: %v, %v; want %v", c.verb, c.group, c.resource, review.Status.Allowed, err, c.want)
		}
	}

	// It is renewed, and what it was before ends.
	framework.Eventually(t, 4*time.Minute, "the certificate was renewed and the former one ended", func() string {
		_, now := credentialIn(t, west, bootstrap)
		if !now.After(end) || time.Now().Before(end) {
			return fmt.Sprintf("it ends at %s, at first %s", now, end)
		}
		return ""
	})
	if _, err := at(t, certificate, a, mirror).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a certificate that has ended: %v, want 401", err)
	}
	w := f.workspace(t, "renewed")
	w.apply(2, "")
	w.rolledOut()

	// A new token, once used, ends what goes back to the one before.
	renewed, _ := credentialIn(t, west, bootstrap)
	again := a.MustStdout("cluster", "add", "west", "--manifest", "--allow-loopback")
	if _, err := at(t, renewed, a, mirror).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("with the certificate before the new token is used: %v", err)
	}
	first.Stop()
	second := framework.StartSyncer(t, a, west, again)
	framework.Eventually(t, patience, "the certificate that goes back to the former token is refused", func() string {
		if _, err := at(t, renewed, a, mirror).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Sprintf("listing with it: %v", err)
		}
		return ""
	})
	w.kubectl("scale", "deployment/renewed", "--replicas=3")
	w.rolledOut()
	w.spread(map[string]int{"west": 3})

	// A token ends by itself.
	short := bootstrapIn(t, a.MustStdout("cluster", "add", "later", "--manifest", "--allow-loopback", "--token-ttl=1s"))
	framework.Eventually(t, patience, "the token is refused after its time", func() string {
		if _, err := at(t, short, a, strings.SplitAfter(short.Host, "/clusters/")[1]).CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Sprintf("listing with it: %v", err)
		}
		return ""
	})

	// With the cluster goes every credential.
	last, _ := credentialIn(t, west, bootstrap)
	w.kubectl("delete", "deployment,service,configmap,secret,serviceaccount", "-l", "app=renewed")
	w.gone("west")
	framework.Eventually(t, patience, "the cluster can be removed", func() string {
		if out, err := a.Run("cluster", "remove", "west"); err != nil {
			return out
		}
		return ""
	})
	const why = "refuses this syncer's certificate: the cluster was removed there, or a newer manifest took this one's place"
	if log := second.Ends(patience); strings.Count(log, why) != 1 {
		t.Errorf("the syncer of a cluster that was removed does not say once %q:\n%s", why, log)
	}
	if _, err := at(t, last, a, mirror).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("with the certificate of a cluster that was removed: %v, want 401", err)
	}
	if err := a.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Namespace: "atoll-system", Name: "west-bootstrap"}, &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("the token of a cluster that was removed: %v, want 404", err)
	}
}

// syncerAccount is the name of the syncer's ServiceAccount.
func syncerAccount(t *testing.T, p *framework.Physical) string {
	t.Helper()
	list, err := p.Clientset().CoreV1().ServiceAccounts(workloadv1alpha1.HeartbeatNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=atoll-syncer"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("find the syncer's ServiceAccount in %s: %d, %v", p.Name, len(list.Items), err)
	}
	return list.Items[0].Name
}

// requestCertificate asks for the certificate of the mirror's syncer, and returns why it is refused.
func requestCertificate(t *testing.T, kube kubernetes.Interface, mirror, token string) (problem string) {
	t.Helper()
	id, _, _ := strings.Cut(token, ".")
	request, _ := signingRequest(t, "", mirror, id)
	request.GenerateName = "csr-"
	requests := kube.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("ask for a certificate: %v", err)
	}
	framework.Eventually(t, patience, "the request is answered", func() string {
		if request, err = requests.Get(t.Context(), request.Name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		for _, c := range request.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied {
				problem = c.Message
				return ""
			}
		}
		if len(request.Status.Certificate) > 0 {
			problem = "issued"
			return ""
		}
		return "no answer yet"
	})
	return problem
}
