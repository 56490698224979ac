package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// bound of one step. Steps take seconds; a slow machine must not fail them.
const bound = 3 * time.Minute

// replicas in app.yaml.
const replicas = 6

//go:embed app.yaml
var app []byte

var clusters = []string{"east", "west"}

type demo struct {
	bin, dir string
	children *children
	physical map[string]kubernetes.Interface // by name, once they run
}

// story is what the demo shows, in order.
func (d *demo) story(ctx context.Context) error {
	if err := os.WriteFile(d.path("app.yaml"), app, 0o600); err != nil {
		return err
	}
	chapter("An Atoll, and two physical clusters: Kubernetes control planes whose nodes and pods are simulated")
	if err := d.startAll(ctx); err != nil {
		return err
	}
	for _, name := range clusters {
		if err := d.atoll(ctx, "cluster", "add", name, "--kubeconfig", name+".kubeconfig"); err != nil {
			return err
		}
	}
	if err := d.atoll(ctx, "cluster", "list"); err != nil {
		return err
	}

	chapter("A workspace, which looks like a whole Kubernetes cluster, and an ordinary application")
	if err := d.all(ctx,
		[]string{"workspace", "create", "shop", "--enter"},
		[]string{"kubectl", "apply", "-f", "app.yaml"},
		[]string{"kubectl", "rollout", "status", "deployment/web", "--timeout=" + bound.String()},
	); err != nil {
		return err
	}
	var chosen string // by placement
	if err := d.expect(ctx, fmt.Sprintf("all %d pods on one cluster", replicas), func(ready map[string]int) bool {
		for _, name := range clusters {
			if ready[name] == replicas {
				chosen = name
			}
		}
		return chosen != ""
	}); err != nil {
		return err
	}
	if err := d.companions(ctx, chosen); err != nil {
		return err
	}

	chapter("One annotation spreads it over all clusters")
	if err := d.atoll(ctx, "kubectl", "annotate", "namespace", "default", "placement.atoll.dev/clusters=*"); err != nil {
		return err
	}
	if err := d.expect(ctx, "3 pods on each", func(ready map[string]int) bool { return ready["east"] == 3 && ready["west"] == 3 }); err != nil {
		return err
	}

	chapter("... and moves it to one")
	if err := d.atoll(ctx, "kubectl", "annotate", "namespace", "default", "placement.atoll.dev/clusters=west", "--overwrite"); err != nil {
		return err
	}
	if err := d.expect(ctx, fmt.Sprintf("all %d pods in west", replicas), func(ready map[string]int) bool {
		return ready["east"] == 0 && ready["west"] == replicas
	}); err != nil {
		return err
	}

	chapter("Pods, logs and exec, of both clusters at one place, and why things are as they are")
	if err := d.atoll(ctx, "kubectl", "annotate", "namespace", "default", "placement.atoll.dev/clusters=*", "--overwrite"); err != nil {
		return err
	}
	return d.look(ctx)
}

// startAll starts the server and the physical clusters side by side and waits for all of them.
func (d *demo) startAll(ctx context.Context) error {
	began := time.Now()
	say("$ atoll start &")
	server, err := d.background("atoll", "start", "--root-directory", d.path(".atoll"), "--secure-port", "0")
	if err != nil {
		return err
	}
	running := map[string]*child{}
	for _, name := range clusters {
		say("$ make physical NAME=" + name + " EXEC_ON_HOST=1")
		running[name], err = d.background("physical", "start", "--name", name, "--root-directory", d.path(name), "--kubeconfig", d.path(name+".kubeconfig"), "--exec-on-host")
		if err != nil {
			return err
		}
	}
	fmt.Println("  EXEC_ON_HOST: no process runs in their pods. What kubectl exec asks for there, at the end, runs on this machine, as you.")
	if err := d.waitFor(ctx, server, "the Atoll", func(ctx context.Context) error {
		return d.quietly(ctx, "kubectl", "get", "--raw", "/readyz")
	}); err != nil {
		return err
	}
	fmt.Printf("  atoll is ready after %s\n", seconds(began))
	d.physical = map[string]kubernetes.Interface{}
	for _, name := range clusters {
		if err := d.waitFor(ctx, running[name], "physical cluster "+name, func(context.Context) error {
			_, err := os.Stat(d.path(name, "ready"))
			return err
		}); err != nil {
			return err
		}
		config, err := clientcmd.BuildConfigFromFlags("", d.path(name+".kubeconfig"))
		if err != nil {
			return err
		}
		if d.physical[name], err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		fmt.Printf("  %s is ready after %s\n", name, seconds(began))
	}
	return nil
}

