package syncer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Reasons of a workloadv1alpha1.Refusal.
const (
	refusedForbidden    = "Forbidden"
	refusedInvalid      = "Invalid"
	refusedQuota        = "QuotaExceeded"
	refusedNameConflict = "NameConflict"
	refusedSchema       = "SchemaRejected"
	refusedUnreachable  = "Unreachable"
)

// refusal is the error of a write that the physical cluster would not take.
type refusal struct {
	reason, message string
}

// maxMessage bounds what of a physical cluster's words goes into an annotation, in bytes: an apply that does not fit
// the schema is answered with the whole object.
const maxMessage = 1024

// text returns the message, cut.
func (r *refusal) text() string { return cut(r.message, maxMessage) }

// cut cuts a text to so many bytes, and dots, at a whole character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

func (r *refusal) Error() string { return r.reason + ": " + r.message }

func nameConflict(format string, args ...any) *refusal {
	return &refusal{refusedNameConflict, fmt.Sprintf(format, args...)}
}

// refusalOf classifies an error of the physical cluster. It returns nil for errors that pass by themselves: somebody
// else wrote at the same time, or the namespace is not there yet or not any more.
func refusalOf(err error) *refusal {
	var known *refusal
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		return known
	case !errors.As(err, &status):
		return &refusal{refusedUnreachable, "the physical cluster does not answer: " + rootCause(err)}
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case strings.Contains(err.Error(), "field not declared in schema"), apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "strict decoding error"):
		return &refusal{refusedSchema, err.Error()}
	case apierrors.IsNotFound(err):
		if details := status.Status().Details; details != nil && details.Kind == "namespaces" {
			return nil
		}
		return &refusal{refusedSchema, err.Error()} // the kind is not served there
	case apierrors.IsForbidden(err):
		if strings.Contains(err.Error(), "exceeded quota") {
			return &refusal{refusedQuota, err.Error()}
		}
		return &refusal{refusedForbidden, err.Error()}
	case apierrors.IsUnauthorized(err):
		return &refusal{refusedForbidden, err.Error()}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err), apierrors.IsUnsupportedMediaType(err):
		return &refusal{refusedInvalid, err.Error()}
	case status.Status().Code >= 500, apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err):
		return &refusal{refusedUnreachable, err.Error()}
	}
	return &refusal{refusedInvalid, err.Error()}
}

// refusalIn is refusalOf an error about something in one of our namespaces, without what other workspaces' namespaces are called: an admission
// webhook or a load balancer may say who has what was asked for.
func (s *Syncer) refusalIn(namespace string, err error) *refusal {
	r := refusalOf(err)
	if r == nil {
		return nil
	}
	return &refusal{r.reason, s.wordsFor(namespace, r.message)}
}

// objectIn finds what may be a namespace's name in a message, and the name of something in it.
var objectIn = regexp.MustCompile(`[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:/[-a-z0-9.]+)?`)

// withoutOthers returns a message without what other workspaces' namespaces, and what is in them, are called: of an address that is taken, or a
// pod that made room, some components say for whom.
func withoutOthers(message string, anothers func(namespace string) bool) string {
	return objectIn.ReplaceAllStringFunc(message, func(found string) string {
		if namespace, _, _ := strings.Cut(found, "/"); anothers(namespace) {
			return "another namespace"
		}
		return found
	})
}

// wordsFor is what of a text may be told in one of our namespaces.
func (s *Syncer) wordsFor(namespace, text string) string {
	return withoutOthers(text, func(name string) bool { return s.isAnothers(name, namespace) })
}

// isAnothers says that a namespace of the physical cluster is of another workspace than one that is ours.
func (s *Syncer) isAnothers(name, ours string) bool {
	if name == ours {
		return false
	}
	of := func(namespace string) (workspace string, there bool) {
		o, there, _ := s.physical.informers[namespacesGVR].GetByKey(namespace) // a cache.Indexer never fails here
		if !there {
			return "", false
		}
		return o.(*unstructured.Unstructured).GetLabels()[workloadv1alpha1.WorkspaceLabel], true
	}
	other, there := of(name)
	if !there {
		return false
	}
	own, known := of(ours)
	return !known || other != own
}

// rootCause says why a request got no answer, in words that stay the same from try to try: no ports of this side.
func rootCause(err error) string {
	var errno syscall.Errno
	var dns *net.DNSError
	var timeout net.Error
	var at *url.Error
	var much tooMuch
	switch {
	case errors.As(err, &much):
		return much.Error()
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &dns):
		return "no address for " + dns.Name
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &at):
		return at.Err.Error()
	}
	return err.Error()
}
