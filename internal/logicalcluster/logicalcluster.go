package logicalcluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	// Annotation names, on every object that is read, the logical cluster it belongs to. The storage layer derives it
	// from the key; what a client writes there is ignored.
	Annotation = logicalcluster.AnnotationKey

	// UserExtra is the extra field of users who are somebody in one logical cluster by a certificate, with its name.
	UserExtra = "atoll.dev/cluster"

	// PathAnnotation is the path of the workspace, for instance root:org:team, on objects that can be looked up by path.
	PathAnnotation = "kcp.io/path"

	// NameLength is the length of the names that NewName makes, as in kcp.
	NameLength = 16

	// MaxPathLength of the path of a workspace, in bytes: many times the deepest tree that people make.
	MaxPathLength = 1024

	// maxNameLength is the longest name that may become a key segment: a DNS label, kcp's rule for ordinary names.
	maxNameLength = 63
)

// Cluster is the logical cluster that a request addresses.
type Cluster struct {
	// Name is the logical cluster; empty for a wildcard.
	Name logicalcluster.Name
	// Wildcard says that the request spans all logical clusters (/clusters/*): list and watch only.
	Wildcard bool
	// Mirror says that the logical cluster mirrors a physical cluster. Mirrors have no shared bootstrap objects.
	Mirror bool
}

// String is the name, or "*" for the wildcard; for logs and errors.
func (c Cluster) String() string {
	if c.Wildcard {
		return logicalcluster.Wildcard.String()
	}
	return c.Name.String()
}

// ErrNotFound says that no logical cluster has a name or path.
var ErrNotFound = errors.New("no such workspace")

type contextKey struct{}

// WithCluster returns a context for requests to c.
func WithCluster(ctx context.Context, c Cluster) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// ClusterFrom returns the logical cluster of the request, and false if the context has none.
func ClusterFrom(ctx context.Context) (Cluster, bool) {
	c, ok := ctx.Value(contextKey{}).(Cluster)
	return c, ok
}

// NameFrom returns the logical cluster that an object was read from, and "" for an object that storage has not touched.
func NameFrom(obj metav1.Object) logicalcluster.Name {
	return logicalcluster.Name(obj.GetAnnotations()[Annotation])
}

// systemPrefix starts the names of the server's own logical clusters.
const systemPrefix = "system:"

// ValidateName returns an error unless name can be the segment of a storage key that separates logical clusters: an
// ordinary name (letters, digits and inner hyphens, as "root" or 16 characters of base36), or a system name such as
// "system:admin". It holds what logicalcluster.Name.IsValid holds and more: that rule lets anything follow "system:",
// also a slash, which would leave the segment. It runs for every access to storage, so it allocates nothing.
func ValidateName(name string) error {
	if len(name) > maxNameLength {
		return fmt.Errorf("logical cluster name of %d characters is longer than %d", len(name), maxNameLength)
	}
	valid := false
	if rest, system := strings.CutPrefix(name, systemPrefix); system {
		valid = true
		for part, more := "", true; more && valid; {
			part, rest, more = strings.Cut(rest, ":")
			valid = isLabel(part)
		}
	} else {
		valid = len(name) >= 2 && isLabel(name)
	}
	if !valid {
		return fmt.Errorf("logical cluster name %q must be lower-case letters, digits and inner hyphens, 2 to %d characters, optionally after %q", name, maxNameLength, systemPrefix)
	}
	return nil
}

// isLabel says whether s is lower-case letters, digits and inner hyphens.
func isLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}

const (
	letters = "abcdefghijklmnopqrstuvwxyz"
	base36  = letters + "0123456789"
)

// NewName returns a random name of NameLength characters of base36, about 82 bits. It starts with a letter, so that it
// can also be a DNS label of the older kind.
func NewName() logicalcluster.Name {
	name := make([]byte, NameLength)
	name[0] = letters[draw(len(letters))]
	for i := 1; i < len(name); i++ {
		name[i] = base36[draw(len(base36))]
	}
	return logicalcluster.Name(name)
}

// NameOf returns the name of the logical cluster that belongs to an object: of NewName's form, always the same for one UID,
// and as good as random, since UIDs are.
func NameOf(uid types.UID) logicalcluster.Name {
	sum := sha256.Sum256([]byte(uid))
	name := make([]byte, NameLength)
	name[0] = letters[int(sum[0])%len(letters)]
	for i := 1; i < len(name); i++ {
		name[i] = base36[int(sum[i])%len(base36)]
	}
	return logicalcluster.Name(name)
}

// IsNewName says whether name has the form that NewName gives.
func IsNewName(name string) bool {
	if len(name) != NameLength || !strings.Contains(letters, name[:1]) {
		return false
	}
	return strings.Trim(name, base36) == ""
}

// draw returns a uniform number in [0, n), n <= 256: values that would favour the low numbers are drawn again.
func draw(n int) int {
	limit := 256 - 256%n
	var b [1]byte
	for {
		// crypto/rand.Read never returns an error; it ends the program when the system has no randomness.
		_, _ = rand.Read(b[:])
		if int(b[0]) < limit {
			return int(b[0]) % n
		}
	}
}
