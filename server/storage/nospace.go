package storage

import (
	"errors"
	"net/http"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReasonInsufficientStorage is that of a write which etcd has no room for.
const ReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// isNoSpace says whether a write failed because etcd is full, explained or not.
func isNoSpace(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || apierrors.ReasonForError(err) == ReasonInsufficientStorage
}

// explained is err, in words for the person who wrote if etcd is full.
func explained(err error) error {
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: ReasonInsufficientStorage,
		Message: "the store of the whole server is full and takes nothing new, nor changes of what there is; reads and deletions go on. " +
			"Delete what is not needed, and tell an administrator of the server (etcd: " + err.Error() + ")",
	}}
}
