//go:build !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has no equivalent here: a killed process leaves its kwok behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

func dup(from, to int) error { return unix.Dup2(from, to) }
