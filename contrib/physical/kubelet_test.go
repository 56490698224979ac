package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/test/framework"
)

// inCluster is a cluster with a pod of two containers.
type inCluster struct {
	*framework.Physical
	client kubernetes.Interface
	pod    *corev1.Pod
}

// TestKubelet asks for logs, and runs commands, through the apiserver of a cluster, as kubectl does.
func TestKubelet(t *testing.T) {
	cluster := framework.StartPhysical(t, "east", framework.PhysicalNodes(2), framework.PhysicalExecOnHost(),
		func(p *framework.Physical) { p.Setenv("HOST_SECRET", "leaked") })
	c := &inCluster{Physical: cluster, client: cluster.Clientset()}
	d := deployment("web", 1, nil)
	main := &d.Spec.Template.Spec.Containers[0]
	main.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}}
	main.Env = []corev1.EnvVar{
		{Name: "POD", ValueFrom: fieldOf("metadata.name")}, {Name: "NODE", ValueFrom: fieldOf("spec.nodeName")}, {Name: "WHERE", Value: "$(POD) on $(NODE)"},
		{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
	}
	d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "side", Image: "registry.example/side:1"})
	keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys"}, StringData: map[string]string{"KEY": "opensesame"}}
	if _, err := c.client.CoreV1().Secrets("default").Create(t.Context(), keys, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, c.client, d)
	c.pod = waitPod(t, c.client, "web", "Ready", isReady)

	t.Run("logs", c.logs)
	t.Run("follow", c.follows)
	t.Run("log of a Job", c.logOfJob)
	t.Run("for the apiserver alone", c.authenticates)
	t.Run("exec", c.executes)
	t.Run("environment", c.environment)
	t.Run("terminal", c.terminal)
	t.Run("who goes ends the command", c.clientGoes)
	t.Run("the cluster's end is the command's", c.clusterEnds)
}

// log reads the log of a container of the pod.
func (c *inCluster) log(t *testing.T, options corev1.PodLogOptions) (string, error) {
	t.Helper()
	if options.Container == "" {
		options.Container = "main"
	}
	text, err := c.client.CoreV1().Pods("default").GetLogs(c.pod.Name, &options).DoRaw(t.Context())
	return string(text), err
}

func (c *inCluster) logs(t *testing.T) {
	names := func(container string) string {
		return fmt.Sprintf("pod default/%s container %s on node %s: ", c.pod.Name, container, c.pod.Spec.NodeName)
	}
	if got, err := c.log(t, corev1.PodLogOptions{}); err != nil || !strings.HasPrefix(got, names("main")+"started registry.example/app:1; simulated, no process runs\n") {
		t.Errorf("the log is %q, %v", got, err)
	}
	if got, err := c.log(t, corev1.PodLogOptions{Container: "side"}); err != nil || !strings.HasPrefix(got, names("side")+"started registry.example/side:1;") {
		t.Errorf("the log of the other container is %q, %v", got, err)
	}
	eventually(t, "three lines", func(context.Context) (bool, string) {
		got, err := c.log(t, corev1.PodLogOptions{})
		return err == nil && strings.Count(got, "\n") >= 3, fmt.Sprint(got, err)
	})
	if got, err := c.log(t, corev1.PodLogOptions{TailLines: ptr.To[int64](2)}); err != nil || strings.Count(got, "\n") != 2 || !strings.HasPrefix(got, names("main")+"has run for ") {
		t.Errorf("the last two lines are %q, %v", got, err)
	}
	if got, err := c.log(t, corev1.PodLogOptions{LimitBytes: ptr.To[int64](7)}); err != nil || got != "pod def" {
		t.Errorf("the first seven bytes are %q, %v", got, err)
	}
	stamped, err := c.log(t, corev1.PodLogOptions{Timestamps: true})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(stamped, "\n"), "\n")
	var last time.Time
	for _, line := range lines {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || at.Before(last) || !strings.HasPrefix(text, names("main")) {
			t.Errorf("line %q with a time: %v, after %s", line, err, last)
		}
		last = at
	}
	if got, err := c.log(t, corev1.PodLogOptions{SinceTime: ptr.To(metav1.NewTime(last))}); err != nil || got == "" || strings.Contains(got, "started") {
		t.Errorf("since %s there is %q, %v", last, got, err)
	}
	if got, err := c.log(t, corev1.PodLogOptions{SinceTime: ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))}); err != nil || got != "" {
		t.Errorf("since what is to come there is %q, %v", got, err)
	}
	if got, err := c.log(t, corev1.PodLogOptions{Previous: true}); err == nil || !strings.Contains(got, `previous terminated container \"main\" in pod \"`+c.pod.Name+`\" not found`) {
		t.Errorf("the log of before is %q, %v", got, err)
	}
}

