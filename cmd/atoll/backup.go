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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/backupfile"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/server"
)

func newBackupCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var kubeconfig, output, stopped string
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Write everything the server keeps into one file, while it runs",
		Long: `Write everything that the server keeps into one file: all objects of all workspaces, at one moment, and the server's keys
and certificates. The server goes on serving meanwhile. It takes an administrator's kubeconfig, as "atoll start" writes it.

The file has every Secret and the key of the server's certificate authority in it: whoever reads it can be
administrator. Files that you gave to "atoll start" by flags, such as --token-auth-file, are not in it.`,
		Example: `  atoll backup
  atoll backup -o /backup/atoll-$(date +%F).tar
  atoll backup --root-directory .atoll          # of a server that does not run`,
		Args:              exactArgs(0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if output == "" {
				output = "atoll-backup-" + time.Now().UTC().Format("20060102-150405") + ".tar"
			}
			write, from := fromStopped(stopped), stopped
			why := func(err error) error { return err }
			if stopped == "" {
				hub, err := cli.Open(kubeconfig)
				if err != nil {
					return err
				}
				write, from = fromServer(hub), hub.Base
				why = func(err error) error { return orNotAnAtoll(ctx, hub, err) }
			}
			b, err := writeBackup(ctx, output, &progress{out: streams.ErrOut}, write)
			if err != nil {
				return why(fmt.Errorf("back up %s: %w", from, err))
			}
			_, err = fmt.Fprint(streams.Out, backupDone(self, output, b))
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "File to write; it must not exist (default atoll-backup-<time>.tar).")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig of the Atoll (default: KUBECONFIG, else .atoll/admin.kubeconfig here, else your own).")
	cmd.Flags().StringVar(&stopped, "root-directory", "", "Directory of a server that does not run, to back up without it; for an embedded etcd.")
	cmd.MarkFlagsMutuallyExclusive("kubeconfig", "root-directory")
	return cmd
}

// backupDone says what was written, and what to do next.
func backupDone(self, file string, b *backupfile.File) string {
	return fmt.Sprintf(`Wrote %[2]s: %[3]s, everything up to revision %[4]d, checksum verified.
It holds every Secret and the server's own keys: keep it where only administrators can read it.

To put it back:
  %[1]s restore %[2]s --root-directory DIRECTORY   # a new one; the server must not run
`, self, file, size(b.Size), b.Revision)
}

// writeBackup lets write fill a file, as writeChecked does.
func writeBackup(ctx context.Context, name string, p *progress, write func(context.Context, io.Writer) error) (b *backupfile.File, err error) {
	err = writeChecked(ctx, name, p, write, func(path string) error {
		if b, err = backupfile.Open(path); err != nil {
			return fmt.Errorf("what came is not a whole backup: %w", err)
		}
		return b.Close()
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// writeChecked lets write fill a file, which gets its name only once it is whole, checked and on disk. Else nothing is left.
func writeChecked(ctx context.Context, name string, p *progress, write func(context.Context, io.Writer) error, check func(path string) error) (err error) {
	if name == "-" {
		return errors.New("--output - would be a file of that name: what is written is read again before it counts, so name a file")
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return isThere(name)
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".partial-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(file.Name()))
		}
	}()
	err = write(ctx, io.MultiWriter(file, p))
	p.end()
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := check(file.Name()); err != nil {
		return err
	}
	return giveName(file.Name(), name, os.Link)
}

func isThere(name string) error {
	return fmt.Errorf("%s is there already: name another file with --output, or move it away", name)
}

func removeIfThere(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// giveName names a file in the same directory anew, unless something else has got the name meanwhile, and returns when the
// name is on disk, too.
func giveName(file, name string, link func(from, to string) error) (err error) {
	if err := link(file, name); errors.Is(err, fs.ErrExist) {
		return isThere(name)
	} else if err != nil {
		// Not every file system has links. Without, what gets the name between these two is overwritten.
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return isThere(name)
		}
		if err := os.Rename(file, name); err != nil {
			return err
		}
	}
	directory, err := os.Open(filepath.Dir(name))
	if err == nil {
		err = errors.Join(removeIfThere(file), directory.Sync(), directory.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("bring the name %s to disk: %w", name, err), removeIfThere(name))
	}
	return nil
}

// fromServer downloads the backup of a server that runs.
func fromServer(hub *cli.Hub) func(context.Context, io.Writer) error {
	return download(hub, server.BackupPath)
}

// download downloads what a server streams, and says why if it broke off.
func download(hub *cli.Hub, path string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		resp, err := hub.Download(ctx, path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(w, resp.Body); err != nil {
			return err
		}
		if why := resp.Trailer.Get(server.BackupErrorTrailer); why != "" {
			return fmt.Errorf("the server broke off: %s", why)
		}
		return nil
	}
}

// fromStopped backs up the root directory of a server that does not run.
func fromStopped(root string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		dir := etcdDirectory(root)
		if found, err := embeddedetcd.Holds(dir); err != nil || !found {
			return errors.Join(err, fmt.Errorf("there is no store in %s", dir))
		}
		// What etcd tells about itself is nothing to who makes a backup.
		etcd, err := embeddedetcd.Start(klog.NewContext(ctx, klog.Logger{}), embeddedetcd.Options{Dir: dir})
		if errors.Is(err, embeddedetcd.ErrInUse) {
			return fmt.Errorf("%w; to back up a server that runs, leave out --root-directory", err)
		}
		if err != nil {
			return err
		}
		o := server.NewOptions()
		o.RootDirectory = root
		return errors.Join(server.WriteBackup(ctx, w, o, etcd.Client), etcd.Stop())
	}
}

// progress tells on a terminal how much has been written.
type progress struct {
	out     io.Writer
	bytes   int64
	told    time.Time
	started bool
}

func (p *progress) Write(data []byte) (int, error) {
	p.bytes += int64(len(data))
	if _, _, err := term.TerminalSize(p.out); err == nil && time.Since(p.told) > time.Second/4 {
		p.told, p.started = time.Now(), true
		fmt.Fprintf(p.out, "\rReceived %s ", size(p.bytes))
	}
	return len(data), nil
}

// end ends the line.
func (p *progress) end() {
	if p.started {
		fmt.Fprintf(p.out, "\rReceived %s.\n", size(p.bytes))
	}
}

// size shows a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	case bytes < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
