package embeddedetcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// formatKey holds the version of the layout of the whole store as JSON: {"version":1}.
	formatKey = "/atoll/format"

	// formatVersion is what this binary writes. Raise it, and add a migration, when rows of an older binary would be
	// misread.
	formatVersion = 1

	// rowsPrefix is where API objects lie; a store that has some and no format is not ours.
	rowsPrefix = "/registry/"
)

type format struct {
	Version int `json:"version"`
}

// migration brings a store from one version to the next. It must be safe to run again after a crash half-way: the
// version is written only after it has returned.
type migration func(context.Context, *clientv3.Client) error

// migrations[n] brings version n to n+1. None yet.
var migrations = map[int]migration{}

// plan says what to do with a store, before anything is done. stored is nil if the store has no format; hasRows says
// whether API objects are there.
func plan(stored *format, hasRows bool, own int, known map[int]migration) (write bool, steps []int, err error) {
	switch {
	case stored == nil && hasRows:
		return false, nil, fmt.Errorf("the store has objects under %s but no format version at %s: it was not written by Atoll; use an empty store", rowsPrefix, formatKey)
	case stored == nil:
		return true, nil, nil
	case stored.Version > own:
		return false, nil, fmt.Errorf("the store has format version %d, this binary knows versions up to %d: run the newer binary, or restore a snapshot taken before the upgrade", stored.Version, own)
	}
	for v := stored.Version; v < own; v++ {
		if known[v] == nil {
			return false, nil, fmt.Errorf("the store has format version %d, this binary writes version %d and cannot migrate from %d: run a release in between first", stored.Version, own, v)
		}
		steps = append(steps, v)
	}
	return len(steps) > 0, steps, nil
}

// CanRead returns an error if this binary knows no way from a store of that format to its own.
func CanRead(version int) error {
	_, _, err := plan(&format{Version: version}, true, formatVersion, migrations)
	return err
}

// ownFormat is the row of a store in this binary's format.
var ownFormat = fmt.Sprintf(`{"version":%d}`, formatVersion)

// parseFormat reads the row. A field that this binary does not know is an error: it may say that a newer one migrates.
func parseFormat(row []byte) (*format, error) {
	f := &format{}
	decoder := json.NewDecoder(bytes.NewReader(row))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(f); err != nil || f.Version < 1 {
		return nil, fmt.Errorf("the format version at %s is unreadable, or of a newer binary: %q", formatKey, row)
	}
	return f, nil
}

// checkFormat reads the format, migrates an older store and marks an empty one.
func checkFormat(ctx context.Context, client *clientv3.Client) error {
	got, err := client.Txn(ctx).Then(
		clientv3.OpGet(formatKey),
		clientv3.OpGet(rowsPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly()),
	).Commit()
	if err != nil {
		return fmt.Errorf("read the format version: %w", err)
	}
	var stored *format
	row := got.Responses[0].GetResponseRange()
	if len(row.Kvs) > 0 {
		if stored, err = parseFormat(row.Kvs[0].Value); err != nil {
			return err
		}
	}
	write, steps, err := plan(stored, got.Responses[1].GetResponseRange().Count > 0, formatVersion, migrations)
	if err != nil || !write {
		return err
	}
	for _, v := range steps {
		if err := migrations[v](ctx, client); err != nil {
			return fmt.Errorf("migrate the store from format version %d to %d: %w", v, v+1, err)
		}
	}
	var seen int64
	if len(row.Kvs) > 0 {
		seen = row.Kvs[0].ModRevision
	}
	// Replicas may start at once on one store: whoever is first writes, and the others find what they would have written.
	done, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(formatKey), "=", seen)).
		Then(clientv3.OpPut(formatKey, ownFormat)).
		Else(clientv3.OpGet(formatKey)).
		Commit()
	if err != nil {
		return fmt.Errorf("write the format version: %w", err)
	}
	if !done.Succeeded {
		other := done.Responses[0].GetResponseRange().Kvs
		if len(other) == 0 || string(other[0].Value) != ownFormat {
			return fmt.Errorf("the format version at %s changed while this process started: start it again", formatKey)
		}
	}
	return nil
}

// holdFormat returns an error as soon as the store's format is not this binary's any more: a newer one on the same store
// has migrated it, and would misread what this one goes on to write. It returns nil when ctx ends.
//
// This process still writes for the moment until it hears of it and has stopped. So whoever adds a migration changes the
// row twice, before it begins and when it is done.
func holdFormat(ctx context.Context, client *clientv3.Client) error {
	const pause = time.Second // while etcd is away, or after it has compacted what we waited for
	for ctx.Err() == nil {
		if err := watchFormat(ctx, client); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// watchFormat is holdFormat until it cannot be known whether the row has changed.
func watchFormat(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	got, err := client.Get(ctx, formatKey)
	if err != nil {
		return nil // who uses the store tells of its absence
	}
	if len(got.Kvs) == 0 {
		return changedFormat("gone")
	}
	if row := got.Kvs[0].Value; !isOwnFormat(row) {
		return changedFormat(string(row))
	}
	for response := range client.Watch(ctx, formatKey, clientv3.WithRev(got.Header.Revision+1)) {
		for _, event := range response.Events {
			if event.Type == clientv3.EventTypeDelete {
				return changedFormat("gone")
			}
			if row := event.Kv.Value; !isOwnFormat(row) {
				return changedFormat(string(row))
			}
		}
	}
	return nil
}

func isOwnFormat(row []byte) bool {
	f, err := parseFormat(row)
	return err == nil && f.Version == formatVersion
}

func changedFormat(found string) error {
	return fmt.Errorf("the format version at %s was %s and is %s now: a newer binary uses the store, run that one", formatKey, ownFormat, found)
}
