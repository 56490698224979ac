package framework

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Direction is a way through a Proxy.
type Direction int

// The ways through a Proxy, seen from the client.
const (
	Requests Direction = iota // from client to server
	Answers                   // from server to client
)

// dialTimeout bounds how long a Proxy waits for what is behind it.
const dialTimeout = 10 * time.Second

// chunk is how many bytes pass a Proxy in one piece.
const chunk = 16 << 10

// Proxy is a TCP proxy on loopback in front of a server, with the faults of networks. Until told otherwise it passes
// everything. TLS goes through it. Its methods are for any goroutine.
type Proxy struct {
	Address string // 127.0.0.1:PORT
	Target  string // what is behind it, HOST:PORT
	// Broken counts the connections that it reset, and Delayed what came in at once and waited because of Delay or Throttle.
	Broken, Delayed atomic.Int64

	mu      sync.Mutex // guards all below
	changed *sync.Cond // of anything below
	dial    func(context.Context) (net.Conn, error)
	conns   map[*connection]struct{}
	refuse  bool
	held    [2]bool // by Direction
	delay   time.Duration
	rate    int // bytes a second; 0: no limit
	closed  bool
}

// connection is a client's, and the one to the server that belongs to it.
type connection struct {
	client net.Conn
	server net.Conn // nil: not there yet
	cut    bool
}

// piece is what came in at once, and when it may go on.
type piece struct {
	data []byte
	due  time.Time
}

// StartProxy starts a proxy in front of a TCP address. It ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for a proxy of %s: %v", target, err)
	}
	return serveProxy(t, listener, target)
}

// serveProxy takes connections from listener until the test ends.
func serveProxy(t testing.TB, listener net.Listener, target string) *Proxy {
	p := &Proxy{Address: listener.Addr().String(), Target: target, conns: map[*connection]struct{}{}, dial: Dialer(target)}
	p.changed = sync.NewCond(&p.mu)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.set(func() { p.closed = true })
		p.Cut()
		wg.Wait()
	})
	return p
}

// Dialer connects to a TCP address.
func Dialer(target string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", target) }
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.changed.Broadcast()
}

// Cut resets every connection. New ones are taken.
func (p *Proxy) Cut() {
	p.set(func() {
		for c := range p.conns {
			c.reset()
			p.Broken.Add(1)
		}
	})
}

// Refuse resets every connection, and new ones as they come in, until Restore.
func (p *Proxy) Refuse() {
	p.set(func() { p.refuse = true })
	p.Cut()
}

// Hold lets no byte pass in those directions until Restore, as where a router has gone: connections stay open, new ones
// are taken, and nobody is told. What was sent goes on after Restore.
func (p *Proxy) Hold(directions ...Direction) {
	p.set(func() {
		for _, d := range directions {
			p.held[d] = true
		}
	})
}

// Delay lets bytes of both directions pass that much later. Their order and number a second stay.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Throttle lets that many bytes a second pass on each connection, in each direction.
func (p *Proxy) Throttle(rate int) { p.set(func() { p.rate = rate }) }

// Through makes new connections be dialled otherwise, and resets those that are there; nil is as at first.
func (p *Proxy) Through(dial func(context.Context) (net.Conn, error)) {
	if dial == nil {
		dial = Dialer(p.Target)
	}
	p.set(func() { p.dial = dial })
	p.Cut()
}

// Restore ends all faults but what Through made.
func (p *Proxy) Restore() {
	p.set(func() { p.refuse, p.held, p.delay, p.rate = false, [2]bool{}, 0, 0 })
}

// Connections is how many are open.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// reset ends a connection by RST. It is called with the lock held, as end is.
func (c *connection) reset() {
	for _, conn := range []net.Conn{c.client, c.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // it may have ended meanwhile
		}
	}
	c.end()
}

// end closes a connection; what was written before arrives.
func (c *connection) end() {
	c.cut = true
	for _, conn := range []net.Conn{c.client, c.server} {
		if conn != nil {
			conn.Close()
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	c := &connection{client: client}
	p.mu.Lock()
	p.conns[c] = struct{}{}
	if p.refuse || p.closed {
		c.reset()
	}
	// Whoever hears nothing is not answered by the server behind, either.
	for p.held[Requests] && !c.cut {
		p.changed.Wait()
	}
	cut, dial := c.cut, p.dial
	p.mu.Unlock()
	defer p.set(func() {
		c.end()
		delete(p.conns, c)
	})
	if cut {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	server, err := dial(ctx)
	if err != nil {
		p.set(c.reset)
		return
	}
	p.mu.Lock()
	if c.server = server; c.cut {
		c.reset()
	}
	p.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(func() { p.pump(c, Requests, client, server) })
	p.pump(c, Answers, server, client)
	wg.Wait()
}

// pump passes bytes on until either end is closed; then it ends the other direction, too.
func (p *Proxy) pump(c *connection, direction Direction, from, to net.Conn) {
	pieces := make(chan piece, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		broken := false
		for next := range pieces {
			if broken = broken || !p.pass(c, direction, next); broken {
				continue // the reader is told by the closed connection
			}
			if _, err := to.Write(next.data); err != nil {
				broken = true
			}
			if broken {
				p.set(c.end)
			}
		}
		p.set(c.end)
	})
	defer close(pieces)
	for {
		data := make([]byte, chunk)
		n, err := from.Read(data)
		if n > 0 {
			p.mu.Lock()
			due := time.Now().Add(p.delay)
			p.mu.Unlock()
			pieces <- piece{data[:n], due}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until a piece may go on, and says no where the connection was cut meanwhile.
func (p *Proxy) pass(c *connection, direction Direction, next piece) bool {
	p.mu.Lock()
	rate := p.rate
	p.mu.Unlock()
	if rate > 0 {
		next.due = next.due.Add(time.Duration(len(next.data)) * time.Second / time.Duration(rate))
	}
	if wait := time.Until(next.due); wait > 0 {
		time.Sleep(wait)
		p.Delayed.Add(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.held[direction] && !c.cut {
		p.changed.Wait()
	}
	return !c.cut
}
