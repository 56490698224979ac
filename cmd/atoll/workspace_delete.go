package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

type workspaceDelete struct {
	genericiooptions.IOStreams
	wait    bool
	timeout time.Duration
}

func newWorkspaceDeleteCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	o := &workspaceDelete{IOStreams: streams}
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Aliases: []string{"rm"},
		Short:   "Delete a workspace, what it runs on physical clusters, and the workspaces below it",
		Example: "  atoll workspace delete shop",
		Args:    exactArgs(1),

		ValidArgsFunction: completeNames(open, pathsBelowRoot),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), hub, args[0])
		},
	}
	cmd.Flags().BoolVar(&o.wait, "wait", true, "Wait until everything is gone.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "How long to wait; the deletion itself goes on.")
	return cmd
}

func (o *workspaceDelete) run(ctx context.Context, hub *cli.Hub, arg string) error {
	path, holder, name, err := child(ctx, hub, arg)
	if err != nil {
		return err
	}
	w, err := getWorkspace(ctx, hub, holder, name)
	if err != nil {
		return err
	}
	uid := w.UID
	err = hub.Objects.Delete(cli.In(ctx, holder), w, ctrlclient.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete workspace %q: %w", path, err)
	}
	if o.wait {
		if err := o.waitUntilGone(ctx, hub, ctrlclient.ObjectKeyFromObject(w), uid, holder); err != nil {
			return fmt.Errorf("workspace %q is being deleted, %w", path, err)
		}
		_, err = fmt.Fprintf(o.Out, "Workspace %s is deleted.\n", path)
	} else {
		_, err = fmt.Fprintf(o.Out, "Workspace %s is being deleted.\n", path)
	}
	if err == nil && (hub.Path == path || hub.Path.HasPrefix(path)) {
		_, err = fmt.Fprintf(o.Out, "The kubeconfig still points into it. Leave with: %s workspace use %s\n", self, holder)
	}
	return err
}

func (o *workspaceDelete) waitUntilGone(ctx context.Context, hub *cli.Hub, key ctrlclient.ObjectKey, uid types.UID, holder logicalcluster.Path) error {
	var shown string
	w := &tenancyv1alpha1.Workspace{}
	gone := awaited{hub, holder, &tenancyv1alpha1.WorkspaceList{}, key.Name}
	err := gone.until(ctx, o.timeout, func(ctx context.Context) (bool, string, error) {
		err := hub.Objects.Get(cli.In(ctx, holder), key, w)
		if apierrors.IsNotFound(err) || err == nil && w.UID != uid {
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		seen := "its content is being deleted"
		if c := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceContentDeleted); c != nil && c.Message != "" {
			seen = c.Message
		}
		if seen != shown {
			fmt.Fprintf(o.ErrOut, "Deleting workspace %s: %s\n", holder.Join(key.Name), seen)
			shown = seen
		}
		return false, seen, nil
	})
	return withoutAttendants(err, w, "terminators", w.Status.Terminators)
}