// follows reads lines that are written while it does.
func (c *inCluster) follows(t *testing.T) {
	create(t, c.client, deployment("followed", 1, nil))
	pod := waitPod(t, c.client, "followed", "Ready", isReady)
	log, err := c.client.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true, TailLines: ptr.To[int64](0)}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines := bufio.NewReader(log)
	twoLines(t, lines)
	if err := c.client.AppsV1().Deployments("default").Delete(t.Context(), "followed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("the log of a pod that is deleted ends with %v", err)
	}
}

// twoLines reads two that are written while a log is followed.
func twoLines(t *testing.T, log *bufio.Reader) {
	t.Helper()
	before := ""
	for range 2 {
		line, err := log.ReadString('\n')
		if err != nil || line == before || !strings.Contains(line, "has run for") {
			t.Fatalf("the next line after %q is %q, %v", before, line, err)
		}
		before = line
	}
}

// logOfJob is there when its pod has ended, and ends.
func (c *inCluster) logOfJob(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: template("once", nil)}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := c.client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := waitPod(t, c.client, "once", "Succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	got, err := c.client.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).DoRaw(t.Context())
	if err != nil || !bytes.Contains(got, []byte("started registry.example/app:1")) {
		t.Errorf("the log is %q, %v", got, err)
	}
	c.fails(t, &command{pod: pod.Name, words: []string{"true"}}, "does not run")
}

// kubeletAt is where the kubelet of the pod's node answers.
func (c *inCluster) kubeletAt(t *testing.T) string {
	t.Helper()
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), c.pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("https://127.0.0.1:%d", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
}

// asAPIServer is the apiserver's access to the kubelet.
func (c *inCluster) asAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	pki := pki{dir: filepath.Join(c.Dir, "pki")}
	return &rest.Config{Host: c.kubeletAt(t), TLSClientConfig: rest.TLSClientConfig{CAFile: pki.cert(kubeletCA), CertFile: pki.cert(kubeletClient), KeyFile: pki.key(kubeletClient)}}
}

