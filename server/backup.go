package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/backupfile"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// BackupPath answers a GET with a backup of everything, for administrators of the server. It is outside of /clusters/.
	BackupPath = "/atoll/backup"
	// BackupErrorTrailer is the HTTP trailer with why a backup that had begun did not come to its end.
	BackupErrorTrailer = "Atoll-Backup-Error"
)

// longRunning adds backups, exports and imports to what has no limit of time and is not counted as a request in flight.
func longRunning(others request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		return info.Path == BackupPath || info.Path == ExportPath || info.Path == ImportPath || others(req, info)
	}
}

// serveBackup streams a backup. What can be known to fail is known before the first byte; what fails later shows in
// BackupErrorTrailer and in the file, which lacks its checksum.
func (s *Server) serveBackup(w http.ResponseWriter, req *http.Request) {
	if _, named := lcctx.ClusterFrom(req.Context()); named {
		s.answer(w, req, notFound("a backup is of the whole server: ask for %s without /clusters/<path> before it", BackupPath))
		return
	}
	if req.Method != http.MethodGet {
		s.answer(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "backup"}, req.Method))
		return
	}
	out := newImpatientWriter(w)
	ctx, done := s.untilStop(req.Context(), out.end)
	defer done()
	b, err := openBackup(ctx, s.options, s.etcd)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not begin a backup")
		s.answer(w, req, apierrors.NewServiceUnavailable(err.Error()))
		return
	}
	b.header.Server = s.url
	b.send(ctx, out)
}

// send answers with the backup and closes it.
func (b *backup) send(ctx context.Context, w *impatientWriter) {
	began := time.Now()
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Trailer", BackupErrorTrailer)
	if err := errors.Join(b.write(w), b.close()); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		klog.FromContext(ctx).Error(err, "A backup did not come to its end", "bytes", w.written, "after", time.Since(began))
		w.Header().Set(BackupErrorTrailer, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	w.lift() // the connection may serve other requests
	klog.FromContext(ctx).Info("Sent a backup", "revision", b.header.Revision, "bytes", w.written, "after", time.Since(began).Round(time.Millisecond))
}

// WriteBackup writes a backup of a server that does not run: the store behind etcd, and the keys of o's root directory.
func WriteBackup(ctx context.Context, w io.Writer, o *Options, etcd *clientv3.Client) error {
	b, err := openBackup(ctx, o, etcd)
	if err != nil {
		return err
	}
	return errors.Join(b.write(w), b.close())
}

// backup is one that is about to be written.
type backup struct {
	header   backupfile.Header
	keys     []backupfile.Key
	snapshot *embeddedetcd.Snapshot
}

func openBackup(ctx context.Context, o *Options, etcd *clientv3.Client) (*backup, error) {
	keys, err := readKeys(o.pkiDirectory(), "", keysDepth)
	if err == nil {
		err = hasAuthorities(keys)
	}
	if err != nil {
		return nil, fmt.Errorf("back up: read the directory of keys %s: %w", o.pkiDirectory(), err)
	}
	b := &backup{header: backupfile.Header{Created: time.Now().UTC()}, keys: keys}
	if b.snapshot, err = embeddedetcd.TakeSnapshot(ctx, etcd); err != nil {
		return nil, fmt.Errorf("back up: %w", err)
	}
	b.header.StoreFormat, b.header.Revision = b.snapshot.Format, b.snapshot.Revision
	return b, nil
}

func (b *backup) write(w io.Writer) error {
	if err := backupfile.Write(w, b.header, b.keys, b.snapshot); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

func (b *backup) close() error {
	if err := b.snapshot.Close(); err != nil {
		return fmt.Errorf("end the snapshot: %w", err)
	}
	return nil
}

// keysDepth is how many directories deep keys are: pki/syncers, and what an administrator may have put there.
const keysDepth = 4

// readKeys reads every file in directory, and up to depth below it, but what writeWhole has not renamed yet. It goes through links, as the
// server does. Names begin with prefix, which ends in a slash or is empty.
func readKeys(directory, prefix string, depth int) ([]backupfile.Key, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	var keys []backupfile.Key
	for _, entry := range entries {
		path, name := filepath.Join(directory, entry.Name()), prefix+entry.Name()
		if unfinished(path) {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			keys = append(keys, backupfile.Key{Name: name, Data: data})
		case info.IsDir() && depth == 0:
			return nil, fmt.Errorf("%s is deeper below it than any key: a link may lead back", path)
		case info.IsDir():
			below, err := readKeys(path, name+"/", depth-1)
			if err != nil {
				return nil, err
			}
			keys = append(keys, below...)
		}
	}
	return keys, nil
}

// hasAuthorities returns an error unless keys have the server's authority, and of each other one both the certificate and the key. Without
// them the next start would fail, or make another one, and nobody's credentials would be good any more. Which others there are is not
// known: early versions had none.
func hasAuthorities(keys []backupfile.Key) error {
	has := func(name string) bool {
		return slices.ContainsFunc(keys, func(k backupfile.Key) bool { return k.Name == name })
	}
	for _, pair := range [][2]string{{"ca.crt", "ca.key"}, {"ca.key", "ca.crt"}} {
		if !has(pair[0]) {
			return fmt.Errorf("it has no %s: without it, nobody's kubeconfig or certificate is good after a restore", pair[0])
		}
		for _, k := range keys {
			if directory, file := path.Split(k.Name); file == pair[0] && !has(directory+pair[1]) {
				return fmt.Errorf("it has no %s: without it, nobody's certificate of that authority is good after a restore", directory+pair[1])
			}
		}
	}
	return nil
}

// unfinished says whether writeWhole may have given a file its name, which ends in a number.
func unfinished(name string) bool {
	number := strings.TrimPrefix(filepath.Ext(name), ".")
	return number != "" && strings.Trim(number, "0123456789") == ""
}

// RestoreKeys makes the directory of keys of a root directory that has none; it is there whole or not at all.
func RestoreKeys(rootDirectory string, keys []backupfile.Key) error {
	if err := hasAuthorities(keys); err != nil {
		return fmt.Errorf("restore the keys: the backup is not whole: %w", err)
	}
	o := &Options{RootDirectory: rootDirectory}
	target := o.pkiDirectory()
	if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore the keys: %s is there already", target)
	}
	staged, err := os.MkdirTemp(rootDirectory, filepath.Base(target)+".restoring-*") // mode 0700
	if err != nil {
		return fmt.Errorf("restore the keys: %w", err)
	}
	defer os.RemoveAll(staged) // nothing is left of it after the rename
	for _, k := range keys {
		name := filepath.Join(staged, filepath.FromSlash(k.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return fmt.Errorf("restore the keys: %w", err)
		}
		if err := writeWhole(name, k.Data, 0o600); err != nil {
			return fmt.Errorf("restore the keys: %w", err)
		}
	}
	if err := os.Rename(staged, target); err != nil {
		return fmt.Errorf("restore the keys: %w", err)
	}
	root, err := os.Open(rootDirectory)
	if err == nil {
		err = errors.Join(root.Sync(), root.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("restore the keys: %w", err), RemoveRestoredKeys(rootDirectory))
	}
	return nil
}

// RemoveRestoredKeys takes back RestoreKeys, for a restore that fails later.
func RemoveRestoredKeys(rootDirectory string) error {
	return os.RemoveAll((&Options{RootDirectory: rootDirectory}).pkiDirectory())
}
