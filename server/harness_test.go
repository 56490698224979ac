package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/test/framework"
)

// The logical clusters of the tests: two workspaces by name and path, one that goes, and two mirrors.
const (
	shop = logicalcluster.Name("shopname")
	bank = logicalcluster.Name("bankname")
	gone = logicalcluster.Name("goingname")
	east = logicalcluster.Name("eastname")
	west = logicalcluster.Name("westname")
)

// few is a directory of those, and a placer that places everything.
type few struct{ framework.NoPods }

func (few) Annotation(name logicalcluster.Name, key string) string {
	if path := map[logicalcluster.Name]string{shop: "root:shop", bank: "root:bank"}[name]; key == lcctx.PathAnnotation {
		return path
	}
	return ""
}

func (few) KnownPath(path logicalcluster.Path) (logicalcluster.Name, bool) {
	switch path.String() {
	case "root:shop":
		return shop, true
	case "root:bank":
		return bank, true
	}
	return "", false
}

func (f few) Resolve(_ context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	if name, known := f.KnownPath(path); known {
		return name, nil
	}
	return "", lcctx.ErrNotFound
}

func (few) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	switch name {
	case "root", SystemAdminCluster, shop, bank, gone:
		return lcctx.Cluster{Name: name}, true
	case east, west:
		return lcctx.Cluster{Name: name, Mirror: true}, true
	}
	return lcctx.Cluster{}, false
}

func (few) OnImported(func(logicalcluster.Name)) {}

func (few) OnGone(func(logicalcluster.Name)) {}

func (few) Terminating(name logicalcluster.Name) bool { return name == gone }

func (few) Initialized(logicalcluster.Name) bool { return true }

func (few) WhyNowhere(logicalcluster.Name, schema.GroupResource, string, string, map[string]string) string {
	return ""
}

func (few) RefusedPods(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) {
	return nil, nil
}

func (few) MissingClasses(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) []string {
	return nil
}

func (few) PlacedOn(types.UID) (placements, workspaces int) { return 0, 0 }

// No syncer runs outside this process.
func (few) Token(context.Context, logicalcluster.Name, string) (string, bool, error) {
	return "", false, nil
}

func (few) Accepts(logicalcluster.Name, string) bool { return false }

func (few) WaitSynced(context.Context) error { return nil }

// running is a server that runs until the test ends, or stop.
type running struct {
	*Server
	data        *clientv3.Client
	credentials Credentials
	stop        func() error // ends it, waits, and returns what Run returned
}

func startServer(t *testing.T, modify func(*Options)) *running {
	t.Helper()
	return startServerKnowing(t, few{}, modify)
}

// startServerKnowing starts one with syncers outside of it.
func startServerKnowing(t *testing.T, credentials Credentials, modify func(*Options)) *running {
	t.Helper()
	return serveOn(t, startEtcd(t), credentials, modify)
}

func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	etcd, err := embeddedetcd.Start(context.Background(), embeddedetcd.Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return etcd.Client
}

// serveOn starts a server with a directory of its own on an etcd that others may use as well.
func serveOn(t *testing.T, etcd *clientv3.Client, credentials Credentials, modify func(*Options)) *running {
	t.Helper()
	o := NewOptions()
	o.RootDirectory, o.SecurePort = t.TempDir(), 0
	o.WebhookAllowedAddresses = []string{"127.0.0.1"} // where those of the tests are
	if modify != nil {
		modify(o)
	}
	return startServerOver(t, etcd, credentials, o)
}

// restart starts another server, over what the first one has left, which is stopped.
func (r *running) restart(t *testing.T) *running {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	return startServerOver(t, r.data, r.credentials, r.options)
}

func startServerOver(t *testing.T, etcd *clientv3.Client, credentials Credentials, o *Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(ctx, o, etcd)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s.Join(few{}, few{}, credentials, few{})
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { failed = s.Run(ctx) })
	r := &running{Server: s, data: etcd, credentials: credentials, stop: sync.OnceValue(func() error { cancel(); wg.Wait(); return failed })}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	r.waitHealthy(t)
	for _, name := range []logicalcluster.Name{"root", SystemAdminCluster, shop, bank, gone, east, west} {
		r.makeCluster(t, name)
	}
	return r
}