// authenticates both ends of the connection between the apiserver and the kubelet.
func (c *inCluster) authenticates(t *testing.T) {
	path := "/containerLogs/default/" + c.pod.Name + "/main"
	asks := func(config *rest.Config) error {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		resp, err := client.Get(config.Host + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("started")) {
			return fmt.Errorf("%s: %s %w", resp.Status, text, err)
		}
		return nil
	}
	if err := asks(c.asAPIServer(t)); err != nil {
		t.Fatalf("the apiserver itself is not answered: %v", err)
	}
	nobody := c.asAPIServer(t)
	nobody.CertFile, nobody.KeyFile = "", ""
	admin, front, itself := c.asAPIServer(t), c.asAPIServer(t), c.asAPIServer(t)
	pki := pki{dir: filepath.Join(c.Dir, "pki")}
	admin.CertFile, admin.KeyFile = pki.cert(adminUser), pki.key(adminUser)
	front.CertFile, front.KeyFile = pki.cert("front-proxy-client"), pki.key("front-proxy-client")
	itself.CertFile, itself.KeyFile = pki.cert(kubeletServer), pki.key(kubeletServer)
	for who, config := range map[string]*rest.Config{"nobody": nobody, "the cluster's administrator": admin, "the aggregator": front, "the kubelet": itself} {
		if asks(config) == nil { // how it sees that depends on who of the two is faster
			t.Errorf("%s is answered", who)
		}
	}

	// Who takes the kubelet's port is not believed to be it.
	stranger := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from a stranger") }))
	defer stranger.Close()
	at, err := url.Parse(stranger.URL)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "strange"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: kubeletAddress, Address: "127.0.0.1"}}}}
	if _, err := fmt.Sscan(at.Port(), &node.Status.DaemonEndpoints.KubeletEndpoint.Port); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "strange"}, Spec: template("strange", nil).Spec}
	pod.Spec.NodeName = node.Name
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := c.client.CoreV1().Pods("default").GetLogs("strange", &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err == nil || !strings.Contains(string(got), "certificate signed by unknown authority") {
		t.Errorf("the apiserver takes a stranger for the kubelet: %q, %v", got, err)
	}
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// command is one to run in a pod.
type command struct {
	pod, container string // default: those of the cluster
	words          []string
	in             io.Reader
	out            io.Writer // default: what run returns
	tty            bool
	size           *remotecommand.TerminalSize
	spdy           bool // instead of a WebSocket
}

// Next is the size of the terminal, once.
func (c *command) Next() *remotecommand.TerminalSize {
	size := c.size
	c.size = nil
	return size
}

// run runs a command, and returns what it wrote.
func (c *inCluster) run(ctx context.Context, t *testing.T, r *command) (stdout, stderr string, err error) {
	t.Helper()
	if r.pod == "" {
		r.pod = c.pod.Name
	}
	if r.container == "" {
		r.container = "main"
	}
	var out, errOut bytes.Buffer
	options := remotecommand.StreamOptions{Stdin: r.in, Stdout: &out, Stderr: &errOut, Tty: r.tty}
	if r.out != nil {
		options.Stdout = r.out
	}
	if r.tty {
		options.Stderr = nil
	}
	if r.size != nil {
		options.TerminalSizeQueue = r
	}
	config := c.RESTConfig()
	at := c.client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(r.pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: r.container, Command: r.words, Stdin: r.in != nil, Stdout: true, Stderr: !r.tty, TTY: r.tty,
	}, scheme.ParameterCodec).URL()
	var executor remotecommand.Executor
	if r.spdy {
		executor, err = remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
	} else {
		executor, err = remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	err = executor.StreamWithContext(ctx, options)
	return out.String(), errOut.String(), err
}

// fails runs a command that is refused. Over a WebSocket its client may not say why, and kubectl asks again over SPDY.
func (c *inCluster) fails(t *testing.T, r *command, says string) {
	t.Helper()
	for _, spdy := range []bool{false, true} {
		r.spdy = spdy
		if out, errOut, err := c.run(t.Context(), t, r); err == nil || spdy && !strings.Contains(err.Error(), says) {
			t.Errorf("%v is not refused with %q (SPDY %v): %q %q %v", r.words, says, spdy, out, errOut, err)
		}
	}
}

func (c *inCluster) executes(t *testing.T) {
	for _, spdy := range []bool{false, true} {
		out, errOut, err := c.run(t.Context(), t, &command{words: []string{"sh", "-c", "echo out; echo err >&2; pwd"}, spdy: spdy})
		if err != nil || out != "out\n"+filepath.Join(c.Dir, "exec")+"\n" || errOut != "err\n" {
			t.Errorf("it says %q and %q, %v", out, errOut, err)
		}
		long := strings.Repeat("a line of input\n", 1<<16)
		if out, _, err := c.run(t.Context(), t, &command{words: []string{"cat"}, in: strings.NewReader(long), spdy: spdy}); err != nil || out != long {
			t.Errorf("%d bytes of %d came back: %v", len(out), len(long), err)
		}
		for code, words := range map[int][]string{7: {"sh", "-c", "exit 7"}, 127: {"no-such-program"}, 128 + 15: {"sh", "-c", "kill -TERM $$"}} {
			_, _, err := c.run(t.Context(), t, &command{words: words, spdy: spdy})
			var exit utilexec.ExitError
			if !errors.As(err, &exit) || exit.ExitStatus() != code {
				t.Errorf("%v ends with %v, want code %d", words, err, code)
			}
		}
		// What it leaves in the background neither holds it up nor stays.
		out, _, err = c.run(t.Context(), t, &command{words: []string{"sh", "-c", "sleep 1000 & echo $!"}, spdy: spdy})
		pid := strings.TrimSpace(out)
		if err != nil || pid == "" {
			t.Fatalf("in the background is %q, %v", out, err)
		}
		ends(t, "what is left in the background", pid)
	}
	c.fails(t, &command{pod: "none", words: []string{"true"}}, "not found")
}

// environment is the pod's, and nothing of this machine's.
func (c *inCluster) environment(t *testing.T) {
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.PID()))
	if err != nil {
		t.Skipf("the test needs /proc: %v", err)
	}
	if !slices.Contains(strings.Split(string(own), "\x00"), "HOST_SECRET=leaked") {
		t.Fatalf("the cluster has no secret to leak: %q", own)
	}
	out, _, err := c.run(t.Context(), t, &command{words: []string{"env"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out), "\n")
	for _, want := range []string{
		"POD=" + c.pod.Name, "HOSTNAME=" + c.pod.Name, "NODE=" + c.pod.Spec.NodeName, "WHERE=" + c.pod.Name + " on " + c.pod.Spec.NodeName, "CPUS=32", "KEY=opensesame", "PATH=" + hostPath,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the environment has no %s: %v", want, got)
		}
	}
	known := []string{"POD", "HOSTNAME", "NODE", "WHERE", "CPUS", "KEY", "PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"} // of shells, the last four
	for _, v := range got {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(known, name) {
			t.Errorf("the environment has %s", v)
		}
	}
}

