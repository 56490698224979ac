// Package netns does things in a network namespace, for programs that have sockets in several. A namespace is an open file, which keeps it alive;
// sockets stay where they were made, whoever uses them.
package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// New makes a namespace, in which nothing is up, and calls f in it.
func New(f func() error) (*os.File, error) {
	var namespace *os.File
	var err error
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		if namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return
		}
		if err = f(); err != nil {
			err = errors.Join(err, namespace.Close())
			namespace = nil
		}
	})
	return namespace, err
}

// In calls f in a namespace.
func In(namespace *os.File, f func()) (err error) {
	onThread(func() {
		if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		f()
	})
	return err
}

// onThread calls f on a thread that nobody uses afterwards, whatever f made of it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f()
	}()
	<-done
}

// Up brings a device of the thread's namespace up, after it has given it an address, unless that is nil. The name "lo:1" is of a further address of lo.
func Up(device string, address net.IP, mask net.IPMask) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	set := func(what uint, change func(*unix.Ifreq) error) error {
		request, err := unix.NewIfreq(device)
		if err != nil {
			return err
		}
		if err := change(request); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(socket, what, request); err != nil {
			return fmt.Errorf("configure network device %s: %w", device, err)
		}
		return nil
	}
	if address != nil {
		if err := set(unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address.To4()) }); err != nil {
			return err
		}
		if err := set(unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }); err != nil {
			return err
		}
	}
	return set(unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		return nil
	})
}
