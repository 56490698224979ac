// Package host tells on which machine, when and of which commit something was measured, and reads what Linux says of it.
package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Run says where and when something was measured.
type Run struct {
	Began   string `json:"began"`          // UTC
	Commit  string `json:"commit"`         // of the repository; "-dirty" when files other than documents differ from it, or what was measured was not built of it
	Machine string `json:"machine"`        // cores, memory, processor
	Disk    string `json:"disk,omitempty"` // what data was on, and how fast that was, where it was measured
	Load    string `json:"load"`           // averages of the last 1, 5 and 15 minutes, before the run
	Go      string `json:"go"`
	Command string `json:"command"`
}

// ThisRun is the one that begins now, of the repository that a directory is in, by that command.
func ThisRun(dir, command string) (Run, error) {
	commit, err := commitOf(dir)
	if err != nil {
		return Run{}, fmt.Errorf("find the commit of %s: %w", dir, err)
	}
	r := Run{
		Began:   time.Now().UTC().Format("2006-01-02 15:04"),
		Commit:  commit,
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Command: command,
	}
	loads, err := Loads()
	if err != nil {
		return Run{}, err
	}
	r.Load = fmt.Sprintf("%.2f %.2f %.2f", loads[0], loads[1], loads[2])
	kb, err := Field("/proc/meminfo", "MemTotal")
	if err != nil {
		return Run{}, err
	}
	model, err := Field("/proc/cpuinfo", "model name")
	if err != nil {
		return Run{}, err
	}
	memory, err := Kilobytes(kb)
	if err != nil {
		return Run{}, err
	}
	r.Machine = fmt.Sprintf("%d cores, %.0f GiB, %s", runtime.NumCPU(), memory/(1<<20), model)
	return r, nil
}

// Loads are the averages of the last 1, 5 and 15 minutes: how many processes ran, or waited for a core or a disk.
func Loads() (loads [3]float64, err error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return loads, err
	}
	_, err = fmt.Sscan(string(data), &loads[0], &loads[1], &loads[2])
	return loads, err
}

// Field returns the value of the first line "name: value" of a file in /proc.
func Field(file, name string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s has no line %q", file, name)
}

// Kilobytes parses a size of /proc: "123 kB", of 1,024 bytes each.
func Kilobytes(s string) (float64, error) {
	digits, ok := strings.CutSuffix(s, " kB")
	if !ok {
		return 0, fmt.Errorf("%q is not a number of kB", s)
	}
	return strconv.ParseFloat(digits, 64)
}

// commitOf describes what is checked out.
func commitOf(dir string) (string, error) {
	commit, err := git(dir, "describe", "--always", "--abbrev=10")
	if err != nil {
		return "", err
	}
	commit = strings.TrimSpace(commit)
	changed, err := Changed(dir)
	if err != nil {
		return "", err
	}
	if len(changed) > 0 {
		commit += "-dirty"
	}
	return commit, nil
}

// Changed are the files of the repository that a directory is in that differ from the commit that is checked out, new ones among them: they
// are compiled, too. Documents do not count: the reports of runs are among them.
func Changed(dir string) ([]string, error) { return ChangedSince(dir, "HEAD") }

// ChangedSince is Changed since another commit.
func ChangedSince(dir, commit string) ([]string, error) {
	differ, err := git(dir, "diff", "--name-only", "--no-renames", "-z", commit, "--", ":/", ":(top,exclude)docs")
	if err != nil {
		return nil, err
	}
	untracked, err := git(dir, "ls-files", "--full-name", "--others", "--exclude-standard", "-z", "--", ":/", ":(top,exclude)docs")
	if err != nil {
		return nil, err
	}
	files := strings.FieldsFunc(differ+untracked, func(r rune) bool { return r == 0 })
	slices.Sort(files)
	return files, nil
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}
