package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

var syncTargets = workloadv1alpha1.GroupVersion.WithResource("synctargets").GroupResource()

// opensTunnel says whether a request is for a tunnel, by whoever it is.
func opensTunnel(info *request.RequestInfo) bool {
	return info.IsResourceRequest && info.APIGroup == syncTargets.Group && info.Resource == syncTargets.Resource &&
		info.Subresource == workloadv1alpha1.TunnelSubresource
}

// withTunnel takes over the connection of a syncer outside this process that asks for that, to ask it for logs and streams of the pods of
// its mirror (docs/design/0009-streams.md). Roles do not decide: whoever else is asked for nothing. It ends with the syncer's credential.
func (s *Server) withTunnel(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !opensTunnel(info) {
			next.ServeHTTP(w, req)
			return
		}
		if err := s.mayTunnel(req, info); err != nil {
			s.answer(w, req, err)
			return
		}
		if err := s.tunnel(w, req); err != nil {
			klog.FromContext(req.Context()).Error(err, "Could not take over the connection of a syncer")
		}
	})
}

// mayTunnel returns why a request for a tunnel is refused.
func (s *Server) mayTunnel(req *http.Request, info *request.RequestInfo) error {
	ctx := req.Context()
	cluster, _ := lcctx.ClusterFrom(ctx)
	who, _ := request.UserFrom(ctx)
	syncer, is := who.(*syncerUser)
	held := strings.Split(req.Header.Get(workloadv1alpha1.TunnelHeldHeader), ",")
	switch {
	case !is || syncer.credential == "" || !cluster.Mirror || cluster.Wildcard || cluster.Name != syncer.mirror:
		return apierrors.NewForbidden(syncTargets, info.Name, errors.New("only the syncer of a physical cluster, in that cluster, opens its tunnel"))
	case req.Method != http.MethodPost:
		return apierrors.NewMethodNotSupported(syncTargets, req.Method)
	case !strings.EqualFold(req.Header.Get("Upgrade"), workloadv1alpha1.TunnelProtocol) || req.ProtoMajor != 1:
		return apierrors.NewBadRequest(fmt.Sprintf("a tunnel is what a connection of HTTP/1.1 becomes: ask to upgrade it to %q", workloadv1alpha1.TunnelProtocol))
	case s.id != "" && slices.Contains(held, s.id) && s.kubelets.Holds(cluster.Name):
		return apierrors.NewConflict(syncTargets, info.Name, errors.New("this server has a tunnel of the syncer"))
	}
	_, err := storedObjects{s.backend}.Get(ctx, syncTargets, "", info.Name, false)
	return err
}

// tunnel holds the connection of a request until it ends. A server that stops serves its streams for as long as others.
func (s *Server) tunnel(w http.ResponseWriter, req *http.Request) error {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.answer(w, req, apierrors.NewInternalError(err))
		return fmt.Errorf("take over a connection: %w", err)
	}
	defer conn.Close() //nolint:errcheck // whoever is at its end knows
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("take over a connection: %w", err)
	}
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + workloadv1alpha1.TunnelProtocol + "\r\n"
	if s.id != "" {
		head += workloadv1alpha1.TunnelServerHeader + ": " + s.id + "\r\n"
	}
	if _, err := conn.Write([]byte(head + "\r\n")); err != nil {
		return fmt.Errorf("take over a connection: %w", err)
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	go func() {
		select {
		case <-s.served:
			cancel()
		case <-ctx.Done():
		}
	}()
	cluster, _ := lcctx.ClusterFrom(ctx)
	return s.kubelets.Hold(ctx, cluster.Name, &readAhead{conn, buffered.Reader})
}

// readAhead is a connection of which some has been read.
type readAhead struct {
	net.Conn
	read *bufio.Reader
}

func (r *readAhead) Read(p []byte) (int, error) { return r.read.Read(p) }
