package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// confirmable maps the conditions of a SyncTarget that wait for a person to the word that confirms, and to what is
// held back until then.
var confirmable = map[string]struct{ word, held string }{
	workloadv1alpha1.SyncTargetObserveOnly: {"restored", "written"},
	workloadv1alpha1.SyncTargetFrozen:      {"deletions", "deleted"},
}

// errTakenAway says that a confirmation answered no question.
var errTakenAway = errors.New("the confirmation was taken away: it came before the syncer had looked at what was restored, or answers a question of before. " +
	"Nothing was written there; look again in some seconds, and confirm then")

// accepted says whether a confirmation that a SyncTarget was restored has done its work. The server takes away one that answers
// nothing: the condition may be that of a backup, until the syncer has looked, or an earlier answer is being taken away.
func accepted(t *workloadv1alpha1.SyncTarget) (bool, error) {
	switch {
	case !meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly):
		return true, nil
	case t.Annotations[workloadv1alpha1.ConfirmAnnotation] == "":
		return false, errTakenAway
	}
	return false, nil
}

func newClusterConfirmCommand(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "confirm NAME restored|deletions",
		Short: "Confirm what Atoll will not do to a physical cluster by itself",
		Long: `Atoll holds back where going on could delete what somebody needs:
  restored   the server or the cluster was restored from an older state (condition ObserveOnly): go on writing
  deletions  many objects would go at once that nobody was seen to delete or to move, since what asked for them is gone or
             no cluster is left that may run them (condition Frozen): delete them below, too
Look at "atoll cluster status NAME" first. After "restored" it is waited until the cluster is written to again.`,
		Example: "  atoll cluster confirm east deletions",
		Args:    exactArgs(2),

		ValidArgsFunction: completeNames(open, clusterNames, "restored", "deletions"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, word := args[0], args[1]
			var condition string
			for c, what := range confirmable {
				if what.word == word {
					condition = c
				}
			}
			if condition == "" {
				return fmt.Errorf("%q cannot be confirmed: say restored or deletions", word)
			}
			hub, err := open()
			if err != nil {
				return err
			}
			_, target, err := getCluster(cmd.Context(), hub, name)
			if err != nil {
				return err
			}
			// A confirmation that waits for its question would answer one that nobody has looked at.
			if !meta.IsStatusConditionTrue(target.Status.Conditions, condition) {
				return fmt.Errorf("cluster %q waits for no such confirmation: its condition %s is not True", name, condition)
			}
			if target.IsDuplicate() && condition == workloadv1alpha1.SyncTargetObserveOnly {
				why := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady).Message
				remedy := "Run its syncer in its own physical cluster"
				if target.Spec.KubeconfigSecretRef != nil {
					remedy = "Give it the kubeconfig of its own physical cluster"
				}
				return fmt.Errorf("cluster %q is a Duplicate, and a confirmation changes nothing: %s %s, or remove one of the two", name, why, remedy)
			}
			path, err := changeCluster(cmd.Context(), hub, name, func(t *workloadv1alpha1.SyncTarget) {
				if t.Annotations == nil {
					t.Annotations = map[string]string{}
				}
				t.Annotations[workloadv1alpha1.ConfirmAnnotation] = word
			})
			if err != nil {
				return err
			}
			if condition == workloadv1alpha1.SyncTargetObserveOnly {
				err := awaited{hub, path, &workloadv1alpha1.SyncTargetList{}, name}.until(cmd.Context(), timeout, func(ctx context.Context) (bool, string, error) {
					_, now, err := getCluster(ctx, hub, name)
					if err != nil {
						return false, "", err
					}
					done, err := accepted(now)
					return done, fmt.Sprintf("its syncer has not acted upon it. It will when it looks next; see %s cluster status %s", self, name), err
				})
				if err != nil {
					return fmt.Errorf("confirm for cluster %q of workspace %s that it was restored: %w", name, path, err)
				}
			}
			_, err = fmt.Fprintf(streams.Out, "Confirmed for cluster %s of %s: %s.\n", name, path, word)
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "How long to wait until the syncer goes on, after \"restored\"; the confirmation stays.")
	return cmd
}
