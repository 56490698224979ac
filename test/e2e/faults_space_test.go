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

	"github.com/kcp-dev/logicalcluster/v3"
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
	w := &fullStore{t: t, clients: clients, cluster: framework.MakeWorkspace(t, clients, "root", "full"), acknowledged: map[string]bool{}}
	fillUp := func() {
		t.Helper()
		// A full store keeps 10 s of its history and gives back what is older, once a second: what cannot be written to for longer
		// is full of what is in use, and stays so.
		const long = 15 * time.Second
		var since time.Time
		framework.Eventually(t, 3*time.Minute, "the store is full", func() string {
			for i := 0; ; i++ {
				err := w.write(500_000)
				switch {
				case err == nil && i < 200:
					since = time.Time{}
					continue
				case errors.Is(err, context.DeadlineExceeded):
					return err.Error() // the disk is slow
				case !isFull(err):
					t.Fatalf("after %d ConfigMaps of 500 KB in 32 MiB: %v; want 507 and words", len(w.acknowledged), err)
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
				t.Logf("full with %d ConfigMaps: %v", len(w.acknowledged), err)
				return ""
			}
		})
	}
	fillUp()
	out, err := a.RunWithInput("{apiVersion: v1, kind: Secret, metadata: {name: s}}", "kubectl", "--server="+a.URL+"/clusters/root:full", "apply", "-f", "-")
	if err == nil || !strings.Contains(out, "Delete what is not needed") {
		t.Errorf("a person is not told what to do: %v\n%s", err, out)
	}
	w.says("/healthz/etcd-space", "etcd is full and takes no writes")
	w.says("/metrics", "atoll_embedded_etcd_full 1")
	if text := readyzText(t, a); text != "" {
		t.Errorf("not ready, so that nobody is sent there to delete: %s", text)
	}
	w.there()

	w.free(30)
	began := time.Now()
	framework.Eventually(t, 2*time.Minute, "writes go on", func() string { return problemOf(w.write(1000)) })
	t.Logf("recovery after the last deletion: %s", time.Since(began).Round(100*time.Millisecond))
	w.says("/healthz", "ok")
	w.says("/metrics", "atoll_embedded_etcd_full 0")
	w.there()

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
	w.clients = a.Clients()
	w.there()
	must(t, w.write(1000))
}

// fullStore is a workspace that is filled with ConfigMaps until the store is full.
type fullStore struct {
	t            *testing.T
	clients      *client.Clients
	cluster      logicalcluster.Name
	acknowledged map[string]bool // ConfigMaps that are to be there
	n            int
}

func (w *fullStore) write(bytes int) error {
	w.n++
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", w.n)}, Data: map[string]string{"data": strings.Repeat("x", bytes)}}
	ctx, cancel := context.WithTimeout(client.In(w.t.Context(), w.cluster), oneTry)
	defer cancel()
	_, err := w.clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
	if err == nil {
		w.acknowledged[cm.Name] = true
	}
	return err
}

// free deletes ConfigMaps until so many are left.
func (w *fullStore) free(left int) {
	w.t.Helper()
	for name := range w.acknowledged {
		if len(w.acknowledged) <= left {
			return
		}
		must(w.t, w.clients.Kube.CoreV1().ConfigMaps("default").Delete(client.In(w.t.Context(), w.cluster), name, metav1.DeleteOptions{}))
		delete(w.acknowledged, name)
	}
}

// says waits until what a path shows has a part.
func (w *fullStore) says(path, part string) {
	w.t.Helper()
	framework.Eventually(w.t, 30*time.Second, path+" says "+part, func() string {
		body, err := w.clients.Kube.Discovery().RESTClient().Get().AbsPath(path).Do(client.In(w.t.Context(), "root")).Raw()
		if !strings.Contains(string(body), part) {
			return fmt.Sprintf("%s: %v", body, err)
		}
		return ""
	})
}

func (w *fullStore) there() {
	w.t.Helper()
	allThere(w.t, w.clients, w.cluster, slices.Sorted(maps.Keys(w.acknowledged)))
}

