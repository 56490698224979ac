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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// administrator. They say neither who asked nor what was sent.
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
	_, err = r.in(t, shop).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "traced", Annotations: map[string]string{"a": "said in a body"}},
	}, metav1.CreateOptions{})
	must(t, err)
	if got := r.ask(t, asked{path: "/clusters/root:shop/api/v1/namespaces/default/configmaps?limit=77", token: alice}); got.code != 200 {
		t.Fatalf("%d %s", got.code, got.body)
	}
	traces := map[string]bool{} // of that request
	waitFor(t, time.Minute, "the request's span", func() (string, bool) {
		spans.mu.Lock()
		defer spans.mu.Unlock()
		sent := false
		for _, s := range spans.spans {
			sent = sent || strings.HasSuffix(s["http.target"]+s["url.path"], "/api/v1/namespaces")
			if strings.Contains(s["http.target"], "limit=77") || strings.Contains(s["url.path"], "limit=77") {
				traces[s["trace"]] = true
			}
		}
		for _, s := range spans.spans {
			if traces[s["trace"]] && s["kcp.io/cluster"] == string(shop) && s["service.name"] != "" && sent {
				return "", true
			}
		}
		return fmt.Sprintf("%d spans, traces of the request: %v, that with a body: %v", len(spans.spans), traces, sent), false
	})
	spans.mu.Lock()
	defer spans.mu.Unlock()
	for _, s := range spans.spans {
		for key, text := range s {
			if strings.Contains(text, "said in a body") || strings.Contains(text, alice) || traces[s["trace"]] && strings.Contains(text, "alice") {
				t.Errorf("the span %q says %q in %s", s["name"], text, key)
			}
		}
	}
}
