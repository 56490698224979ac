package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestHierarchies reads mounts as machines have them.
func TestHierarchies(t *testing.T) {
	all := hierarchies([]byte(`22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 master:3 - cgroup cgroup rw,cpu,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
broken
`))
	var got []string
	for _, h := range all {
		got = append(got, h.mount+":"+strings.Join(h.options, "+"))
		if h.unified {
			t.Errorf("%s is the only hierarchy", h.mount)
		}
	}
	want := "/sys/fs/cgroup/cpu,cpuacct:rw+cpu+cpuacct /sys/fs/cgroup/systemd:rw+xattr+name=systemd /sys/fs/cgroup/memory:rw+memory /sys/fs/cgroup/unified:"
	if strings.Join(got, " ") != want {
		t.Errorf("hierarchies are\n%s, want\n%s", strings.Join(got, " "), want)
	}
	if got, want := fmt.Sprint(missing(all)), "[cpuset devices freezer pids] <nil>"; got != want {
		t.Errorf("controllers %s are missing, want %s", got, want)
	}
}

// TestUnified: where cgroups are of version 2 alone, those of a node have the controllers that the machine has, and what others have been given stays.
func TestUnified(t *testing.T) {
	all := hierarchies([]byte("24 18 0:22 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"))
	if len(all) != 1 || !all[0].unified {
		t.Fatalf("hierarchies are %+v, want one that is the only one", all)
	}
	for _, c := range []struct{ there, given, missing, give string }{
		{"cpuset cpu io memory hugetlb pids rdma misc", "cpu memory pids", "[]", "+cpuset +hugetlb"},
		{"cpuset cpu io memory pids", "", "[]", "+cpu +cpuset +memory +pids"},
		{"cpuset cpu memory pids", "cpu memory pids cpuset\n", "[]", "cpu memory pids cpuset\n"}, // nothing is written
		{"hugetlb", "", "[cpu cpuset memory pids]", "+hugetlb"},
	} {
		all[0].mount = t.TempDir()
		for name, content := range map[string]string{"cgroup.controllers": c.there + "\n", "cgroup.subtree_control": c.given} {
			if err := os.WriteFile(filepath.Join(all[0].mount, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(missing(all)); got != c.missing+" <nil>" {
			t.Errorf("of %s are missing %s, want %s", c.there, got, c.missing)
		}
		if err := makeCgroups(all, "atoll-east"); err != nil {
			t.Fatal(err)
		}
		if given, err := os.ReadFile(filepath.Join(all[0].mount, "cgroup.subtree_control")); err != nil || string(given) != c.give {
			t.Errorf("of %s, %q given, %q is written: %v; want %q", c.there, c.given, given, err, c.give)
		}
	}
	if err := os.Remove(filepath.Join(all[0].mount, "cgroup.subtree_control")); err != nil {
		t.Fatal(err)
	}
	if err := makeCgroups(all, "atoll-west"); err == nil || exists(filepath.Join(all[0].mount, "atoll-west")) {
		t.Errorf("a cgroup is made whose controllers cannot be given: %v", err)
	}
}

// TestCgroupsGo: all levels go, in every hierarchy, and what an earlier node has left is taken over.
func TestCgroupsGo(t *testing.T) {
	of := []hierarchy{{mount: t.TempDir()}, {mount: t.TempDir()}}
	for range 2 {
		if err := makeCgroups(of, "atoll-east"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(of[1].mount, "atoll-east", "kubepods", "pod1", "main"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeCgroups(of, "atoll-east"); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range of {
		if exists(filepath.Join(h.mount, "atoll-east")) {
			t.Errorf("%s has it still", h.mount)
		}
	}
}

// TestForward passes both ways, and the end of either's words before that of the connection.
func TestForward(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	server, front := listen(), listen()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		said, err := io.ReadAll(conn) // until the client has said all
		_, _ = fmt.Fprintf(conn, "%s %v", said, err)
	}()
	ended := make(chan error, 1)
	go func() {
		ended <- forward(front, func() (net.Conn, error) { return net.Dial("tcp", server.Addr().String()) })
	}()
	conn, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "all of it"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "all of it <nil>" {
		t.Errorf("the answer is %q %v", answer, err)
	}
	// Closed, it ends in order; whatever else ends it is told.
	if err := front.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("a listener that is closed: %v", err)
	}
	if err := forward(failing{front}, nil); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("a listener without files to open: %v", err)
	}
}

// failing is a listener in a process that may open no more files.
type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// TestAwait: nothing is waited for once a component has ended, which is what is told.
func TestAwait(t *testing.T) {
	var exited0, exited1 syscall.WaitStatus = 0, 1 << 8
	done := make(chan struct{})
	close(done)
	dead := &child{step: step{name: "containerd"}, ended: done, status: exited1}
	for _, c := range []struct {
		name         string
		last         *child
		dead         bool
		said         error
		saysSo, stop bool
		next         bool
		want         string // of the error
	}{
		{name: "import that succeeds", last: &child{step: step{name: "import", once: true}, ended: done, status: exited0}, next: true},
		{name: "import that fails", last: &child{step: step{name: "import", once: true}, ended: done, status: exited1}, want: "import ended: exit status 1"},
		{name: "import that fails without containerd", last: &child{step: step{name: "import", once: true}, ended: done, status: exited1}, dead: true, want: "containerd ended"},
		{name: "import that hangs without containerd", last: &child{step: step{name: "import", once: true}}, dead: true, want: "containerd ended"},
		{name: "import that is stopped", last: &child{step: step{name: "import", once: true}}, stop: true},
		{name: "one that says it is ready", last: &child{step: step{name: "slow", notifies: true}}, saysSo: true, next: true},
		{name: "one that cannot be heard", last: &child{step: step{name: "slow", notifies: true}}, saysSo: true, said: errors.New("deaf"), want: "wait for slow: deaf"},
		{name: "one that ends before", last: &child{step: step{name: "slow", notifies: true}, ended: done}, want: "slow ended: exit status 0"},
		{name: "another ends before", last: &child{step: step{name: "slow", notifies: true}}, dead: true, want: "containerd ended"},
		{name: "one that nobody waits for", last: &child{step: step{name: "kubelet"}}, next: true},
	} {
		all, said, stop := &children{first: make(chan *child, 1)}, make(chan error, 1), make(chan os.Signal, 1)
		if c.dead {
			all.first <- dead
		}
		if c.saysSo {
			said <- c.said
		}
		if c.stop {
			stop <- syscall.SIGTERM
		}
		next, err := all.await(c.last, said, stop)
		if next != c.next || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the next is started: %v; %v; want %v, %q", c.name, next, err, c.next, c.want)
		}
	}
}

// TestHidden: what is given by its path is there in the node's namespaces, too.
func TestHidden(t *testing.T) {
	for path, want := range map[string]bool{"/var": true, "/var/lib/x": true, "/run/x": true, "/variety": false, "/tmp/var/x": false} {
		if got := hidden(path); got != want {
			t.Errorf("%s is hidden: %v, want %v", path, got, want)
		}
	}
	// Wherever it leads there, and whether it is there yet.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/var", link); err != nil {
		t.Fatal(err)
	}
	o := newOptions()
	o.dir, o.plugins, o.images = filepath.Join(link, "nothing", "there"), "/", []string{"/run/app.tar"}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	o.programs = "/"
	var got []string
	for _, l := range checkPlaces(o) {
		got = append(got, l.what+": "+l.why)
	}
	if want := []string{"place: /var/nothing/there is below /var", "place: /run/app.tar is below /var or /run"}; len(got) != 2 || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("it lacks %q, want %q", got, want)
	}
}

