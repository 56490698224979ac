package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/backupfile"
	"atoll.dev/atoll/server"
)

func newRestoreCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root := server.NewOptions().RootDirectory
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a server's directory from a file that \"atoll backup\" wrote",
		Long: `Make the directory of a server from a backup. The directory must be new or empty, and the server that was backed up must
not run any more: two of one installation would both write to its physical clusters.

Kubeconfigs go on working if the server is started at the same address and port. Versions (resourceVersion) go on far
above those of the server that was lost, so that clients see that they must list again. Nothing is written to a physical
cluster that has seen a later state of the server until "atoll cluster confirm NAME restored".`,
		Example: `  mv .atoll .atoll-before
  atoll restore atoll-backup-20260131-120000.tar
  atoll restore /backup/atoll-2026-01-31.tar --root-directory /var/lib/atoll`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if root == "" {
				return errors.New("--root-directory is empty: name a directory, or leave the flag out for .atoll")
			}
			fmt.Fprintf(streams.ErrOut, "Reading %s\n", args[0])
			b, err := backupfile.Open(args[0])
			if err != nil {
				return err
			}
			defer b.Close()
			if err := embeddedetcd.CanRead(b.StoreFormat); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			// A signal ends it between two steps, and then nothing is left.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			begins := func() {
				fmt.Fprintf(streams.ErrOut, "Restoring %s of %s into %s\n", size(b.Size), b.Created.Format(time.RFC3339), root)
			}
			revision, err := restore(ctx, b, root, time.Now(), begins, (*embeddedetcd.Restoration).Commit)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(streams.Out, restoreDone(self, root, &b.Header, revision))
			return err
		},
	}
	cmd.Flags().StringVar(&root, "root-directory", root, "Directory to make: new, or empty.")
	return cmd
}

// restoreDone says what was restored, and what to do next.
func restoreDone(self, root string, h *backupfile.Header, revision int64) string {
	who := "the server"
	if h.Server != "" {
		who += " at " + h.Server
	}
	return fmt.Sprintf(`Restored into %[2]s what %[3]s had on %[4]s: revision %[5]d, raised by %[7]d to %[6]d.

Next:
  %[1]s start --root-directory %[2]s   # with its other flags as before, at the same address and port
  %[1]s workspace use PATH             # the kubeconfig that it writes anew is of "root"
  %[1]s cluster list                   # clusters that have seen a later state are only observed
  %[1]s cluster status NAME            # what a confirmation would do there
  %[1]s cluster confirm NAME restored

What was ended after the backup is good again: keys that leaked, deleted ServiceAccounts and their tokens, roles that
were taken away. End them once more: docs/operations/restore.md, "What a restored server has forgotten besides".
`, self, root, who, h.Created.Format(time.RFC3339), h.Revision, revision, revision-h.Revision)
}

// restore makes root from a backup and returns the revision at which its store goes on. If it fails, what it made is
// removed; if it is killed, what it leaves cannot be started. begins is called once nothing is left that it could refuse, commit is
// the last step.
func restore(ctx context.Context, b *backupfile.File, root string, now time.Time, begins func(), commit func(*embeddedetcd.Restoration) error) (revision int64, err error) {
	_, err = os.Lstat(root)
	isNew := errors.Is(err, fs.ErrNotExist)
	etcd := etcdDirectory(root)
	r, err := embeddedetcd.BeginRestore(etcd)
	if err != nil {
		return 0, err
	}
	keysMade := false
	defer func() {
		if err == nil {
			return
		}
		if keysMade {
			err = errors.Join(err, server.RemoveRestoredKeys(root))
		}
		// Last: until then nothing can be started that has a store and no keys, or keys and no store.
		err = errors.Join(err, r.Abort())
		_ = os.Remove(etcd) // stays if somebody put something there
		if isNew {
			_ = os.Remove(root)
		}
	}()
	if err := onlyHolds(root, filepath.Base(etcd)); err != nil {
		return 0, err
	}
	var keys []backupfile.Key
	addKey := func(k backupfile.Key) error { keys = append(keys, k); return nil }
	// The keys come first, and they tell who listens where the server was.
	checked := sync.OnceValue(func() error {
		if err := gone(ctx, b.Server, keys); err != nil {
			return err
		}
		begins()
		return nil
	})
	addPiece := func(piece io.Reader) error {
		if err := errors.Join(ctx.Err(), checked()); err != nil {
			return err
		}
		return r.Add(piece)
	}
	if err := b.Read(addKey, addPiece); err != nil {
		return 0, err
	}
	if err := checked(); err != nil { // of a store without a piece
		return 0, err
	}
	// The one look at the store is no news to who restores.
	quiet := klog.NewContext(ctx, klog.Logger{})
	bump := embeddedetcd.RevisionBump(b.Revision, b.Created, now)
	if revision, err = r.Build(quiet, bump); err != nil {
		return 0, err
	}
	if revision < b.Revision+int64(bump) {
		return 0, fmt.Errorf("restore into %s: the store is at revision %d, which is not %d above the backup's %d", root, revision, bump, b.Revision)
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("restore into %s: %w", root, err)
	}
	if err := server.RestoreKeys(root, keys); err != nil {
		return 0, err
	}
	keysMade = true
	return revision, commit(r)
}

// onlyHolds returns an error if root holds anything but ours, and what a file system may have put at its top.
func onlyHolds(root, ours string) error {
	found, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("restore into %s: %w", root, err)
	}
	for _, entry := range found {
		if !slices.Contains([]string{ours, "lost+found"}, entry.Name()) {
			return fmt.Errorf("restore into %s: it holds %s already: move that directory away, or name a new one with --root-directory", root, entry.Name())
		}
	}
	return nil
}
