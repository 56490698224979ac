package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// served says how the kinds of these tests are addressed, and which are in namespaces.
var served = map[string]struct {
	resource   schema.GroupVersionResource
	namespaced bool
}{
	"ConfigMap":                 {corev1.SchemeGroupVersion.WithResource("configmaps"), true},
	"CertificateSigningRequest": {certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), false},
	"Deployment":                {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true},
	"Ingress":                   {schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}, true},
	"IngressClass":              {schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingressclasses"}, false},
	"LimitRange":                {corev1.SchemeGroupVersion.WithResource("limitranges"), true},
	"Namespace":                 {corev1.SchemeGroupVersion.WithResource("namespaces"), false},
	"PersistentVolumeClaim":     {corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), true},
	"Pod":                       {corev1.SchemeGroupVersion.WithResource("pods"), true},
	"PriorityClass":             {schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}, false},
	"ResourceQuota":             {corev1.SchemeGroupVersion.WithResource("resourcequotas"), true},
	"Secret":                    {corev1.SchemeGroupVersion.WithResource("secrets"), true},
	"RuntimeClass":              {schema.GroupVersionResource{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}, false},
	"ServiceAccount":            {corev1.SchemeGroupVersion.WithResource("serviceaccounts"), true},
	"StorageClass":              {schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}, false},
}

// told collects the warnings of responses.
type told struct {
	mu    sync.Mutex
	texts []string
}

func (w *told) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// take returns what was told since the last call.
func (w *told) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := w.texts
	w.texts = nil
	return texts
}

func (w *told) containing(part string) bool {
	return slices.ContainsFunc(w.take(), func(text string) bool { return strings.Contains(text, part) })
}

// place is a logical cluster with clients that tell warnings.
type place struct {
	kubernetes.Interface
	objects dynamic.Interface
	told    *told
}

func (r *running) place(t *testing.T, cluster logicalcluster.Name) place {
	t.Helper()
	config := rest.CopyConfig(r.LoopbackConfig())
	config.Host += clustersPrefix + string(cluster)
	p := place{told: &told{}}
	config.WarningHandler = p.told
	var err error
	p.Interface, err = kubernetes.NewForConfig(config)
	must(t, err)
	p.objects, err = dynamic.NewForConfig(config)
	must(t, err)
	return p
}

func (p place) of(t *testing.T, kind, namespace string) dynamic.ResourceInterface {
	t.Helper()
	s, ok := served[kind]
	if !ok {
		t.Fatalf("kind %q is not in the list of this test", kind)
	}
	if s.namespaced {
		return p.objects.Resource(s.resource).Namespace(namespace)
	}
	return p.objects.Resource(s.resource)
}

// apply makes the objects of a YAML stream, in a namespace where they have one, and returns the last.
func (p place) apply(t *testing.T, namespace, stream string) (*unstructured.Unstructured, error) {
	t.Helper()
	var last *unstructured.Unstructured
	for _, doc := range strings.Split(stream, "\n---\n") {
		obj := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(doc), &obj.Object))
		made, err := p.of(t, obj.GetKind(), namespace).Create(t.Context(), obj, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		last = made
		if !served[obj.GetKind()].namespaced {
			t.Cleanup(func() {
				if err := p.of(t, obj.GetKind(), "").Delete(context.WithoutCancel(t.Context()), obj.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete %s %q: %v", obj.GetKind(), obj.GetName(), err)
				}
			})
		}
	}
	return last, nil
}

// namespace makes one with its default ServiceAccount, as the controller of namespaces does in workspaces, after what is given.
func (p place) namespace(t *testing.T, name string, labels map[string]string, given string) {
	t.Helper()
	_, err := p.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	must(t, err)
	if given != "" {
		_, err := p.apply(t, name, given)
		must(t, err)
	}
	_, err = p.CoreV1().ServiceAccounts(name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
}

// shown is what a JSON path finds in an object, words by single spaces.
func shown(t *testing.T, obj *unstructured.Unstructured, path string) string {
	t.Helper()
	p := jsonpath.New("").AllowMissingKeys(true)
	must(t, p.Parse(path))
	var b strings.Builder
	must(t, p.Execute(&b, obj.Object))
	return strings.Join(strings.Fields(b.String()), " ")
}

// signingRequest is a CertificateSigningRequest of a member of system:masters.
func signingRequest(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "me", Organization: []string{"system:masters"}}}, key)
	must(t, err)
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return fmt.Sprintf(`{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: me}, spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], request: %s}}`, request)
}

