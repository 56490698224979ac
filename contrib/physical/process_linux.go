package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill a child when this process dies, also by SIGKILL.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

func dup(from, to int) error { return unix.Dup3(from, to, 0) }

// hangup is the event of a connection whose other end sends nothing more.
const hangup = unix.POLLRDHUP

// killSession kills all that is in the session that a process leads: its process group, and those that a shell made for its jobs. What makes a
// session of its own is not in it any more.
func killSession(leader int) {
	// What is forked meanwhile is found by the next look. Nothing forks faster than it is killed for long.
	for range 100 {
		left := false
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range stats {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil || sessionOf(data) != leader {
				continue
			}
			left = true
			_ = unix.Kill(pid, unix.SIGKILL) // it may end just now
		}
		if !left {
			return
		}
	}
}

// sessionOf reads the session of a process from its /proc/PID/stat; 0 for one that has ended and was not waited for.
func sessionOf(stat []byte) int {
	var state string
	var parent, group, session int
	// The name of the program is in parentheses, and may have any.
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	if _, err := fmt.Sscan(string(rest), &state, &parent, &group, &session); err != nil || state == "Z" || state == "X" {
		return 0
	}
	return session
}
