package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/backupfile"
)

// TestBackup: the answer is a backup with the server's keys and everything that was written before it.
func TestBackup(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.makeAdmin(t, shop, "alice")
	made, err := r.in(t, shop).CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "before"}}, metav1.CreateOptions{})
	must(t, err)
	got := r.ask(t, asked{path: BackupPath, token: root})
	if got.code != http.StatusOK {
		t.Fatalf("%d %.300s", got.code, got.body)
	}
	file := filepath.Join(t.TempDir(), "backup")
	mustWrite(t, file, got.body)
	b, err := backupfile.Open(file)
	must(t, err)
	defer b.Close()
	version, err := strconv.ParseInt(made.ResourceVersion, 10, 64)
	must(t, err)
	if b.Revision < version || b.StoreFormat != 1 || b.Server != r.URL() || b.Created.IsZero() {
		t.Errorf("header %+v; a write before had revision %d", b.Header, version)
	}
	restored := t.TempDir()
	var keys []backupfile.Key
	must(t, b.Read(func(k backupfile.Key) error { keys = append(keys, k); return nil }, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}))
	must(t, RestoreKeys(restored, keys))
	want, have := contents(t, r.options.pkiDirectory()), contents(t, filepath.Join(restored, "pki"))
	if diff := cmp.Diff(want, have); diff != "" || want["ca.key"] == "" || want["syncers/ca.key"] == "" {
		t.Errorf("the keys (-want +got):\n%s", diff)
	}
	if err := RestoreKeys(restored, keys); err == nil {
		t.Error("keys were restored over others")
	}
	if names := fileNames(t, restored); !slices.Equal(names, []string{"pki"}) {
		t.Errorf("left are %q", names)
	}

	for _, tc := range []struct {
		asked
		want   int
		reason string
	}{
		{asked{path: BackupPath, token: alice}, 403, "an administrator of a workspace is none of the server"},
		{asked{path: BackupPath, token: monitor}, 403, "monitoring is not"},
		{asked{path: BackupPath}, 403, "a stranger is nobody"},
		{asked{path: BackupPath, token: "wrong"}, 401, "nor is who shows a wrong credential"},
		{asked{path: "/clusters/shopname" + BackupPath, token: alice}, 403, "a workspace has no backup"},
		{asked{path: "/clusters/system:admin" + BackupPath, token: root}, 404, "no logical cluster has"},
		{asked{path: "/clusters/*" + BackupPath, token: root}, 404, "nor all of them"},
		{asked{path: BackupPath, token: root, method: http.MethodPost}, 405, "it changes nothing"},
	} {
		if got := r.ask(t, tc.asked); got.code != tc.want || strings.Contains(got.body, "PRIVATE KEY") {
			t.Errorf("%s %s as %q: %d %.200s, want %d: %s", tc.method, tc.path, tc.token, got.code, got.body, tc.want, tc.reason)
		}
	}
}

// TestBackupOfLinkedKeys: keys that lie elsewhere, as they do for who keeps them on another disk or mounts them, are backed up; where one
// is missing there is no backup.
func TestBackupOfLinkedKeys(t *testing.T) {
	r := startServer(t, nil)
	pki := r.options.pkiDirectory()
	want := contents(t, pki)
	elsewhere := filepath.Join(t.TempDir(), "keys")
	must(t, os.Rename(pki, elsewhere))
	must(t, os.Symlink(elsewhere, pki))
	key := filepath.Join(elsewhere, "syncers", "ca.key")
	must(t, os.Rename(key, filepath.Join(filepath.Dir(elsewhere), "mounted")))
	must(t, os.Symlink("../../mounted", key))
	b, err := openBackup(t.Context(), r.options, r.etcd)
	must(t, err)
	have := map[string]string{}
	for _, k := range b.keys {
		have[k.Name] = string(k.Data)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("the keys (-want +got):\n%s", diff)
	}
	must(t, b.close())

	must(t, os.Remove(key))
	if _, err = openBackup(t.Context(), r.options, r.etcd); err == nil || !strings.Contains(err.Error(), "syncers/ca.key") {
		t.Errorf("without a key: error %v, want it named", err)
	}
	must(t, os.Symlink("..", key))
	if b, err = openBackup(t.Context(), r.options, r.etcd); err == nil {
		must(t, b.close())
		t.Error("a link that leads back ends")
	}
	if err := RestoreKeys(t.TempDir(), []backupfile.Key{{Name: "ca.crt"}}); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("restored without the key of the authority: %v", err)
	}
}