// TestFullExternalEtcd fills an etcd of somebody else up to its quota: writes are refused in words, reads and deletions go on, and nothing
// acknowledged is lost. Whoever runs it frees its space, as the documents say, and ends its alarm: then writes go on by themselves. A server
// that starts over a full one says what is the matter.
func TestFullExternalEtcd(t *testing.T) {
	t.Parallel()
	etcd := framework.StartEtcd(t, "--etcd-quota-bytes=33554432", fmt.Sprintf("--etcd-client-port=%d", framework.FreePort(t)))
	a := framework.StartAtoll(t, etcd.Flags()...)
	clients, pid := a.Clients(), a.PID()
	w := &fullStore{t: t, clients: clients, cluster: framework.MakeWorkspace(t, clients, "root", "full"), acknowledged: map[string]bool{}}
	fill := func() {
		t.Helper()
		framework.Eventually(t, 3*time.Minute, "the store is full", func() string {
			for range 200 {
				switch err := w.write(500_000); {
				case err == nil:
				case errors.Is(err, context.DeadlineExceeded):
					return err.Error() // the disk is slow
				case !isFull(err):
					t.Fatalf("after %d ConfigMaps of 500 KB in 32 MiB: %v; want 507 and words", len(w.acknowledged), err)
				default:
					t.Logf("full with %d ConfigMaps: %v", len(w.acknowledged), err)
					return ""
				}
			}
			return "200 ConfigMaps of 500 KB in 32 MiB"
		})
	}
	roles, in := clients.Kube.RbacV1().ClusterRoles(), client.In(t.Context(), w.cluster)
	view, err := roles.Get(in, "view", metav1.GetOptions{})
	must(t, err)
	shared := view.DeepCopy()
	view.Labels["full"] = "yes"
	_, err = roles.Update(in, view, metav1.UpdateOptions{})
	must(t, err)
	fill()
	w.says("/healthz/etcd-space", "etcd is full and takes no writes")
	if text := readyzText(t, a); text != "" {
		t.Errorf("not ready, so that nobody is sent there to delete: %s", text)
	}
	w.there()
	// Its row would stay if there were room.
	must(t, roles.Delete(in, "view", metav1.DeleteOptions{}))
	if got, err := roles.Get(in, "view", metav1.GetOptions{}); err != nil || got.ResourceVersion != shared.ResourceVersion || got.Labels["full"] != "" {
		t.Errorf("a role that was reset is %v, %v; want that of before", got, err)
	}
	watching, err := clients.Kube.CoreV1().ConfigMaps("default").Watch(client.In(t.Context(), w.cluster), metav1.ListOptions{})
	must(t, err)
	watching.Stop()

	w.free(len(w.acknowledged) / 2)
	w.there()
	if err := w.write(1000); !isFull(err) {
		t.Errorf("a write before the alarm has ended: %v", err)
	}
	began := time.Now()
	etcd.MakeRoom(t)
	framework.Eventually(t, time.Minute, "writes go on", func() string { return problemOf(w.write(1000)) })
	t.Logf("figure recovery after whoever runs it made room: %s", time.Since(began).Round(10*time.Millisecond))
	w.says("/healthz", "ok")
	framework.MakeWorkspace(t, clients, "root", "after")
	w.there()
	if a.PID() != pid {
		t.Error("the server is another process")
	}

	fill()
	a.Kill()
	tries, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again, err := exec.CommandContext(tries, framework.Binary(t), append([]string{"start", "--root-directory=" + a.Dir, "--secure-port=0"}, etcd.Flags()...)...).CombinedOutput()
	if err == nil {
		t.Error("a server starts over a full etcd")
	}
	clearError(t, string(again), "a full etcd", etcd.URL, "is full", "--quota-backend-bytes", "etcdctl alarm disarm", "nothing that was acknowledged is lost")
	etcd.Stop()
	etcd.SetQuota(67108864)
	etcd.Start()
	etcd.MakeRoom(t)
	a.Start()
	w.there()
	must(t, w.write(1000))
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
