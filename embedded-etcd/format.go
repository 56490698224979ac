package embeddedetcd

import (
	"context"
	"encoding/json"
	"fmt"

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
		stored = &format{}
		if err := json.Unmarshal(row.Kvs[0].Value, stored); err != nil || stored.Version < 1 {
			return fmt.Errorf("the format version at %s is unreadable: %q", formatKey, row.Kvs[0].Value)
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
	value, err := json.Marshal(format{Version: formatVersion})
	if err != nil {
		return fmt.Errorf("write the format version: %w", err)
	}
	var seen int64
	if len(row.Kvs) > 0 {
		seen = row.Kvs[0].ModRevision
	}
	// Replicas may start at once on one store: whoever is first writes, and the others find what they would have written.
	done, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(formatKey), "=", seen)).
		Then(clientv3.OpPut(formatKey, string(value))).
		Else(clientv3.OpGet(formatKey)).
		Commit()
	if err != nil {
		return fmt.Errorf("write the format version: %w", err)
	}
	if !done.Succeeded {
		other := done.Responses[0].GetResponseRange().Kvs
		if len(other) == 0 || string(other[0].Value) != string(value) {
			return fmt.Errorf("the format version at %s changed while this process started: start it again", formatKey)
		}
	}
	return nil
}
