package embeddedetcd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// harmless are complaints of etcd about what is as it should be. At every start, the storage version cannot be read
// before the first entry of a term is applied, and etcd tries again. At every stop listeners end, and if they do at
// another time Etcd.Failed says so.
var harmless = map[string]bool{
	"failed to update storage version":              true,
	"setting up serving from embedded etcd failed.": true,
}

// newLogger sends what etcd logs to klog, so that the process has one format. Errors are errors; the rest, which tells
// of etcd's inner life, is at verbosity 6. When etcd gives up it ends the process, in whichever goroutine it is: then the
// last words say what people can do about the store in dir.
func newLogger(dir string) *zap.Logger {
	return zap.New(klogCore{}, zap.WithPanicHook(lastWords{dir}), zap.WithFatalHook(lastWords{dir}))
}

type lastWords struct{ dir string }

// OnWrite implements zapcore.CheckWriteHook.
func (w lastWords) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(encoder)
	}
	klog.Flush()
	fmt.Fprintf(os.Stderr, "Error: %s\n", whyEnded(w.dir, entry.Message, encoder.Fields["error"]))
	os.Exit(1)
}

// whyEnded says why the embedded etcd over dir could not go on, and what to do.
func whyEnded(dir, message string, cause any) string {
	said := message
	if cause != nil {
		said += fmt.Sprintf(": %v", cause)
	}
	if strings.Contains(said, syscall.ENOSPC.Error()) || strings.Contains(said, syscall.EDQUOT.Error()) {
		return fmt.Sprintf("the disk of %s is full: make room there and start the server again; nothing that was acknowledged is lost (etcd: %s)", dir, said)
	}
	return fmt.Sprintf("the embedded etcd cannot go on with %s: its files are damaged, or the disk failed. Look at the disk; "+
		"where files are damaged, keep them aside and bring back the last backup with `atoll restore` (etcd: %s)", dir, said)
}

type klogCore struct {
	fields []zapcore.Field
}

func (c klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.ErrorLevel || klog.V(6).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(encoder)
	}
	var cause error
	keysAndValues := []any{"caller", entry.Caller.TrimmedPath()}
	for k, v := range encoder.Fields {
		if k == "error" {
			cause = errors.New(fmt.Sprint(v))
			continue
		}
		keysAndValues = append(keysAndValues, k, v)
	}
	if entry.Level >= zapcore.ErrorLevel && !harmless[entry.Message] {
		klog.ErrorS(cause, "Embedded etcd: "+entry.Message, keysAndValues...) //nolint:logcheck // the keys are etcd's own
		return nil
	}
	klog.V(6).InfoS("Embedded etcd: "+entry.Message, append(keysAndValues, "cause", cause)...) //nolint:logcheck // as above
	return nil
}

func (c klogCore) Sync() error { return nil }
