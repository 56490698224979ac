package main

import (
	"os"
	"strings"
	"testing"
)

func TestFilesystem(t *testing.T) {
	const mounts = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
25 24 0:23 / /dev/shm rw,relatime - tmpfs hidden rw
30 25 0:27 / /dev/shm rw,relatime - xfs /dev/vdb1 rw
31 27 0:28 / /tmp rw,relatime - tmpfs tmpfs rw
32 27 0:29 /@home /home/a\040user rw,relatime - btrfs /dev/mapper/home rw
`
	for name, tc := range map[string]struct {
		reason, mounts, dir, want string
	}{
		"Root":     {"what is mounted nowhere else", mounts, "/var/tmp/x", "ext4 of /dev/vda"},
		"Point":    {"the place of a mount itself", mounts, "/tmp", "tmpfs"},
		"Below":    {"a directory below", mounts, "/tmp/atoll-bench-1/2", "tmpfs"},
		"Named":    {"a name that only begins so", mounts, "/tmpfiles", "ext4 of /dev/vda"},
		"Over":     {"the later of two mounts", mounts, "/dev/shm/x", "xfs of /dev/vdb1"},
		"Escaped":  {"a blank in a name", mounts, "/home/a user/x", "btrfs of /dev/mapper/home"},
		"None":     {"nothing above", strings.SplitAfter(mounts, "\n")[0], "/tmp", ""},
		"Unlikely": {"no mountinfo", "tmpfs /tmp tmpfs rw 0 0\n", "/tmp", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := filesystem(tc.mounts, tc.dir)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("%s: %s is on %q, %v, want %q", tc.reason, tc.dir, got, err, tc.want)
			}
		})
	}
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	got, err := disk(dir)
	if err != nil || !strings.HasPrefix(got, "data on ") || !strings.HasSuffix(got, " ms (median of 100)") {
		t.Errorf("%s: %q, %v", dir, got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
