package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// holding keeps tunnels, and sends back what comes through them after the name of their mirror.
type holding struct {
	framework.NoPods
	mu    sync.Mutex
	holds map[logicalcluster.Name]int
}

func (h *holding) Hold(ctx context.Context, mirror logicalcluster.Name, conn net.Conn) error {
	h.add(mirror, 1)
	defer h.add(mirror, -1)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintf(conn, "tunnel of %s\n", mirror); err != nil {
		return err
	}
	_, err := io.Copy(conn, conn)
	return err
}

func (h *holding) Holds(mirror logicalcluster.Name) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds[mirror] > 0
}

func (h *holding) add(mirror logicalcluster.Name, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds[mirror] += n
}

// startHolding starts a server that knows the syncers of east and west, each of which has a SyncTarget in its mirror.
func startHolding(t *testing.T, modify func(*Options)) (*running, *holding, *registered) {
	t.Helper()
	known := &registered{
		ids:    map[logicalcluster.Name]string{east: "aaaaaa", west: "bbbbbb"},
		tokens: map[logicalcluster.Name]string{east: "aaaaaa.0123456789abcdef"},
	}
	r := startServerKnowing(t, known, modify)
	kubelets := &holding{holds: map[logicalcluster.Name]int{}}
	r.kubelets = kubelets
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	for _, mirror := range []logicalcluster.Name{east, west} {
		must(t, clients.Objects.Create(client.In(t.Context(), mirror), &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: mirror.String()}}))
	}
	return r, kubelets, known
}

func tunnelOf(mirror logicalcluster.Name) string {
	return clustersPrefix + mirror.String() + "/apis/workload.kcp.io/v1alpha1/synctargets/" + mirror.String() + "/tunnel"
}

var upgrades = map[string]string{"Connection": "Upgrade", "Upgrade": workloadv1alpha1.TunnelProtocol}

// open opens the tunnel of a syncer, and returns which server it is to.
func (r *running) open(t *testing.T, certificate *tls.Certificate, mirror logicalcluster.Name) (tunnel *bufio.ReadWriter, server string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.URL(), "https://"), &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{*certificate}})
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	tunnel = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	// What is sent with the head, before the answer, is the tunnel's.
	_, err = fmt.Fprintf(tunnel, "POST %s HTTP/1.1\r\nHost: atoll\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nearly\n", tunnelOf(mirror), workloadv1alpha1.TunnelProtocol)
	must(t, err)
	must(t, tunnel.Flush())
	response, err := http.ReadResponse(tunnel.Reader, &http.Request{Method: http.MethodPost})
	must(t, err)
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != workloadv1alpha1.TunnelProtocol {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("open a tunnel: %s %s", response.Status, body)
	}
	for _, want := range []string{fmt.Sprintf("tunnel of %s\n", mirror), "early\n"} {
		if got, err := tunnel.ReadString('\n'); got != want || err != nil {
			t.Fatalf("the tunnel of %s says %q, want %q: %v", mirror, got, want, err)
		}
	}
	return tunnel, response.Header.Get(workloadv1alpha1.TunnelServerHeader)
}

// echoes says whether a tunnel is there.
func echoes(tunnel *bufio.ReadWriter) bool {
	_, _ = tunnel.WriteString("hello\n")
	_ = tunnel.Flush()
	got, err := tunnel.ReadString('\n')
	return got == "hello\n" && err == nil
}

// TestWhoOpensATunnel: the syncer of a mirror, there, by what a connection can become; nobody else, whatever his roles.
func TestWhoOpensATunnel(t *testing.T) {
	t.Parallel()
	r, kubelets, known := startHolding(t, withTokens(t))
	certificate := r.syncerOf(t, east, "aaaaaa")
	for name, tc := range map[string]struct {
		asked asked
		code  int
	}{
		"nobody":                      {asked{path: tunnelOf(east)}, http.StatusForbidden},
		"an administrator":            {asked{path: tunnelOf(east), token: root}, http.StatusForbidden},
		"with a bootstrap token":      {asked{path: tunnelOf(east), token: known.tokens[east]}, http.StatusForbidden},
		"another's syncer":            {asked{path: tunnelOf(east), certificate: r.syncerOf(t, west, "bbbbbb")}, http.StatusForbidden},
		"of a token that is replaced": {asked{path: tunnelOf(east), certificate: r.syncerOf(t, east, "before")}, http.StatusUnauthorized},
		"of no SyncTarget":            {asked{path: strings.Replace(tunnelOf(east), "synctargets/eastname", "synctargets/other", 1), certificate: certificate}, http.StatusNotFound},
		"to nothing":                  {asked{path: tunnelOf(east), certificate: certificate, header: map[string]string{}}, http.StatusBadRequest},
		"to another protocol":         {asked{path: tunnelOf(east), certificate: certificate, header: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}}, http.StatusBadRequest},
		"who has its name":            {asked{path: tunnelOf(east), token: "fakesyncer"}, http.StatusUnauthorized},
		"an administrator as it": {asked{path: tunnelOf(east), token: root, header: map[string]string{
			"Connection": "Upgrade", "Upgrade": workloadv1alpha1.TunnelProtocol, "Impersonate-User": "system:atoll:syncer:eastname", "Impersonate-Group": "system:atoll:syncers",
		}}, http.StatusForbidden},
		"everywhere": {asked{path: clustersPrefix + "*/apis/workload.kcp.io/v1alpha1/synctargets/eastname/tunnel", token: root}, http.StatusMethodNotAllowed},
		"by GET":     {asked{path: tunnelOf(east), certificate: certificate, method: http.MethodGet}, http.StatusForbidden},
	} {
		if tc.asked.method == "" {
			tc.asked.method = http.MethodPost
		}
		if tc.asked.header == nil {
			tc.asked.header = upgrades
		}
		if got := r.ask(t, tc.asked); got.code != tc.code {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, tc.code)
		}
	}
	if kubelets.Holds(east) {
		t.Error("there is a tunnel")
	}
	tunnel, server := r.open(t, certificate, east)
	if !echoes(tunnel) || server != "" || kubelets.Holds(west) {
		t.Errorf("the tunnel of east is to %q", server)
	}
}

