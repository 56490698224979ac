package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"atoll.dev/atoll/internal/netns"
	"atoll.dev/atoll/internal/process"
)

// The commands of the other two processes, and of the one that tries what they do.
const (
	initCommand  = "init"
	sweepCommand = "sweep"
	probeCommand = "probe"
)

// firstExtraFile is the number of the first file that a process is given beside the three.
const firstExtraFile = 3

// start runs the cluster until ctx ends or something of it does.
func start(ctx context.Context, o *options) error {
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return fmt.Errorf("make the root directory: %w", err)
	}
	unlock, err := process.Lock(o.path("realnode.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if lacks := check(ctx, o); len(lacks) > 0 {
		return lacking(lacks)
	}
	listener, err := listen(o)
	if err != nil {
		return err
	}
	defer listener.Close()

	first, err := startInit(o)
	if err != nil {
		return fmt.Errorf("start process 1: %w", err)
	}
	sweeper, err := startSweeper(o, first.pidfd)
	if err == nil {
		err = first.run(ctx, o, listener)
	}
	// In this order: the cgroups of what runs cannot be removed.
	first.end()
	if sweeper != nil {
		err = errors.Join(err, sweeper.end())
	}
	return err
}

// lacking is the error of a machine that cannot run pods.
func lacking(lacks []lack) error {
	said := make([]string, len(lacks))
	for i, l := range lacks {
		said[i] = "\n  " + l.what + ": " + l.why
	}
	return fmt.Errorf("this machine cannot run pods:%s", strings.Join(said, ""))
}

// listen opens the port of the API server on this machine. Where the options say none it is that of the last start, or a free one.
func listen(o *options) (net.Listener, error) {
	if o.securePort == 0 {
		data, err := os.ReadFile(o.path("secure-port")) // physical's
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read the port of the last start: %w", err)
		}
		if err == nil {
			if o.securePort, err = strconv.Atoi(string(data)); err != nil {
				return nil, fmt.Errorf("read the port of the last start: %w", err)
			}
		}
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.securePort)))
	if err != nil {
		return nil, fmt.Errorf("open the apiserver's port (--secure-port sets another): %w", err)
	}
	o.securePort = listener.Addr().(*net.TCPAddr).Port
	return listener, nil
}

// firstProcess is process 1 of the namespaces, seen from outside.
type firstProcess struct {
	cmd   *exec.Cmd
	gate  io.WriteCloser // it waits until something is written here
	pidfd *os.File
	ended chan struct{} // closed when it ended, after exit was set
	exit  error
}

// namespaces are those that process 1 has of its own. It gets SIGKILL when this process ends.
func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // the ^C of a terminal reaches it through us
	}
}

func startInit(o *options) (*firstProcess, error) {
	p := &firstProcess{ended: make(chan struct{})}
	p.cmd = exec.Command("/proc/self/exe", append([]string{initCommand}, o.flags()...)...)
	p.cmd.Stdout, p.cmd.Stderr = os.Stdout, os.Stderr
	p.cmd.SysProcAttr = namespaces()
	pidfd := -1
	p.cmd.SysProcAttr.PidFD = &pidfd
	var err error
	if p.gate, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The signal of parent-death is sent when the thread ends that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.exit = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if pidfd < 0 {
		p.end()
		return nil, errors.New("the kernel gave no pidfd (Linux 5.4 has them)")
	}
	p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	return p, nil
}

// run opens the ways in and out, lets process 1 go on, and returns when it has ended or ctx has, which ends it.
func (p *firstProcess) run(ctx context.Context, o *options, listener net.Listener) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	failed := make(chan error, 1+len(o.reach))
	forwards := func(listener net.Listener, dial func() (net.Conn, error)) {
		if err := forward(listener, dial); err != nil {
			failed <- err
		}
	}
	go forwards(listener, func() (conn net.Conn, err error) {
		inErr := netns.In(namespace, func() { conn, err = net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.securePort))) })
		return conn, errors.Join(inErr, err)
	})
	if err := netns.In(namespace, func() { err = network() }); err != nil {
		return err
	} else if err != nil {
		return fmt.Errorf("make the node's network: %w", err)
	}
	for _, port := range o.reach {
		var inside net.Listener
		if inErr := netns.In(namespace, func() { inside, err = net.Listen("tcp4", net.JoinHostPort(nodeAddress, strconv.Itoa(port))) }); inErr != nil || err != nil {
			return fmt.Errorf("open port %d for pods: %w", port, errors.Join(inErr, err))
		}
		defer inside.Close()
		go forwards(inside, func() (net.Conn, error) { return net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) })
	}
	if _, err := io.WriteString(p.gate, "go\n"); err != nil {
		return fmt.Errorf("let process 1 go on: %w", err)
	}
	select {
	case <-p.ended:
	case err := <-failed:
		return err
	case <-ctx.Done():
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		<-p.ended
	}
	if p.exit != nil {
		return fmt.Errorf("the node ended: %w", p.exit)
	}
	return nil
}

// end kills the process, if it runs, and with it all in its namespaces.
func (p *firstProcess) end() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	if p.pidfd != nil {
		_ = p.pidfd.Close() // the sweeper has its own
	}
}

// network brings loopback up, and gives the thread's namespace the node's address.
func network() error {
	if err := netns.Up("lo", nil, nil); err != nil {
		return err
	}
	return netns.Up("lo:1", net.ParseIP(nodeAddress), net.CIDRMask(32, 32))
}

// sweeper is the process that removes the cgroups, seen from the one that started it.
type sweeper struct {
	cmd   *exec.Cmd
	alive io.Closer // it knows by this that we are
}

// startSweeper returns when the cgroups are made.
func startSweeper(o *options, pidfd *os.File) (*sweeper, error) {
	s := &sweeper{cmd: exec.Command("/proc/self/exe", append([]string{sweepCommand}, o.flags()...)...)}
	s.cmd.ExtraFiles = []*os.File{pidfd}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this session's processes does not end it
	var err error
	if s.alive, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start what makes and removes the cgroups: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line != madeCgroups {
		err = fmt.Errorf("it says %q", line)
	}
	if err != nil {
		return nil, fmt.Errorf("make the cgroups: %w", errors.Join(err, s.end()))
	}
	return s, nil
}

// end waits until the cgroups are gone.
func (s *sweeper) end() error {
	_ = s.alive.Close() // nothing was written
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("remove the cgroups: %w", err)
	}
	return nil
}
