package server

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"atoll.dev/atoll/internal/budget"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/weight"
)

// How many bytes of memory the bodies of requests may take together that are worked on, once they are decoded: 3 MiB of `{},` in
// the schema of a CustomResourceDefinition, or as the containers of a Pod, are a gigabyte, before anything can look at them.
const (
	// uncountedBody is what a body takes that counts for nothing: how many requests are worked on at once is bounded, too, and so
	// nobody's small objects wait for the large ones of others.
	uncountedBody = 2 << 20
	// usualBody is what bodies take, nearly always, that are larger than that: a definition of a quarter of a megabyte. They have a
	// budget of their own first, of which a workspace may have little, so that those of many workspaces have to be large for others
	// to be refused.
	usualBody         = 16 << 20
	mostUsualBodies   = 1 << 30
	mostUsualOfOne    = 2 * usualBody
	mostLargeBodies   = 2 << 30
	mostLargeOfOne    = mostLargeBodies / 4
	bodiesRetryAfter  = 2         // seconds
	mostCopiesOfPatch = 512 << 10 // bytes of text: what they become is no more than one may take
)

// bodies counts what the bodies of requests take.
type bodies struct{ usual, large *budget.Budget }

func newBodies() *bodies {
	const ofOne, ofAll = "the bodies of this workspace's requests, decoded,", "the bodies of all requests to this server, decoded,"
	return &bodies{
		usual: budget.New(mostUsualBodies, mostUsualOfOne, ofOne, ofAll),
		large: budget.New(mostLargeBodies, mostLargeOfOne, ofOne, ofAll),
	}
}

// take takes what a body takes, and returns what gives it back.
func (b *bodies) take(cluster logicalcluster.Name, n int64) (give func(), err error) {
	for _, from := range []*budget.Budget{b.usual, b.large} {
		if from == b.usual && n > usualBody {
			continue
		}
		if err = from.Take(cluster, n); err == nil {
			return func() { from.Give(cluster, n) }, nil
		}
	}
	return nil, err
}

// withBodies refuses requests whose bodies would take too much memory, before they are decoded. What they take is given back when
// they are answered. Administrators of the server, and its own controllers, may send what they like, as with all that is divided
// between workspaces.
func (s *Server) withBodies(next http.Handler, longRunning request.LongRunningRequestCheck, most int64) http.Handler {
	taken := newBodies()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, _ := request.RequestInfoFrom(req.Context())
		who, _ := request.UserFrom(req.Context())
		if req.Body == nil || req.Body == http.NoBody || info == nil || !info.IsResourceRequest || longRunning(req, info) ||
			who != nil && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
			next.ServeHTTP(w, req)
			return
		}
		text, err := io.ReadAll(io.LimitReader(req.Body, most+1))
		req.Body = &readAlready{Reader: io.MultiReader(bytes.NewReader(text), failed{err}, req.Body), Closer: req.Body}
		if err != nil || int64(len(text)) > most {
			next.ServeHTTP(w, req) // which says so, and decodes nothing
			return
		}
		n := bodyBytes(req.Header.Get("Content-Type"), text)
		cluster, _ := lcctx.ClusterFrom(req.Context())
		if n > mostLargeOfOne {
			s.answer(w, req, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s: the body would take %s of memory once decoded, and may take %s: it has too many fields, elements of lists and entries of maps, or short ones that become long",
				operation(info), apiresource.NewQuantity(n, apiresource.BinarySI), apiresource.NewQuantity(mostLargeOfOne, apiresource.BinarySI))))
			return
		}
		if n > uncountedBody {
			give, err := taken.take(cluster.Name, n)
			if err != nil {
				s.answer(w, req, apierrors.NewTooManyRequests(fmt.Sprintf("%s: %v", operation(info), err), bodiesRetryAfter))
				return
			}
			defer give()
		}
		next.ServeHTTP(w, req)
	})
}

// bodyBytes is how much memory a body takes. What multiplies itself takes as much as one may, which is about what its multiples
// are bounded by: YAML by its decoder, to 400,000 elements and six times those that are written, and a patch by
// mostCopiesOfPatch.
func bodyBytes(contentType string, text []byte) int64 {
	mediaType, _, _ := strings.Cut(contentType, ";") // as who decodes it does, also where the rest is nothing
	n, multiplied := weight.Body(strings.ToLower(strings.TrimSpace(mediaType)), text)
	if multiplied {
		return max(6*n, mostLargeOfOne)
	}
	return n
}

// operation is what a request does, as in errors of kubectl.
func operation(info *request.RequestInfo) string {
	what := info.Resource
	if info.Subresource != "" {
		what += "/" + info.Subresource
	}
	if info.APIGroup != "" {
		what += "." + info.APIGroup
	}
	if info.Name != "" {
		what += fmt.Sprintf(" %q", info.Name)
	}
	return info.Verb + " " + what
}

// readAlready is a body that is in memory.
type readAlready struct {
	io.Reader
	io.Closer
}

// failed fails as a body did, and has ended where it did not.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}
