package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// guarded runs a command, "$@", with a guard beside it in its session: once nobody has the other end of the pipe that is file 3 open, which is us, it does
// what killSession does, and ends. So a command ends with us, however we end. All that it uses is built into a shell: the command's PATH may be any. Where
// there is no /proc, it kills the process group alone.
const guarded = `(trap '' HUP INT QUIT TERM TSTP; read -r end <&3
read -r own rest </proc/self/stat
looks=0 left=1
while [ $left = 1 ] && [ $looks -lt 100 ]; do
	looks=$((looks + 1)) left=0
	for file in /proc/[0-9]*/stat; do
		pid=${file#/proc/}; pid=${pid%/stat}; last=
		while read -r line; do last=$line; done <$file
		set -- ${last##*) }
		if [ "$4" = $$ ] && [ "$1" != Z ] && [ "$1" != X ] && [ "$pid" != "$own" ]; then left=1; kill -KILL $pid; fi
	done
done
kill -KILL 0) </dev/null >/dev/null 2>&1 &
exec 3<&-
exec "$@"`

// inputPatience is how long a command need not read what is sent to it. Behind input that waits, nobody hears that who sent it is gone.
const inputPatience = 10 * time.Minute

// What a command that is ended was ended for.
var (
	errClientGone = errors.New("who asked for it is gone")
	errStopping   = errors.New("the cluster stops")
	errUnread     = errors.New("it does not read its input")
)

func (k *kubelet) exec(w http.ResponseWriter, req *http.Request) {
	if !k.execOnHost {
		writeRefusal(w, refuse(http.StatusForbidden, "exec is off in simulated cluster %q: no process runs in its pods. Started with --exec-on-host, it runs commands on its own machine instead", k.cluster))
		return
	}
	pod, container, err := k.find(req.Context(), req)
	if err != nil {
		writeRefusal(w, err)
		return
	}
	status, err := statusOf(pod, container.Name)
	if err == nil && status.State.Running == nil {
		err = refuse(http.StatusBadRequest, "container %q in pod %q does not run", container.Name, pod.Name)
	}
	if err != nil {
		writeRefusal(w, err)
		return
	}
	words := req.URL.Query()["command"]
	if len(words) == 0 {
		writeRefusal(w, refuse(http.StatusBadRequest, "there is no command"))
		return
	}
	options, err := remotecommand.NewOptions(req)
	if err != nil {
		writeRefusal(w, refuse(http.StatusBadRequest, "%v", err))
		return
	}
	env, err := k.environment(req.Context(), pod, container)
	if err != nil {
		writeRefusal(w, refuse(http.StatusBadRequest, "container %q in pod %q has no environment: %v", container.Name, pod.Name, err))
		return
	}
	conn, err := connOf(req.Context())
	if err != nil {
		writeRefusal(w, err)
		return
	}
	// The context of a request does not say any more, once it is a stream, that its connection has ended.
	ctx, stop, err := untilHangup(req.Context(), conn)
	if err != nil {
		writeRefusal(w, fmt.Errorf("watch the connection: %w", err))
		return
	}
	defer stop()
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "container", container.Name)
	logger.Info("Running a command on this machine", "program", words[0])
	command := &hostCommand{ctx: ctx, dir: k.dir, env: env, running: k.running, patience: inputPatience}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
		serveWebSocket(w, req, command, words, options, k.longest)
		return
	}
	remotecommand.ServeExec(w, req, command, pod.Name, string(pod.UID), container.Name, words, options, k.longest, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// serveWebSocket is remotecommand.ServeExec over a WebSocket of the version that kubectl speaks, v5, which that does not know. Nodes declare that their
// kubelet speaks it (nodeFeature): else the apiserver translates it to SPDY, and does not pass on that its client has gone.
func serveWebSocket(w http.ResponseWriter, req *http.Request, command *hostCommand, words []string, options *remotecommand.Options, idle time.Duration) {
	channels := []wsstream.ChannelType{
		constants.StreamStdIn: wsstream.IgnoreChannel, constants.StreamStdOut: wsstream.IgnoreChannel, constants.StreamStdErr: wsstream.IgnoreChannel,
		constants.StreamErr: wsstream.WriteChannel, constants.StreamResize: wsstream.ReadChannel,
	}
	if options.Stdin {
		channels[constants.StreamStdIn] = wsstream.ReadChannel
	}
	if options.Stdout {
		channels[constants.StreamStdOut] = wsstream.WriteChannel
	}
	if options.Stderr {
		channels[constants.StreamStdErr] = wsstream.WriteChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{constants.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	conn.SetIdleTimeout(idle)
	_, opened, err := conn.Open(w, req)
	if err != nil {
		return // it has been answered
	}
	defer conn.Close()
	// A client waits until it is told that the streams are there.
	if _, err := opened[constants.StreamErr].Write(nil); err != nil {
		return
	}
	var in io.Reader
	var out, errOut io.WriteCloser
	if options.Stdin {
		in = opened[constants.StreamStdIn]
	}
	if options.Stdout {
		out = opened[constants.StreamStdOut]
	}
	if options.Stderr {
		errOut = opened[constants.StreamStdErr]
	}
	resize := make(chan remotecommand.TerminalSize) // of a terminal; what nobody takes ends with the command
	go func() {
		defer close(resize)
		for sizes := json.NewDecoder(opened[constants.StreamResize]); ; {
			var size remotecommand.TerminalSize
			if sizes.Decode(&size) != nil {
				return // the stream has ended
			}
			select {
			case resize <- size:
			case <-command.ctx.Done():
				return
			}
		}
	}()
	said := endOf(command.ExecInContainer(command.ctx, "", "", "", words, in, out, errOut, options.TTY, resize, 0))
	_ = json.NewEncoder(opened[constants.StreamErr]).Encode(said) // to nobody, if who asked is gone
}

// endOf says how a command ended, as clients read it.
func endOf(err error) metav1.Status {
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: constants.NonZeroExitCodeReason, Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: constants.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitStatus())}}},
		}
	}
	return apierrors.NewInternalError(fmt.Errorf("error executing command in container: %w", err)).Status()
}

