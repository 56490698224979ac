package main

import (
	"context"
	"fmt"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server"
)

func newWorkspaceExportCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Write everything in a workspace into one file",
		Long: `Write all objects of a workspace, as they are at one moment, into a file from which "atoll workspace import" makes a new
workspace, here or in another Atoll. It takes an administrator's kubeconfig, as "atoll start" writes it. A workspace that
holds workspaces or SyncTargets cannot be exported; "atoll backup" has everything.

The file has every Secret of the workspace in it. Events, Leases, CertificateSigningRequests, and where things run, are not, nor are
Pods that a controller makes again.`,
		Example: `  atoll workspace export shop
  atoll workspace export root:org:team -o /backup/team-$(date +%F).atoll`,
		Args:              exactArgs(1),
		ValidArgsFunction: completeNames(open, workspacePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			hub, err := open()
			if err != nil {
				return err
			}
			path, err := hub.Resolve(ctx, args[0])
			if err != nil {
				return err
			}
			if output == "" {
				output = path.Base() + "-" + time.Now().UTC().Format("20060102-150405") + ".atoll"
			}
			f, err := exportWorkspace(ctx, hub, path, output, &progress{out: streams.ErrOut})
			if err != nil {
				return fmt.Errorf("export workspace %q: %w", path, err)
			}
			if len(f.LeftOut) > 0 {
				fmt.Fprintf(streams.ErrOut, "Not in it, since the server does not serve such objects any more: %s.\n", strings.Join(f.LeftOut, ", "))
			}
			_, err = fmt.Fprintf(streams.Out, `Wrote %[2]s: %[3]s, workspace %[4]s at revision %[5]d, checksum verified.
It holds every Secret of the workspace: keep it where only administrators can read it.

To make a new workspace of it, here or in another Atoll:
  %[1]s workspace import NAME --input %[2]s
`, self, output, size(f.Size), path, f.Revision)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "File to write; it must not exist (default <name>-<time>.atoll).")
	return cmd
}

func exportWorkspace(ctx context.Context, hub *cli.Hub, path logicalcluster.Path, output string, p *progress) (f *workspacefile.File, err error) {
	err = writeChecked(ctx, output, p, download(hub, aboutWorkspace(server.ExportPath, path)), func(file string) error {
		if f, err = workspacefile.Open(file, output); err != nil {
			return fmt.Errorf("what came is not a whole export: %w", err)
		}
		return f.Close()
	})
	return f, err
}

// aboutWorkspace is a path of the server that names a workspace, with further parameters and their values.
func aboutWorkspace(endpoint string, path logicalcluster.Path, more ...string) string {
	query := url.Values{server.WorkspaceParameter: {path.String()}}
	for pair := range slices.Chunk(more, 2) {
		query.Set(pair[0], pair[1])
	}
	return endpoint + "?" + query.Encode()
}