// TestATunnelOfASyncTargetMadeJustNow: a syncer asks as soon as its SyncTarget is there, which may be before the watch cache knows it.
func TestATunnelOfASyncTargetMadeJustNow(t *testing.T) {
	t.Parallel()
	r, _, _ := startHolding(t, nil)
	certificate := r.syncerOf(t, east, "aaaaaa")
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	named := func(name string) *workloadv1alpha1.SyncTarget {
		return &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	// The cache is behind while it has much to read.
	var others errgroup.Group
	defer func() { must(t, others.Wait()) }()
	for n := range 8 {
		others.Go(func() error {
			for i := range 200 {
				if err := clients.Objects.Create(client.In(t.Context(), west), named(fmt.Sprintf("other-%d-%d", n, i))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ctx := client.In(t.Context(), east)
	for range 20 {
		target := named(east.String())
		must(t, clients.Objects.Delete(ctx, target))
		framework.Eventually(t, 10*time.Second, "the watch cache knows that it is gone", func() string {
			err := clients.Objects.Get(ctx, types.NamespacedName{Name: target.Name}, target, &ctrlclient.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}})
			if !apierrors.IsNotFound(err) {
				return fmt.Sprint("it is there: ", err)
			}
			return ""
		})
		must(t, clients.Objects.Create(ctx, named(east.String())))
		r.open(t, certificate, east)
	}
}

// TestATunnelEndsWithItsCredential: as a watch does.
func TestATunnelEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	r, kubelets, known := startHolding(t, nil)
	tunnel, _ := r.open(t, r.syncerOf(t, east, "aaaaaa"), east)
	other, _ := r.open(t, r.syncerOf(t, west, "bbbbbb"), west)
	r.options.SyncerSigningDuration = 10 * time.Second
	short := r.syncerOf(t, west, "bbbbbb")
	expiring, _ := r.open(t, short, west)
	known.set(func() { known.ids[east] = "cccccc" })
	for name, tunnel := range map[string]*bufio.ReadWriter{"replaced": tunnel, "expired": expiring} {
		if left, err := io.ReadAll(tunnel); len(left) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the tunnel whose credential is %s: %q %v, want its end", name, left, err)
		}
	}
	if time.Now().Before(short.Leaf.NotAfter) {
		t.Errorf("a tunnel ended before its certificate does, at %s", short.Leaf.NotAfter)
	}
	framework.Eventually(t, 10*time.Second, "the tunnel of east is forgotten", func() string {
		if kubelets.Holds(east) {
			return "it is held"
		}
		return ""
	})
	if !echoes(other) {
		t.Error("a tunnel whose credential is good has ended, too")
	}
}

// TestATunnelToEachServer: one of several servers says which it is, and wants no second tunnel of a syncer that has one to it.
func TestATunnelToEachServer(t *testing.T) {
	t.Parallel()
	r, kubelets, _ := startHolding(t, func(o *Options) { o.SharedStore = true })
	certificate := r.syncerOf(t, east, "aaaaaa")
	tunnel, server := r.open(t, certificate, east)
	if server == "" {
		t.Error("the server does not say which it is")
	}
	again := asked{method: http.MethodPost, path: tunnelOf(east), certificate: certificate, header: map[string]string{workloadv1alpha1.TunnelHeldHeader: "other," + server}}
	for key, value := range upgrades {
		again.header[key] = value
	}
	if got := r.ask(t, again); got.code != http.StatusConflict {
		t.Errorf("a second tunnel: %d %s, want 409", got.code, got.body)
	}
	if !echoes(tunnel) {
		t.Error("the first one has ended")
	}
	// One that the syncer does not know of it has lost.
	second, _ := r.open(t, certificate, east)
	if !echoes(second) || !kubelets.Holds(east) {
		t.Error("a syncer that has lost its tunnel gets no other")
	}
	must(t, r.stop())
	if left, err := io.ReadAll(second); len(left) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the tunnel to a server that has stopped: %q %v, want its end", left, err)
	}
}
