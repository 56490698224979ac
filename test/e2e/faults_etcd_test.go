package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestDamagedStore damages files of the embedded etcd: the server does not start on them, and says what to do in words.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	a.Stop()
	flip := func(from, to int) func(t *testing.T, file string) {
		return func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i := from; i < min(to, len(data)); i++ {
				data[i] ^= 0xff
			}
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]struct {
		file   string // of the member
		damage func(t *testing.T, file string)
	}{
		"the store's pages":    {"snap/db", flip(0, 1<<20)},
		"the store is cut off": {"snap/db", func(t *testing.T, file string) { must(t, os.Truncate(file, 5000)) }},
		"the log's beginning":  {"wal/*.wal", flip(0, 64)},
		"the log is cut off":   {"wal/*.wal", func(t *testing.T, file string) { must(t, os.Truncate(file, 3)) }},
		"the log is not there": {"wal/*.wal", func(t *testing.T, file string) { must(t, os.Remove(file)) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "atoll")
			must(t, os.CopyFS(dir, os.DirFS(a.Dir)))
			must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				return os.Chmod(path, 0o600)
			}))
			found, err := filepath.Glob(filepath.Join(dir, "etcd", "data", "member", tc.file))
			if err != nil || len(found) != 1 {
				t.Fatalf("%s: found %v, error %v", tc.file, found, err)
			}
			tc.damage(t, found[0])
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, framework.Binary(t), "start", "--root-directory="+dir, "--secure-port=0").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
				t.Errorf("it ended with %v, want an exit code:\n%s", err, out)
			}
			clearError(t, string(out), name, filepath.Join(dir, "etcd"), "atoll restore")
		})
	}
}

// TestDamagedBytes changes bytes in the middle of each kind of the embedded etcd's files, at places drawn by lot. A server that starts on
// them has all that was acknowledged, as it was; else it says which file it is, and what to do.
func TestDamagedBytes(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "shop")
	// So many that etcd has made a snapshot.
	writers := startLoad(t, clients, cluster, 8)
	writers.waitFor(t, 2500)
	writers.stop()
	const value = "a value that the disk changes"
	in := client.In(t.Context(), cluster)
	_, err := clients.Kube.CoreV1().ConfigMaps("default").Create(in, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "valued"}, Data: map[string]string{"value": value},
	}, metav1.CreateOptions{})
	must(t, err)
	objects := func(clients *client.Clients) map[string]string {
		t.Helper()
		list, err := clients.Kube.CoreV1().ConfigMaps("").List(in, metav1.ListOptions{})
		must(t, err)
		found := map[string]string{}
		for _, cm := range list.Items {
			found[cm.Namespace+"/"+cm.Name] = fmt.Sprint(cm.UID, cm.ResourceVersion, cm.Data)
		}
		return found
	}
	// What the writers gave up when they were told to stop may be written a moment later, and before the server ends.
	a.Stop()
	a.Start()
	want := objects(a.Clients())
	a.Stop()

	// Where the damage may be: offsets in a file.
	pages := func(kind byte) func([]byte) []int {
		return func(data []byte) (at []int) {
			for page := 2 * os.Getpagesize(); page < len(data); page += os.Getpagesize() {
				if data[page+8] == kind && data[page+9] == 0 { // as bbolt writes it
					for i := range 512 {
						at = append(at, page+i)
					}
				}
			}
			return at
		}
	}
	anywhere := func(data []byte) (at []int) {
		for i := range bytes.TrimRight(data, "\x00") {
			at = append(at, i)
		}
		return at
	}
	tries := lasting(3, 30)
	for _, tc := range []struct {
		name, file string
		where      func([]byte) []int
		refused    bool // always
	}{
		{"the log", "wal/*.wal", anywhere, false},
		{"a page of branches", "snap/db", pages(1), false}, // it may be free
		{"a page of rows", "snap/db", pages(2), false},
		{"a value", "snap/db", func(data []byte) (at []int) {
			for i := range value {
				at = append(at, bytes.LastIndex(data, []byte(value))+i)
			}
			return at
		}, true},
		{"the store", "snap/db", anywhere, false},
		{"a snapshot", "snap/*.snap", anywhere, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refusals := 0
			for range int(tries) {
				root := filepath.Join(t.TempDir(), "atoll")
				must(t, os.CopyFS(root, os.DirFS(a.Dir)))
				found, err := filepath.Glob(filepath.Join(root, "etcd", "data", "member", tc.file))
				if err != nil || len(found) == 0 {
					t.Fatalf("%s: found %v, error %v", tc.file, found, err)
				}
				file := found[len(found)-1]
				data, err := os.ReadFile(file)
				must(t, err)
				places := tc.where(data)
				if len(places) == 0 {
					t.Fatalf("%s has no such place", file)
				}
				at := places[rand.IntN(len(places))]
				for i := at; i < min(at+4, len(data)); i++ {
					data[i] ^= 0xff
				}
				must(t, os.WriteFile(file, data, 0o600))
				again := framework.NewAtoll(t, "--root-directory="+root)
				again.Kubeconfig = filepath.Join(root, "admin.kubeconfig")
				words := again.TryStart()
				if words != "" {
					refusals++
					clearError(t, words, fmt.Sprintf("%s is damaged at %d", file, at), file, "is damaged", "atoll restore")
					continue
				}
				if tc.refused {
					t.Errorf("%s is damaged at %d, and the server starts", file, at)
				}
				if diff := cmp.Diff(want, objects(again.Clients())); diff != "" {
					t.Errorf("%s is damaged at %d, and the server starts with other objects (-acknowledged +there):\n%s", file, at, diff)
				}
				again.Stop()
			}
			t.Logf("%d of %d starts are refused; at the others all is there", refusals, int(tries))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fullDisk, and the process that made it, is the source of a disk that is filled up.
const fullDisk = "atoll-full-disk-"

// unmountLeftDisks removes what tests that were killed could not.
func unmountLeftDisks(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // source, directory, ...
		pid, ours := strings.CutPrefix(fields[0], fullDisk)
		if !ours {
			continue
		}
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue // it is in use
		} else if !os.IsNotExist(err) {
			t.Fatal(err)
		}
		t.Logf("unmount %s, which process %s left", fields[1], pid)
		must(t, syscall.Unmount(fields[1], syscall.MNT_DETACH))
	}
}

