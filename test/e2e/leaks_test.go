package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/cert"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	// leakWorkers make and use workspaces at a time.
	leakWorkers = 16
	// usedInAllWays is of how many workspaces one is: all of 10,000 took an hour and a quarter on two cores, of each round.
	usedInAllWays = 5
	// leakStranger may do nothing anywhere.
	leakStranger = "token-of-nobody"
	// forgetAtMost is how long it takes at most until watch caches have forgotten the events of a round: a few times 80 s.
	forgetAtMost = 15 * time.Minute
	// settles is how long the end of a round is waited for: what was made of configurations is kept for ten minutes at most, and what etcd has of
	// the round goes in steps of five, with the next of its histories that it drops.
	settles = 18 * time.Minute
	// endAtMost is how long what is on its way to its end may take when the last workspace is gone: events that watch caches
	// remember, 100 to 200 s, and connections.
	endAtMost = 8 * time.Minute
	// leakJob is what CronJobs make.
	leakJob = `"jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"c"}]}}}}`
	// leastRoom is how many events a watch cache has room for at least.
	leastRoom = 100
)

// TestNothingIsLeftOfWorkspaces makes 1,000 workspaces, 10,000 where ATOLL_SOAK=1, uses them and deletes them, three times. What is
// left after the third round is at most 1.2 times what is left after the first, and of no kind is there more for each workspace; no
// metric is of a workspace. One in usedInAllWays is used in all ways that the server keeps something in memory for. The whole heap is
// compared where ATOLL_SOAK=1 alone, where each round has its end (leastLeft) before the next; else the last has, and
// each part of the heap is compared by itself. Most of it then is what was made of the webhooks and policies of workspaces that are gone
// (bounded), a megabyte for each, until five to ten minutes after its last use: 180 MB after the first round, 655 MB after a third that
// followed at once, of which five minutes later 472 MB were that, and 90 MB a minute after.
func TestNothingIsLeftOfWorkspaces(t *testing.T) {
	t.Parallel()
	n, soak := 1000, os.Getenv("ATOLL_SOAK") != ""
	if soak {
		n = 10_000
	}
	if few := os.Getenv("ATOLL_LEAK_WORKSPACES"); few != "" {
		var err error
		if n, err = strconv.Atoi(few); err != nil {
			t.Fatal(err)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte(leakStranger+",nobody,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := framework.NewAtoll(t, "--token-auth-file="+tokens)
	a.Setenv("GODEBUG", fmt.Sprintf("memprofilerate=%d", profileRate))
	a.Start()
	config := a.Config()
	config.WarningHandler = rest.NoWarnings{}
	clients, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := rest.HTTPClientFor(a.Config())
	if err != nil {
		t.Fatal(err)
	}
	w := &leaking{Atoll: a, clients: clients, http: anonymousHTTP(t, a), admin: admin, names: []string{"leak-"}}
	w.served = w.listed(t)
	var first, last leftovers
	for round := range 3 {
		began := time.Now()
		w.round(t, round, n)
		busy := time.Since(began)
		switch {
		case soak:
			last = w.leastLeft(t)
		case round == 0: // the measure of the others: without what watch caches hold for a while of any round
			w.forget(t)
			fallthrough
		default:
			last = w.left(t)
		}
		t.Logf("round %d: %d workspaces in %s", round+1, n, busy.Round(time.Second))
		last.say(t, fmt.Sprintf("after round %d", round+1))
		if round == 0 {
			first = last
		}
	}
	if soak { // where all rounds have as long to their ends
		if last.heap > 1.2*first.heap {
			t.Errorf("heap after the first round %.1f MB, after the third %.1f MB, want at most 1.2 times as much", first.heap/1e6, last.heap/1e6)
		}
		for _, line := range risen(first.bytes, last.bytes, 20) {
			t.Log(line)
		}
	}
	began, problem := time.Now(), "not looked at"
	framework.Eventually(t, endAtMost, "nothing is left of workspaces", func() string {
		if w.tick(t, &problem) {
			last = w.left(t)
			if time.Since(began) < endAtMost/2 {
				last.windows = first.windows // they are waited for
			}
			problem = strings.Join(leaks(first, last, n/usedInAllWays), "\n")
		}
		return problem
	})
	t.Logf("figure until nothing of them was left: %s", time.Since(began).Round(time.Second))
	last.say(t, "then")
	if last.goroutines > 1.2*first.goroutines {
		t.Errorf("%.0f goroutines after the first round, %.0f after the third, want at most 1.2 times as many", first.goroutines, last.goroutines)
	}
	// Those of what happens for the first time, such as the end of a watch after some minutes, are no workspace's.
	if float64(len(last.series)) > 1.2*float64(len(first.series)) {
		t.Errorf("%d series after the first round, %d after the third, want at most 1.2 times as many", len(first.series), len(last.series))
	}
	for series := range last.series {
		if slices.ContainsFunc(w.names, func(name string) bool { return strings.Contains(series, name) }) {
			t.Errorf("%s is of a workspace", series)
		}
	}
}

// leaking is a server whose workspaces come and go.
type leaking struct {
	*framework.Atoll
	clients *client.Clients
	http    *http.Client // shows no client certificate
	admin   *http.Client
	served  []schema.GroupVersionResource
	ticked  time.Time

	mu    sync.Mutex
	names []string // of logical clusters, and what begins the names of workspaces
}

// round makes n workspaces, uses and deletes them, and waits until they are gone.
func (w *leaking) round(t *testing.T, round, n int) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range leakWorkers {
		wg.Go(func() {
			for i := range numbers {
				name := fmt.Sprintf("leak-%d-%d", round, i)
				if err := w.use(ctx, name, i); err != nil {
					cancel(fmt.Errorf("workspace %q: %w", name, err))
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	workspaces := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	framework.Eventually(t, time.Duration(n)*time.Second/10+time.Minute, "workspaces are gone", func() string {
		list, err := w.clients.Metadata.Resource(workspaces).List(client.In(t.Context(), "root"), metav1.ListOptions{Limit: 1})
		switch {
		case err != nil:
			return err.Error()
		case len(list.Items) > 0:
			return fmt.Sprintf("%s is there, and %d more", list.Items[0].Name, list.GetRemainingItemCount())
		}
		return ""
	})
}

// use makes a workspace, uses it in many ways, and asks for its deletion.
func (w *leaking) use(ctx context.Context, name string, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := w.create(ctx, "root", "", "tenancy.kcp.io/v1alpha1", "workspaces", `{"kind":"Workspace","metadata":{"name":"`+name+`"}}`); err != nil {
		return err
	}
	ready, err := w.until(ctx, "root", "tenancy.kcp.io/v1alpha1", "workspaces", name, func(o *unstructured.Unstructured) bool {
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return phase == "Ready"
	})
	if err != nil {
		return err
	}
	own, _, _ := unstructured.NestedString(ready.Object, "spec", "cluster")
	cluster := logicalcluster.Name(own)
	w.mu.Lock()
	w.names = append(w.names, own)
	w.mu.Unlock()
	if i%usedInAllWays == 0 {
		if err := w.useInAllWays(ctx, name, cluster, i/usedInAllWays); err != nil {
			return err
		}
	} else if _, err := w.create(ctx, cluster, "default", "v1", "configmaps", `{"kind":"ConfigMap","metadata":{"name":"one"}}`); err != nil {
		return err
	}
	return w.clients.Dynamic.Resource(resourceAt("tenancy.kcp.io/v1alpha1", "workspaces")).Delete(client.In(ctx, "root"), name, metav1.DeleteOptions{})
}

// useInAllWays uses a workspace in the ways that the server keeps something in memory for.
func (w *leaking) useInAllWays(ctx context.Context, name string, cluster logicalcluster.Name, i int) error {
	// Most define the same, as tenants of one product do; each tenth what nobody else has.
	group := "leaks.example"
	if i%10 == 0 {
		group = name + ".example"
	}
	var bound string // the version at which the robot has its right
	for _, o := range []struct{ version, resource, namespace, manifest string }{
		{"apiextensions.k8s.io/v1", "customresourcedefinitions", "", `{"kind":"CustomResourceDefinition","metadata":{"name":"widgets.` + group + `"},"spec":{"group":"` + group + `","scope":"Namespaced",
			"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}]}}`},
		{"v1", "configmaps", "default", `{"kind":"ConfigMap","metadata":{"name":"one"},"data":{"a":"b"}}`},
		{"v1", "serviceaccounts", "default", `{"kind":"ServiceAccount","metadata":{"name":"robot"}}`},
		{"v1", "resourcequotas", "default", `{"kind":"ResourceQuota","metadata":{"name":"few"},"spec":{"hard":{"configmaps":"50","secrets":"50"}}}`},
		{"rbac.authorization.k8s.io/v1", "clusterrolebindings", "", `{"kind":"ClusterRoleBinding","metadata":{"name":"robot"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`},
		// Loopback is refused: nobody is called, and nobody minds.
		{"admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "", `{"kind":"ValidatingWebhookConfiguration","metadata":{"name":"hooks"},"webhooks":[{"name":"w.leaks.example",
			"clientConfig":{"url":"https://127.0.0.1:1/` + name + `"},"failurePolicy":"Ignore","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":1,
			"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]}]}`},
		{"admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "", `{"kind":"ValidatingAdmissionPolicy","metadata":{"name":"policy"},"spec":{
			"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]},
			"validations":[{"expression":"object.metadata.name != '` + name + `'"}]}}`},
		{"admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "", `{"kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"policy"},"spec":{"policyName":"policy","validationActions":["Deny"]}}`},
		{"admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "", `{"kind":"MutatingWebhookConfiguration","metadata":{"name":"hooks"},"webhooks":[{"name":"m.leaks.example",
			"clientConfig":{"url":"https://127.0.0.1:1/` + name + `"},"failurePolicy":"Ignore","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":1,
			"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]}]}`},
		{"admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", "", `{"kind":"MutatingAdmissionPolicy","metadata":{"name":"policy"},"spec":{"reinvocationPolicy":"Never",
			"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]},
			"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'of': '` + name + `'}}}"}}]}}`},
		{"admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings", "", `{"kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"policy"},"spec":{"policyName":"policy"}}`},
		{"batch/v1", "cronjobs", "default", `{"kind":"CronJob","metadata":{"name":"yearly"},"spec":{"schedule":"0 0 1 1 *",` + leakJob + `}}`},
		// It waits for a cluster that nobody has registered.
		{"v1", "namespaces", "", `{"kind":"Namespace","metadata":{"name":"placed","annotations":{"placement.atoll.dev/clusters":"nosuch"}}}`},
		{"apps/v1", "deployments", "placed", `{"kind":"Deployment","metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}},
			"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"web"}]}}}}`},
	} {
		made, err := w.create(ctx, cluster, o.namespace, o.version, o.resource, o.manifest)
		if err != nil {
			return err
		}
		if o.resource == "clusterrolebindings" {
			bound = made.GetResourceVersion()
		}
	}
	// Policies are in force a moment after they are written, as on any cluster. What is not stored needs no quota, however long that takes.
	var labels map[string]string
	const secret = `{"kind":"Secret","metadata":{"generateName":"one-"}}`
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		made, err := w.create(ctx, cluster, "default", "v1", "secrets", secret, metav1.DryRunAll)
		if err != nil {
			return false, err
		}
		labels = made.GetLabels()
		return labels["of"] == name, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the policy to label a Secret with %q; the last one has %v: %w", name, labels, err)
	}
	if _, err := w.create(ctx, cluster, "default", "v1", "secrets", secret); err != nil {
		return err
	}
	_, err = w.until(ctx, cluster, "apiextensions.k8s.io/v1", "customresourcedefinitions", "widgets."+group, func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			is, ok := c.(map[string]any)
			return ok && is["type"] == "Established" && is["status"] == "True"
		})
	})
	if err != nil {
		return err
	}
	if _, err := w.create(ctx, cluster, "default", group+"/v1", "widgets", `{"kind":"Widget","metadata":{"name":"one"},"spec":{"size":1}}`); err != nil {
		return err
	}
	if _, err := w.until(ctx, cluster, group+"/v1", "widgets", "one", func(*unstructured.Unstructured) bool { return true }); err != nil {
		return err
	}
	if _, err := w.until(ctx, cluster, "placement.atoll.dev/v1alpha1", "placements", "placed", func(*unstructured.Unstructured) bool { return true }); err != nil {
		return err
	}
	if err := w.certificate(ctx, cluster); err != nil {
		return err
	}
	robot, err := w.clients.Kube.CoreV1().ServiceAccounts("default").CreateToken(client.In(ctx, cluster), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// The authoriser reads from the watch cache, and so does who names a resourceVersion, once that has come so far.
	if _, err := w.clients.Kube.RbacV1().ClusterRoleBindings().Get(client.In(ctx, cluster), "robot", metav1.GetOptions{ResourceVersion: bound}); err != nil {
		return err
	}
	configMaps := "/clusters/" + cluster.String() + "/api/v1/namespaces/default/configmaps"
	for token, want := range map[string]int{robot.Status.Token: http.StatusOK, leakStranger: http.StatusForbidden} {
		if code, body, err := w.get(ctx, configMaps, token); err != nil || code != want {
			return fmt.Errorf("GET %s: %d %s %v, want %d", configMaps, code, body, err, want)
		}
	}
	// Discovery has documents of each workspace.
	for _, path := range []string{"/apis/" + group, "/openapi/v3"} {
		if code, body, err := w.get(ctx, "/clusters/"+cluster.String()+path, robot.Status.Token); err != nil || code != http.StatusOK {
			return fmt.Errorf("GET %s: %d %s %v", path, code, body, err)
		}
	}
	return nil
}

// certificate has the certificate of a user of the workspace signed. The request stays for an hour.
func (w *leaking) certificate(ctx context.Context, cluster logicalcluster.Name) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	pem, err := cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "alice"}})
	if err != nil {
		return err
	}
	requests, in := w.clients.Kube.CertificatesV1().CertificateSigningRequests(), client.In(ctx, cluster)
	request, err := requests.Create(in, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, Request: pem,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	if _, err := requests.UpdateApproval(in, "alice", request, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = w.until(ctx, cluster, "certificates.k8s.io/v1", "certificatesigningrequests", "alice", func(o *unstructured.Unstructured) bool {
		signed, _, _ := unstructured.NestedString(o.Object, "status", "certificate")
		return signed != ""
	})
	return err
}

func resourceAt(version, resource string) schema.GroupVersionResource {
	group, v, ok := strings.Cut(version, "/")
	if !ok {
		group, v = "", version
	}
	return schema.GroupVersionResource{Group: group, Version: v, Resource: resource}
}

// create makes an object, or does as if, with metav1.DryRunAll.
func (w *leaking) create(ctx context.Context, cluster logicalcluster.Name, namespace, version, resource, manifest string, dryRun ...string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(manifest), &o.Object); err != nil {
		return nil, fmt.Errorf("read %s: %w", manifest, err)
	}
	o.SetAPIVersion(version)
	made, err := w.clients.Dynamic.Resource(resourceAt(version, resource)).Namespace(namespace).Create(client.In(ctx, cluster), o, metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return nil, fmt.Errorf("create %s %q: %w", resource, o.GetName(), err)
	}
	return made, nil
}

// until waits until an object that exists is as it should be. The server may end a watch that cannot keep up, so it is resumed.
func (w *leaking) until(ctx context.Context, cluster logicalcluster.Name, version, resource, name string, is func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, error) {
	objects := w.clients.Dynamic.Resource(resourceAt(version, resource))
	only := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = "metadata.name=" + name
		return o
	}
	ctx = client.In(ctx, cluster) // whose values are not handed on
	var found *unstructured.Unstructured
	_, err := watchtools.UntilWithSync(ctx, &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, only(o))
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, only(o))
		},
	}, &unstructured.Unstructured{}, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type == watch.Error {
			return false, fmt.Errorf("%s %v", e.Type, e.Object)
		}
		found = o
		return is(o), nil
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s %q: %w: last %v", resource, name, err, found)
	}
	return found, nil
}

