package server

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// withEndOfLog refuses to read a log for a request that has a body. Nobody reads that, and till then nobody sees that its client is gone:
// the log of a container that is silent would last, and take its room, as long as the container does. Streams that switch protocols have
// their connection read.
func (s *Server) withEndOfLog(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || info.Resource != "pods" || info.Subresource != "log" || req.ContentLength == 0 {
			next.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Connection", "close") // or the body, which may never come, is read before the answer is written
		s.answer(w, req, apierrors.NewBadRequest(fmt.Sprintf("the log of pod %q is asked for with a body; ask without one", info.Name)))
	})
}
