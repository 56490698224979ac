package splitter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// errNotAdopted says that a mirror's namespace of the name that is needed is somebody else's.
var errNotAdopted = errors.New("it is never adopted")

// refusedByHub returns why nothing was written to a mirror, or why the hub would not take it, in words for the root's owner; nil
// for errors that pass by themselves. Of an error of the API only its own message is told: names around it are the hub's.
func refusedByHub(err error) *workloadv1alpha1.Refusal {
	var status apierrors.APIStatus
	switch {
	case awaitsAccount(err):
		return &workloadv1alpha1.Refusal{Reason: "NoServiceAccount", Message: err.Error()}
	case errors.Is(err, errNotAdopted):
		return &workloadv1alpha1.Refusal{Reason: "NameConflict", Message: "the namespace it would have there is somebody else's"}
	case !errors.As(err, &status):
		return nil
	}
	r := &workloadv1alpha1.Refusal{Message: status.Status().Message}
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(r.Message, "exceeded quota"):
		r.Reason = "QuotaExceeded"
	case apierrors.IsForbidden(err):
		r.Reason = "Forbidden"
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		r.Reason = "Invalid"
	default:
		return nil
	}
	return r
}

// tellHub tells that what is for a cluster could not be written to its mirror.
func (c *Controller) tellHub(ctx context.Context, s *source, root ctrlclient.Object, mirror logicalcluster.Name, r *workloadv1alpha1.Refusal) {
	c.tellOnce(ctx, s, root, "hub "+string(mirror), corev1.EventTypeWarning, r.Reason,
		fmt.Sprintf("Not given to cluster %q: %s", nameOf(c.target(mirror), mirror), r.Message))
}

func (c *Controller) untellHub(root ctrlclient.Object, mirror logicalcluster.Name) {
	c.untell(root, "hub "+string(mirror))
}