// TestFullDisk fills the disk below a server that writes: it ends and says so; with room again, everything that was
// acknowledged is there. Whether a start on a full disk succeeds is up to the room that etcd's files have in them.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "disk")
	must(t, os.Mkdir(dir, 0o700))
	unmountLeftDisks(t)
	// Only root may.
	if err := syscall.Mount(fmt.Sprint(fullDisk, os.Getpid()), dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Skipf("NOT TESTED: no disk can be made that fills up: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }) // also if the server did not stop
	a := framework.NewAtoll(t, "--root-directory="+dir)
	a.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	a.Start()
	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "full")
	var acknowledged []string
	write := func(name string) error {
		ctx, cancel := context.WithTimeout(client.In(t.Context(), cluster), oneTry)
		defer cancel()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"data": strings.Repeat("x", 500_000)}}
		_, err := clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		if err == nil {
			acknowledged = append(acknowledged, name)
		}
		return err
	}
	for i := range 20 {
		must(t, write(fmt.Sprintf("before-%d", i)))
	}
	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	var last error
	for i := 0; i < 1000 && last == nil; i++ {
		last = write(fmt.Sprintf("while-%d", i))
	}
	if last == nil {
		t.Fatal("1,000 writes of 500 KB each were acknowledged on a full disk")
	}
	t.Logf("%d writes were acknowledged, then: %v", len(acknowledged), last)
	clearError(t, a.Ends(time.Minute), "a disk that fills up", "the disk of "+dir, "is full", "nothing that was acknowledged is lost")

	must(t, os.Remove(ballast))
	a.Start()
	allThere(t, clients, cluster, acknowledged)
	must(t, write("after"))
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	for _, size := range []int{1 << 20, 1 << 12} {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte{1}, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
}