// TestBackupWithoutAStore: what cannot begin is an error, not half a file.
func TestBackupWithoutAStore(t *testing.T) {
	r := startServer(t, withTokens(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := openBackup(ctx, r.options, r.etcd)
	if err == nil {
		must(t, b.close())
		t.Error("begun without a store that answers")
	}
	must(t, os.RemoveAll(filepath.Join(r.options.RootDirectory, "pki")))
	if got := r.ask(t, asked{path: BackupPath, token: root}); got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "directory of keys") {
		t.Errorf("without keys: %d %.200s", got.code, got.body)
	}
}

// TestStopEndsBackups: who takes nothing of his backup, or sends nothing of what he imports, does not keep the server from
// ending.
func TestStopEndsBackups(t *testing.T) {
	t.Parallel()
	r := startServer(t, withTokens(t))
	for i := range 32 { // more than what lies between both ends
		_, err := r.etcd.Put(t.Context(), fmt.Sprintf("/atoll/test/%d", i), strings.Repeat("x", 1<<20))
		must(t, err)
	}
	for _, http2 := range []bool{false, true} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(r.CACertificate())
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2}}
		defer client.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL()+BackupPath, nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+root)
		resp, err := client.Do(req)
		must(t, err)
		defer resp.Body.Close()
		_, err = io.ReadFull(resp.Body, make([]byte, 100))
		must(t, err)
		if (resp.ProtoMajor == 2) != http2 {
			t.Errorf("it is %s", resp.Proto)
		}

		body, sends := io.Pipe()
		defer sends.Close()
		upload, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL()+ImportPath+"?workspace=root:shop:new", body)
		must(t, err)
		upload.Header.Set("Authorization", "Bearer "+root)
		go func() {
			if resp, err := client.Do(upload); err == nil {
				_ = resp.Body.Close()
			}
		}()
		_, err = sends.Write([]byte("{"))
		must(t, err)
		uploads := 1
		if http2 {
			uploads = 2
		}
		waitFor(t, 20*time.Second, "the import has begun", func() (string, bool) {
			open := openFiles(t, filepath.Join(r.options.RootDirectory, "import-"))
			return fmt.Sprint(open), len(open) == uploads
		})
	}
	began := time.Now()
	must(t, r.stop())
	if took := time.Since(began); took > 50*time.Second { // requests have a minute
		t.Errorf("two backups that nobody reads and two imports that nobody sends delayed the end by %s", took)
	}
	if open := openFiles(t, filepath.Join(r.options.RootDirectory, "import-")); len(open) > 0 {
		t.Errorf("open still: %q", open)
	}
}

// openFiles are those that this process has open, by how their names begin.
func openFiles(t *testing.T, prefix string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var open []string
	for _, e := range entries {
		// What cannot be read was closed since.
		if name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(name, prefix) {
			open = append(open, name)
		}
	}
	return open
}

// TestImpatientWriterEnds: a Write that waits for a client ends when it is told, over either protocol.
func TestImpatientWriterEnds(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		var (
			begun   = make(chan *impatientWriter, 1)
			written atomic.Int64
			ended   = make(chan error, 1)
		)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			out := newImpatientWriter(w)
			begun <- out
			for {
				if _, err := out.Write(make([]byte, 1<<20)); err != nil {
					ended <- err
					return
				}
				written.Add(1)
			}
		}))
		s.EnableHTTP2 = http2
		s.StartTLS()
		resp, err := s.Client().Get(s.URL)
		must(t, err)
		if (resp.ProtoMajor == 2) != http2 {
			t.Errorf("it is %s", resp.Proto)
		}
		out := <-begun
		// It waits once nothing was written for a while.
		deadline, last, since := time.Now().Add(time.Minute), int64(-1), time.Now()
		for time.Since(since) < 300*time.Millisecond {
			if now := written.Load(); now != last {
				last, since = now, time.Now()
			}
			if time.Now().After(deadline) {
				t.Fatalf("somebody takes %d MiB that nobody reads", last)
			}
			time.Sleep(10 * time.Millisecond)
		}
		out.end()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("HTTP/2 %v: it goes on waiting", http2)
		}
		if _, err := out.Write(nil); !errors.Is(err, errStopping) {
			t.Errorf("written after its end: %v", err)
		}
		must(t, resp.Body.Close())
		s.Close()
	}
}

// TestBackupSaysWhyItBrokeOff: what fails behind the first byte reaches who asked, over either protocol.
func TestBackupSaysWhyItBrokeOff(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b := &backup{snapshot: &embeddedetcd.Snapshot{Reader: iotest.ErrReader(errors.New("etcd is gone"))}}
			b.send(r.Context(), newImpatientWriter(w))
		}))
		s.EnableHTTP2 = http2
		s.StartTLS()
		resp, err := s.Client().Get(s.URL)
		must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, errors.Join(err, resp.Body.Close()))
		if why := resp.Trailer.Get(BackupErrorTrailer); !strings.Contains(why, "etcd is gone") {
			t.Errorf("%s: the trailer is %q", resp.Proto, why)
		}
		s.Close()
	}
}

// contents are the files below directory, by their names.
func contents(t *testing.T, directory string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, directory+"/")] = string(data)
		return err
	}))
	return all
}
