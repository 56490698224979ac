package storage

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// The deletion of a shared object leaves a row with a mark (sharedObjects). In etcd resetMark ends its value: a field, number 100, that protobuf's
// envelope (runtime.Unknown) does not have. Whoever does not know it skips it, and writes no other value with it: an earlier version of the
// server has a row like any other there, and what it makes of that counts. So it is with a later one that shares nothing of the resource. In
// memory resetUID begins the row's UID, which clients neither choose nor change, and imports may not bring. clusterCodec makes one of the other.
const (
	resetMark = "\xa2\x06\x05reset"
	resetUID  = "reset:"
)

// protobufStart begins all that is stored in protobuf.
const protobufStart = "k8s\x00"

// What resetField (dispatch.go) says of a row with the mark: it shows what is shared, or its name is not shared any more.
const resetShown, resetGone = "shown", "gone"

// cutMark is a stored value without the mark, and whether it had that.
func cutMark(plain []byte) ([]byte, bool) {
	if !bytes.HasPrefix(plain, []byte(protobufStart)) {
		return plain, false
	}
	return bytes.CutSuffix(plain, []byte(resetMark))
}

// canMark says whether what a codec writes can have the mark.
func canMark(codec runtime.Codec, obj runtime.Object) error {
	data, err := runtime.Encode(codec, obj)
	if err == nil && !bytes.HasPrefix(data, []byte(protobufStart)) {
		err = errors.New("it is not stored in protobuf, where a deletion leaves a mark")
	}
	return err
}

// isReset says whether a row has the mark.
func isReset(row runtime.Object) bool {
	object, err := meta.Accessor(row)
	return err == nil && strings.HasPrefix(string(object.GetUID()), resetUID)
}

// setReset puts the mark on a row.
func setReset(row runtime.Object) error {
	object, err := meta.Accessor(row)
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("mark what is reset: %w", err))
	}
	object.SetUID(resetUID + object.GetUID())
	return nil
}

// resetAs is the value of resetField of a row; empty for all that have no mark. A nil s shares nothing.
func (s *sharedObjects) resetAs(row runtime.Object) string {
	if s == nil || !isReset(row) {
		return ""
	}
	if rest, err := s.restOfObject(row); err == nil && s.objects[rest] != nil {
		return resetShown
	}
	return resetGone
}