// terminal is a real one, of the client's size, or none.
func (c *inCluster) terminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for a size that never comes
	defer cancel()
	for _, spdy := range []bool{false, true} {
		out, _, err := c.run(ctx, t, &command{
			words: []string{"sh", "-c", `tty; until [ "$(stty size)" = "37 111" ]; do sleep 0.1; done; stty size; read line; echo "read $line"`},
			in:    strings.NewReader("typed\n"), tty: true, size: &remotecommand.TerminalSize{Width: 111, Height: 37}, spdy: spdy,
		})
		if err != nil || !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "37 111\r\n") || !strings.Contains(out, "read typed\r\n") {
			t.Errorf("with a terminal it says %q, %v", out, err)
		}
	}
	if out, _, err := c.run(t.Context(), t, &command{words: []string{"tty"}}); err == nil || out != "not a tty\n" {
		t.Errorf("without a terminal it says %q, %v", out, err)
	}
}

// begin starts a command that prints process ids in its first line, and returns them, and what makes its client go.
func (c *inCluster) begin(t *testing.T, r *command) (pids []string, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	r.out = in
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, err := c.run(ctx, t, r)
		_ = in.CloseWithError(fmt.Errorf("it ended: %w", err))
	}()
	leave = func() {
		cancel()
		_ = out.Close()
		<-ended
	}
	t.Cleanup(leave)
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	for err == nil && strings.TrimSpace(line) == "" { // what a terminal echoes
		line, err = lines.ReadString('\n')
	}
	pids = strings.Fields(line)
	if err != nil || len(pids) == 0 {
		t.Fatalf("%v begins with %q, %v", r.words, line, err)
	}
	for _, pid := range pids {
		if !alive(pid) {
			t.Fatalf("%v: process %s does not run", r.words, pid)
		}
	}
	return pids, leave
}

func ends(t *testing.T, what string, pids ...string) {
	t.Helper()
	eventually(t, what+" to end", func(context.Context) (bool, string) {
		left := slices.DeleteFunc(slices.Clone(pids), func(pid string) bool { return !alive(pid) })
		return len(left) == 0, fmt.Sprintf("processes %v live", left)
	})
}

