package syncer

import (
	"errors"
	"fmt"
	"net/http"
)

// errHeldBack says that a write did not go down since somebody else may sync the physical cluster by now. It is no word
// of that cluster.
var errHeldBack = errors.New("held back")

// fenced asks before each request that changes something in the physical cluster whether it may. What is read is no ground
// for a write that is made when the reader was stopped in between, and another took its place.
type fenced struct {
	next http.RoundTripper
	may  func() error
}

func (f fenced) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		if err := f.may(); err != nil {
			return nil, fmt.Errorf("%w: %s %s: %w", errHeldBack, req.Method, req.URL.Path, err)
		}
	}
	return f.next.RoundTrip(req)
}
