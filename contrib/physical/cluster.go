package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/internal/process"
)

const (
	// startTimeout bounds the time from start to ready. A start takes 5 to 10 s; a machine busy with builds, several times that.
	startTimeout = 2 * time.Minute
	// stopTimeout bounds the stop of each component. Nothing is lost when it passes: every write has reached the
	// kernel, and the process ends.
	stopTimeout = 5 * time.Second
)

// Ready is the content of DIR/ready.
type Ready struct {
	Name       string `json:"name"`
	URL        string `json:"url"` // of the apiserver; of etcd if that runs alone
	Kubeconfig string `json:"kubeconfig,omitempty"`
	AuditLog   string `json:"auditLog,omitempty"` // empty: not written
	PID        int    `json:"pid,omitempty"`      // not of a real node's: it is in another namespace than who reads this
	Version    string `json:"version"`
}

// run starts the cluster, writes DIR/ready and one line to out when it is usable, and stops it when ctx ends.
// It returns the first failure of a component, nil if ctx ended.
func run(ctx context.Context, o *options, out io.Writer) error {
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return fmt.Errorf("make the root directory: %w", err)
	}
	unlock, err := process.Lock(o.path("lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if o.logFile != "" {
		if err := redirectStderr(o.logFile); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(o.path("ready")); err != nil {
		return fmt.Errorf("remove the ready file of the last run: %w", err)
	}
	// Kubernetes' own components use deprecated APIs on purpose.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	parent := ctx
	ctx, fail := context.WithCancelCause(ctx)
	parts := &parts{fail: fail}
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	ready, err := start(startCtx, parts, o)
	if err == nil {
		if !o.onlyEtcd {
			fmt.Fprintf(out, "Cluster %q is ready. Next: kubectl --kubeconfig %s get nodes\n", o.name, ready.Kubeconfig)
		}
		if o.execOnHost {
			fmt.Fprintf(out, "WARNING: --exec-on-host: whoever may exec in a pod of cluster %q runs commands on this machine, as user %d, in no container.\n", o.name, os.Getuid())
		}
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); cause != nil && parent.Err() == nil {
		err = cause // the component that ended says more than what failed because of it
	}
	if parent.Err() != nil {
		err = nil
	}
	logger := klog.FromContext(ctx)
	logger.Info("Stopping", "cluster", o.name, "cause", context.Cause(ctx))
	err = errors.Join(err, os.RemoveAll(o.path("ready")), parts.stop(logger))
	if err != nil && o.logFile != "" {
		logger.Error(err, "Ended", "cluster", o.name) // main writes it to the terminal only
	}
	return err
}

// start starts all parts in order and returns when the cluster is usable.
func start(ctx context.Context, parts *parts, o *options) (Ready, error) {
	begin := time.Now()
	if o.onlyEtcd {
		return startOnlyEtcd(ctx, parts, o)
	}
	listener, err := listen(o)
	if err != nil {
		return Ready{}, err
	}
	url := urlAt(listener.Addr().(*net.TCPAddr).Port)
	pki, err := makeCredentials(o, url)
	if err != nil {
		return Ready{}, err
	}

	etcdURL := ""
	if len(o.etcdServers) == 0 {
		if etcdURL, err = startEtcd(ctx, parts, o, pki); err != nil {
			return Ready{}, fmt.Errorf("start etcd: %w", err)
		}
	}
	if err := startAPIServer(ctx, parts, o, pki, etcdURL, listener); err != nil {
		return Ready{}, fmt.Errorf("start kube-apiserver: %w", err)
	}
	client, err := adminClient(o)
	if err != nil {
		return Ready{}, err
	}
	if err := waitForAPI(ctx, client); err != nil {
		return Ready{}, err
	}
	if !o.onlyAPIServer {
		if err := startTheRest(ctx, parts, o, pki, client); err != nil {
			return Ready{}, err
		}
	}

	ready := Ready{
		Name:       o.name,
		URL:        url,
		Kubeconfig: o.kubeconfig,
		PID:        os.Getpid(),
		Version:    version.Get().GitVersion,
	}
	if o.realNode.name != "" {
		ready.PID = 0
	}
	if o.auditLog {
		ready.AuditLog = o.path("audit.log")
	}
	klog.FromContext(ctx).Info("Ready", "cluster", o.name, "url", url, "after", time.Since(begin).Round(time.Millisecond))
	return ready, writeReady(o.path("ready"), ready)
}

// urlAt is that of the apiserver, for who runs beside it and who started it.
func urlAt(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// makeCredentials makes what is missing of the keys and certificates, and the kubeconfigs of those who have some.
func makeCredentials(o *options, url string) (pki, error) {
	p, err := openPKI(o.path("pki"), o.etcdAddress, o.realNode)
	if err != nil {
		return p, err
	}
	return p, writeKubeconfigs(o, p, url)
}

func startOnlyEtcd(ctx context.Context, parts *parts, o *options) (Ready, error) {
	pki, err := openPKI(o.path("pki"), o.etcdAddress, realNode{})
	if err != nil {
		return Ready{}, err
	}
	url, err := startEtcd(ctx, parts, o, pki)
	if err != nil {
		return Ready{}, fmt.Errorf("start etcd: %w", err)
	}
	ready := Ready{Name: o.name, URL: url, PID: os.Getpid(), Version: version.Get().GitVersion}
	return ready, writeReady(o.path("ready"), ready)
}

// startTheRest starts what makes pods and, unless the options say otherwise, runs them, and returns when it can.
func startTheRest(ctx context.Context, parts *parts, o *options, pki pki, client kubernetes.Interface) error {
	if o.realNode.name != "" {
		if err := allowDNS(ctx, client); err != nil { // first, since CoreDNS asks already
			return err
		}
	}
	if err := startControllerManager(ctx, parts, o, pki); err != nil {
		return fmt.Errorf("start kube-controller-manager: %w", err)
	}
	if !o.noScheduler {
		if err := startScheduler(parts, o); err != nil {
			return fmt.Errorf("start kube-scheduler: %w", err)
		}
	}
	if o.nodes > 0 {
		// Who renewed the node leases in the last run cannot give them back: kwok would wait 40 s for them to expire, and a real node be taken for
		// one that is ready.
		if err := deleteNodeLeases(ctx, client); err != nil {
			return err
		}
	}
	if o.nodes > 0 && o.realNode.name == "" {
		port, err := startKubelet(parts, o, pki, client)
		if err != nil {
			return fmt.Errorf("start the kubelet: %w", err)
		}
		if err := createNodes(ctx, client, o, port); err != nil {
			return err
		}
		if err := startKwok(parts, o); err != nil {
			return fmt.Errorf("start kwok: %w", err)
		}
	}
	return waitForPods(ctx, client, o)
}

// adminClient returns a client without rate limit: it talks to its own process.
func adminClient(o *options) (kubernetes.Interface, error) {
	config, err := restConfig(o.path("pki", adminUser+kubeconfigSuffix))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// writeReady writes the file in one step, so that a reader sees all of it or none.
func writeReady(path string, ready Ready) error {
	data, err := json.MarshalIndent(ready, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the ready file: %w", err)
	}
	return writeFile(path, append(data, '\n'))
}

// writeFile replaces a file that only its owner may read, in one step.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // gone already if all went well
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}

// redirectStderr sends everything written to the standard error of this process and its children to a file: klog's
// and etcd's lines, kwok's, and the trace of a panic.
func redirectStderr(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log file: %w", err)
	}
	defer f.Close()
	if err := dup(int(f.Fd()), int(os.Stderr.Fd())); err != nil {
		return fmt.Errorf("redirect stderr to %s: %w", path, err)
	}
	return nil
}
