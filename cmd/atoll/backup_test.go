package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/backupfile"
	"atoll.dev/atoll/server"
)

// typed runs a command line and returns what it printed, both streams.
func typed(t *testing.T, command func(genericiooptions.IOStreams) *cobra.Command, args ...string) (string, error) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	cmd := command(streams)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String() + errOut.String(), err
}

func refuses(t *testing.T, reason string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: done", reason)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %q does not say %q", reason, err, word)
		}
	}
}

// stoppedServer is the root directory of a server that does not run, whose store has one row and a level.
func stoppedServer(t *testing.T) (root string, revision int64) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "server")
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: etcdDirectory(root)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = etcd.Client.Put(t.Context(), "/atoll/installation/level", "7")
	if err != nil {
		t.Fatal(err)
	}
	got, err := etcd.Client.Put(t.Context(), "/registry/things/a", "1")
	if err = errors.Join(err, etcd.Stop()); err != nil {
		t.Fatal(err)
	}
	o := server.NewOptions()
	o.RootDirectory = root
	if _, err := server.EtcdTLS(o); err != nil { // makes the authority
		t.Fatal(err)
	}
	return root, got.Header.Revision
}

func TestBackupAndRestoreOfAStoppedServer(t *testing.T) {
	root, revision := stoppedServer(t)
	file := filepath.Join(t.TempDir(), "backup.tar")
	out, err := typed(t, newBackupCommand, "--root-directory", root, "-o", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Wrote " + file, "checksum verified", "every Secret", "restore " + file + " --root-directory"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	_, err = typed(t, newBackupCommand, "--root-directory", root, "-o", file)
	refuses(t, "over another backup", err, file, "already", "--output")
	_, err = typed(t, newBackupCommand, "--root-directory", t.TempDir(), "-o", file+"2")
	refuses(t, "of no server", err, "no store")

	to, began := filepath.Join(t.TempDir(), "to"), time.Now()
	if out, err = typed(t, newRestoreCommand, file, "--root-directory", to); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Restored into " + to, "start --root-directory " + to, "cluster confirm NAME restored"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	for _, key := range []string{"pki/ca.crt", "pki/ca.key", "pki/etcd.key"} {
		before, err := os.ReadFile(filepath.Join(root, key))
		after, err2 := os.ReadFile(filepath.Join(to, key))
		if err = errors.Join(err, err2); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s is another one: %v", key, err)
		}
	}
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: etcdDirectory(to)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := etcd.Client.Get(t.Context(), "/registry/things/a")
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != revision || got.Header.Revision < began.Unix()*100_000 {
		t.Errorf("restored is %v, %v; want the row of revision %d, and a revision of 100,000 for each second until now", got, err, revision)
	}
	if level, err := etcd.Client.Get(t.Context(), "/atoll/installation/level"); err != nil || len(level.Kvs) != 1 || string(level.Kvs[0].Value) != "7" {
		t.Errorf("the level is %v, %v; want that of the backup", level, err)
	}
	// Who restores into an etcd of his own takes the number from here.
	if want := fmt.Sprintf("revision %d, raised by %d to %d", revision, got.Header.Revision-revision, got.Header.Revision); !strings.Contains(out, want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	_, err = typed(t, newBackupCommand, "--root-directory", to, "-o", file+"3")
	refuses(t, "of a server that runs", err, "in use", "leave out --root-directory")
	said, err := typed(t, newRestoreCommand, file, "--root-directory", to)
	refuses(t, "over a server that runs", err, to, "in use")
	if strings.Contains(said, "Restoring") {
		t.Errorf("over a server that runs: it says that it begins what it refuses: %s", said)
	}
	if err := etcd.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err = typed(t, newRestoreCommand, file, "--root-directory", to)
	refuses(t, "over a server that does not run", err, to, "holds data already", "--root-directory")

	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "photo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = typed(t, newRestoreCommand, file, "--root-directory", other)
	refuses(t, "into a directory of somebody", err, other, "holds photo already")
	holds(t, other, "photo")
	_, err = typed(t, newRestoreCommand, filepath.Join(other, "photo"), "--root-directory", to+"2")
	refuses(t, "of a photo", err, "photo", "no backup of Atoll")
}