// TestAdmission: a policy of one workspace, shop, holds there at once, and nowhere else: not in bank, which has none, and not
// in a mirror, where everything was admitted before and the physical cluster admits it again.
func TestAdmission(t *testing.T) {
	r := startServer(t, nil)
	inShop, inBank, inMirror := r.place(t, shop), r.place(t, bank), r.place(t, east)

	const (
		pod       = `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}`
		onlyShown = "refused: is for no workspace" // there pods are those of workspaces
		hostPod   = `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {hostNetwork: true, containers: [{name: c, image: i}]}}`
		claim     = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}}`
		ingress   = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i}, spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}}`
		tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	)
	for _, test := range []struct {
		name   string
		reason string
		labels map[string]string // of the namespace in shop
		given  string            // in shop
		object string            // in all three
		show   string            // what of it
		// What it shows, or "refused: " and a part of why.
		shop, bank, mirror string
		warned             string // a part of a warning, in shop alone
	}{
		{
			name: "default ServiceAccount", reason: "pull secrets come with the account",
			given:  `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}, imagePullSecrets: [{name: registry}]}`,
			object: pod, show: "{.spec.serviceAccountName} {.spec.imagePullSecrets[*].name} {.spec.containers[0].volumeMounts[*].mountPath}",
			shop: "default registry " + tokenPath, bank: "default " + tokenPath,
			mirror: onlyShown,
		},
		{
			name: "token volume", reason: "what client-go looks for in a pod", object: pod,
			show: "{.spec.volumes[0].projected.sources[0].serviceAccountToken.path} {.spec.volumes[0].projected.sources[1].configMap.name} {.spec.volumes[0].projected.sources[2].downwardAPI.items[0].path}",
			shop: "token kube-root-ca.crt namespace", bank: "token kube-root-ca.crt namespace",
			mirror: onlyShown,
		},
		{
			name: "another workspace's ServiceAccount", reason: "a name of one workspace means nothing in another",
			given:  `{apiVersion: v1, kind: ServiceAccount, metadata: {name: builder}}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {serviceAccountName: builder, containers: [{name: c, image: i}]}}`,
			show:   "{.spec.serviceAccountName}", shop: "builder", bank: `refused: serviceaccount "builder" not found`, mirror: onlyShown,
		},
		{
			name: "no token wanted", reason: "the account says so",
			given:  `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}, automountServiceAccountToken: false}`,
			object: pod, show: "{.spec.containers[0].volumeMounts[*].mountPath}", bank: tokenPath,
			mirror: onlyShown,
		},
		{
			name: "secrets of the account alone", reason: "the account's annotation limits them",
			given:  `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {volumes: [{name: v, secret: {secretName: s}}], containers: [{name: c, image: i}]}}`,
			show:   "{.spec.volumes[0].name}", shop: "refused: service account default does not reference that secret", bank: "v", mirror: onlyShown,
		},
		{
			name: "limit defaults", reason: "the LimitRange was made a moment before",
			given:  `{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}}]}}`,
			object: pod, show: "{.spec.containers[0].resources.requests.cpu} {.spec.containers[0].resources.limits.cpu} {.metadata.annotations.kubernetes\\.io/limit-ranger}",
			shop:   "100m 200m LimitRanger plugin set: cpu request for container c; cpu limit for container c",
			mirror: onlyShown,
		},
		{
			name:   "limit of containers",
			given:  `{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Container, max: {cpu: "1"}}]}}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i, resources: {limits: {cpu: "2"}}}]}}`,
			show:   "{.spec.containers[0].resources.limits.cpu}", shop: "refused: maximum cpu usage per Container is 1, but limit is 2", bank: "2", mirror: onlyShown,
		},
		{
			name:   "limit of pods",
			given:  `{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Pod, min: {memory: 1Gi}}]}}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i, resources: {requests: {memory: 1Mi}}}]}}`,
			show:   "{.spec.containers[0].resources.requests.memory}", shop: "refused: minimum memory usage per Pod is 1Gi", bank: "1Mi", mirror: onlyShown,
		},
		{
			name:   "limit of claims",
			given:  `{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: PersistentVolumeClaim, max: {storage: 1Gi}}]}}`,
			object: claim, show: "{.spec.resources.requests.storage}",
			shop: "refused: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi", bank: "2Gi", mirror: "2Gi",
		},
		{
			name: "LimitRange itself", reason: "it holds below, too",
			object: `{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Container, max: {cpu: "1"}}]}}`,
			show:   "{.metadata.name}", shop: "l", bank: "l", mirror: "l",
		},
		{
			name:   "priority",
			given:  `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000, preemptionPolicy: Never}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: high, containers: [{name: c, image: i}]}}`,
			show:   "{.spec.priority} {.spec.preemptionPolicy}", shop: "1000 Never", bank: "refused: no PriorityClass with name high was found",
			mirror: onlyShown,
		},
		{
			name: "system priority", reason: "both classes are in every workspace, without a row",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: system-node-critical, containers: [{name: c, image: i}]}}`,
			show:   "{.spec.priority}", shop: "2000001000", bank: "2000001000",
			mirror: onlyShown,
		},
		{
			name: "default priority", reason: "without a default it is 0",
			given:  `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual}, value: 7, globalDefault: true}`,
			object: pod, show: "{.spec.priorityClassName} {.spec.priority}", shop: "usual 7", bank: "0",
			mirror: onlyShown,
		},
		{
			name: "priority by number", reason: "only a class gives one",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priority: 5, containers: [{name: c, image: i}]}}`,
			show:   "{.spec.priority}", shop: "refused: the integer value of priority (5) must not be provided", bank: "refused: the integer value of priority (5)", mirror: onlyShown,
		},
		{
			name:   "second default priority",
			given:  `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual}, value: 7, globalDefault: true}`,
			object: `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: other}, value: 8, globalDefault: true}`,
			show:   "{.value}", shop: "refused: PriorityClass usual is already marked as default", bank: "8", mirror: "8",
		},
		{
			name: "tolerations", object: pod, show: "{.spec.tolerations[*].key} {.spec.tolerations[*].tolerationSeconds}",
			shop: "node.kubernetes.io/not-ready node.kubernetes.io/unreachable 300 300", bank: "node.kubernetes.io/not-ready node.kubernetes.io/unreachable 300 300",
			mirror: onlyShown,
		},
		{
			name:   "default StorageClass",
			given:  `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: p}`,
			object: claim, show: "{.spec.storageClassName} {.metadata.finalizers}", shop: "fast", reason: "and no finalizer that nobody would take away",
		},
		{
			name:   "default IngressClass",
			given:  `{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: front, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}, spec: {controller: example.com/c}}`,
			object: ingress, show: "{.spec.ingressClassName}", shop: "front",
		},
		{
			name:   "RuntimeClass",
			given:  `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: sandbox}, handler: h, overhead: {podFixed: {cpu: 250m}}, scheduling: {nodeSelector: {sandboxed: "yes"}}}`,
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {runtimeClassName: sandbox, containers: [{name: c, image: i}]}}`,
			show:   "{.spec.overhead.cpu} {.spec.nodeSelector.sandboxed}", shop: "250m yes", bank: `refused: RuntimeClass "sandbox" not found`,
			mirror: onlyShown,
		},
		{
			name: "Pod Security enforced", labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
			object: hostPod, show: "{.spec.hostNetwork}",
			shop: `refused: pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`, bank: "true", mirror: onlyShown,
		},
		{
			name: "Pod Security warned of", labels: map[string]string{"pod-security.kubernetes.io/warn": "restricted"},
			object: pod, show: "{.metadata.name}", shop: "p", bank: "p", mirror: onlyShown, warned: `would violate PodSecurity "restricted:latest"`,
		},
		{
			name: "Pod Security of a Deployment", reason: "it is no pod: the syncer puts the level below, where its pods are made",
			labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"},
			object: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
			show:   "{.metadata.name}", shop: "d", bank: "d", mirror: "d", warned: `would violate PodSecurity "restricted:latest"`,
		},
		{
			name: "level that does not exist", reason: "nobody may believe that it protects",
			object: `{apiVersion: v1, kind: Namespace, metadata: {name: misspelt, labels: {pod-security.kubernetes.io/enforce: basline}}}`,
			show:   "{.metadata.name}", shop: "refused: must be one of privileged, baseline, restricted", bank: "refused: must be one of privileged, baseline, restricted", mirror: "misspelt",
		},
		{
			name: "certificate of system:masters", reason: "who approves might overlook it",
			object: signingRequest(t), show: "{.metadata.name}",
			shop: "refused: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
			bank: "refused: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed", mirror: "me",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			namespace := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(test.name), " ", "-"), "'", "")
			namespace = strings.NewReplacer(":", "").Replace(namespace)
			inShop.namespace(t, namespace, test.labels, test.given)
			inBank.namespace(t, namespace, nil, "")
			inMirror.namespace(t, namespace, nil, "")
			for _, in := range []struct {
				name, want, warned string
				place
			}{
				{"shop", test.shop, test.warned, inShop}, {"bank", test.bank, "", inBank}, {"the mirror", test.mirror, "", inMirror},
			} {
				in.told.take()
				made, err := in.apply(t, namespace, test.object)
				why, refused := strings.CutPrefix(in.want, "refused: ")
				switch {
				case refused && (err == nil || !strings.Contains(err.Error(), why)):
					t.Errorf("in %s: error %v, want %q: %s", in.name, err, why, test.reason)
				case !refused && err != nil:
					t.Errorf("in %s: refused: %v: %s", in.name, err, test.reason)
				case !refused:
					if got := shown(t, made, test.show); got != in.want {
						t.Errorf("in %s %s shows %q, want %q: %s", in.name, test.show, got, in.want, test.reason)
					}
				}
				warnings := in.told.take()
				said := func(part string) bool {
					return slices.ContainsFunc(warnings, func(text string) bool { return strings.Contains(text, part) })
				}
				if in.warned != "" && !said(in.warned) {
					t.Errorf("in %s: warnings %q, want %q: %s", in.name, warnings, in.warned, test.reason)
				}
				if in.warned == "" && said("PodSecurity") {
					t.Errorf("in %s: warnings %q: the policy is another workspace's", in.name, warnings)
				}
			}
		})
	}
}

// TestPodSecurityOfNamespaces: who raises a level is told which pods of this workspace are below it.
func TestPodSecurityOfNamespaces(t *testing.T) {
	r := startServer(t, nil)
	level := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		in := r.place(t, cluster)
		in.namespace(t, "ns", nil, "")
		if cluster == shop {
			_, err := in.apply(t, "ns", `{apiVersion: v1, kind: Pod, metadata: {name: rooted}, spec: {hostPID: true, containers: [{name: c, image: i}]}}`)
			must(t, err)
			r.waitCached(t, shop, "ns", "rooted")
		}
		in.told.take()
		_, err := in.CoreV1().Namespaces().Patch(t.Context(), "ns", types.MergePatchType, level, metav1.PatchOptions{})
		must(t, err)
		if got := in.told.containing("rooted: host namespaces"); got != (cluster == shop) {
			t.Errorf("in %s told of the pod: %v", cluster, got)
		}
		_, err = in.CoreV1().Namespaces().Patch(t.Context(), "ns", types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/warn":"none"}}}`), metav1.PatchOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("in %s a level that does not exist: %v, want 422", cluster, err)
		}
	}
}

