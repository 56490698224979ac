package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// forward passes what connects to listener on to what dial reaches, until the listener is closed, or fails. An end of either side's words is passed on, too.
func forward(listener net.Listener, dial func() (net.Conn, error)) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("forward %s: %w", listener.Addr(), err)
		}
		go func() {
			defer conn.Close()
			other, err := dial()
			if err != nil {
				return // nobody listens there: who has connected learns it by the end
			}
			defer other.Close()
			var both sync.WaitGroup
			both.Go(func() { pass(other, conn) })
			both.Go(func() { pass(conn, other) })
			both.Wait()
		}()
	}
}

// pass copies until from has said all, or to takes no more.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = from.Close() // the other direction ends, too
		_ = to.Close()
		return
	}
	_ = to.(*net.TCPConn).CloseWrite() // it may be closed
}
