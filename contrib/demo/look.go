package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// explained is what "atoll explain -o json" says, as far as it is looked at here.
type explained struct {
	Clusters []struct {
		Name, Step string
		Shown      struct{ Pods, Ready int }
		Heard      struct{ Heard bool }
	}
	Pods []struct{ Name, Cluster string }
}

// look shows what a person sees of pods in both clusters from the workspace, and fails unless each answers for itself.
func (d *demo) look(ctx context.Context) error {
	pods, err := d.spread(ctx)
	if err != nil {
		return err
	}
	wide, err := d.shown(ctx, "kubectl", "get", "pods", "-o", "wide")
	if err != nil {
		return err
	}
	for _, name := range clusters {
		pod := pods[name]
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(pod) + `\s.*\s` + name + `\s`).MatchString(wide) {
			return fmt.Errorf("the workspace does not show pod %s on node %s", pod, name)
		}
		log, err := d.shown(ctx, "kubectl", "logs", pod, "--tail=2")
		if err != nil {
			return err
		}
		if want := regexp.MustCompile(`^(pod \S+/` + regexp.QuoteMeta(pod) + ` container web on node ` + name + `-node-\d+: .+\n){1,2}$`); !want.MatchString(log) {
			return fmt.Errorf("the log of pod %s is not one of %s: %q", pod, name, log)
		}
		said, err := d.shown(ctx, "kubectl", "exec", pod, "--", "sh", "-c", `echo "$greeting: $HOSTNAME on $NODE"`)
		if err != nil {
			return err
		}
		if want := regexp.MustCompile(`^Hello from wherever I run: ` + regexp.QuoteMeta(pod) + ` on ` + name + `-node-\d+\n$`); !want.MatchString(said) {
			return fmt.Errorf("a command in pod %s did not run in %s: %q", pod, name, said)
		}
	}
	screen, err := d.shown(ctx, "explain", "deploy/web")
	if err != nil {
		return err
	}
	lines := []string{fmt.Sprintf(`Deployment default/web: %d of %d pods ready`, replicas, replicas)}
	for _, name := range clusters {
		lines = append(lines, name+`\s+Ready\s+3/3\s+3/3\s+yes`)
	}
	for _, line := range lines {
		if !regexp.MustCompile(`(?m)^` + line + `\s*$`).MatchString(screen) {
			return fmt.Errorf("atoll explain does not say %q", line)
		}
	}
	return nil
}

// spread waits until the workspace knows all three pods of each cluster to be ready, and returns one of each.
func (d *demo) spread(ctx context.Context) (map[string]string, error) {
	var last error
	pods := map[string]string{}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, bound, true, func(ctx context.Context) (bool, error) {
		out, err := d.command(ctx, []string{"explain", "deploy/web", "-o", "json"}).Output()
		if err != nil {
			last = err
			return false, nil
		}
		var said explained
		if err := json.Unmarshal(out, &said); err != nil {
			return false, fmt.Errorf("read what atoll explain says: %w: %s", err, out)
		}
		last = fmt.Errorf("it says %s", out)
		there := map[string]bool{}
		for _, c := range said.Clusters {
			there[c.Name] = c.Step == "Ready" && c.Shown.Pods == 3 && c.Shown.Ready == 3 && c.Heard.Heard
		}
		for _, p := range said.Pods {
			pods[p.Cluster] = p.Name
		}
		for _, name := range clusters {
			if !there[name] {
				return false, nil
			}
		}
		return len(said.Clusters) == len(clusters), nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil, fmt.Errorf("the workspace does not show 3 pods of each cluster after %s: %w", bound, last)
	}
	return pods, err
}

// shown shows a command line of bin/atoll, runs it, and returns what it printed.
func (d *demo) shown(ctx context.Context, args ...string) (string, error) {
	var written strings.Builder
	err := d.run(ctx, &written, args...)
	if err == nil && written.Len() == 0 {
		err = errors.New("it prints nothing")
	}
	if err != nil {
		return "", fmt.Errorf("atoll %s: %w", strings.Join(args, " "), err)
	}
	return written.String(), nil
}