// waitCached waits until the watch cache shows a pod.
func (r *running) waitCached(t *testing.T, cluster logicalcluster.Name, namespace, name string) {
	t.Helper()
	w, err := r.in(t, cluster).CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	must(t, err)
	defer w.Stop()
	if _, ok := <-w.ResultChan(); !ok {
		t.Fatalf("the watch of pod %q ended", name)
	}
}

// TestPodSecurityInTheAuditLog: the log says what was decided by which level.
func TestPodSecurityInTheAuditLog(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	mustWrite(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata, resources: [{resources: [pods]}]}]\n")
	r := startServer(t, func(o *Options) { o.Audit.PolicyFile, o.Audit.LogOptions.Path = policy, log })
	in := r.place(t, shop)
	in.namespace(t, "ns", map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/audit": "restricted"}, "")
	_, err := in.apply(t, "ns", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}`)
	must(t, err)
	must(t, r.stop())
	file, err := os.Open(log)
	must(t, err)
	defer file.Close()
	var event auditv1.Event
	for lines := bufio.NewScanner(file); lines.Scan() && event.Verb != "create"; {
		event = auditv1.Event{}
		must(t, json.Unmarshal(lines.Bytes(), &event))
	}
	if got := event.Annotations["pod-security.kubernetes.io/enforce-policy"]; got != "baseline:latest" {
		t.Errorf("enforced %q, want baseline:latest, in %v", got, event.Annotations)
	}
	if got := event.Annotations["pod-security.kubernetes.io/audit-violations"]; !strings.Contains(got, `would violate PodSecurity "restricted:latest"`) {
		t.Errorf("violations %q, in %v", got, event.Annotations)
	}
}

// TestClaimsGrow: a bound claim may grow if its class lets it, in its own workspace.
func TestClaimsGrow(t *testing.T) {
	r := startServer(t, nil)
	for cluster, grows := range map[logicalcluster.Name]bool{shop: true, bank: false} {
		in := r.place(t, cluster)
		in.namespace(t, "ns", nil, fmt.Sprintf("{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}, provisioner: p, allowVolumeExpansion: %v}", grows))
		_, err := in.apply(t, "ns", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {storageClassName: fast, volumeName: v, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
		must(t, err)
		claims := in.CoreV1().PersistentVolumeClaims("ns")
		claim, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
		must(t, err)
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}
		_, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		must(t, err)
		_, err = claims.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`), metav1.PatchOptions{})
		if grows && err != nil || !grows && (err == nil || !strings.Contains(err.Error(), "the storageclass that provisions the pvc must support resize")) {
			t.Errorf("in %s, whose class lets claims grow: %v: %v", cluster, grows, err)
		}
	}
}

