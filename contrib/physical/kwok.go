package main

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"syscall"
)

//go:embed config/kwok.yaml config/stages
var kwokConfig embed.FS

// startKwok starts the simulation of kubelets as a child process, with our stages. kwok is not linked in: it
// requires newer versions of libraries than Kubernetes was released with, and one build has one version of each.
func startKwok(parts *parts, o *options) error {
	var docs [][]byte
	err := fs.WalkDir(kwokConfig, "config", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		data, err := kwokConfig.ReadFile(name)
		docs = append(docs, data)
		return err
	})
	if err != nil {
		return err
	}
	config := o.path("kwok", "kwok.yaml")
	if err := writeFile(config, bytes.Join(docs, []byte("---\n"))); err != nil {
		return err
	}
	parts.add("kwok", func(ctx context.Context) error {
		// The kernel sends the signal of parent-death when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.CommandContext(ctx, o.kwok, "--config="+config, "--kubeconfig="+o.path("pki", kwokUser+kubeconfigSuffix))
		cmd.Env = []string{"HOME=" + o.path("kwok")} // kwok would add the stages of the user's ~/.kwok
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = stopTimeout / 2
		cmd.SysProcAttr = dieWithParent()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s: %w", o.kwok, err)
		}
		return nil
	})
	return nil
}
