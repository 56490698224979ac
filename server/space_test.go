package server

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestSpaceIsAnyMembersWord: whether etcd is full is said by whichever member answers.
func TestSpaceIsAnyMembersWord(t *testing.T) {
	full := &clientv3.StatusResponse{Errors: []string{"memberID:1 alarm:NOSPACE "}, DbSizeInUse: 7, DbSizeQuota: 8}
	for what, test := range map[string]struct {
		reason  string
		members []string
		full    bool
	}{
		"in this process":   {"it has no address", nil, false},
		"one that is full":  {"it says so", []string{"full"}, true},
		"the first is away": {"the second says so", []string{"refuses", "full"}, true},
		"the first hangs":   {"the second does not wait for it", []string{"hangs", "full"}, true},
		"all are away":      {"that is for the check etcd", []string{"refuses", "refuses"}, false},
		"one with room":     {"it says so", []string{"refuses", "room"}, false},
	} {
		status := func(ctx context.Context, member string) (*clientv3.StatusResponse, error) {
			switch member {
			case "full":
				return full, nil
			case "room", "":
				return &clientv3.StatusResponse{Errors: []string{etcdserverpb.AlarmType_CORRUPT.String()}}, nil
			case "hangs":
				<-ctx.Done()
			}
			return nil, errors.New("connection refused")
		}
		if err := hasSpace(t.Context(), test.members, status); (err != nil) != test.full {
			t.Errorf("%s: %v, want full %v: %s", what, err, test.full, test.reason)
		}
	}
}