var quantity = apiresource.MustParse

// waitReads waits until a token may read a path.
func (r *running) waitReads(t *testing.T, path, token string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got := r.ask(t, asked{path: path, token: token})
		if got.code == http.StatusOK {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %d %s, want 200", path, got.code, got.body)
		case <-tick.C:
		}
	}
}

// TestWhoApprovesCertificates: who may write approvals still needs to be one who approves for that signer, here.
func TestWhoApprovesCertificates(t *testing.T) {
	r := startServer(t, withTokens(t))
	may := func(cluster logicalcluster.Name, rules ...rbacv1.PolicyRule) {
		t.Helper()
		in := r.in(t, cluster)
		_, err := in.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "approver"}, Rules: rules}, metav1.CreateOptions{})
		must(t, err)
		_, err = in.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "approver"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "approver"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "alice"}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	writes := rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests", "certificatesigningrequests/approval"}, Verbs: []string{"get", "update", "patch"}}
	signer := rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/s"}, Verbs: []string{"approve"}}
	enters := rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
	may(shop, enters, writes)
	may(bank, enters, writes, signer)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "me"}}, key)
	must(t, err)
	for cluster, allowed := range map[logicalcluster.Name]bool{shop: false, bank: true} {
		request, err := r.in(t, cluster).CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "me"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: "example.com/s", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			},
		}, metav1.CreateOptions{})
		must(t, err)
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
		body, err := json.Marshal(request)
		must(t, err)
		path := "/clusters/" + string(cluster) + "/apis/certificates.k8s.io/v1/certificatesigningrequests/me"
		r.waitReads(t, path, alice) // the role is seen a moment after it is written
		got := r.ask(t, asked{method: http.MethodPut, path: path + "/approval", token: alice, body: string(body)})
		switch {
		case allowed && got.code != http.StatusOK:
			t.Errorf("in %s: %d %s, want 200", cluster, got.code, got.body)
		case !allowed && (got.code != http.StatusForbidden || !strings.Contains(got.body, `not permitted to approve requests with signerName \"example.com/s\"`)):
			t.Errorf("in %s: %d %s, want 403 by admission", cluster, got.code, got.body)
		}
	}
}

