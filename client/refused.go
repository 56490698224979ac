package client

import (
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Refuses says whether an answer is that what was asked for is not let in as it is, and nothing else was wrong: the people of
// the workspace have to mend it.
func Refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) || Denies(err)
}

// Denies says whether an answer is that of a webhook of the workspace, which may have any code and reason, or of a policy,
// which may say that nobody is known. Nothing else tells it from one of the server.
func Denies(err error) bool {
	return says(err, "admission webhook ", " denied the request") || says(err, "ValidatingAdmissionPolicy '", " denied request: ")
}

// FailsToCall says whether a webhook of the workspace could not be called, and so nothing is let in that it is to see.
func FailsToCall(err error) bool { return says(err, "failed calling webhook ") }

// Theirs says whether all that failed is for the people of a workspace to mend.
func Theirs(err error) bool {
	return err != nil && !slices.ContainsFunc(Each(err), func(one error) bool { return !Refuses(one) && !FailsToCall(one) })
}

// Each is every error of those that are joined.
func Each(err error) (all []error) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range several.Unwrap() {
			all = append(all, Each(one)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// heldAtLeast is when to try again at the soonest what was to be tried again.
const heldAtLeast = time.Second

// Held says after what time to try again what the server lets nobody do for a moment, such as while a ResourceQuota is counted.
// It has said so by its answer, which the one who waits for it need not hold a worker for.
func Held(err error) (wait time.Duration, ok bool) {
	if !apierrors.IsTooManyRequests(err) {
		return 0, false
	}
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return max(time.Duration(seconds)*time.Second, heldAtLeast), true
}

func says(err error, words ...string) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(status.Status().Message, w) })
}