// TestReach: the ports that pods reach are not those that the node has itself.
func TestReach(t *testing.T) {
	for port, want := range map[int]bool{1: true, 8080: true, 65535: true, -1: false, 0: false, 65536: false, 53: false, 10250: false, 6443: false} {
		o := newOptions()
		o.dir, o.securePort, o.reach = t.TempDir(), 6443, []int{port}
		if err := o.complete(); (err == nil) != want || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("--reach %d ", port)) {
			t.Errorf("port %d: %v, want %v", port, err, want)
		}
	}
}

// TestFiles: what components are configured with names this node, and leaves containerd's own template to it.
func TestFiles(t *testing.T) {
	o := newOptions()
	o.name, o.dir, o.programs = "east", t.TempDir(), "/programs"
	files, err := o.files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cni.conflist":    `{"subnet": "{{.PodCIDR}}"}`,
		"kubelet.yaml":    "cgroupRoot: /" + o.cgroup() + "\n",
		"kube-proxy.yaml": "hostnameOverride: east-node-0\n",
		"containerd.toml": `conf_template = "` + o.dir + `/etc/cni.conflist"`,
		"Corefile":        o.dir + "/pki/coredns.kubeconfig",
		"resolv.conf":     "nameserver " + nodeAddress + "\n",
	} {
		content := string(files[o.path("etc", name)])
		if !strings.Contains(content, want) || strings.Contains(content, "<no value>") {
			t.Errorf("%s has no %q:\n%s", name, want, content)
		}
		delete(files, o.path("etc", name))
	}
	if len(files) > 0 {
		t.Errorf("there are %d more files", len(files))
	}
	for _, names := range []bool{false, true} {
		o.workspaceNames = names
		if files, err = o.files(); err != nil {
			t.Fatal(err)
		}
		if corefile := string(files[o.path("etc", "Corefile")]); strings.Contains(corefile, "\n    workspaces cluster.local {\n") != names || !strings.Contains(corefile, "    }\n    kubernetes cluster.local") {
			t.Errorf("--workspace-names=%v: the Corefile is\n%s", names, corefile)
		}
	}
}

// TestCheckPrograms: a machine without the programs is told all that are missing, and what brings them.
func TestCheckPrograms(t *testing.T) {
	o := newOptions()
	o.programs, o.plugins, o.system = t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(o.programs, "kubelet"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, l := range check(t.Context(), o) {
		fmt.Fprintf(&got, "%s\t%s\n", l.what, l.why)
	}
	for _, want := range []string{
		"build\t" + o.programs + "/physical, " + o.programs + "/kube-proxy, ", " not found: contrib/realnode/build.sh builds them\n",
		"programs\t" + o.plugins + "/ptp, " + o.plugins + "/host-local, " + o.plugins + "/loopback not found: contrib/realnode/debian.sh", "programs\tnft not found",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, got.String())
		}
	}
	if strings.Contains(got.String(), "kubelet") {
		t.Errorf("what is there is missing:\n%s", got.String())
	}
}
