package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server"
)

type workspaceImport struct {
	genericiooptions.IOStreams
	input   string
	kind    string // of the workspace, if typed; "" for the one that the workspace above gives
	typed   bool
	timeout time.Duration
}

func newWorkspaceImportCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	o := &workspaceImport{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "import NAME --input FILE",
		Short: "Make a new workspace from a file that \"atoll workspace export\" wrote",
		Long: `Make a new workspace that holds what another held when it was exported, in this Atoll or another. It takes an
administrator's kubeconfig. The workspace must not exist yet; if the import fails it is deleted again. It is of the type
that the exported one was of, which must be there and allowed in the workspace above, unless you name another with --type.

Objects keep their UIDs, and get new versions (resourceVersion). What makes pods is placed as if it were new. Tokens of
ServiceAccounts are of the workspace that was exported and do not open this one.`,
		Example: `  atoll workspace import shop-again --input shop-20260131-120000.atoll
  atoll workspace import root:org:team --input /backup/team.atoll
  atoll workspace import root:org:team --input /backup/team.atoll --type root:org:team`,
		Args:              exactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions, // a new name
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.input == "" {
				return errors.New("--input is missing: name a file that \"atoll workspace export\" wrote")
			}
			hub, err := open()
			if err != nil {
				return err
			}
			o.typed = cmd.Flags().Changed("type")
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return o.run(ctx, hub, args[0])
		},
	}
	cmd.Flags().StringVarP(&o.input, "input", "i", "", "File to read.")
	cmd.Flags().StringVar(&o.kind, "type", "", "Type of the workspace, as of \"workspace create\"; \"\" is what the workspace above says. By default the type of the one that was exported.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "How long to wait until the workspace is ready, once everything is in it.")
	return cmd
}

func (o *workspaceImport) run(ctx context.Context, hub *cli.Hub, arg string) error {
	path, holder, name, err := child(ctx, hub, arg)
	if err != nil {
		return err
	}
	f, err := workspacefile.Open(o.input, o.input)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	file, err := os.Open(o.input)
	if err != nil {
		return err
	}
	defer file.Close()
	kind := f.Type
	if o.typed {
		kind = o.kind
	}
	resp, err := hub.Upload(ctx, aboutWorkspace(server.ImportPath, path, server.TypeParameter, kind), file, f.Size)
	if apierrors.IsForbidden(err) && kind != "" && !o.typed {
		return fmt.Errorf("import workspace %q: %w\n%s is of a workspace of type %s: to make it of another, name that with --type", path, err, o.input, kind)
	}
	if err != nil {
		return fmt.Errorf("import workspace %q: %w", path, err)
	}
	defer resp.Body.Close()
	rows, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err != nil {
		return fmt.Errorf("import workspace %q: %w", path, err)
	}
	if err := waitForWorkspace(ctx, hub, holder, name, o.timeout); err != nil {
		return fmt.Errorf("workspace %q holds everything but is not ready: %w", path, err)
	}
	_, err = fmt.Fprintf(o.Out, "Workspace %s is ready, with the %s objects that %s had on %s. Enter it with: %s workspace use %s\n",
		path, strings.TrimSpace(string(rows)), f.Path, f.Created.Format(time.RFC3339), self, arg)
	return err
}
