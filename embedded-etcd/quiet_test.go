package embeddedetcd_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/grpclog"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

// complaints are the warnings and errors that gRPC logs in this process; the server shows people the warnings with -v 2.
var complaints recorder

type recorder struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *recorder) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Write(line)
}

// about returns the complaints about an address: connections of other tests may still be ending.
func (r *recorder) about(endpoint string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, address, _ := strings.Cut(endpoint, "://")
	is := regexp.MustCompile(regexp.QuoteMeta(address) + `\b`)
	return slices.DeleteFunc(strings.Split(r.all.String(), "\n"), func(line string) bool { return !is.MatchString(line) })
}

func TestMain(m *testing.M) {
	// Before the first connection, as gRPC demands.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.MultiWriter(os.Stderr, &complaints), io.Discard))
	os.Exit(m.Run())
}

// Who connects to an etcd that is well is told of no connection that failed.
func TestConnectingToAGoodEtcdComplainsOfNothing(t *testing.T) {
	_, o := etcdtest.StartTLS(t)
	for range 10 {
		etcd, err := embeddedetcd.Connect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	}
	if got := complaints.about(o.Endpoints[0]); len(got) > 0 {
		t.Errorf("gRPC complained:\n%s", strings.Join(got, "\n"))
	}
}

// Nothing that is wrong is kept back.
func TestConnectingToNothingIsComplainedOf(t *testing.T) {
	nowhere, o := etcdtest.StartTLS(t)
	if err := nowhere.Stop(); err != nil {
		t.Fatal(err)
	}
	before := len(complaints.about(o.Endpoints[0]))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if etcd, err := embeddedetcd.Connect(ctx, o); err == nil {
		t.Error("connected to what is not there", etcd.Stop())
	}
	if len(complaints.about(o.Endpoints[0])) == before {
		t.Error("gRPC says nothing of a connection that fails")
	}
}
