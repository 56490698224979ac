package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestI7_BackupAndRestore takes a backup under load, loses the server, and restores it into a new directory: what was
// acknowledged before the backup is there, versions go on above all that anybody saw, who watched must list again, and
// the kubeconfig of before is good.
func TestI7_BackupAndRestore(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	loseAndRestore(t, a, func(file string) {
		refuseBadBackups(t, a, file)
		if err := os.Rename(a.Dir, a.Dir+"-lost"); err != nil {
			t.Fatal(err)
		}
		a.MustRun("restore", file, "--root-directory", a.Dir)
	})
}

// TestI7_RestoreIntoAnExternalEtcd does what docs/operations/restore.md tells who runs an etcd of his own.
func TestI7_RestoreIntoAnExternalEtcd(t *testing.T) {
	t.Parallel()
	etcd := framework.StartEtcd(t, fmt.Sprintf("--etcd-client-port=%d", framework.FreePort(t)))
	a := framework.StartAtoll(t, etcd.Flags()...)
	loseAndRestore(t, a, func(file string) {
		etcd.Kill()
		store, snapshotFile := filepath.Join(etcd.Dir, "etcd"), filepath.Join(t.TempDir(), "snapshot.db")
		for _, lost := range []string{a.Dir, store} {
			if err := os.Rename(lost, lost+"-lost"); err != nil {
				t.Fatal(err)
			}
		}
		said := a.MustRun("restore", file, "--root-directory", filepath.Join(t.TempDir(), "thrown-away"))
		raised := regexp.MustCompile(`raised by (\d+)`).FindStringSubmatch(said)
		if raised == nil {
			t.Fatalf("atoll restore does not say by how much the revision is raised:\n%s", said)
		}
		bump, err := strconv.ParseUint(raised[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, script := range []string{
			`mkdir -m 700 "$2" && tar -xf "$1" -C "$2" pki`,
			`tar -xOf "$1" --wildcards 'etcd/*' > "$3"`,
		} {
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", file, a.Dir, snapshotFile).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
		}
		// What `etcdutl snapshot restore` calls.
		if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: snapshotFile, Name: "default", OutputDataDir: store,
			PeerURLs: []string{"http://localhost:2380"}, InitialCluster: "default=http://localhost:2380", InitialClusterToken: "etcd-cluster",
			RevisionBump: bump, MarkCompacted: true,
		}); err != nil {
			t.Fatal(err)
		}
		etcd.Start()
	})
}

