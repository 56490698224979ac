package server

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector receives spans by OTLP over gRPC, as any collector does.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex // guards spans
	spans []map[string]string
}

func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				attributes := map[string]string{"name": span.Name, "trace": fmt.Sprintf("%x", span.TraceId)}
				for _, a := range append(span.Attributes, resource.Resource.GetAttributes()...) {
					attributes[a.Key] = a.Value.GetStringValue()
				}
				c.spans = append(c.spans, attributes)
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// TestTracing: spans of requests reach a collector, name the logical cluster, and are part of the trace of who asked, if that is the server's
// administrator.
func TestTracing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	receives, spans := grpc.NewServer(), &collector{}
	collectorv1.RegisterTraceServiceServer(receives, spans)
	served := make(chan error, 1)
	go func() { served <- receives.Serve(listener) }()
	t.Cleanup(func() {
		receives.Stop()
		if err := <-served; err != nil {
			t.Errorf("collector: %v", err)
		}
	})
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	mustWrite(t, file, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: "+listener.Addr().String()+"\nsamplingRatePerMillion: 1000000\n")
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.Tracing.ConfigFile = file })
	r.makeAdmin(t, shop, "alice")
	if got := r.ask(t, asked{path: "/clusters/root:shop/api/v1/namespaces/default/configmaps?limit=77", token: alice}); got.code != 200 {
		t.Fatalf("%d %s", got.code, got.body)
	}
	waitFor(t, time.Minute, "the request's span", func() (string, bool) {
		spans.mu.Lock()
		defer spans.mu.Unlock()
		traces := map[string]bool{}
		for _, s := range spans.spans {
			if strings.Contains(s["http.target"], "limit=77") || strings.Contains(s["url.path"], "limit=77") {
				traces[s["trace"]] = true
			}
		}
		for _, s := range spans.spans {
			if traces[s["trace"]] && s["kcp.io/cluster"] == string(shop) && s["service.name"] != "" {
				return "", true
			}
		}
		return fmt.Sprintf("%d spans, traces of the request: %v", len(spans.spans), traces), false
	})
}
