// Package backupfile is the form of the file that `atoll backup` writes and `atoll restore` reads: Write and Open.
//
// The file is a tar archive, so that tar can look into it and take things out, and behind it one line with the SHA-256 of
// every byte before:
//
//	atoll-backup.json        the Header; its name at the very beginning says what file this is
//	pki/...                  the keys and certificates of the server's root directory
//	etcd/snapshot-000000 ... the snapshot of the store, as etcd's own tools write it, in parts: its size is not known
//	                         while it comes
//	atoll-backup-sha256:<64 hexadecimal digits>
//
// What always holds: a file that is cut off, changed in any bit, or not a backup at all is refused by Open before anything
// is read out of it. The checksum is for accidents; it is no signature.
//
// It touches no file but the one that it is given. The server writes (package server), the commands read.
package backupfile
