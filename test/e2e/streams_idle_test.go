package e2e

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"atoll.dev/atoll/test/framework"
)

// idleFor is how long nobody says anything: longer than the minute and a half that anything on the way waits for a word, and for hours with
// `make soak`.
func idleFor() time.Duration { return lasting(100*time.Second, 2*time.Hour) }

// TestT4_IdleStreams: what kubectl holds open goes on where nobody has said anything for long, by WebSocket and by SPDY, in a cluster that
// the server reaches and in one that is reached through its syncer's connection.
func TestT4_IdleStreams(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	f := newFleet(t, "west")
	var held []heldStream
	for _, cluster := range []string{"east", "west"} {
		kubelet := beKubelet(t, f.clusters[cluster], t.TempDir())
		w := f.workspace(t, "idle-"+cluster)
		w.place(cluster)
		w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
		w.runsIn(cluster, "solo")
		held = append(held, w.holds(cluster, kubelet, "solo")...)
	}
	passes := func(when string) {
		for _, h := range held {
			line := when + " in " + h.name + "\n"
			if err := h.pass(line); err != nil {
				t.Errorf("%s, %s: %v\n%s", h.name, when, err, h.kubectl)
			}
			if said := h.kubectl.String(); strings.Contains(said, "fallback") {
				t.Errorf("%s: kubectl went on by another protocol: %s", h.name, said)
			}
		}
	}
	passes("before")
	if t.Failed() {
		return
	}
	time.Sleep(idleFor()) // it is what this is about, and waits for nothing
	passes("after")
	t.Logf("figure streams that went on after %s without a word: %d", idleFor(), len(held))
}

// heldStream is something between kubectl and a pod.
type heldStream struct {
	name string
	// say has a line be said at one end, and hears reads the other.
	say   func(line string) error
	hears *bufio.Reader
	// kubectl is what says so where it takes another protocol than it was told.
	kubectl talk
}

// pass says a line, and returns nil when it is heard.
func (h heldStream) pass(line string) error {
	if err := h.say(line); err != nil {
		return err
	}
	heard := make(chan error, 1)
	go func() { // ends with what it reads, at the end of the test at the latest
		for {
			switch got, err := h.hears.ReadString('\n'); {
			case err != nil:
				heard <- fmt.Errorf("it ends: %w", err)
				return
			case got == line:
				heard <- nil
				return
			}
		}
	}()
	select {
	case err := <-heard:
		return err
	case <-time.After(patience):
		return fmt.Errorf("nothing is heard of %q", strings.TrimSpace(line))
	}
}

// holds opens all that kubectl can hold open to a pod of a physical cluster.
func (w *workspace) holds(cluster string, kubelet *framework.Kubelet, pod string) []heldStream {
	w.t.Helper()
	wrote := func(in io.Writer) func(string) error {
		return func(line string) error {
			_, err := io.WriteString(in, line)
			return err
		}
	}
	log := w.talks(nil, "logs", "-f", pod)
	for i := range framework.LogLines {
		if line, err := log.out.ReadString('\n'); err != nil || line != framework.LogLine(pod, "main", false, i+1) {
			w.t.Fatalf("logs -f in %s: %q %v", cluster, line, err)
		}
	}
	const verbose = "--v=4" // from which on kubectl says that it goes on by another protocol
	held := []heldStream{{name: "logs -f in " + cluster, say: kubelet.Logs, hears: log.out, kubectl: log}}
	for protocol, environment := range map[string][]string{
		"WebSocket": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true", "KUBECTL_PORT_FORWARD_WEBSOCKETS=true"},
		"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
	} {
		for _, command := range [][]string{{"exec", verbose, "-i", pod, "--", "cat"}, {"attach", verbose, "-i", pod}} {
			kubectl := w.talks(environment, command...)
			held = append(held, heldStream{name: fmt.Sprintf("%s in %s by %s", command[0], cluster, protocol), say: wrote(kubectl.in), hears: kubectl.out, kubectl: kubectl})
		}
		conn, kubectl := w.forwarded(environment, pod, verbose)
		held = append(held, heldStream{name: fmt.Sprintf("port-forward in %s by %s", cluster, protocol), say: wrote(conn), hears: bufio.NewReader(conn), kubectl: kubectl})
	}
	return held
}