func allThere(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, acknowledged []string) {
	t.Helper()
	list, err := clients.Kube.CoreV1().ConfigMaps("default").List(client.In(t.Context(), cluster), metav1.ListOptions{})
	must(t, err)
	there := map[string]bool{}
	for _, cm := range list.Items {
		there[cm.Name] = true
	}
	for _, name := range acknowledged {
		if !there[name] {
			t.Errorf("%s was acknowledged and is gone", name)
		}
	}
}

// TestEtcdFaults takes an external etcd away from a server in several ways: it is killed, stopped, and cut off, with and
// without anybody being told. Requests then end in time and say why, /readyz does, too, and everything goes on by itself.
func TestEtcdFaults(t *testing.T) {
	t.Parallel() // most of it is waiting
	etcd := framework.StartEtcd(t)
	between := framework.StartProxy(t, strings.TrimPrefix(etcd.URL, "https://"))
	a := framework.StartAtoll(t, etcd.FlagsThrough("https://"+between.Address)...)
	clients := a.Clients()
	cluster := framework.MakeWorkspace(t, clients, "root", "shop")
	var acknowledged []string
	n := 0
	write := func(patience time.Duration) error {
		n++
		ctx, cancel := context.WithTimeout(client.In(t.Context(), cluster), patience)
		defer cancel()
		name := fmt.Sprintf("object-%d", n)
		_, err := clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil {
			acknowledged = append(acknowledged, name)
		}
		return err
	}
	for _, fault := range []struct {
		name         string
		long         bool // for `make soak` alone
		strike, heal func()
	}{
		{"etcd is killed", false, etcd.Kill, func() {
			etcd.Start()
			between.Through(framework.Dialer(strings.TrimPrefix(etcd.URL, "https://")))
		}},
		{"etcd is stopped", false, etcd.Pause, etcd.Resume},
		{"connections are refused", true, between.Refuse, between.Restore},
		{"nothing passes, and nobody is told", true, func() { between.Hold(framework.Requests, framework.Answers) }, between.Restore},
	} {
		if fault.long && !soaking() {
			continue
		}
		t.Run(fault.name, func(t *testing.T) {
			etcd.Use(t)
			a.Use(t)
			for range 10 {
				must(t, write(time.Minute))
			}
			pid := a.PID()
			fault.strike()
			began := time.Now()
			err := write(2 * time.Minute)
			if err == nil {
				t.Error("a write was acknowledged without etcd")
			} else if took := time.Since(began); took > 75*time.Second {
				t.Errorf("the answer took %s: %v", took, err)
			}
			t.Logf("a write is answered after %s: %v", time.Since(began).Round(100*time.Millisecond), err)
			framework.Eventually(t, 2*time.Minute, "/readyz says that etcd is away", func() string {
				if text := readyzText(t, a); !strings.Contains(text, "[-]etcd") {
					return text
				}
				return ""
			})
			fault.heal()
			began = time.Now()
			framework.Eventually(t, 2*time.Minute, "writes go on", func() string { return problemOf(write(oneTry)) })
			framework.Eventually(t, 2*time.Minute, "it is ready", func() string {
				if text := readyzText(t, a); text != "" {
					return text
				}
				return ""
			})
			framework.MakeWorkspace(t, clients, "root", fmt.Sprintf("after-%d", n))
			t.Logf("recovery after %s: %s", fault.name, time.Since(began).Round(100*time.Millisecond))
			if a.PID() != pid {
				t.Error("the server is another process")
			}
			allThere(t, clients, cluster, acknowledged)
		})
	}
}

// readyzText is what /readyz says of a server that is not ready, and "" of one that is.
func readyzText(t *testing.T, a *framework.Atoll) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var code int
	body, err := a.Clients().Kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(client.In(ctx, "root")).StatusCode(&code).Raw()
	if err == nil && code == http.StatusOK {
		return ""
	}
	return fmt.Sprintf("%d %s: %v", code, body, err)
}
