package server

import (
	"bytes"
	"context"
	"errors"
	"io"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"atoll.dev/atoll/internal/budget"
)

// expected are the lines that Kubernetes' libraries log at verbosity 0 each time a server is assembled, started and
// stopped, or a Service made: lists of what is served, and steps of what succeeds. Each is the end of a line's header with the file that logs
// it, and the beginning of the message. None tells of a fault.
var expected = []struct{ file, message string }{
	{"handler.go", "Adding GroupVersion "},
	{"genericapiserver.go", "Skipping API "},
	{"apis.go", `API group "`},
	{"alloc.go", `"allocated clusterIPs"`},
	{"secure_serving.go", "Serving securely on "},
	{"secure_serving.go", "Stopped listening on "},
	{"tlsconfig.go", `"Starting DynamicServingCertificateController"`},
	{"tlsconfig.go", `"Shutting down DynamicServingCertificateController"`},
	{"object_count_tracker.go", `"StorageObjectCountTracker pruner is exiting"`},
	{"dynamic_cafile_content.go", `"Starting controller"`},
	{"dynamic_cafile_content.go", `"Shutting down controller"`},
}

// Quiet returns a writer for klog's text format that passes on all but the expected lines of Kubernetes' libraries, so
// that a person who starts a server at the default verbosity sees what he may have to act on. Errors always pass.
func Quiet(w io.Writer) io.Writer { return quiet{w} }

type quiet struct{ w io.Writer }

// Write takes one whole line, as klog writes them.
func (q quiet) Write(line []byte) (int, error) {
	if isExpected(line) {
		return len(line), nil
	}
	return q.w.Write(line)
}

// isExpected parses "I1121 13:06:03.865103   20126 handler.go:304] Adding GroupVersion ...".
func isExpected(line []byte) bool {
	if len(line) == 0 || line[0] != 'I' && line[0] != 'W' {
		return false
	}
	header, message, ok := bytes.Cut(line, []byte("] "))
	if !ok {
		return false
	}
	source := header[bytes.LastIndexByte(header, ' ')+1:]
	file, _, _ := bytes.Cut(source, []byte(":"))
	for _, e := range expected {
		if string(file) == e.file && bytes.HasPrefix(message, []byte(e.message)) {
			return true
		}
	}
	return false
}

// QuietErrors keeps Kubernetes' libraries from logging errors that only who asked can do something about, and that he is told: he
// would fill the log, a thousand lines for a request. It is for the beginning of a process.
func QuietErrors() {
	for i, handle := range utilruntime.ErrorHandlers {
		utilruntime.ErrorHandlers[i] = func(ctx context.Context, err error, message string, keysAndValues ...any) {
			var exceeded budget.Exceeded
			if !errors.As(err, &exceeded) {
				handle(ctx, err, message, keysAndValues...)
			}
		}
	}
}
