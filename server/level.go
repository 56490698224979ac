package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"atoll.dev/atoll/server/storage"
)

// Level says what the controllers of this version keep. Were one of an earlier version to lead again, after an update or in turn, it
// would take away what it knows no reason for, or keep for ever what it does not know to let go; so etcd holds the highest level of all that
// have led, and nobody below it leads.
//
//	0  versions that know of no level
//	1  what DaemonSets refer to, and namespaces of mirrors that hold nothing else
//	2  what StatefulSets, Jobs and Ingresses refer to, and NetworkPolicies and LimitRanges, in the same way
//	3  tombstones of Jobs, which the splitter lets go
//	4  pods that are bound to physical clusters, claims, what mounts them where they are, and what these refer to
//	5  what ReplicaSets refer to, in the same way
//	6  what ReplicationControllers refer to, in the same way
//	7  EndpointSlices and Endpoints of Services, whose addresses somebody has to take out when their pods are gone
//	8  CustomResourceDefinitions that are compressed
//	9  templates by which pods are told what their namespace is called in the workspace: others, as before, would replace all of these pods
//
// A version that stores what an earlier one would harm, or could not read, has a level more.
const Level = 9

// compressedLevel is that of the first version which reads what is compressed.
const compressedLevel = 8

// ErrLaterLevel is the error of a server whose version is earlier than that of one which has led.
var ErrLaterLevel = errors.New("a later version of Atoll has led on this etcd")

// storedLevel returns the installation's level and the row that says it, 0 if there is none.
func storedLevel(ctx context.Context, rows plainRows) (level int, row storage.InstallationRow, err error) {
	row, err = rows.ReadPlainInstallation(ctx, storage.LevelRow)
	if err != nil || row.Value == nil {
		return 0, row, err
	}
	if level, err = strconv.Atoi(string(row.Value)); err != nil || level < 0 {
		return 0, row, fmt.Errorf("/atoll/installation/%s in etcd is %.80q, want a number: nobody knows which versions may lead; bring the row back from a backup", storage.LevelRow, row.Value)
	}
	return level, row, nil
}

// refuseLater returns ErrLaterLevel if the installation's level is above own.
func refuseLater(level, own int) error {
	if level <= own {
		return nil
	}
	return fmt.Errorf("%w: what it stores is of level %d, and this one, which knows no more than level %d, would take away what it has no reason for: "+
		"start that version again, or a later one; or go back to a backup from before the update, as docs/operations/replicas.md says", ErrLaterLevel, level, own)
}

// checkLevel returns the installation's level, and refuses to start a server of an earlier version. Served without controllers, workspaces
// would look well while nothing of what people ask for is done.
func checkLevel(ctx context.Context, rows plainRows, own int) (level int, err error) {
	if level, _, err = storedLevel(ctx, rows); err != nil {
		return 0, err
	}
	return level, refuseLater(level, own)
}

// raiseLevel returns nil once the installation's level is own. It is for who leads: the level never goes down.
func raiseLevel(ctx context.Context, rows plainRows, own int) error {
	for {
		level, row, err := storedLevel(ctx, rows)
		if err != nil {
			return err
		}
		if err := refuseLater(level, own); err != nil {
			return err
		}
		if level == own && row.Value != nil && !row.Stale {
			return nil
		}
		written, err := rows.WritePlainInstallation(ctx, storage.LevelRow, []byte(strconv.Itoa(own)), row.Revision)
		if err != nil || written {
			return err
		}
	}
}

// RaiseLevel returns nil while controllers of this version may run, by whoever leads. It is ErrLaterLevel if they never may again.
func (s *Server) RaiseLevel(ctx context.Context) error {
	if err := raiseLevel(ctx, s.backend, Level); err != nil {
		return err
	}
	if !s.options.SharedStore { // no other server reads it, nor does one of before start any more
		s.backend.Compress()
	}
	return nil
}

// join takes part in the installation that etcd has, or begins one, and returns an error if this server may not.
//
// It has definitions compressed if the installation was at the level of versions that read them when it started: those of before may go on
// to serve beside it until they are replaced.
func (s *Server) join(ctx context.Context) error {
	level, err := checkLevel(ctx, s.backend, Level)
	if err != nil {
		return err
	}
	if s.options.CompareAuthorities {
		own := authorities{Clients: fingerprint(s.keys), Syncers: fingerprint(s.syncerKeys), Workspaces: fingerprint(s.workspaceKeys)}
		first, err := agreeOnAuthorities(ctx, s.backend, own, s.options.pkiDirectory(), s.options.ReplaceAuthorities)
		if err != nil {
			return err
		}
		// No other server has been here, or one of before that is gone: a shared store of before has had the row since its first
		// server. An embedded one may be of a version without it, to which the way back ends when this one leads, and not when it
		// starts and fails.
		if first && level == 0 && s.options.SharedStore {
			if err := raiseLevel(ctx, s.backend, Level); err != nil {
				return err
			}
			level = Level
		}
	}
	if level >= compressedLevel {
		s.backend.Compress()
	}
	return nil
}
