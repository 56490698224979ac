package framework

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Kubelet answers for containers as a kubelet does: logs, exec, attach and port-forward, over SPDY. A container's log is LogLines lines
// that name it, and what Logs adds; what it is told to execute runs on this machine, in Dir; attached, it sends back what it reads, and so do its ports, but that
// HTTPPort answers requests over HTTP with what they are, nothing listens on ClosedPort, and at those of Ports is who listens at that address, of whose
// end it says LastWord. What containers use is what the test says (Uses).
type Kubelet struct {
	T        testing.TB
	Dir      string
	Ports    map[string]string
	LastWord string

	mu        sync.Mutex       // guards Ports, once it serves, and what follows
	uses      map[string]usage // by labels of their series
	followers []chan<- string  // of logs
}

// Logs has all containers log a line, which those hear of that follow their logs. It is an error if nobody does. Who has gone
// and is not counted off yet hears nothing: it would be waited for with what it needs for that.
func (k *Kubelet) Logs(line string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, follower := range k.followers {
		select {
		case follower <- line:
		default:
		}
	}
	if len(k.followers) == 0 {
		return errors.New("nobody follows a log")
	}
	return nil
}

// follow is what is logged until done is called.
func (k *Kubelet) follow() (lines <-chan string, done func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	follower := make(chan string, 16) // more than any test logs at a time
	k.followers = append(k.followers, follower)
	return follower, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.followers = slices.DeleteFunc(k.followers, func(f chan<- string) bool { return f == follower })
	}
}

// Leads has a port be who listens at an address, from now on.
func (k *Kubelet) Leads(port, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Ports == nil {
		k.Ports = map[string]string{}
	}
	k.Ports[port] = address
}

// leads is to which address a port does, empty if to none.
func (k *Kubelet) leads(port string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Ports[port]
}

// usage is what a container uses, from a moment on.
type usage struct {
	cores float64
	bytes int64
	since time.Time
}

// Uses has a container use so many CPUs from now on, and so many bytes of memory.
func (k *Kubelet) Uses(namespace, pod, container string, cores float64, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.uses == nil {
		k.uses = map[string]usage{}
	}
	k.uses[fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", container, namespace, pod)] = usage{cores, bytes, time.Now().Add(-time.Hour)}
}

// resources answers as a kubelet does at /metrics/resource.
func (k *Kubelet) resources(w http.ResponseWriter, _ *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now().Truncate(time.Millisecond)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for of, used := range k.uses {
		lasted := now.Sub(used.since.Truncate(time.Millisecond)).Seconds()
		_, _ = fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %.9f %d\ncontainer_memory_working_set_bytes%s %d %d\ncontainer_start_time_seconds%s %.3f\n",
			of, used.cores*lasted, now.UnixMilli(), of, used.bytes, now.UnixMilli(), of, float64(used.since.UnixMilli())/1000)
	}
}

// Ports of pods that do not send back what they read.
const (
	HTTPPort   = "8080"
	ClosedPort = "9"
)

// answerHTTP answers requests with what they are: method, path and the header X-Test. Those below /to/ it redirects to the path after it.
func answerHTTP(s io.ReadWriter) {
	for reader := bufio.NewReader(s); ; {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(req.Body)
		text := fmt.Sprintf("%s %s %s %s", req.Method, req.URL.RequestURI(), req.Header.Get("X-Test"), body)
		answer := http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: req, Close: req.Close, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}
		if to, ok := strings.CutPrefix(req.URL.Path, "/to/"); ok {
			answer.StatusCode, answer.Header = http.StatusFound, http.Header{"Location": {"/" + to}}
		}
		if answer.Write(s) != nil || req.Close {
			return
		}
	}
}

// join connects a port with who listens at an address, until either ends.
func join(s io.ReadWriter, address string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(conn, s)
		_ = conn.Close()
	}()
	_, _ = io.Copy(s, conn)
	_ = conn.Close()
}

// LogLines is how many lines a log has before somebody follows it.
const LogLines = 5

func (k *Kubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.log)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, req *http.Request) {
		k.stream(w, req, req.URL.Query()["command"])
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, req *http.Request) { k.stream(w, req, []string{"cat"}) })
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.portForward)
	mux.HandleFunc("GET /metrics/resource", k.resources)
	mux.ServeHTTP(w, req)
}

