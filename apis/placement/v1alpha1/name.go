package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxNameLength is that of any object's name, in bytes.
const maxNameLength = 253

// NameFor returns the name of the Placement of a namespace, or of an object there that is placed by itself:
// "<namespace>" or "<namespace>.<resource>.<name>". A longer one than objects may have ends in a hash of it all.
func NameFor(namespace string, object *PlacedObject) string {
	if object == nil {
		return namespace
	}
	name := namespace + "." + object.Resource + "." + object.Name
	if len(name) <= maxNameLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:])[:10]
	return strings.TrimRight(name[:maxNameLength-len(hash)], ".-") + hash
}
