package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// readEvents calls handle for each event. Lines that are none, such as those of a linker, go to handle as output.
func readEvents(r io.Reader, handle func(line []byte, e event)) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64<<20) // one line holds one write of a test, which may print a whole log
	for s.Scan() {
		e := event{}
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			e = event{Action: "build-output", Output: s.Text() + "\n"}
		}
		handle(s.Bytes(), e)
	}
	return s.Err()
}

// key is what output belongs to; test is empty for that of a package.
type key struct{ pkg, test string }

// unended returns the tests of a package that printed something and did not end, in the order of their names.
func unended(output map[key][]string, pkg string) []key {
	var left []key
	for k := range output {
		if k.pkg == pkg && k.test != "" {
			left = append(left, k)
		}
	}
	slices.SortFunc(left, func(a, b key) int { return strings.Compare(a.test, b.test) })
	return left
}

// summary prints a line for each package and what failed in its own words, and keeps the events, with all output, in file:
// servers write logs of thousands of lines, and who reads a part of them shall see why. It fails if anything did, also if
// nothing ran at all; its error has the end of what each said, for who sees the end of all output only.
func summary(in io.Reader, out io.Writer, file string) error {
	keep, err := os.Create(file)
	if err != nil {
		return err
	}
	defer keep.Close()
	w := bufio.NewWriter(keep)
	output, count, broken := map[key][]string{}, map[string]int{}, []string{}
	paused := map[key]bool{} // tests that wait for their turn
	fail := func(pkg, test string) {
		if test != "" {
			count["fail"]++
		}
		k := key{pkg, test}
		name := strings.TrimSpace(pkg + " " + test)
		broken = append(broken, name)
		fmt.Fprintf(out, "--- FAIL %s\n", name)
		if len(output[k]) > 0 {
			fmt.Fprintln(out, strings.Join(ownWords(output[k]), "\n"))
			broken = append(broken, lastWords(output[k])...)
		}
		delete(output, k)
	}
	err = readEvents(in, func(line []byte, e event) {
		_, _ = w.Write(append(slices.Clone(line), '\n')) // its error is Flush's
		k := key{e.Package, e.Test}
		switch e.Action {
		case "output":
			output[k] = append(output[k], e.Output)
		case "pause", "cont":
			paused[k] = e.Action == "pause"
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "pass", "fail", "skip":
			if e.Test != "" && e.Action != "fail" {
				count[e.Action]++
			}
			switch {
			case e.Action == "fail":
				fail(e.Package, e.Test)
				if e.Test != "" {
					break
				}
				// Tests that were under way when the process ended: go test says nothing more of them, and a panic, such as that of
				// a test that hangs, is in what one of them printed.
				waited := 0
				for _, k := range unended(output, e.Package) {
					if paused[k] {
						waited++
						delete(output, k)
						continue
					}
					fail(k.pkg, k.test)
				}
				if waited > 0 {
					fmt.Fprintf(out, "%d tests of %s waited for their turn\n", waited, e.Package)
				}
			case e.Action == "skip" && e.Test != "":
				fmt.Fprint(out, strings.Join(output[k], "")) // loudly, since it proves nothing
			case e.Test == "" && e.Action == "pass":
				fmt.Fprintf(out, "ok    %-60s %6.1fs\n", e.Package, e.Elapsed)
			}
			delete(output, k)
		case "build-fail":
			broken = append(broken, e.ImportPath)
		}
	})
	if err != nil {
		return fmt.Errorf("read the events of go test: %w", err)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(broken) > 0 {
		fmt.Fprintf(out, "all that was printed is in %s\n", file)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	if len(broken) > 0 {
		return fmt.Errorf("failed:\n  %s", strings.Join(broken, "\n  "))
	}
	if count["pass"] == 0 {
		return fmt.Errorf("no test ran")
	}
	return nil
}

// messageIndent is before the lines of a message after the first.
const messageIndent = "        "

var (
	// message is the first line of what a test says by its methods Error, Fatal and Log.
	message = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
	// ofLog is one that shows a log.
	ofLog = regexp.MustCompile(`\.log:\s*$`)
	// crash is how the runtime's report of one begins, and the race detector's.
	crash = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE)`)
)

// parted returns the lines of a test's output before the report of a crash, and that, nil if there is none.
func parted(output []string) (before, report []string) {
	all := strings.Split(strings.TrimSuffix(strings.Join(output, ""), "\n"), "\n")
	if at := slices.IndexFunc(all, crash.MatchString); at >= 0 {
		return all[:at], all[at:]
	}
	return all, nil
}

// ownWords returns why a test failed, by its output: its messages, or the report of a crash, or else its last lines.
func ownWords(output []string) []string {
	const maxLines = 120
	before, report := parted(output)
	if report != nil {
		report = testsFirst(report)
		return append(messages(before), report[:min(len(report), maxLines)]...)
	}
	if said := messages(before); said != nil {
		return said
	}
	return before[max(0, len(before)-maxLines):]
}

// lastWords returns the end of why a test failed, shortened and indented: of its messages, and the first line of a crash.
func lastWords(output []string) (last []string) {
	const maxLines, maxBytes = 3, 240
	before, report := parted(output)
	said := append(messages(before), report[:min(len(report), 1)]...)
	for _, line := range said[max(0, len(said)-maxLines):] {
		line = strings.TrimSpace(line)
		last = append(last, messageIndent+line[:min(len(line), maxBytes)])
	}
	return last
}

// testsFirst returns the report of a crash with the goroutines that are in a test's file before the others, of which a server
// in the same process has thousands.
func testsFirst(report []string) []string {
	var first, others []string
	for i, part := range strings.Split(strings.Join(report, "\n"), "\n\n") {
		if i == 0 || strings.Contains(part, "_test.go:") {
			first = append(first, part)
		} else {
			others = append(others, part)
		}
	}
	return strings.Split(strings.Join(append(first, others...), "\n\n"), "\n")
}

// messages returns what a test said of itself in these lines of its output: the beginning of each message, and of each
// line, with its logs left out.
func messages(output []string) []string {
	const maxLines, maxBytes = 30, 500
	var said []string
	lines := maxLines // of the message so far; those before the first message are not the test's
	for _, line := range output {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case message.MatchString(line) && !ofLog.MatchString(line):
			lines = 0
		case message.MatchString(line), !strings.HasPrefix(line, messageIndent):
			lines = maxLines
		}
		if lines < maxLines {
			said = append(said, line[:min(len(line), maxBytes)])
			lines++
		}
	}
	return said
}

// readResults returns the worst outcome of each test, and of each part of one, in the files.
func readResults(files []string) (map[string]outcome, error) {
	results := map[string]outcome{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		err = readEvents(f, func(_ []byte, e event) {
			o, ok := map[string]outcome{"pass": passed, "skip": skipped, "fail": failed}[e.Action]
			if ok && e.Test != "" {
				results[e.Test] = max(results[e.Test], o)
			}
		})
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return results, nil
}