// LogLine is line i, from 1, of the log of a container.
func LogLine(pod, container string, previous bool, i int) string {
	run := "now"
	if previous {
		run = "before"
	}
	return fmt.Sprintf("%s/%s %s %d\n", pod, container, run, i)
}

func (k *Kubelet) log(w http.ResponseWriter, req *http.Request) {
	query, first, most := req.URL.Query(), 1, 1<<20
	if tail, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		first = LogLines - tail + 1
	}
	if limit, err := strconv.Atoi(query.Get("limitBytes")); err == nil {
		most = limit
	}
	var text string
	for i := first; i <= LogLines; i++ {
		if query.Get("timestamps") == "true" {
			text += "2026-01-01T00:00:00Z "
		}
		text += LogLine(req.PathValue("pod"), req.PathValue("container"), query.Get("previous") == "true", i)
	}
	_, _ = io.WriteString(w, text[:min(len(text), most)])
	if query.Get("follow") == "true" {
		lines, done := k.follow()
		defer done()
		for {
			_ = http.NewResponseController(w).Flush() // whoever reads it has gone
			select {
			case line := <-lines:
				_, _ = io.WriteString(w, line)
			case <-req.Context().Done():
				return
			}
		}
	}
}

// accepted upgrades a request, and returns the streams that its client makes.
func (k *Kubelet) accepted(w http.ResponseWriter, req *http.Request, protocol string) (httpstream.Connection, <-chan httpstream.Stream) {
	if _, err := httpstream.Handshake(req, w, []string{protocol}); err != nil {
		k.T.Errorf("a stream of another protocol: %v", err)
		return nil, nil
	}
	streams := make(chan httpstream.Stream)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			select {
			case streams <- s:
			case <-req.Context().Done():
			}
		}()
		return nil
	})
	return conn, streams
}

func (k *Kubelet) stream(w http.ResponseWriter, req *http.Request, command []string) {
	conn, streams := k.accepted(w, req, remotecommand.StreamProtocolV4Name)
	if conn == nil {
		return
	}
	defer conn.Close() //nolint:errcheck // a test's
	query, want := req.URL.Query(), 1
	for _, stream := range []string{"input", "output", "error"} {
		if query.Get(stream) == "1" {
			want++
		}
	}
	cmd := exec.CommandContext(req.Context(), command[0], command[1:]...)
	cmd.Dir = k.Dir
	var status io.Writer
	var opened []httpstream.Stream
	for range want {
		select {
		case s := <-streams:
			opened = append(opened, s)
			switch s.Headers().Get(corev1.StreamType) {
			case corev1.StreamTypeError:
				status = s
			case corev1.StreamTypeStdin:
				in, err := cmd.StdinPipe() // Wait does not wait for it
				if err != nil {
					k.T.Error(err)
					return
				}
				go func() {
					_, _ = io.Copy(in, s)
					_ = in.Close()
				}()
			case corev1.StreamTypeStdout:
				cmd.Stdout = s
			case corev1.StreamTypeStderr:
				cmd.Stderr = s
			}
		case <-conn.CloseChan():
			return
		}
	}
	said := metav1.Status{Status: metav1.StatusSuccess}
	if err := cmd.Run(); err != nil {
		said = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: err.Error()}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			said.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitCode())}}}
		}
	}
	_ = json.NewEncoder(status).Encode(said)
	for _, s := range opened {
		_ = s.Close()
	}
	<-conn.CloseChan() // what was written has arrived when its reader ends
}

func (k *Kubelet) portForward(w http.ResponseWriter, req *http.Request) {
	conn, streams := k.accepted(w, req, "portforward.k8s.io")
	if conn == nil {
		return
	}
	defer conn.Close() //nolint:errcheck // a test's
	joined := make(chan struct{}, 1)
	for {
		select {
		case s := <-streams:
			go func() {
				data := s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData
				port := s.Headers().Get(corev1.PortHeader)
				switch {
				case port == ClosedPort && !data:
					_, _ = io.WriteString(s, "connection refused")
				case !data && k.leads(port) != "" && k.LastWord != "":
					select {
					case <-joined:
						_, _ = io.WriteString(s, k.LastWord)
					case <-conn.CloseChan():
					}
				case port == ClosedPort || !data:
				case k.leads(port) != "":
					join(s, k.leads(port))
					joined <- struct{}{}
				case port == HTTPPort:
					answerHTTP(s)
				default:
					_, _ = io.Copy(s, s)
				}
				_ = s.Close()
			}()
		case <-conn.CloseChan():
			return
		}
	}
}
