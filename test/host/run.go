// Package host tells on which machine, when and of which commit something was measured, and reads what Linux says of it.
package host

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Run says where and when something was measured.
type Run struct {
	Began   string `json:"began"`   // UTC
	Commit  string `json:"commit"`  // of the repository; "-dirty" when files other than documents differ from it
	Machine string `json:"machine"` // cores, memory, processor
	Load    string `json:"load"`    // averages of the last 1, 5 and 15 minutes, before the run
	Go      string `json:"go"`
	Command string `json:"command"`
}

// ThisRun is the one that begins now, of the repository in root, by that command.
func ThisRun(root, command string) (Run, error) {
	commit, err := commitOf(root)
	if err != nil {
		return Run{}, fmt.Errorf("find the commit of %s: %w", root, err)
	}
	r := Run{
		Began:   time.Now().UTC().Format("2006-01-02 15:04"),
		Commit:  commit,
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Command: command,
	}
	loads, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return Run{}, err
	}
	r.Load = strings.Join(strings.Fields(string(loads))[:3], " ")
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

// commitOf describes what is checked out. Documents do not count: the reports of runs are among them.
func commitOf(root string) (string, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("describe", "--always", "--abbrev=10")
	if err != nil {
		return "", err
	}
	changed, err := git("diff", "--name-only", "HEAD", "--", ".", ":!docs")
	if err != nil {
		return "", err
	}
	if changed != "" {
		commit += "-dirty"
	}
	return commit, nil
}
