package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestHintsNameTheProgramAsCalled: what a message proposes can be pasted.
func TestHintsNameTheProgramAsCalled(t *testing.T) {
	for _, registered := range []bool{false, true} {
		hints := greeting("bin/atoll", time.Second, "https://127.0.0.1:6443", ".atoll/admin.kubeconfig", registered)
		for _, line := range strings.Split(hints, "\n") {
			if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "  bin/atoll ") {
				t.Errorf("the server says: %s", line)
			}
		}
		if strings.Contains(hints, ".yaml") || strings.Contains(hints, "%!") {
			t.Errorf("the server names a file that nobody has: %s", hints)
		}
		if added := strings.Contains(hints, "cluster add"); added == registered || strings.Contains(hints, "cluster list") != registered {
			t.Errorf("where clusters are registered is %v, the server says %s", registered, hints)
		}
	}
	for kubeconfig, want := range map[string]string{
		".atoll/admin.kubeconfig": "\nkubectl works as well: export KUBECONFIG=.atoll/admin.kubeconfig\n",
		"/other/admin.kubeconfig": "terminal:\n  export KUBECONFIG=/other/admin.kubeconfig\n  atoll cluster add",
		".atoll/other.kubeconfig": "/.atoll/other.kubeconfig\n  atoll cluster add",
	} {
		if hints := greeting("atoll", time.Second, "https://127.0.0.1:6443", kubeconfig, false); !strings.Contains(hints, want) {
			t.Errorf("with %s the server says %s", kubeconfig, hints)
		}
	}
	root := &cobra.Command{Use: "atoll", Example: "  # text\n  atoll start", Run: func(*cobra.Command, []string) {}}
	sub := &cobra.Command{Use: "workspace", Example: "  atoll workspace use atoll", RunE: needsSubcommand}
	root.AddCommand(sub)
	callAs(root, "bin/atoll")
	if root.Example != "  # text\n  bin/atoll start" || sub.Example != "  bin/atoll workspace use atoll" {
		t.Errorf("examples %q and %q", root.Example, sub.Example)
	}
	if got := sub.UseLine(); !strings.HasPrefix(got, "bin/atoll workspace") {
		t.Errorf("usage %q", got)
	}
	if err := needsSubcommand(sub, []string{"x"}); !strings.Contains(err.Error(), `"bin/atoll workspace --help"`) {
		t.Errorf("error %v", err)
	}
}

// TestUnknownFlags: a flag that is misspelt is told what it may have been meant for.
func TestUnknownFlags(t *testing.T) {
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	root := newRootCommand(streams) // once in a process, as feature gates are
	for args, want := range map[string]string{
		"start --secure-prot 1":      "unknown flag --secure-prot: did you mean --secure-port?",
		"start --nothing-of-this":    "unknown flag --nothing-of-this: \"" + self + " start --help\" lists them",
		"start -x":                   "unknown shorthand flag",
		"start --secure-port eleven": "--secure-port",
		"start now":                  "unexpected argument \"now\". Usage: " + self + " start",
		"cluster lsit":               "did you mean \"list\"?",
		"completion":                 "name a shell: bash, fish, powershell, zsh. Usage: " + self + " completion SHELL",
		"completion bahs":            "did you mean \"bash\"?",
	} {
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}

// TestHintsAreTrue: who is told to start a server that runs already looks in the wrong place.
func TestHintsAreTrue(t *testing.T) {
	address := func(then func(net.Listener)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		then(l)
		return l.Addr().String()
	}
	// The kernel takes connections for who does not: a server that is stopped or hangs.
	hangs := address(func(l net.Listener) { t.Cleanup(func() { l.Close() }) })
	gone := address(func(l net.Listener) { l.Close() })
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.Config.ErrorLog = log.New(io.Discard, "", 0)
	other.StartTLS()
	t.Cleanup(other.Close)
	for name, test := range map[string]struct {
		host    string
		timeout time.Duration
		want    string
	}{
		"hangs":   {hangs, time.Second, "The server at " + hangs + " did not answer in time: it hangs, or nothing passes between it and here."},
		"gone":    {gone, 0, "Is the server at " + gone + " running? \"" + self + " start\" starts one."},
		"another": {other.Listener.Addr().String(), 0, ""},
	} {
		client := &http.Client{Transport: &http.Transport{TLSHandshakeTimeout: test.timeout}}
		_, err := client.Get("https://" + test.host)
		if err == nil {
			t.Fatalf("%s: answered", name)
		}
		if _, hint, _ := strings.Cut(explain(err), "\n"); hint != test.want {
			t.Errorf("%s: hint %q, want %q, after %v", name, hint, test.want, err)
		}
	}
}
