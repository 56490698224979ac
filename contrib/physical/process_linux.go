package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill a child when this process dies, also by SIGKILL.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

func dup(from, to int) error { return unix.Dup3(from, to, 0) }
