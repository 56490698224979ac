package main

import "syscall"

// processAttributes give a child its own process group, and have the kernel end it with the demo unless it is kept.
func processAttributes(keep bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if !keep {
		a.Pdeathsig = syscall.SIGTERM
	}
	return a
}