// hostCommand runs one command on this machine until it ends or ctx does.
type hostCommand struct {
	ctx      context.Context
	dir      string
	env      []string
	running  *semaphore.Weighted // one of it while it runs; none are left once the cluster stops
	patience time.Duration       // inputPatience
}

// ExecInContainer is how remotecommand asks for it. An error that is a utilexec.ExitError is the command's own end.
func (h *hostCommand) ExecInContainer(_ context.Context, _, _, _ string, words []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if !h.running.TryAcquire(1) {
		return errStopping
	}
	defer h.running.Release(1)
	ctx, cancel := context.WithCancelCause(h.ctx)
	defer cancel(nil)
	cmd := exec.Command("/bin/sh", append([]string{"-c", guarded, "sh"}, words...)...)
	cmd.Dir, cmd.Env = h.dir, h.env
	// A session is a process group, too, and has the groups that a shell makes for its jobs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	guard, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd.ExtraFiles = []*os.File{guard}

	streams := &streams{unread: func() { cancel(errUnread) }, patience: h.patience}
	defer streams.abandon()
	if tty {
		err = streams.terminal(cmd, in, out, resize)
	} else {
		err = streams.pipes(cmd, in, out, errOut)
	}
	if err == nil {
		err = cmd.Start()
	}
	_ = guard.Close() // the guard has its own
	streams.started()
	if err != nil {
		return fmt.Errorf("start %s: %w", words[0], err)
	}
	// The guard is in the session: while it waits, which it does until ours is closed, nobody else has its number.
	kill := func() { killSession(cmd.Process.Pid) }
	unwatch := context.AfterFunc(ctx, kill)
	ended := cmd.Wait()
	unwatch()
	kill() // what it has left in the background

	select {
	case <-streams.written:
	case <-ctx.Done(): // nobody reads it
	}
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.Canceled) {
			cause = errStopping
		}
		return fmt.Errorf("the command was killed: %w", cause)
	}
	var exit *exec.ExitError
	if errors.As(ended, &exit) {
		code := exit.ExitCode()
		if status, is := exit.Sys().(syscall.WaitStatus); is && status.Signaled() {
			code = 128 + int(status.Signal()) // as shells and container runtimes have it
		}
		return utilexec.CodeExitError{Err: exit, Code: code}
	}
	return ended
}

// streams are those of a command. What it is given may never be asked for, and so its end is not waited for; what it writes is.
type streams struct {
	written chan struct{} // closed when all that the command wrote was passed on
	theirs  []*os.File    // closed here once the command has its own
	ours    []*os.File    // closed at the end, which ends what copies
	pump    func()        // what begins once it has started

	patience time.Duration // with a command that does not read its input
	unread   func()        // called when it has none left
}

// started closes what is the command's, and begins to copy.
func (s *streams) started() {
	for _, f := range s.theirs {
		_ = f.Close() // the command has its own
	}
	if s.pump != nil {
		s.pump()
	}
}

