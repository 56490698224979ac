package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

const (
	// lookAtSpace is how often the embedded etcd is asked whether it is full, which is a look at its memory.
	lookAtSpace = time.Second
	// keptHistory is what a full store keeps of its history. The API server, which keeps five minutes, cannot compact a full store:
	// it writes down that it does.
	keptHistory = 10 * time.Second
	// room is the part of the store, in per cent, that may be in use for it to take writes again.
	room = 90
)

// full is whether the embedded etcd of this process refuses writes.
var full = metrics.NewGauge(&metrics.GaugeOpts{
	Name:           "atoll_embedded_etcd_full",
	Help:           "1 while the embedded etcd refuses writes because its store has the size that it may have, else 0.",
	StabilityLevel: metrics.ALPHA,
})

func init() { legacyregistry.MustRegister(full) }

// space is what a store takes, in bytes: in use, of its file, and at most.
type space struct{ inUse, file, most int64 }

func (s space) hasRoom() bool { return s.inUse*100 < s.most*room }

// reading is a revision and when it was the newest.
type reading struct {
	at       time.Time
	revision int64
}

// spaceHolder holds the space of a store that is open.
type spaceHolder struct {
	server *etcdserver.EtcdServer
	dir    string // the data directory
	sums   *keeper
	// snapshots is held for reading while a client in this process takes one.
	snapshots *sync.RWMutex
	listens   bool // for clients outside of this process, of whose snapshots nobody knows
	syncDir   func(string) error

	compacted int64 // at which revision, for room
	saving    thrift
}

// hold lets a store that is full take writes again as soon as there is room in it, until ctx ends: etcd refuses them until somebody compacts
// it, has its file written anew without what is free in it, and ends the alarm, whatever is deleted. It also gives back what is free of a
// file where that is most of it. It returns an error if the store must not be used any more.
func (h *spaceHolder) hold(ctx context.Context) error {
	log := klog.FromContext(ctx)
	tick := time.NewTicker(lookAtSpace)
	defer tick.Stop()
	var history []reading // of the last keptHistory
	var was bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			history = append(history, reading{now, h.server.KV().Rev()})
			for len(history) > 1 && now.Sub(history[1].at) >= keptHistory {
				history = history[1:]
			}
			is := alarmed(h.server)
			if is != was {
				was = is
				tellSpace(log, is, h.dir, spaceOf(h.server))
			}
			var err error
			if is {
				until := int64(0)
				if oldest := history[0]; now.Sub(oldest.at) >= keptHistory {
					until = oldest.revision
				}
				if err = h.makeRoom(ctx, until); err != nil && ctx.Err() == nil {
					log.Error(err, "The store is full, and what is deleted in it cannot be given back", "dir", h.dir)
				}
			} else if !h.listens && h.saving.due(now, spaceOf(h.server)) {
				err = h.giveBack(ctx)
			}
			if errors.Is(err, errNotDurable) {
				return err
			}
		}
	}
}

// open returns an error if a store that has just been opened is full: a server writes before it serves. Nobody needs its
// history yet, and clients of the server before list anew.
func (h *spaceHolder) open(ctx context.Context) error {
	if !alarmed(h.server) {
		return nil
	}
	if err := h.makeRoom(ctx, h.server.KV().Rev()); err != nil {
		return fmt.Errorf("make room in the store, which is full: %w", err)
	}
	if alarmed(h.server) {
		s := spaceOf(h.server)
		return fmt.Errorf("the store is full: %d bytes are in use, and it may have %d. Start with a larger --embedded-etcd-quota-bytes, delete what is not needed, "+
			"and start with the smaller one again when less than %d %% of it is in use; nothing that was acknowledged is lost", s.inUse, s.most, room)
	}
	return nil
}

// alarmed says whether a store refuses writes because it is full.
func alarmed(server *etcdserver.EtcdServer) bool {
	for _, a := range server.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}

func spaceOf(server *etcdserver.EtcdServer) space {
	b := server.Backend()
	return space{inUse: b.SizeInUse(), file: b.Size(), most: server.Config().QuotaBackendBytes}
}

// makeRoom gives back what no revision after until needs, and ends the alarm if there is room then.
func (h *spaceHolder) makeRoom(ctx context.Context, until int64) error {
	if until > h.compacted {
		if _, err := h.server.Compact(ctx, &pb.CompactionRequest{Revision: until, Physical: true}); err != nil && !errors.Is(err, mvcc.ErrCompacted) {
			return fmt.Errorf("compact the store at revision %d: %w", until, err)
		}
		h.compacted = until
	}
	s := spaceOf(h.server)
	if !s.hasRoom() {
		commit(h.server.Backend())
		if s = spaceOf(h.server); !s.hasRoom() {
			return nil
		}
	}
	// Nothing else is read or written meanwhile: some seconds for each GiB.
	if s.file*100 >= s.most*room {
		if done, err := h.writeAnew(nil); err != nil || !done {
			return err
		}
	}
	if _, err := h.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: uint64(h.server.MemberID())}); err != nil {
		return fmt.Errorf("end the alarm of a full store that has room again: %w", err)
	}
	return nil
}

// commit commits until the store knows what is free in it: a page that a transaction frees counts as in use until a later one is
// committed that found nobody reading it, and nobody else writes to a full store. The one who read before leaves on his own.
func commit(b backend.Backend) {
	for range 2 {
		schema.CreateMetaBucket(b.BatchTx()) // which is there: it changes nothing, and a transaction without a write is not committed
		b.ForceCommit()
	}
}

func tellSpace(log klog.Logger, isFull bool, dir string, s space) {
	if isFull {
		full.Set(1)
		log.Error(nil, "The store is full and takes no writes until some of it is deleted, or --embedded-etcd-quota-bytes is raised", "dir", dir,
			"bytesInUse", s.inUse, "fileBytes", s.file, "quotaBytes", s.most, "takesWritesAgainBelowBytes", s.most/100*room)
		return
	}
	full.Set(0)
	log.Info("The store takes writes again", "dir", dir, "bytesInUse", s.inUse, "fileBytes", s.file, "quotaBytes", s.most)
}