// TestRestoresNeverGoBack: an old backup once more, after one that was made of what was restored in between.
func TestRestoresNeverGoBack(t *testing.T) {
	lost, seen := stoppedServer(t)
	dir := t.TempDir()
	backUp := func(root, name string) {
		t.Helper()
		if _, err := typed(t, newBackupCommand, "--root-directory", root, "-o", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	restoreAndWrite := func(name, root string) string {
		t.Helper()
		root = filepath.Join(dir, root)
		if _, err := typed(t, newRestoreCommand, filepath.Join(dir, name), "--root-directory", root); err != nil {
			t.Fatal(err)
		}
		etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: etcdDirectory(root)})
		if err != nil {
			t.Fatal(err)
		}
		got, err := etcd.Client.Put(t.Context(), "/registry/things/b", root)
		if err = errors.Join(err, etcd.Stop()); err != nil {
			t.Fatal(err)
		}
		if got.Header.Revision <= seen {
			t.Errorf("%s, of %s, writes revision %d; clients saw %d", root, name, got.Header.Revision, seen)
		}
		seen = got.Header.Revision
		return root
	}
	backUp(lost, "b0")
	first := restoreAndWrite("b0", "first")
	backUp(first, "b1")
	restoreAndWrite("b1", "second")
	restoreAndWrite("b0", "third")
}

// holds compares the names in a directory.
func holds(t *testing.T, dir, want string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// TestRestoreThatFailsLeavesNothing: of a backup whose checksum is right and whose store is none.
func TestRestoreThatFailsLeavesNothing(t *testing.T) {
	write := func(h backupfile.Header) string {
		path := filepath.Join(t.TempDir(), "backup")
		var content bytes.Buffer
		err := backupfile.Write(&content, h, []backupfile.Key{{Name: "ca.key", Data: []byte("key")}}, strings.NewReader("no store"))
		if err = errors.Join(err, os.WriteFile(path, content.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parent := t.TempDir()
	_, err := typed(t, newRestoreCommand, write(backupfile.Header{StoreFormat: 1}), "--root-directory", filepath.Join(parent, "new"))
	refuses(t, "no store", err, "make a store")
	holds(t, parent, "")
	_, err = typed(t, newRestoreCommand, write(backupfile.Header{StoreFormat: 1}), "--root-directory", parent)
	refuses(t, "no store", err, "make a store")
	holds(t, parent, "")
	_, err = typed(t, newRestoreCommand, write(backupfile.Header{StoreFormat: 7}), "--root-directory", filepath.Join(parent, "new"))
	refuses(t, "newer", err, "format version 7", "newer binary")
	holds(t, parent, "")

	b, err := backupfile.Open(write(backupfile.Header{StoreFormat: 1}))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = restore(interrupted, b, filepath.Join(parent, "new"), time.Now(), func() {}, (*embeddedetcd.Restoration).Commit)
	refuses(t, "interrupted", err, context.Canceled.Error())
	holds(t, parent, "")
}

// TestRestoreThatFailsAtItsEndLeavesNothing: when the keys are there already. A store without them would start with
// another authority.
func TestRestoreThatFailsAtItsEndLeavesNothing(t *testing.T) {
	from, _ := stoppedServer(t)
	file := filepath.Join(t.TempDir(), "backup")
	if _, err := typed(t, newBackupCommand, "--root-directory", from, "-o", file); err != nil {
		t.Fatal(err)
	}
	b, err := backupfile.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	parent := t.TempDir()
	root := filepath.Join(parent, "new")
	_, err = restore(t.Context(), b, root, time.Now(), func() {}, func(*embeddedetcd.Restoration) error {
		holds(t, root, "etcd pki")
		return errors.New("the disk is broken")
	})
	refuses(t, "at its end", err, "the disk is broken")
	holds(t, parent, "")
}

// TestBackupThatFailsLeavesNothing: a file that has the name of a backup is one.
func TestBackupThatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	for reason, tc := range map[string]struct {
		write func(context.Context, io.Writer) error
		want  string
	}{
		"broken off": {func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "atoll-backup.json\x00")
			return errors.Join(err, errors.New("connection lost"))
		}, "connection lost"},
		"not whole": {func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "atoll-backup.json\x00")
			return err
		}, "not a whole backup"},
		"something else": {func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "<html>")
			return err
		}, "no backup of Atoll"},
	} {
		_, err := writeBackup(t.Context(), file, &progress{out: io.Discard}, tc.write)
		refuses(t, reason, err, tc.want)
		holds(t, dir, "")
	}
}

