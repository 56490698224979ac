package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"atoll.dev/atoll/internal/budget"
)

func TestQuiet(t *testing.T) {
	tests := map[string]struct {
		line   string
		passes bool
		reason string
	}{
		"group":           {line: "I1121 13:06:03.942709   20126 handler.go:304] Adding GroupVersion  v1 to ResourceManager\n", reason: "what is served is asked for with api-resources"},
		"skipped":         {line: "W1121 13:06:03.971151   20126 genericapiserver.go:798] Skipping API batch/v1beta1 because it has no resources.\n", reason: "nobody enabled it"},
		"disabled":        {line: "I1121 13:06:03.943063   20126 apis.go:112] API group \"internal.apiserver.k8s.io\" is not enabled, skipping.\n", reason: "nobody enabled it"},
		"stopped":         {line: "I1121 13:06:15.700919   20126 secure_serving.go:262] Stopped listening on 127.0.0.1:1\n", reason: "he stopped it"},
		"same file":       {line: "W1121 13:06:03.971151   20126 genericapiserver.go:800] OpenAPI schema is broken\n", passes: true, reason: "only the known messages are expected"},
		"error":           {line: "E1121 13:06:03.971151   20126 genericapiserver.go:798] Skipping API x\n", passes: true, reason: "errors always pass"},
		"quoted":          {line: "I1121 13:06:03.971151   20126 other.go:1] \"genericapiserver.go:798] Skipping API x\"\n", passes: true, reason: "the file is in the header"},
		"ours":            {line: "I1121 13:06:03.865103   20126 embedded.go:123] \"Embedded etcd serves\" dir=\"x\"\n", passes: true, reason: "our own"},
		"json":            {line: "{\"ts\":1,\"msg\":\"Skipping API x\"}\n", passes: true, reason: "machines read all of it"},
		"continued":       {line: "goroutine 1 [running]:\n", passes: true, reason: "a stack belongs to an error"},
		"empty":           {line: "", passes: true, reason: "nothing is nothing"},
		"without message": {line: "I1121 13:06:03.971151   20126 handler.go:304]", passes: true, reason: "not klog's form"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			n, err := Quiet(&out).Write([]byte(test.line))
			if n != len(test.line) || err != nil {
				t.Errorf("wrote %d of %d, %v", n, len(test.line), err)
			}
			if passed := out.String() == test.line; passed != test.passes {
				t.Errorf("passed: %v (%q), want %v: %s", passed, out.String(), test.passes, test.reason)
			}
		})
	}
}

// TestQuietErrors: a budget that a tenant has used up fills no log.
func TestQuietErrors(t *testing.T) {
	handlers := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = handlers }()
	var logged []string
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error, _ string, _ ...any) { logged = append(logged, err.Error()) }}
	QuietErrors()
	exceeded := budget.New(1, 1, "one", "all").Take("shop", 2)
	for _, err := range []error{exceeded, fmt.Errorf("read it: %w", exceeded), errors.New("broken")} {
		utilruntime.HandleError(err)
	}
	if want := []string{"broken"}; !slices.Equal(logged, want) {
		t.Errorf("logged %q, want %q", logged, want)
	}
}