// untilKilled prints its process id and that of a child, and waits for ever, whatever signals it gets that it can ignore.
const untilKilled = `trap '' HUP INT TERM; sleep 1000 & echo $$ $!; wait; sleep 1000`

// clientGoes: nothing but that the client goes ends these commands.
func (c *inCluster) clientGoes(t *testing.T) {
	for reason, r := range map[string]*command{
		"it writes nothing":        {words: []string{"sh", "-c", untilKilled}},
		"over SPDY":                {words: []string{"sh", "-c", untilKilled}, spdy: true},
		"its input has no end":     {words: []string{"sh", "-c", untilKilled}, in: &blocked{until: t.Context()}},
		"it leaves some unread":    {words: []string{"sh", "-c", untilKilled}, in: &blocked{until: t.Context(), first: 80_000}},
		"it has a terminal":        {words: []string{"sh", "-c", untilKilled}, in: &blocked{until: t.Context()}, tty: true},
		"it leaves its terminal's": {words: []string{"sh", "-c", untilKilled}, in: &blocked{until: t.Context(), first: 80_000}, tty: true},
		"a shell made a job of it": {words: []string{"sh", "-c", "set -m; " + untilKilled}, in: &blocked{until: t.Context()}, tty: true},
	} {
		t.Run(reason, func(t *testing.T) {
			pids, leave := c.begin(t, r)
			leave()
			ends(t, "the command", pids...)
		})
	}
}

// blocked is input of which so many bytes, all ends of lines, come first, and then nothing.
type blocked struct {
	until context.Context
	first int
}

func (b *blocked) Read(p []byte) (int, error) {
	if b.first > 0 {
		n := min(len(p), b.first)
		copy(p, bytes.Repeat([]byte("\n"), n))
		b.first -= n
		return n, nil
	}
	<-b.until.Done()
	return 0, io.EOF
}

// clusterEnds: commands end with the cluster, however that does, while who asked for them stays.
func (c *inCluster) clusterEnds(t *testing.T) {
	c.Use(t)
	const theirs = 10250
	added := newNode("added", 0)
	added.Status.DaemonEndpoints.KubeletEndpoint.Port = theirs
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), added, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for how, end := range map[string]func(){"SIGTERM": c.Stop, "SIGKILL": c.Kill} {
		pids, leave := c.begin(t, &command{words: []string{"sh", "-c", untilKilled}})
		jobs, leaveJobs := c.begin(t, &command{words: []string{"sh", "-c", "set -m; " + untilKilled}, in: &blocked{until: t.Context()}, tty: true})
		end()
		ends(t, how+": the command", pids...)
		ends(t, how+": the command with a job", jobs...)
		leave()
		leaveJobs()
		c.Restart()
		// The nodes lead to the port of this run.
		eventually(t, how+": the log after the restart", func(context.Context) (bool, string) {
			got, err := c.log(t, corev1.PodLogOptions{})
			return err == nil && strings.Contains(got, c.pod.Name), fmt.Sprint(got, err)
		})
		// The pod is older than all that the apiserver remembers of pods.
		log, err := c.client.CoreV1().Pods("default").GetLogs(c.pod.Name, &corev1.PodLogOptions{Container: "main", Follow: true, TailLines: ptr.To[int64](0)}).Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		twoLines(t, bufio.NewReader(log))
		_ = log.Close()
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), added.Name, metav1.GetOptions{})
		if err != nil || node.Status.DaemonEndpoints.KubeletEndpoint.Port != theirs {
			t.Errorf("%s: a node that somebody added leads to port %d, %v, want %d", how, node.Status.DaemonEndpoints.KubeletEndpoint.Port, err, theirs)
		}
	}
}

// TestOfCluster is which nodes are the cluster's own.
func TestOfCluster(t *testing.T) {
	for name, want := range map[string]bool{
		newNode("east", 0).Name: true, newNode("east", 12).Name: true, "east-node-": false, "east-node-01": false, "east-node--1": false, "east-node-+1": false, "east-node-0-b": false, "0": false, "west-node-0": false,
	} {
		if got := ofCluster("east", name); got != want {
			t.Errorf("node %q is of cluster east: %v, want %v", name, got, want)
		}
	}
}

