package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "Directory with the executables atoll, physical and kwok.")
	keep := flag.Bool("keep", false, "Leave everything running at the end.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *bin, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "\nError:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, keep bool) (err error) {
	began := time.Now()
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	for _, name := range []string{"atoll", "physical", "kwok"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("%w: build it with make build", err)
		}
	}
	dir, err := os.MkdirTemp("", "atoll-demo-")
	if err != nil {
		return err
	}
	d := &demo{bin: bin, dir: dir, children: &children{keep: keep}}
	err = d.story(ctx)
	if err == nil && keep {
		fmt.Printf("\nDone in %s, and still running. Go on with:\n  cd %s\n  %s kubectl get deployments,placements\n  %s kubectl --kubeconfig west.kubeconfig get pods -A\nWhat kubectl exec asks for in their pods runs on this machine, as you. Stop it and remove its files with:\n  kill%s; rm -r %s\n",
			seconds(began), dir, d.exe("atoll"), d.exe("atoll"), d.children.pids(), dir)
		return nil
	}
	failed := err != nil && ctx.Err() == nil
	if failed {
		d.diagnose()
	}
	fmt.Print("\nStopping everything ... ")
	err = errors.Join(err, d.children.stop())
	fmt.Println("done.")
	if failed {
		return fmt.Errorf("%w\nThe logs are %s/*.log", err, dir)
	}
	if removed := os.RemoveAll(dir); removed != nil {
		return errors.Join(err, removed)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err == nil {
		fmt.Printf("The demo took %s.\n", seconds(began))
	}
	return err
}

func seconds(since time.Time) string { return fmt.Sprintf("%.1f s", time.Since(since).Seconds()) }
