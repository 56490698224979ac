package embeddedetcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// statusTimeout is how long one member of an external etcd is waited for before the next is asked.
const statusTimeout = 5 * time.Second

// Snapshot is the whole store at one moment, as it is read: etcd's own form, which ends with its checksum.
type Snapshot struct {
	io.Reader
	// Revision of the store before the snapshot was taken: every write that was acknowledged until then is in it.
	Revision int64
	// Format is the version of the layout of the store.
	Format int

	close []func() error
}

// Close ends the snapshot, read to its end or not.
func (s *Snapshot) Close() error {
	var errs []error
	for _, c := range s.close {
		errs = append(errs, ignoreCanceled(c()))
	}
	return errors.Join(errs...)
}

// TakeSnapshot begins a snapshot of the store behind client. It does not disturb who writes meanwhile, but the file of the
// store cannot give room back until Close.
func TakeSnapshot(ctx context.Context, client *clientv3.Client) (_ *Snapshot, err error) {
	got, err := client.Get(ctx, formatKey) // linearizable: its revision is that of the last acknowledged write, or later
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: read the format version: %w", err)
	}
	if len(got.Kvs) == 0 {
		return nil, fmt.Errorf("take a snapshot: the store has no format version at %s", formatKey)
	}
	stored, err := parseFormat(got.Kvs[0].Value)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Snapshot{Revision: got.Header.Revision, Format: stored.Version}
	s.close = append(s.close, func() error { cancel(); return nil })
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	member := client.Maintenance
	if len(client.Endpoints()) > 0 {
		// A member that lags gives what it has. So the snapshot comes from one that was seen to have everything.
		endpoint, err := memberAt(ctx, client.Endpoints(), s.Revision, func(ctx context.Context, endpoint string) (int64, error) {
			status, err := client.Status(ctx, endpoint)
			if err != nil {
				return 0, err
			}
			return status.Header.Revision, nil
		})
		if err != nil {
			return nil, fmt.Errorf("take a snapshot: %w", err)
		}
		conn, err := client.Dial(endpoint)
		if err != nil {
			return nil, fmt.Errorf("take a snapshot: connect to %s: %w", endpoint, err)
		}
		s.close = append(s.close, conn.Close)
		member = clientv3.NewMaintenanceFromMaintenanceClient(clientv3.RetryMaintenanceClient(client, conn), client)
	}
	content, err := member.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	s.Reader = &whole{content: content, ctx: ctx, sum: sha256.New()}
	s.close = append(s.close, content.Close)
	return s, nil
}

// memberAt returns the first of endpoints whose store is at revision or past it. revisionOf asks one.
func memberAt(ctx context.Context, endpoints []string, revision int64, revisionOf func(context.Context, string) (int64, error)) (string, error) {
	var errs []error
	for _, endpoint := range endpoints {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		now, err := revisionOf(ctx, endpoint)
		cancel()
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", endpoint, err))
		case now < revision:
			errs = append(errs, fmt.Errorf("%s is at revision %d, and %d was acknowledged: it lags behind", endpoint, now, revision))
		default:
			return endpoint, nil
		}
	}
	return "", errors.Join(errs...)
}

// whole reads a snapshot and compares the checksum that etcd puts at its end.
type whole struct {
	content io.Reader
	ctx     context.Context
	sum     hash.Hash // of all but tail
	tail    []byte    // what may be the checksum
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.content.Read(p)
	w.tail = append(w.tail, p[:n]...)
	if past := len(w.tail) - w.sum.Size(); past > 0 {
		_, _ = w.sum.Write(w.tail[:past]) // a hash takes everything
		w.tail = append(w.tail[:0], w.tail[past:]...)
	}
	// An etcd in this process ends the stream by cancelling its own context, where gRPC says EOF.
	if ended := errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) && w.ctx.Err() == nil; !ended {
		return n, err
	}
	if !bytes.Equal(w.sum.Sum(nil), w.tail) {
		return n, errors.New("etcd ended the snapshot before it was whole")
	}
	return n, io.EOF
}

// maintenance holds snapshots for reading while it takes one.
type maintenance struct {
	clientv3.Maintenance
	snapshots *sync.RWMutex
}

func (m maintenance) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	m.snapshots.RLock()
	content, err := m.Maintenance.Snapshot(ctx)
	if err != nil {
		m.snapshots.RUnlock()
		return nil, err
	}
	return &held{content, sync.OnceFunc(m.snapshots.RUnlock)}, nil
}

// held is a snapshot that others know of until it is closed.
type held struct {
	io.ReadCloser
	release func()
}

func (h *held) Close() error {
	defer h.release()
	return h.ReadCloser.Close()
}