// TestUntilHangup: that the other end is gone is seen past what it sent before, and not before it is.
func TestUntilHangup(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, stop, err := untilHangup(t.Context(), server.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("never read")); err != nil {
		t.Fatal(err)
	}
	// Another one ends when it is stopped, and leaves the connection as it is.
	other, stopOther, err := untilHangup(t.Context(), server.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	stopOther()
	if other.Err() == nil {
		t.Error("it goes on after it was stopped")
	}
	if _, err := server.Write([]byte("back")); err != nil {
		t.Errorf("the connection is closed: %v", err)
	}
	back := make([]byte, 4)
	if _, err := io.ReadFull(client, back); err != nil || string(back) != "back" {
		t.Errorf("%q comes back, %v", back, err)
	}
	if ctx.Err() != nil {
		t.Errorf("it ends while the other end is there: %v", context.Cause(ctx))
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errClientGone) {
		t.Errorf("it ends because of %v", cause)
	}
	stop()
}

// closer is output that nobody looks at.
type closer struct{ io.Writer }

func (closer) Close() error { return nil }

// TestUnreadInput: input that waits ends a command after a time, since behind it nobody hears of the end of who sends it.
func TestUnreadInput(t *testing.T) {
	run := func(patience time.Duration, tty bool, words ...string) error {
		h := &hostCommand{ctx: t.Context(), dir: t.TempDir(), env: []string{"PATH=" + hostPath}, running: semaphore.NewWeighted(1), patience: patience}
		out := closer{io.Discard}
		return h.ExecInContainer(t.Context(), "", "", "", words, &blocked{until: t.Context(), first: 1 << 17}, out, out, tty, nil, 0)
	}
	for _, tty := range []bool{false, true} {
		if err := run(100*time.Millisecond, tty, "sleep", "1000"); !errors.Is(err, errUnread) {
			t.Errorf("it ends with %v (terminal: %v)", err, tty)
		}
		if err := run(time.Minute, tty, "head", "-c", "131072"); err != nil {
			t.Errorf("a command that reads all ends with %v (terminal: %v)", err, tty)
		}
	}
	none := &hostCommand{ctx: t.Context(), running: semaphore.NewWeighted(0)}
	if err := none.ExecInContainer(t.Context(), "", "", "", []string{"true"}, nil, nil, nil, false, nil, 0); !errors.Is(err, errStopping) {
		t.Errorf("one begins while the cluster stops: %v", err)
	}
}

// TestClosedTerminal: a command that closes its terminal goes on, and ends as it ends.
func TestClosedTerminal(t *testing.T) {
	h := &hostCommand{ctx: t.Context(), dir: t.TempDir(), env: []string{"PATH=" + hostPath}, running: semaphore.NewWeighted(1), patience: time.Minute}
	out := closer{io.Discard}
	words := []string{"sh", "-c", "exec <&- >&- 2>&-; sleep 0.2; exit 7"}
	err := h.ExecInContainer(t.Context(), "", "", "", words, &blocked{until: t.Context()}, out, out, true, nil, 0)
	var exit interface{ ExitStatus() int }
	if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("it ends with %v, and ended with exit code 7", err)
	}
}

// TestExecIsOff: a cluster runs nothing on its machine that nobody has asked it to.
func TestExecIsOff(t *testing.T) {
	cluster := framework.StartPhysical(t, "east", framework.PhysicalNodes(1))
	c := &inCluster{Physical: cluster, client: cluster.Clientset()}
	create(t, c.client, deployment("web", 1, nil))
	c.pod = waitPod(t, c.client, "web", "Ready", isReady)
	if got, err := c.log(t, corev1.PodLogOptions{}); err != nil || !strings.Contains(got, c.pod.Name) {
		t.Errorf("its log is %q, %v", got, err)
	}
	c.fails(t, &command{words: []string{"true"}}, "--exec-on-host")
}
