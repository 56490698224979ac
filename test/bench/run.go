package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Run says in which run of the benchmark something was measured.
type Run struct {
	Began   string `json:"began"`   // UTC
	Commit  string `json:"commit"`  // of the repository; "-dirty" when files differ from it
	Machine string `json:"machine"` // cores, memory, processor
	Load    string `json:"load"`    // averages of the last 1, 5 and 15 minutes, before the run
	Go      string `json:"go"`
	Command string `json:"command"`
}

func thisRun(root string, args []string) (Run, error) {
	git := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=10")
	git.Dir = root
	commit, err := git.Output()
	if err != nil {
		return Run{}, fmt.Errorf("find the commit: %w", err)
	}
	r := Run{
		Began:   time.Now().UTC().Format("2006-01-02 15:04"),
		Commit:  strings.TrimSpace(string(commit)),
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Command: strings.Join(append([]string{"go run ./test/bench"}, args...), " "),
	}
	if len(args) == 0 {
		r.Command = "make bench"
	}
	loads, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return Run{}, err
	}
	r.Load = strings.Join(strings.Fields(string(loads))[:3], " ")
	kb, err := procField("/proc/meminfo", "MemTotal")
	if err != nil {
		return Run{}, err
	}
	model, err := procField("/proc/cpuinfo", "model name")
	if err != nil {
		return Run{}, err
	}
	memory, err := kilobytes(kb)
	if err != nil {
		return Run{}, err
	}
	r.Machine = fmt.Sprintf("%d cores, %.0f GiB, %s", runtime.NumCPU(), memory/(1<<20), model)
	return r, nil
}

// procField returns the value of the first line "name: value" of a file in /proc.
func procField(file, name string) (string, error) {
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

// kilobytes parses a size of /proc: "123 kB", of 1,024 bytes each.
func kilobytes(s string) (float64, error) {
	digits, ok := strings.CutSuffix(s, " kB")
	if !ok {
		return 0, fmt.Errorf("%q is not a number of kB", s)
	}
	return strconv.ParseFloat(digits, 64)
}