// background starts an executable of ours, logging to <last part of its name or directory>.log.
func (d *demo) background(program string, args ...string) (*child, error) {
	name := program
	if program == "physical" {
		name = args[2]
	}
	if !d.children.keep {
		args = append(args, "--exit-with-parent")
	}
	cmd := exec.Command(d.exe(program), args...)
	cmd.Dir, cmd.Env = d.dir, d.env()
	if !d.children.keep {
		// Held open until the demo ends, however it does: --exit-with-parent waits for that.
		if _, err := cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	return d.children.start(name, d.path(name+".log"), cmd)
}

// waitFor waits until look finds nothing missing, and fails at once if the process ends.
func (d *demo) waitFor(ctx context.Context, c *child, what string, look func(context.Context) error) error {
	var missing error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, bound, true, func(ctx context.Context) (bool, error) {
		select {
		case <-c.ended:
			return false, fmt.Errorf("%s ended (%v): see its log %s", what, c.err, d.path(c.name+".log"))
		default:
		}
		missing = look(ctx)
		return missing == nil, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("%s is not ready after %s: %w", what, bound, missing)
	}
	return err
}

// expect waits until the numbers of ready pods on the physical clusters are what the step leads to, with no pod too
// many, and the workspace agrees; then it shows both.
func (d *demo) expect(ctx context.Context, what string, reached func(ready map[string]int) bool) error {
	began := time.Now()
	var seen string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, bound, true, func(ctx context.Context) (bool, error) {
		ready, total := map[string]int{}, 0
		for _, name := range clusters {
			pods, err := d.pods(ctx, name)
			if err != nil {
				seen = err.Error()
				return false, nil
			}
			total += len(pods)
			for i := range pods {
				if podReady(&pods[i]) {
					ready[name]++
				}
			}
		}
		seen = fmt.Sprintf("ready pods: %v, pods altogether: %d", ready, total)
		return total == replicas && reached(ready), nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("not reached within %s: %s; %s", bound, what, seen)
	}
	if err != nil {
		return err
	}
	if err := d.quietly(ctx, "kubectl", "rollout", "status", "deployment/web", "--timeout="+bound.String()); err != nil {
		return fmt.Errorf("the pods are there, but the workspace does not say so: %w", err)
	}
	fmt.Printf("  reached after %s: %s\n\n", seconds(began), what)
	return d.show(ctx)
}

// show prints what the workspace says, and what runs on the physical clusters.
func (d *demo) show(ctx context.Context) error {
	if err := d.all(ctx, []string{"kubectl", "get", "deployments"}, []string{"kubectl", "get", "placements"}); err != nil {
		return err
	}
	for _, name := range clusters {
		if err := d.atoll(ctx, "kubectl", "--kubeconfig", name+".kubeconfig", "get", "pods", "-A", "-l", "app=web"); err != nil {
			return err
		}
	}
	return nil
}

// companions shows what came along with the Deployment, and fails unless all of it did.
func (d *demo) companions(ctx context.Context, cluster string) error {
	ours := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel}
	core := d.physical[cluster].CoreV1()
	services, err := core.Services("").List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the Services in %s: %w", cluster, err)
	}
	configMaps, err := core.ConfigMaps("").List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the ConfigMaps in %s: %w", cluster, err)
	}
	secrets, err := core.Secrets("").List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the Secrets in %s: %w", cluster, err)
	}
	if s, c, x := len(services.Items), len(configMaps.Items), len(secrets.Items); s != 1 || c != 1 || x != 1 {
		return fmt.Errorf("cluster %s has %d Services, %d ConfigMaps and %d Secrets of ours: want one of each", cluster, s, c, x)
	}
	return d.atoll(ctx, "kubectl", "--kubeconfig", cluster+".kubeconfig", "get", "services,configmaps,secrets", "-A", "-l", ours.LabelSelector)
}

func (d *demo) pods(ctx context.Context, cluster string) ([]corev1.Pod, error) {
	list, err := d.physical[cluster].CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, fmt.Errorf("list the pods in %s: %w", cluster, err)
	}
	return list.Items, nil
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

func (d *demo) all(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if err := d.atoll(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// atoll shows a command line of bin/atoll and runs it.
func (d *demo) atoll(ctx context.Context, args ...string) error {
	if err := d.run(ctx, io.Discard, args...); err != nil {
		return fmt.Errorf("atoll %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// run shows a command line of bin/atoll, runs it, and writes its standard output to written, too.
func (d *demo) run(ctx context.Context, written io.Writer, args ...string) error {
	line := "atoll"
	for _, a := range args {
		if strings.ContainsAny(a, "* ") {
			a = "'" + a + "'"
		}
		line += " " + a
	}
	say("$ " + line)
	cmd, screen := d.command(ctx, args), &indent{to: os.Stdout}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(screen, written), screen
	return cmd.Run()
}

// quietly runs bin/atoll and returns what it said only if it fails.
func (d *demo) quietly(ctx context.Context, args ...string) error {
	out, err := d.command(ctx, args).CombinedOutput()
	if err != nil {
		return fmt.Errorf("atoll %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (d *demo) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.exe("atoll"), args...)
	cmd.Dir, cmd.Env = d.dir, d.env()
	return cmd
}

// diagnose shows what a person would look at first after a failure.
func (d *demo) diagnose() {
	fmt.Println("\nThe demo failed. What there is:")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	for _, args := range [][]string{{"cluster", "list"}, {"kubectl", "get", "placements,deployments", "-A", "-o", "wide"}, {"kubectl", "get", "events", "-A"}} {
		errs = append(errs, d.atoll(ctx, args...))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Println(err)
	}
}

func (d *demo) exe(program string) string { return filepath.Join(d.bin, program) }

func (d *demo) path(elem ...string) string { return filepath.Join(append([]string{d.dir}, elem...)...) }

// env is ours without what would make kubectl look elsewhere, or write outside of the demo's directory.
func (d *demo) env() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBECONFIG=") {
			env = append(env, v)
		}
	}
	return append(env, "KUBECACHEDIR="+d.path("cache"), "KUBERC=off")
}

func chapter(title string) { fmt.Printf("\n== %s\n", title) }

func say(line string) { fmt.Println(line) }

// indent writes lines two columns in, to set them off from the commands.
type indent struct {
	to io.Writer

	mu     sync.Mutex // both outputs of a command go to one
	inLine bool
}

func (w *indent) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, c := range string(p) {
		if !w.inLine && c != '\n' {
			b.WriteString("  ")
		}
		b.WriteRune(c)
		w.inLine = c != '\n'
	}
	if _, err := io.WriteString(w.to, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
