package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"atoll.dev/atoll/test/host"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 2 && os.Args[1] == floodCommand {
		return runFlood(ctx, os.Stdin, os.Stdout)
	}
	rows := flag.String("rows", "", "regular `expression` of the rows or scenarios to run; the others stay as they are in the report")
	quick := flag.Bool("quick", false, "small numbers, to see that every row runs; writes no report")
	workspaces := flag.Int("workspaces", 10000, "number of workspaces of the rows that are about many")
	list := flag.Bool("list", false, "print the rows and their goals, and run nothing")
	force := flag.Bool("force", false, fmt.Sprintf("measure also with files that differ from the commit, or a program that was not built of it, and on a machine that is busy: "+
		"else its load of the last minute must be %v for each core at most, which is waited for, up to %s", quietLoad, quietWait))
	profiles := flag.Bool("profiles", false, "profile the servers, and write docs/"+profilesFile+" instead of the report")
	render := flag.Bool("render", false, "write the report anew from the figures that are there, and run nothing")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	pattern, err := regexp.Compile(*rows)
	if err != nil {
		return fmt.Errorf("--rows: %w", err)
	}
	chosen, err := choose(scenarios(), pattern)
	if err != nil {
		return err
	}
	if *list {
		for _, s := range chosen {
			for _, r := range s.Rows {
				fmt.Printf("%-14s %-58s %s\n", s.Name, r.Name, Result{Unit: r.Unit, Goal: r.Goal}.goal())
			}
		}
		return nil
	}
	root, err := findRepository(ctx)
	if err != nil {
		return err
	}
	docs := filepath.Join(root, "docs")
	if *render {
		return renderAgain(docs)
	}
	command := "make bench"
	if args := os.Args[1:]; len(args) > 0 {
		command = "go run ./test/bench " + strings.Join(args, " ")
	}
	program := filepath.Join(os.Getenv("ATOLL_BIN_DIR"), "atoll")
	if !*quick && !*force {
		if err := ready(ctx, root, program); err != nil {
			return err
		}
	}
	this, err := host.ThisRun(root, command)
	if err != nil {
		return err
	}
	if *force {
		if err := builtOf(ctx, root, program); err != nil {
			fmt.Fprintln(os.Stderr, "Warning:", err)
			this.Commit = strings.TrimSuffix(this.Commit, "-dirty") + "-dirty"
		}
	}
	if this.Disk, err = disk(os.TempDir()); err != nil {
		return err
	}
	fmt.Printf("%s, commit %s, load %s, %s\n", machine(this), this.Commit, this.Load, this.Go)

	b := bench{quick: *quick, workspaces: *workspaces, profiled: *profiles, run: this}
	if *quick {
		b.workspaces = quickWorkspaces
	}
	runErr := b.scenarios(ctx, chosen)
	if *quick || len(b.results) == 0 {
		return runErr
	}
	if *profiles {
		return errors.Join(runErr, saveProfiles(docs, b.profiles, rowsOf(scenarios())))
	}
	// What was measured before a scenario failed is kept.
	return errors.Join(runErr, keep(docs, b.results, rowsOf(scenarios()), rowsOf(chosen), this))
}

// quickWorkspaces is --workspaces of a quick run.
const quickWorkspaces = 40

// findRepository returns its root directory, and tells the test framework where the executables are, unless somebody did:
// it would look for them at each start of a server.
func findRepository(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	if os.Getenv("ATOLL_BIN_DIR") != "" {
		return root, nil
	}
	return root, os.Setenv("ATOLL_BIN_DIR", filepath.Join(root, "bin"))
}

// bench is one run.
type bench struct {
	quick      bool
	workspaces int
	profiled   bool
	run        host.Run
	results    []Result
	profiles   []string // of the results, rendered
}

// scenarios runs each, also after one failed, until ctx ends.
func (b *bench) scenarios(ctx context.Context, chosen []Scenario) error {
	var errs []error
	for _, s := range chosen {
		if ctx.Err() != nil {
			break
		}
		fmt.Printf("\n%s\n", s.Name)
		if err := b.scenario(ctx, s); err != nil {
			err = fmt.Errorf("%s: %w", s.Name, err)
			fmt.Fprintln(os.Stderr, "Error:", err)
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d scenarios failed: %w", len(errs), len(chosen), errors.Join(errs...))
	}
	return ctx.Err()
}

func (b *bench) scenario(ctx context.Context, s Scenario) error {
	root, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return err
	}
	t := &tb{root: root}
	t.ctx, t.cancel = context.WithCancel(ctx)
	waiting, asked := map[string]Row{}, map[string]bool{}
	for _, r := range s.Rows {
		waiting[r.Name] = r
		asked[r.Name] = true
	}
	known := map[string]bool{}
	for _, all := range scenarios() {
		for _, r := range all.Rows {
			known[r.Name] = all.Name == s.Name
		}
	}
	env := &Env{Quick: b.quick, Workspaces: b.workspaces, t: t, asked: asked}
	if b.profiled {
		env.profiler = &profiler{ctx: t.ctx}
	}
	env.report = func(r Result) error {
		row, ok := waiting[r.Row]
		if !ok {
			if known[r.Row] {
				return nil // not asked for
			}
			return fmt.Errorf("scenario %q has no row %q, or reported it before", s.Name, r.Row)
		}
		delete(waiting, r.Row)
		r.Unit, r.Goal, r.How, r.Run = row.Unit, row.Goal, row.How, b.run
		b.results = append(b.results, r)
		fmt.Println(r.line())
		if env.profiler == nil {
			return nil
		}
		costs, err := env.profiler.row()
		if err != nil {
			return fmt.Errorf("row %q: %w", r.Row, err)
		}
		b.profiles = append(b.profiles, costs.markdown(r, b.run))
		return nil
	}
	err = try(func() error { return s.Run(t.ctx, env) })
	t.failed = err != nil && ctx.Err() == nil // so that processes show what they last printed
	errs := append([]error{err}, t.cleanUp()...)
	if err == nil {
		for name := range waiting {
			errs = append(errs, fmt.Errorf("row %q was not reported", name))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(root))...)
}
