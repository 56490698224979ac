//go:build !linux

package main

import "syscall"

// processAttributes give a child its own process group. That it ends with the demo can be asked of Linux only: a demo
// that is killed with SIGKILL leaves the server running elsewhere.
func processAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
