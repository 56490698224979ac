package main

import (
	"bytes"
	"embed"
	"fmt"
	"path/filepath"
	"strconv"
	"text/template"
)

// step is a program that process 1 starts.
type step struct {
	name     string
	args     []string // the program first, found in PATH
	env      []string // beside ours
	log      string   // file; empty: what it says is ours
	once     bool     // it ends by itself, before the next one is started
	notifies bool     // it says when it is ready, which the next one waits for
}

const (
	runtimeSocket = "/run/containerd/containerd.sock"
	// pauseImage is of bin/pause, made with it.
	pauseImage = "realnode.atoll.dev/pause:v1"
	pauseFile  = "pause.tar"
)

// steps are what a node is made of, in the order of their start.
func (o *options) steps() []step {
	log := func(name string) string { return o.path("log", name+".log") }
	physical := []string{"--name=" + o.name, "--root-directory=" + o.dir, "--secure-port=" + strconv.Itoa(o.securePort), "--real-node=" + o.node() + "=" + nodeAddress}
	if o.kubeconfig != "" {
		physical = append(physical, "--kubeconfig="+o.kubeconfig)
	}
	physical = append(physical, o.physicalFlags...)

	steps := []step{
		{name: "containerd", args: []string{"containerd", "--config=" + o.path("etc", "containerd.toml")}, log: log("containerd"),
			env: []string{"NOTIFY_SOCKET=" + notifySocket}, notifies: true},
		// The files that kubelet and kube-proxy begin with are there before they are.
		{name: "physical credentials", args: append([]string{"physical", "credentials"}, physical...), once: true},
		{name: "physical", args: append([]string{"physical", "start"}, physical...)},
	}
	for _, image := range append([]string{filepath.Join(o.programs, pauseFile)}, o.images...) {
		steps = append(steps, step{name: "import " + image, args: []string{"ctr", "--address=" + runtimeSocket, "--namespace=k8s.io", "images", "import", image}, log: log("import"), once: true})
	}
	return append(steps,
		step{name: "coredns", args: []string{"coredns", "-conf", o.path("etc", "Corefile")}, log: log("coredns")},
		step{name: "kube-proxy", args: []string{"kube-proxy", "--config=" + o.path("etc", "kube-proxy.yaml")}, log: log("kube-proxy")},
		step{name: "kubelet", args: []string{
			"kubelet", "--config=" + o.path("etc", "kubelet.yaml"), "--kubeconfig=" + o.path("pki", "node.kubeconfig"), "--hostname-override=" + o.node(),
			"--node-ip=" + nodeAddress, "--node-labels=" + fmt.Sprintf("topology.kubernetes.io/region=%s,topology.kubernetes.io/zone=%[1]s-a", o.name),
		}, log: log("kubelet")},
	)
}

//go:embed config
var config embed.FS

// files are what the components are configured with, by name.
func (o *options) files() (map[string][]byte, error) {
	all, err := template.ParseFS(config, "config/*")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, t := range all.Templates() {
		var content bytes.Buffer
		err := t.Execute(&content, map[string]any{
			"Directory": o.dir, "Programs": o.programs, "Plugins": o.plugins, "Node": o.node(), "Address": nodeAddress, "Machine": machineName, "Cgroup": o.cgroup(),
			"RuntimeSocket": runtimeSocket, "PauseImage": pauseImage, "WorkspaceNames": o.workspaceNames,
		})
		if err != nil {
			return nil, err
		}
		files[o.path("etc", t.Name())] = content.Bytes()
	}
	return files, nil
}
