package cli

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Self is how the person called this program, for the commands that messages propose.
var Self = calledAs(os.Args[0], exec.LookPath)

// calledAs returns what was typed, but an absolute path, which a shell or a service manager may have put in its place,
// only if the bare name does not lead to the same file.
func calledAs(typed string, lookPath func(string) (string, error)) string {
	if !filepath.IsAbs(typed) {
		return typed
	}
	bare := filepath.Base(typed)
	if found, err := lookPath(bare); err == nil && sameFile(found, typed) {
		return bare
	}
	return typed
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