// TestNothingIsOverwritten: of two commands with one --output the second one fails, however late it sees the other.
func TestNothingIsOverwritten(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	content := func(want string) {
		t.Helper()
		holds(t, dir, "backup")
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("it holds %q, want %q: %v", got, want, err)
		}
	}
	write := func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "second")
		return errors.Join(err, os.WriteFile(file, []byte("first"), 0o600))
	}
	fine := func(string) error { return nil }
	refuses(t, "it came meanwhile", writeChecked(t.Context(), file, &progress{out: io.Discard}, write, fine), "is there already", "--output")
	content("first")
	refuses(t, "it was there", writeChecked(t.Context(), file, &progress{out: io.Discard}, write, fine), "is there already", "--output")
	content("first")

	t.Chdir(t.TempDir())
	refuses(t, "standard output", writeChecked(t.Context(), "-", &progress{out: io.Discard}, write, fine), "name a file")
	holds(t, ".", "")

	noLinks := func(string, string) error { return syscall.EPERM }
	other := filepath.Join(t.TempDir(), "other")
	for _, name := range []string{file, other} {
		if err := os.WriteFile(name+".partial", []byte("third"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refuses(t, "it was there, and there are no links", giveName(file+".partial", file, noLinks), "is there already")
	if err := os.Remove(file + ".partial"); err != nil {
		t.Fatal(err)
	}
	content("first")
	if err := giveName(other+".partial", other, noLinks); err != nil {
		t.Errorf("where there are no links: %v", err)
	}
	holds(t, filepath.Dir(other), "other")
}

// TestBackupSaysWhyThereIsNone: the server's words reach who asked, before and after the first byte.
func TestBackupSaysWhyThereIsNone(t *testing.T) {
	for reason, tc := range map[string]struct {
		answer http.HandlerFunc
		words  []string
	}{
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"administrators may","reason":"Forbidden","code":403}`)
		}, []string{"administrators may"}},
		"no Atoll": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "page not found", http.StatusNotFound) }, []string{"404", "page not found"}},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", server.BackupErrorTrailer)
			_, _ = io.WriteString(w, "atoll-backup.json\x00")
			w.Header().Set(server.BackupErrorTrailer, "etcd is gone")
		}, []string{"broke off", "etcd is gone"}},
		"torn off": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "atoll-backup.json\x00")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"EOF"}},
	} {
		s := httptest.NewServer(tc.answer)
		defer s.Close()
		dir := t.TempDir()
		_, err := typed(t, newBackupCommand, "--kubeconfig", writeKubeconfig(t, dir, s.URL), "-o", filepath.Join(dir, "backup"))
		refuses(t, reason, err, append(tc.words, "back up "+s.URL)...)
		holds(t, dir, "kubeconfig")
	}
}

// writeKubeconfig writes one of root on a server and returns its name.
func writeKubeconfig(t *testing.T, dir, server string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["root"] = &clientcmdapi.Cluster{Server: server + "/clusters/root"}
	config.Contexts["root"] = &clientcmdapi.Context{Cluster: "root"}
	config.CurrentContext = "root"
	name := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, name); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestBackupNamesItsFile(t *testing.T) {
	root, _ := stoppedServer(t)
	t.Chdir(t.TempDir())
	out, err := typed(t, newBackupCommand, "--root-directory", root)
	if err != nil || !regexp.MustCompile(`^Wrote atoll-backup-\d{8}-\d{6}\.tar: [0-9.]+ KiB, `).MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0.0 KiB", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 29: "1.5 GiB"} {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) = %q, want %q", bytes, got, want)
		}
	}
}
