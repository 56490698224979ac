//go:generate go run . exceptions ../../README.md

// Command report reads what go test -json writes: it sums up a run for people, and makes README.md's table of
// requirements from the results.
//
// A test that proves a requirement carries its id first in its name: TestT1_DeploymentRuns, TestT2_T11_MoveTurnedBack.
// The requirements are in requirements.tsv: id, text, and what is still missing where tests prove a part only.
//
//	go test -json ./... | report summary results.json      prints failures in their own words, keeps all in results.json
//	report table [-check] README.md results.json ...       writes the table; with -check, fails if that would change it
//	go test -json ./... | report soak soak.md faults tests writes what passed as that section, and how long recovery took; with
//	                                                       packages for tests, whole packages
//	go test -json ./... | report operators operators.md    writes which programs did what
//	report exceptions README.md                            writes the conformance specs that workspaces do not pass
//	report verify README.md                                fails if the table names tests that are not there, or lacks some
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/atoll/internal/document"
	"atoll.dev/atoll/test/conformance/exceptions"
	"atoll.dev/atoll/test/host"
)

//go:embed requirements.tsv
var requirementsTSV string

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: report summary FILE | soak FILE PART tests|packages | operators FILE | realnodes FILE | table [-check] README FILE... | exceptions README | verify README")
	}
	requirements, err := parseRequirements(requirementsTSV)
	if err != nil {
		return err
	}
	switch args[0] {
	case "summary":
		return summary(os.Stdin, os.Stdout, args[1])
	case "soak":
		if len(args) != 4 || args[3] != "tests" && args[3] != "packages" {
			return errors.New("soak: name the file, the part that it is about, and whether it has rows for tests or packages")
		}
		this, err := host.ThisRun(filepath.Dir(args[1]), "make soak PARTS="+args[2])
		if err != nil {
			return err
		}
		return soak(os.Stdin, os.Stdout, args[1], args[2], args[3] == "packages", this)
	case "operators", "realnodes":
		this, err := host.ThisRun(filepath.Dir(args[1]), "make "+args[0])
		if err != nil {
			return err
		}
		return shown(os.Stdin, os.Stdout, args[1], intros[args[0]], this)
	case "table":
		fs := flag.NewFlagSet("table", flag.ContinueOnError)
		check := fs.Bool("check", false, "Fail instead of changing the file.")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if fs.NArg() < 2 {
			return errors.New("table: name the file with the table, and files of results")
		}
		results, err := readResults(fs.Args()[1:])
		if err != nil {
			return err
		}
		return writeSection(fs.Arg(0), requirementsSection, table(requirements, results), *check)
	case "exceptions":
		all, err := exceptions.All()
		if err != nil {
			return err
		}
		return writeSection(args[1], exceptionsSection, exceptions.List(all), false)
	case "verify":
		readme, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		tests, err := testsIn(filepath.Dir(args[1]))
		if err != nil {
			return err
		}
		return verify(string(readme), tests, requirements)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// writeSection makes text a section of a file. With check it fails instead of changing that.
func writeSection(file string, section document.Section, text string, check bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := section.Replace(string(data), text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if changed == string(data) {
		return nil
	}
	if check {
		return fmt.Errorf("what follows %q in %s is not what the tests say: run make test and commit what it writes:\n%s", section.Begin, file, text)
	}
	fmt.Printf("What follows %q in %s has changed.\n", section.Begin, file)
	return os.WriteFile(file, []byte(changed), 0o644)
}

// testsIn returns the names of the tests in dir and below that carry ids.
func testsIn(dir string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(data), "\n") {
			name, _, ok := strings.Cut(strings.TrimPrefix(line, "func "), "(")
			if ok && strings.HasPrefix(line, "func Test") && len(ids(name)) > 0 {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}