// makeCluster makes what says that there is a logical cluster, unless it is there.
func (r *running) makeCluster(t *testing.T, name logicalcluster.Name) {
	t.Helper()
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}
	lc.Spec.Use = corev1alpha1.LogicalClusterUseWorkspace
	if known, _ := (few{}).Known(name); known.Mirror {
		lc.Spec.Use = corev1alpha1.LogicalClusterUseMirror
	}
	if err := clients.Objects.Create(client.In(t.Context(), name), lc); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// forgetCluster takes that away for a test that says more of a logical cluster.
func (r *running) forgetCluster(t *testing.T, name logicalcluster.Name) {
	t.Helper()
	_, err := r.data.Delete(t.Context(), "/registry/core.kcp.io/logicalclusters/"+string(name)+"/"+corev1alpha1.LogicalClusterName)
	must(t, err)
}

// waitHealthy waits until what the server does once after its start is done: until then /healthz says that it is not well.
func (r *running) waitHealthy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	health := r.as(t, r.LoopbackConfig(), "").Discovery().RESTClient()
	waitFor(t, time.Minute, "the server is healthy", func() (seen string, ok bool) {
		said, err := health.Get().AbsPath("/healthz").DoRaw(ctx)
		return fmt.Sprintf("%v\n%s", err, said), err == nil
	})
}

// alone says whether this process runs a test alone; if not it has one do so, and fails with it. It is for tests that measure
// memory: in a process of many, servers of others take some, and let go what they had, meanwhile.
func alone(t *testing.T) bool {
	t.Helper()
	const child = "ATOLL_TEST_ALONE"
	if os.Getenv(child) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a process of its own: %v\n%s", err, out)
	}
	return false
}

// waitFor waits for at most so long until check is content, and says what it saw last if it never is.
func waitFor(t *testing.T, most time.Duration, what string, check func() (seen string, ok bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, ok := check()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: last seen: %s", what, seen)
		case <-tick.C:
		}
	}
}

// in returns a client of the server's own identity in a logical cluster.
func (r *running) in(t *testing.T, cluster logicalcluster.Name) kubernetes.Interface {
	t.Helper()
	return r.as(t, r.LoopbackConfig(), clustersPrefix+string(cluster))
}

func (r *running) as(t *testing.T, config *rest.Config, path string) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Host += path
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// asked is one request over TLS.
type asked struct {
	method, path, token, body string
	header                    map[string]string
	certificate               *tls.Certificate
}

// answer is its outcome.
type answer struct {
	code       int
	body       string
	retryAfter string
}

func (r *running) ask(t *testing.T, a asked) answer {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	config := &tls.Config{RootCAs: roots}
	if a.certificate != nil {
		config.Certificates = []tls.Certificate{*a.certificate}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	if a.method == "" {
		a.method = http.MethodGet
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, a.method, r.URL()+a.path, bytes.NewBufferString(a.body))
	if err != nil {
		t.Fatal(err)
	}
	if a.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for key, value := range a.header {
		req.Header.Set(key, value)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return answer{code: response.StatusCode} // nobody says when that ends
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, string(body), response.Header.Get("Retry-After")}
}

func (r *running) dialAddress() string {
	return net.JoinHostPort("127.0.0.1", r.URL()[len("https://127.0.0.1:"):])
}

// The tokens of the tests, and the file that lists them.
const (
	alice     = "alicetoken" // admin of shop, once bound there
	bob       = "bobtoken"   // nobody anywhere
	root      = "roottoken"  // administrator of the server
	monitor   = "monitoring" // may read metrics
	tokenFile = `alicetoken,alice,1
bobtoken,bob,2
roottoken,root,3,"system:masters"
monitoring,prometheus,4,"system:monitoring"
fakeserver,system:apiserver,5,"system:masters"
fakesyncer,system:atoll:syncer:eastname,6,"system:atoll:syncers"
fakegroup,carol,7,"system:atoll:syncers"
`
)

func withTokens(t *testing.T) func(*Options) {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	mustWrite(t, file, tokenFile)
	return func(o *Options) { o.TokenAuthFile = file }
}