func (w *leaking) get(ctx context.Context, path, token string) (code int, body string, _ error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := w.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(said), err
}

// raw is what the server answers the administrator.
func (w *leaking) raw(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.admin.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %.200s %v", path, resp.Status, said, err)
	}
	return string(said)
}

// tick lets something happen every few seconds, and says when: watch caches forget only when something does. Events have no cache.
// What went wrong is the problem until the next time.
func (w *leaking) tick(t *testing.T, problem *string) bool {
	t.Helper()
	if time.Since(w.ticked) < 5*time.Second {
		return false
	}
	w.ticked = time.Now()
	if _, err := w.create(t.Context(), "root", "default", "v1", "events", `{"kind":"Event","metadata":{"generateName":"tick-"},"involvedObject":{"kind":"Namespace","namespace":"default","name":"default"}}`); err != nil {
		*problem = err.Error()
		return false
	}
	return true
}

// forget waits until watch caches have no room for more events than at the start of the server.
func (w *leaking) forget(t *testing.T) {
	t.Helper()
	problem := "not looked at"
	framework.Eventually(t, forgetAtMost, "watch caches forget", func() string {
		if w.tick(t, &problem) {
			problem = w.remembered(t)
		}
		return problem
	})
}

// leastLeft is the least that is left in the minutes after a round.
func (w *leaking) leastLeft(t *testing.T) leftovers {
	t.Helper()
	w.forget(t)
	least, began := w.left(t), time.Now()
	problem := "not looked at"
	framework.Eventually(t, settles+forgetAtMost, "a round has its end", func() string {
		if w.tick(t, &problem) {
			if now := w.left(t); now.heap < least.heap {
				least = now
			}
			problem = fmt.Sprintf("it is %s since its last workspace", time.Since(began).Round(time.Second))
			if time.Since(began) > settles {
				problem = ""
			}
		}
		return problem
	})
	return least
}

// remembered is the room of a watch cache that has more than at the start of the server, empty if none has.
func (w *leaking) remembered(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(w.raw(t, "/metrics")) {
		if strings.HasPrefix(line, "watch_cache_capacity{") && w.number(t, strings.TrimSpace(line[strings.LastIndexByte(line, ' '):])) > leastRoom {
			return line
		}
	}
	return ""
}
