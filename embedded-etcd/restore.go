package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

const (
	// unfinished lies in the directory of the store while a restore is under way, and keeps it from being opened.
	unfinished = "restoring"

	// revisionsASecond is surely more than a store can write.
	revisionsASecond = 100_000
	// leastBump is for a store that is above what the clock allows.
	leastBump = 1_000_000_000
)

// Holds says whether dir holds a store.
func Holds(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RevisionBump is by how much the revision of a store must be raised that is restored now from a backup of revision, which
// was taken then, so that it lies above everything that anybody has seen: of the store that was lost, and of every store
// of the same installation that was restored before, from whichever backup.
//
// The clock says how far: a restored store begins at revisionsASecond for each second since 1970, and none reaches by
// writing what a later restore begins at. A backup that is already above was made by a clock that was ahead of this one;
// all that can be said then is that nobody writes leastBump revisions soon.
func RevisionBump(revision int64, taken, now time.Time) uint64 {
	if now.Before(taken) {
		now = taken // the clock did show that
	}
	if bump := now.UnixNano()/int64(time.Second/revisionsASecond) - revision; bump > 0 {
		return uint64(bump)
	}
	return leastBump
}

// Restoration makes a directory of a store from a snapshot. Until Commit, the directory cannot be opened as a store.
type Restoration struct {
	dir      string
	unlock   func()
	snapshot *os.File
	named    bool // by Commit
	sync     func(dir string) error
}

// BeginRestore takes dir, which holds no store, for a restore, until Commit or Abort.
func BeginRestore(dir string) (_ *Restoration, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("restore into %s: %w", dir, err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	r := &Restoration{dir: dir, unlock: unlock, sync: syncDir}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if err := notRestoring(dir); err != nil {
		return nil, err
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("restore into %s: %w", dir, err)
	}
	for _, entry := range found {
		if entry.Name() != lockFile {
			return nil, fmt.Errorf("restore into %s: it holds %s already: move the directory away, or name a new one with --root-directory", dir, entry.Name())
		}
	}
	if err := os.Mkdir(r.staged(), 0o700); err != nil {
		return nil, fmt.Errorf("restore into %s: %w", dir, err)
	}
	if r.snapshot, err = os.OpenFile(r.staged("snapshot.db"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restore into %s: %w", dir, err), os.RemoveAll(r.staged()))
	}
	return r, nil
}

// notRestoring returns an error if a restore into dir did not come to its end.
func notRestoring(dir string) error {
	_, err := os.Stat(filepath.Join(dir, unfinished))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("open the store in %s: %w", dir, err)
	}
	return fmt.Errorf("a restore into %s did not come to its end, and what it left is not whole: delete that directory and restore again", filepath.Dir(dir))
}

func (r *Restoration) staged(name ...string) string {
	return filepath.Join(append([]string{r.dir, unfinished}, name...)...)
}

// Add appends a piece of the snapshot.
func (r *Restoration) Add(piece io.Reader) error {
	if _, err := io.Copy(r.snapshot, piece); err != nil {
		return fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	return nil
}

// Build makes the store out of the snapshot, with its revision raised by bump and everything before compacted, so that who
// watched the store that was lost must list again. It opens the store once and returns its revision. Commit remains to be
// done.
func (r *Restoration) Build(ctx context.Context, bump uint64) (revision int64, err error) {
	if err := r.snapshot.Close(); err != nil {
		return 0, fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	cfg, err := config(Options{Dir: r.staged()})
	if err != nil {
		return 0, fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	peers := make([]string, 0, len(cfg.AdvertisePeerUrls))
	for _, u := range cfg.AdvertisePeerUrls {
		peers = append(peers, u.String())
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:  r.snapshot.Name(),
		Name:          cfg.Name,
		OutputDataDir: cfg.Dir,
		PeerURLs:      peers, InitialCluster: cfg.InitialCluster, InitialClusterToken: cfg.InitialClusterToken,
		RevisionBump: bump, MarkCompacted: true,
	})
	if err != nil {
		return 0, fmt.Errorf("restore into %s: make a store of the snapshot: %w", r.dir, err)
	}
	if err := os.Remove(r.snapshot.Name()); err != nil {
		return 0, fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	etcd, err := Start(ctx, Options{Dir: r.staged()})
	if err != nil {
		return 0, fmt.Errorf("try the restored store: %w", err)
	}
	got, err := etcd.Client.Get(ctx, formatKey)
	if err = errors.Join(err, etcd.Stop()); err != nil {
		return 0, fmt.Errorf("try the restored store: %w", err)
	}
	return got.Header.Revision, nil
}

// Commit gives the store its name; from then on it can be opened. If it fails, the store still cannot be opened, and Abort
// remains to be done.
func (r *Restoration) Commit() error {
	if err := os.Rename(r.staged(dataDir), filepath.Join(r.dir, dataDir)); err != nil {
		return fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	r.named = true
	err := r.sync(r.dir)
	if err == nil {
		err = errors.Join(os.RemoveAll(r.staged()), r.sync(r.dir))
	}
	if err != nil {
		// Whoever restores now takes back what belongs to the store; until all is gone nobody may open it.
		return errors.Join(fmt.Errorf("restore into %s: %w", r.dir, err), os.MkdirAll(r.staged(), 0o700))
	}
	r.unlock()
	return nil
}

// Abort removes what the restore has made, and first the store if a Commit that failed has named it. dir stays. What
// keeps the store from being opened goes only when nothing of it is left, so Abort comes after everything else is undone.
func (r *Restoration) Abort() error {
	defer r.unlock()
	err := ignoreClosed(r.snapshot.Close())
	if r.named {
		if gone := errors.Join(os.RemoveAll(filepath.Join(r.dir, dataDir)), r.sync(r.dir)); gone != nil {
			return errors.Join(err, fmt.Errorf("take back the restore into %s: %w", r.dir, gone))
		}
	}
	return errors.Join(err, os.RemoveAll(r.staged()), os.Remove(filepath.Join(r.dir, lockFile)))
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// syncDir brings the names in a directory to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