// loseAndRestore takes a backup of a server under load, kills it, lets it be restored, starts it again, and looks what there is.
func loseAndRestore(t *testing.T, a *framework.Atoll, restore func(file string)) {
	t.Helper()
	const (
		writers = 4
		before  = 300 // writes that are acknowledged when the backup begins, at least
		during  = 50  // and again after it
	)
	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "kept")
	load := startLoad(t, clients, cluster, writers)
	load.waitFor(t, before)
	acknowledged := load.snapshot()
	file := filepath.Join(t.TempDir(), "backup.tar")
	said := a.MustRun("backup", "-o", file)
	if !strings.Contains(said, "Wrote "+file) || !strings.Contains(said, "restore "+file) {
		t.Errorf("atoll backup says:\n%s", said)
	}
	load.waitFor(t, len(load.snapshot())+during)
	a.Kill()
	load.stop()
	highest := load.highest()

	kubeconfig := filepath.Join(t.TempDir(), "old.kubeconfig")
	data, err := os.ReadFile(a.Kubeconfig)
	if err == nil {
		err = os.WriteFile(kubeconfig, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	restore(file)
	a.Start()

	configMaps := clients.Kube.CoreV1().ConfigMaps("default") // the clients of before, with the authority of before
	in := client.In(t.Context(), cluster)
	list, err := configMaps.List(in, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]uint64{}
	for _, cm := range list.Items {
		there[cm.Name] = versionOf(t, cm.ResourceVersion)
	}
	for name, version := range acknowledged {
		if there[name] != version {
			t.Errorf("%s was acknowledged with version %d before the backup, and is %d now", name, version, there[name])
		}
	}
	made, err := configMaps.Create(in, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now := versionOf(t, made.ResourceVersion); now <= highest || versionOf(t, list.ResourceVersion) <= highest {
		t.Errorf("a write has version %d and a list %s; before the restore %d was seen", now, list.ResourceVersion, highest)
	}
	t.Logf("%d writes acknowledged before the backup, %d there; versions up to %d, then %s", len(acknowledged), len(there), highest, made.ResourceVersion)
	for _, position := range []uint64{highest, acknowledged[fmt.Sprintf(loadName, 0, 0)]} {
		expired(t, in, "ConfigMaps, from the cache", position, configMaps.Watch)
		expired(t, in, "Events, from the store", position, clients.Kube.CoreV1().Events("default").Watch)
	}
	out, err := a.Run("kubectl", "--kubeconfig", kubeconfig, "--server", a.URL+"/clusters/root:kept", "get", "configmap", "after", "-o", "name")
	if err != nil || strings.TrimSpace(out) != "configmap/after" {
		t.Errorf("kubectl with the kubeconfig of before: %v\n%s", err, out)
	}
}

// refuseBadBackups restores what is no whole backup, and then looks that nothing was made.
func refuseBadBackups(t *testing.T, a *framework.Atoll, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 1
	dir := t.TempDir()
	for reason, tc := range map[string]struct {
		data []byte
		want string
	}{
		"cut off": {data[:len(data)-len(data)/3], "cut off"},
		"flipped": {flipped, "is damaged"},
		"foreign": {[]byte("kind: Config\n"), "no backup of Atoll"},
	} {
		bad, to := filepath.Join(dir, "bad"), filepath.Join(dir, "to")
		if err := os.WriteFile(bad, tc.data, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := a.Run("restore", bad, "--root-directory", to)
		if err == nil {
			t.Errorf("%s: it was restored:\n%s", reason, out)
		}
		clearError(t, out, reason, bad, tc.want)
		if _, err := os.Stat(to); !os.IsNotExist(err) {
			t.Errorf("%s: %s was made: %v", reason, to, err)
		}
	}
	out, err := a.Run("restore", file, "--root-directory", a.Dir)
	if err == nil {
		t.Errorf("it was restored over another:\n%s", out)
	}
	clearError(t, out, "over another", a.Dir, "holds data already", "--root-directory")
}

const loadName = "w%d-%d"

// load are writers that make ConfigMaps until they are stopped, or the server is.
type load struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	acked map[string]uint64 // versions by name
	last  error
}

func startLoad(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, writers int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(client.In(t.Context(), cluster))
	l := &load{cancel: cancel, acked: map[string]uint64{}}
	t.Cleanup(l.stop)
	for writer := range writers {
		l.wait.Go(func() {
			for i := 0; ; i++ {
				made, err := clients.Kube.CoreV1().ConfigMaps("default").Create(ctx,
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf(loadName, writer, i)}}, metav1.CreateOptions{})
				var version uint64
				if err == nil {
					version, err = strconv.ParseUint(made.ResourceVersion, 10, 64)
				}
				l.mu.Lock()
				if l.last = err; err == nil {
					l.acked[made.Name] = version
				}
				l.mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	return l
}

// stop ends the writers and waits for them.
func (l *load) stop() {
	l.cancel()
	l.wait.Wait()
}

// snapshot is what was acknowledged until now.
func (l *load) snapshot() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.acked)
}

func (l *load) highest() uint64 {
	var highest uint64
	for _, version := range l.snapshot() {
		highest = max(highest, version)
	}
	return highest
}

func (l *load) waitFor(t *testing.T, writes int) {
	t.Helper()
	framework.Eventually(t, patience, fmt.Sprintf("%d writes", writes), func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.acked) < writes {
			return fmt.Sprintf("%d are acknowledged, the last error is %v", len(l.acked), l.last)
		}
		return ""
	})
}

func versionOf(t *testing.T, resourceVersion string) uint64 {
	t.Helper()
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// expired wants a watch to be told that its position is too old.
func expired(t *testing.T, ctx context.Context, what string, position uint64, start func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	t.Helper()
	watching, err := start(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(position, 10)})
	if err == nil {
		defer watching.Stop()
		select {
		case event := <-watching.ResultChan():
			if event.Type == watch.Error {
				err = apierrors.FromObject(event.Object)
			} else {
				err = fmt.Errorf("an event of type %q", event.Type)
			}
		case <-time.After(patience):
			err = errors.New("nothing comes")
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch of %s from %d, before the restore: %v, want 410", what, position, err)
	}
}
