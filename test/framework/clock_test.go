package framework

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSetClock sets the clock of a process that says what it shows: it is ahead, behind, and right again, and its steady clock goes on.
func TestSetClock(t *testing.T) {
	if os.Getenv("SHOW_CLOCK") != "" {
		showClock(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	show := exec.Command(self, "-test.run=^TestSetClock$")
	file := filepath.Join(t.TempDir(), "clock")
	show.Env = append(os.Environ(), "SHOW_CLOCK="+file)
	if _, err := show.StdinPipe(); err != nil { // whose end ends it
		t.Fatal(err)
	}
	began := time.Now()
	if err := show.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = show.Process.Kill() // that it fails to end by itself is no matter
		_ = show.Wait()
	})
	p := &Process{t: t, name: "clock", cmd: show}
	shows := func(ahead time.Duration) {
		t.Helper()
		Eventually(t, 10*time.Second, "the clock is "+ahead.String()+" ahead", func() string {
			data, err := os.ReadFile(file)
			if err != nil {
				return err.Error() // not written again yet
			}
			fields := strings.Fields(string(data))
			if len(fields) != 2 {
				return fmt.Sprintf("it shows %q", data)
			}
			wall, err := strconv.ParseInt(fields[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			steady, err := time.ParseDuration(fields[1])
			if err != nil || steady < 0 || steady > time.Since(began) {
				t.Errorf("%v have passed in it, and %v here (%v)", steady, time.Since(began), err)
			}
			if off := time.Until(time.Unix(0, wall)) - ahead; off.Abs() > time.Second {
				return off.String() + " from that"
			}
			return ""
		})
	}
	shows(0)
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		p.SetClock(ahead)
		if data, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		} else if err := os.Remove(file); err != nil {
			t.Fatal(err)
		} else {
			t.Logf("before it is %s ahead: %s", ahead, data)
		}
		shows(ahead)
	}
}

// showClock writes what the clocks of this process show to a file, again and again.
func showClock(t *testing.T) {
	file := os.Getenv("SHOW_CLOCK")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end will do
		os.Exit(0)
	}()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		now := time.Now()
		line := strconv.FormatInt(now.UnixNano(), 10) + " " + now.Sub(began).String()
		if err := os.WriteFile(file+".new", []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
}
