package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// outside is a client of the server's port with a connection of its own.
func (r *running) outside(t *testing.T) kubernetes.Interface {
	t.Helper()
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	config := &rest.Config{
		Host: "https://" + r.dialAddress() + clustersPrefix + string(shop), BearerToken: root, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: r.CACertificate()},
		// client-go shares connections between equal configurations, and functions are never equal.
		Dial: dialer.DialContext,
	}
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

func (r *running) authority() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	return roots
}

// slowly begins to create a ConfigMap over HTTP/1.1, and returns once the server has begun to read it. finish sends the rest.
func (r *running) slowly(t *testing.T, name string) (finish func() (status int, err error)) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.authority()}, ExpectContinueTimeout: time.Minute}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	reads := make(chan struct{})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(reads) }})
	from, to := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.dialAddress()+"/clusters/shopname/api/v1/namespaces/team/configmaps", from)
	must(t, err)
	req.Header.Set("Expect", "100-continue")
	req.Header.Set("Authorization", "Bearer "+root)
	req.Header.Set("Content-Type", "application/json")
	type answer struct {
		status int
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		resp, err := client.Do(req)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		answers <- answer{resp.StatusCode, err}
	}()
	select {
	case <-reads:
	case got := <-answers:
		t.Fatalf("answered before the body was sent: %d %v", got.status, got.err)
	}
	return func() (int, error) {
		if _, err := io.WriteString(to, `{"metadata":{"name":"`+name+`"}}`); err != nil {
			return 0, err
		}
		if err := to.Close(); err != nil {
			return 0, err
		}
		got := <-answers
		return got.status, got.err
	}
}

// TestShutdownDropsNoRequest: whatever the server has begun to read it answers, also after it was told to end; who comes later is refused,
// and knows that nothing was done; watches end at the border of an event; what was acknowledged is there.
func TestShutdownDropsNoRequest(t *testing.T) {
	for name, modify := range map[string]func(*Options){
		"at once":    func(*Options) {},
		"with delay": func(o *Options) { o.ShutdownDelay, o.ShutdownSendRetryAfter = time.Second, true },
	} {
		t.Run(name, func(t *testing.T) {
			tokens := withTokens(t)
			r := startServer(t, func(o *Options) { tokens(o); modify(o) })
			r.makeNamespace(t, shop, team)

			var clients sync.WaitGroup
			var written atomic.Int64
			var mu sync.Mutex // guards what follows
			acknowledged, dropped := map[string]bool{}, []string{}
			for i := range 8 {
				c := r.outside(t)
				clients.Go(func() {
					for n := 0; ; n++ {
						name := fmt.Sprintf("c%d-%d", i, n)
						_, err := c.CoreV1().ConfigMaps(team).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
						mu.Lock()
						if err == nil {
							acknowledged[name] = true
						} else if !refused(err) {
							dropped = append(dropped, fmt.Sprintf("%s: %v", name, err))
						}
						mu.Unlock()
						if err != nil {
							return
						}
						written.Add(1)
					}
				})
			}
			for range 4 {
				w, err := r.outside(t).CoreV1().ConfigMaps(team).Watch(t.Context(), metav1.ListOptions{})
				must(t, err)
				clients.Go(func() {
					for e := range w.ResultChan() {
						if e.Type == watch.Error {
							mu.Lock()
							dropped = append(dropped, fmt.Sprintf("watch: %v", e.Object))
							mu.Unlock()
						}
					}
				})
			}
			waitFor(t, time.Minute, "load", func() (string, bool) { n := written.Load(); return fmt.Sprint(n), n >= 100 })
			finish := r.slowly(t, "slow")

			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			waitFor(t, time.Minute, "the server turns away who comes now", func() (string, bool) {
				resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.authority()}}}).Get("https://" + r.dialAddress() + "/version")
				if err != nil {
					return err.Error(), errors.Is(err, syscall.ECONNREFUSED)
				}
				resp.Body.Close()
				return resp.Status, resp.StatusCode == http.StatusTooManyRequests
			})
			if status, err := finish(); status != http.StatusCreated || err != nil {
				t.Errorf("what was begun before is answered with %d, %v", status, err)
			}
			acknowledged["slow"] = true
			must(t, <-stopped)
			clients.Wait()
			if len(dropped) > 0 {
				t.Errorf("dropped:\n%s", strings.Join(dropped, "\n"))
			}

			r = startServerOver(t, r.data, r.credentials, r.options)
			list, err := r.in(t, shop).CoreV1().ConfigMaps(team).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for _, c := range list.Items {
				delete(acknowledged, c.Name)
			}
			if len(acknowledged) > 0 {
				t.Errorf("acknowledged and not there: %v", acknowledged)
			}
		})
	}
}

// TestLastRequestsAreJudgedByWhatThereIs: a server that is to end, and serves on until balancers have turned away, refuses what a policy
// forbids that was made meanwhile.
func TestLastRequestsAreJudgedByWhatThereIs(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.ShutdownDelay = 5 * time.Second })
	r.makeNamespace(t, shop, "default")
	in := place{Interface: r.outside(t)}
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	waitFor(t, 3*time.Second, "the server says that it ends", func() (string, bool) {
		got := r.ask(t, asked{path: "/readyz", token: root})
		return fmt.Sprint(got), got.code == http.StatusInternalServerError
	})
	in.bind(t, `
metadata: {name: none}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  validations:
  - {expression: 'false', message: there are enough}
`, `
metadata: {name: none}
spec: {policyName: none, validationActions: [Deny]}
`)
	in.waitRefusal(t, "another", "there are enough")
	must(t, <-stopped)
}

// refused says whether nothing can have been done: nobody listened, or the server said so.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}