// abandon closes our ends.
func (s *streams) abandon() {
	for _, f := range s.ours {
		_ = f.Close() // as a rule it is closed
	}
}

// pipes gives a command a pipe for each stream.
func (s *streams) pipes(cmd *exec.Cmd, in io.Reader, out, errOut io.Writer) error {
	var reading sync.WaitGroup
	var copies []func()
	s.written = make(chan struct{})
	s.pump = func() {
		for _, begin := range copies {
			begin()
		}
		go func() {
			reading.Wait()
			close(s.written)
		}()
	}
	if in != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd.Stdin, s.theirs, s.ours = r, append(s.theirs, r), append(s.ours, w)
		copies = append(copies, func() {
			go func() {
				s.give(w, in)
				_ = w.Close()
			}()
		})
	}
	for _, stream := range []struct {
		to  io.Writer
		set func(*os.File)
	}{{out, func(f *os.File) { cmd.Stdout = f }}, {errOut, func(f *os.File) { cmd.Stderr = f }}} {
		if stream.to == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		stream.set(w)
		s.theirs, s.ours = append(s.theirs, w), append(s.ours, r)
		reading.Add(1)
		copies = append(copies, func() {
			go func() {
				defer reading.Done()
				_, _ = io.Copy(stream.to, r) // to nobody, if who asked is gone
				_ = r.Close()
			}()
		})
	}
	return nil
}

// give passes input on to a command until one end is gone, or the command has not read it for too long.
func (s *streams) give(to *os.File, in io.Reader) {
	if _, err := io.Copy(&patient{to, s.patience}, in); errors.Is(err, os.ErrDeadlineExceeded) {
		s.unread()
	}
}

// patient writes to a pipe or a terminal, each piece for so long.
type patient struct {
	to       *os.File
	patience time.Duration
}

func (p *patient) Write(data []byte) (int, error) {
	if err := p.to.SetWriteDeadline(time.Now().Add(p.patience)); err != nil {
		return 0, err
	}
	return p.to.Write(data)
}

// terminal gives a command one pseudo-terminal for all streams.
func (s *streams) terminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	s.written = make(chan struct{})
	blocking, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	s.theirs = append(s.theirs, slave)
	master, err := unblocked(blocking)
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	// It stays open until the command has ended: to close it sends the command SIGHUP, and one may close its streams long before, as head does.
	s.ours = append(s.ours, master)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // file 0 of the command
	cmd.Env = append([]string{"TERM=xterm"}, cmd.Env...)
	s.pump = func() {
		if in != nil {
			go s.give(master, in)
		}
		if resize != nil {
			go func() {
				for size := range resize { // until the stream ends; who sends it is not kept waiting
					_ = pty.Setsize(master, &pty.Winsize{Rows: size.Height, Cols: size.Width}) // it may be closed
				}
			}()
		}
		go func() {
			defer close(s.written)
			if out != nil {
				_, _ = io.Copy(out, master) // it ends with an error when the last process that has the terminal open does
			}
		}()
	}
	return nil
}

// unblocked returns a file anew, for deadlines, and closes it. The terminal that pty.Open returns takes none, since that has asked it for its descriptor.
func unblocked(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

type connKey struct{}

// withConn keeps the connection of a request for connOf.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func connOf(ctx context.Context) (*net.TCPConn, error) {
	conn := ctx.Value(connKey{})
	if secure, is := conn.(*tls.Conn); is {
		conn = secure.NetConn()
	}
	if tcp, is := conn.(*net.TCPConn); is {
		return tcp, nil
	}
	return nil, fmt.Errorf("a connection of type %T cannot be watched", conn)
}

// untilHangup returns a context that ends when the other end has closed a connection, whatever of what it sent before is still to be read: a
// command need not read its input. stop must be called, before the connection is used for something else.
func untilHangup(ctx context.Context, conn *net.TCPConn) (_ context.Context, stop func(), err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	socket := -1
	if controlErr := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); controlErr != nil || err != nil {
		return nil, nil, errors.Join(controlErr, err)
	}
	wake, end, err := os.Pipe()
	if err != nil {
		_ = unix.Close(socket)
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		watched := []unix.PollFd{{Fd: int32(socket), Events: hangup}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll(watched, -1)
		}
		if err != nil {
			cancel(fmt.Errorf("watch the connection: %w", err))
		}
		cancel(errClientGone)
		_ = unix.Close(socket) // nothing was written
		_ = wake.Close()
	}()
	return ctx, func() {
		_ = end.Close()
		<-done
	}, nil
}
