package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestTheirs: what people of a workspace have to mend is told from what the server fails at, whatever code a webhook answers with.
func TestTheirs(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	with := func(err *apierrors.StatusError, words string) error {
		err.ErrStatus.Message = words
		return err
	}
	const denial = `admission webhook "a.example.com" denied the request: no`
	refused, failed := apierrors.NewForbidden(jobs, "a", errors.New("quota")), apierrors.NewInternalError(errors.New("etcd"))
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                       {nil, false},
		"not let in":                    {refused, true},
		"wrapped":                       {fmt.Errorf("delete it: %w", refused), true},
		"too large":                     {apierrors.NewRequestEntityTooLargeError("much"), true},
		"denied as not found":           {with(apierrors.NewNotFound(jobs, "a"), denial), true},
		"denied as a failure":           {with(apierrors.NewInternalError(errors.New("x")), denial), true},
		"denied by a policy":            {with(apierrors.NewUnauthorized("x"), `ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no`), true},
		"a webhook that is not reached": {with(apierrors.NewInternalError(errors.New("x")), `Internal error occurred: failed calling webhook "a.example.com": no route`), true},
		"not there":                     {apierrors.NewNotFound(jobs, "a"), false},
		"a conflict":                    {apierrors.NewConflict(jobs, "a", errors.New("x")), false},
		"later":                         {apierrors.NewTooManyRequests("later", 1), false},
		"the server fails":              {failed, false},
		"no answer":                     {errors.New("connection refused"), false},
		"all are theirs":                {errors.Join(refused, refused), true},
		"one is not":                    {errors.Join(refused, failed), false},
		"one of others is not":          {errors.Join(refused, errors.Join(refused, failed)), false},
	} {
		if got := Theirs(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := Each(errors.Join(refused, errors.Join(failed, nil), refused)); !slices.Equal(got, []error{refused, failed, refused}) {
		t.Errorf("each is %v", got)
	}
}

// TestHeld: who is to come again is told when, in a second at the soonest.
func TestHeld(t *testing.T) {
	for seconds, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 7: 7 * time.Second} {
		if wait, held := Held(fmt.Errorf("create it: %w", apierrors.NewTooManyRequests("later", seconds))); !held || wait != want {
			t.Errorf("of %d s: %s, %v", seconds, wait, held)
		}
	}
	if wait, held := Held(errors.New("connection refused")); held || wait != 0 {
		t.Errorf("what is no such answer: %s, %v", wait, held)
	}
}
