package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestFullEtcd fills the embedded etcd up to its quota: writes are refused in words, reads and deletions go on, and nothing
// acknowledged is lost. After deletions it takes writes again by itself; a server that was killed meanwhile says what to do.
func TestFullEtcd(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "atoll")
	start := func(quota string) *framework.Atoll {
		a := framework.NewAtoll(t, "--root-directory="+dir, "--embedded-etcd-quota-bytes="+quota)
		a.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
		a.Start()
		return a
	}
	a := start("33554432")
	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "full")
	ctx := client.In(t.Context(), cluster)
	acknowledged := map[string]bool{}
	n := 0
	write := func(bytes int) error {
		n++
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n)}, Data: map[string]string{"data": strings.Repeat("x", bytes)}}
		ctx, cancel := context.WithTimeout(ctx, oneTry)
		defer cancel()
		_, err := clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		if err == nil {
			acknowledged[cm.Name] = true
		}
		return err
	}
	fillUp := func() {
		t.Helper()
		// A full store keeps 10 s of its history and gives back what is older, once a second: what cannot be written to for longer
		// is full of what is in use, and stays so.
		const long = 15 * time.Second
		var since time.Time
		framework.Eventually(t, 3*time.Minute, "the store is full", func() string {
			for i := 0; ; i++ {
				err := write(500_000)
				switch {
				case err == nil && i < 200:
					since = time.Time{}
					continue
				case errors.Is(err, context.DeadlineExceeded):
					return err.Error() // the disk is slow
				case !isFull(err):
					t.Fatalf("after %d ConfigMaps of 500 KB in 32 MiB: %v; want 507 and words", len(acknowledged), err)
				}
				if permille := permilleInUse(t, clients); permille < 900 {
					since = time.Time{}
					return fmt.Sprintf("%d/1000 are in use: %v", permille, err)
				}
				if since.IsZero() {
					since = time.Now()
				}
				if time.Since(since) < long {
					return err.Error()
				}
				t.Logf("full with %d ConfigMaps: %v", len(acknowledged), err)
				return ""
			}
		})
	}
	says := func(path, part string) {
		t.Helper()
		framework.Eventually(t, 30*time.Second, path+" says "+part, func() string {
			body, err := clients.Kube.Discovery().RESTClient().Get().AbsPath(path).Do(client.In(t.Context(), "root")).Raw()
			if !strings.Contains(string(body), part) {
				return fmt.Sprintf("%s: %v", body, err)
			}
			return ""
		})
	}
	there := func() {
		t.Helper()
		allThere(t, clients, cluster, slices.Sorted(maps.Keys(acknowledged)))
	}
	fillUp()
	out, err := a.RunWithInput("{apiVersion: v1, kind: Secret, metadata: {name: s}}", "kubectl", "--server="+a.URL+"/clusters/root:full", "apply", "-f", "-")
	if err == nil || !strings.Contains(out, "Delete what is not needed") {
		t.Errorf("a person is not told what to do: %v\n%s", err, out)
	}
	says("/healthz/etcd-space", "etcd is full and takes no writes")
	says("/metrics", "atoll_embedded_etcd_full 1")
	if text := readyzText(t, a); text != "" {
		t.Errorf("not ready, so that nobody is sent there to delete: %s", text)
	}
	there()

	for name := range acknowledged {
		must(t, clients.Kube.CoreV1().ConfigMaps("default").Delete(ctx, name, metav1.DeleteOptions{}))
		if delete(acknowledged, name); len(acknowledged) < 30 {
			break
		}
	}
	began := time.Now()
	framework.Eventually(t, 2*time.Minute, "writes go on", func() string { return problemOf(write(1000)) })
	t.Logf("recovery after the last deletion: %s", time.Since(began).Round(100*time.Millisecond))
	says("/healthz", "ok")
	says("/metrics", "atoll_embedded_etcd_full 0")
	there()

	fillUp()
	a.Kill()
	tries, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again, err := exec.CommandContext(tries, framework.Binary(t), "start", "--root-directory="+dir, "--secure-port=0", "--embedded-etcd-quota-bytes=33554432").CombinedOutput()
	if err == nil {
		t.Error("a server starts over a full store")
	}
	clearError(t, string(again), "a full store", filepath.Join(dir, "etcd"), "the store is full", "a larger --embedded-etcd-quota-bytes", "nothing that was acknowledged is lost")
	a = start("67108864")
	clients = a.Clients()
	there()
	must(t, write(1000))
}

// permilleInUse is how much of a full store is in use, in thousandths, as /healthz says; 0 of one that is not full.
func permilleInUse(t *testing.T, clients *client.Clients) int64 {
	t.Helper()
	body, err := clients.Kube.Discovery().RESTClient().Get().AbsPath("/healthz/etcd-space").Do(client.In(t.Context(), "root")).Raw()
	if err == nil {
		return 0
	}
	said := regexp.MustCompile(`(\d+) bytes of at most (\d+) are in use`).FindSubmatch(body)
	if said == nil {
		t.Logf("/healthz/etcd-space: %s: %v", body, err)
		return 0
	}
	inUse, err := strconv.ParseInt(string(said[1]), 10, 64)
	must(t, err)
	most, err := strconv.ParseInt(string(said[2]), 10, 64)
	must(t, err)
	return inUse * 1000 / most
}

// isFull says whether a write was refused for want of space, in words.
func isFull(err error) bool {
	status, ok := err.(apierrors.APIStatus) //nolint:errorlint // clients return it as it is
	return ok && status.Status().Code == http.StatusInsufficientStorage && strings.Contains(err.Error(), "reads and deletions go on")
}
