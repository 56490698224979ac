package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/server"
)

type workspaceCreate struct {
	genericiooptions.IOStreams
	enter, ignoreExisting bool
	kind                  string // of the workspace, "" for the default
	timeout               time.Duration
}

func newWorkspaceCreateCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	o := &workspaceCreate{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a workspace below the current one, and wait until it is ready",
		Example: `  atoll workspace create shop --enter
  atoll workspace create root:org:team   # root:org exists already
  atoll workspace create team --type root:org:team`,
		Args:              exactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions, // a new name
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), hub, args[0])
		},
	}
	cmd.Flags().BoolVar(&o.enter, "enter", false, "Enter the workspace once it is ready.")
	cmd.Flags().StringVar(&o.kind, "type", "", "Type of the workspace, as root:org:team: where the WorkspaceType is, and its name. A name alone is looked for where the workspace is made, and above. By default what the workspace above says.")
	completeFlag(cmd, "type", completeOne(open, workspaceTypes))
	cmd.Flags().BoolVar(&o.ignoreExisting, "ignore-existing", false, "Do not fail if the workspace is there already, and of the type of --type if that is given.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "How long to wait until the workspace is ready.")
	return cmd
}

func (o *workspaceCreate) run(ctx context.Context, hub *cli.Hub, arg string) error {
	path, holder, name, err := child(ctx, hub, arg)
	if err != nil {
		return err
	}
	w := &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: server.TypeReference(o.kind)},
	}
	err = hub.Objects.Create(cli.In(ctx, holder), w)
	there := inTheWay(ctx, hub, holder, name, err)
	exists := there != nil || apierrors.IsAlreadyExists(err)
	switch {
	case there != nil && there.DeletionTimestamp != nil:
		return fmt.Errorf("workspace %q is still being deleted: create it when it is gone. \"%s workspace list\" shows what it waits for", path, self)
	case there != nil && !o.isOfType(there):
		return fmt.Errorf("workspace %q is there already, and is of type %s, not %s", path, cmp.Or(server.TypeName(there.Spec.Type), "no type"), o.kind)
	case exists && o.ignoreExisting:
	case exists:
		return fmt.Errorf("workspace %q is there already: enter it with \"%s workspace use %s\"", path, self, arg)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("create workspace %q: there is no workspace %q to hold it", path, holder)
	case err != nil:
		return fmt.Errorf("create workspace %q: %w", path, err)
	}
	if err := waitForWorkspace(ctx, hub, holder, name, o.timeout); err != nil {
		return fmt.Errorf("workspace %q was created but is not ready: %w", path, err)
	}
	if !o.enter {
		_, err = fmt.Fprintf(o.Out, "Workspace %s is ready. Enter it with: %s workspace use %s\n", path, self, arg)
		return err
	}
	if err := hub.Enter(ctx, path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "Workspace %s is ready and current. Next, for instance: %s kubectl create deployment web --image=nginx\n", path, self)
	return err
}

// inTheWay returns the workspace that a creation failed for, nil if there is none or it may not be seen. One of a type that is gone,
// or not allowed there, is refused before anybody looks whether the name is taken.
func inTheWay(ctx context.Context, hub *cli.Hub, holder logicalcluster.Path, name string, err error) *tenancyv1alpha1.Workspace {
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		return nil
	}
	w, err := getWorkspace(ctx, hub, holder, name)
	if err != nil {
		return nil // the creation's error says more
	}
	return w
}

// isOfType says whether a workspace is of the type that was asked for, as far as both say: a name may stand without its path, and
// in the place of a path the logical cluster that is there, of which the workspace has the path.
func (o *workspaceCreate) isOfType(w *tenancyv1alpha1.Workspace) bool {
	want, is := server.TypeReference(o.kind), w.Spec.Type
	if want == nil {
		return true
	}
	if is == nil || is.Name != want.Name {
		return false
	}
	_, cluster := logicalcluster.NewPath(want.Path).Name()
	return want.Path == "" || is.Path == "" || is.Path == want.Path || cluster && want.Path != cli.Root.String()
}

func waitForWorkspace(ctx context.Context, hub *cli.Hub, holder logicalcluster.Path, name string, timeout time.Duration) error {
	ready, w := awaited{hub, holder, &tenancyv1alpha1.WorkspaceList{}, name}, &tenancyv1alpha1.Workspace{}
	err := ready.until(ctx, timeout, func(ctx context.Context) (bool, string, error) {
		now, err := getWorkspace(ctx, hub, holder, name)
		if err != nil {
			return false, "", err
		}
		w = now
		seen := fmt.Sprintf("its phase is %s", orNone(string(w.Status.Phase)))
		if why := notReadyBecause(w); why != "" {
			seen += ": " + why
		}
		return w.Status.Phase == corev1alpha1.LogicalClusterPhaseReady, seen, nil
	})
	return withoutAttendants(err, w, "initializers", w.Status.Initializers)
}

// withoutAttendants adds to the error of a wait how to go on without the attendants of a workspace that it was for, if it has any: one may never come.
func withoutAttendants(err error, w *tenancyv1alpha1.Workspace, field string, attendants []corev1alpha1.LogicalClusterAttendant) error {
	if err == nil || len(attendants) == 0 || w.Spec.Cluster == "" {
		return err
	}
	return fmt.Errorf("%w\nIf they never come, an administrator of the server goes on without them:\n  %[2]s workspace use :%[3]s\n"+
		"  %[2]s kubectl patch logicalcluster cluster --subresource status --type merge -p '{\"status\":{\"%[4]s\":[]}}'", err, self, w.Spec.Cluster, field)
}