// TestNamespaceThatEnds: in a namespace that is being deleted nobody gets a token, or has a pod evicted or bound, and is told why
// as by Kubernetes.
func TestNamespaceThatEnds(t *testing.T) {
	r := startServer(t, nil) // nothing empties namespaces
	r.makeNamespace(t, shop, "ends")
	core := r.in(t, shop).CoreV1()
	_, err := core.ServiceAccounts("ends").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	must(t, err)
	asks := map[string]struct {
		ask    func() error
		before func(error) bool
	}{
		"a token": {func() error {
			_, err := core.ServiceAccounts("ends").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		}, func(err error) bool { return err == nil }},
		"an eviction": {func() error {
			return core.Pods("ends").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}})
		}, apierrors.IsNotFound},
		"a binding": {func() error {
			return core.Pods("ends").Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}, Target: corev1.ObjectReference{Kind: "Node", Name: "east"}}, metav1.CreateOptions{})
		}, apierrors.IsNotFound},
	}
	for what, tc := range asks {
		if err := tc.ask(); !tc.before(err) {
			t.Errorf("%s before: %v", what, err)
		}
	}
	must(t, core.Namespaces().Delete(t.Context(), "ends", metav1.DeleteOptions{}))
	for what, tc := range asks {
		waitFor(t, 30*time.Second, what+" is refused", func() (string, bool) {
			err := tc.ask()
			return fmt.Sprint(err), apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
		})
	}
}
