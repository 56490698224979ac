//go:build !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has no equivalent here: a killed process leaves its kwok behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

func dup(from, to int) error { return unix.Dup2(from, to) }

// hangup is no event of its own here: that the other end has closed its connection is reported without being asked for.
const hangup = 0

// killSession kills the process group of what leads a session. The jobs of a shell with a terminal are left to its hangup.
func killSession(leader int) { _ = unix.Kill(-leader, unix.SIGKILL) }
