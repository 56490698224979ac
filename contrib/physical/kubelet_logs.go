package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core/v1/validation"
)

const (
	linePeriod = time.Second
	// mostLines of a log are kept, as a kubelet keeps a file or two of it.
	mostLines = 1000
	// longestSince, in seconds, is longer than any log, and no more than a duration holds.
	longestSince = 1 << 31
	// stampFormat is that of a container runtime: of one width.
	stampFormat = "2006-01-02T15:04:05.000000000Z07:00"
)

// podLog is the log of one run of a container. Nothing runs, so nothing writes it and it is kept nowhere: line i, from 0, is of linePeriod times i
// after the start. A line names the cluster's node, the pod and the container, so that one sees in a workspace who answered.
type podLog struct {
	start, end time.Time // end is zero while it runs
	of, image  string
}

// logOf returns the log of a container that runs or did, or why there is none, in the words of a kubelet.
func logOf(pod *corev1.Pod, container *corev1.Container, previous bool) (podLog, error) {
	status, err := statusOf(pod, container.Name)
	if err != nil {
		return podLog{}, err
	}
	log := podLog{of: fmt.Sprintf("pod %s/%s container %s on node %s", pod.Namespace, pod.Name, container.Name, pod.Spec.NodeName), image: container.Image}
	running, ended, before := status.State.Running, status.State.Terminated, status.LastTerminationState.Terminated
	switch {
	case previous && before == nil:
		return podLog{}, refuse(http.StatusBadRequest, "previous terminated container %q in pod %q not found", container.Name, pod.Name)
	case previous:
		log.start, log.end = before.StartedAt.Time, before.FinishedAt.Time
	case running != nil:
		log.start = running.StartedAt.Time
	case ended != nil:
		log.start, log.end = ended.StartedAt.Time, ended.FinishedAt.Time
	case before != nil:
		log.start, log.end = before.StartedAt.Time, before.FinishedAt.Time
	default:
		reason := "no logs yet"
		if waiting := status.State.Waiting; waiting != nil {
			reason = cmp.Or(waiting.Reason, reason)
		}
		return podLog{}, refuse(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", container.Name, pod.Name, reason)
	}
	return log, nil
}

// lines is how many have been written until now.
func (l podLog) lines(now time.Time) int64 {
	if !l.end.IsZero() && l.end.Before(now) {
		now = l.end
	}
	if now.Before(l.start) {
		return 0
	}
	return int64(now.Sub(l.start)/linePeriod) + 1
}

// at is when line i is written.
func (l podLog) at(i int64) time.Time { return l.start.Add(time.Duration(i) * linePeriod) }

// line is line i, with its end.
func (l podLog) line(i int64, stamped bool) string {
	text := fmt.Sprintf("%s: has run for %s\n", l.of, time.Duration(i)*linePeriod)
	if i == 0 {
		text = fmt.Sprintf("%s: started %s; simulated, no process runs\n", l.of, l.image)
	}
	if stamped {
		return l.at(i).UTC().Format(stampFormat) + " " + text
	}
	return text
}

// first is the first line that is asked for, of those that are kept.
func (l podLog) first(asked *corev1.PodLogOptions, now time.Time) int64 {
	written := l.lines(now)
	first := max(0, written-mostLines)
	var since time.Time
	switch {
	case asked.SinceTime != nil:
		since = asked.SinceTime.Time
	case asked.SinceSeconds != nil:
		since = now.Add(-time.Duration(min(*asked.SinceSeconds, longestSince)) * time.Second)
	}
	for first < written && l.at(first).Before(since) {
		first++
	}
	if asked.TailLines != nil {
		first = max(first, written-*asked.TailLines)
	}
	return first
}

func (k *kubelet) logs(w http.ResponseWriter, req *http.Request) {
	asked := &corev1.PodLogOptions{}
	if err := legacyscheme.ParameterCodec.DecodeParameters(req.URL.Query(), corev1.SchemeGroupVersion, asked); err != nil {
		writeRefusal(w, refuse(http.StatusBadRequest, "read the parameters: %v", err))
		return
	}
	if errs := validation.ValidatePodLogOptions(asked); len(errs) > 0 {
		writeRefusal(w, refuse(http.StatusUnprocessableEntity, "%v", errs.ToAggregate()))
		return
	}
	pod, container, err := k.find(req.Context(), req)
	if err != nil {
		writeRefusal(w, err)
		return
	}
	log, err := logOf(pod, container, asked.Previous)
	if err != nil {
		writeRefusal(w, err)
		return
	}
	out := &logWriter{to: w, control: http.NewResponseController(w), stamped: asked.Timestamps, left: -1}
	if asked.LimitBytes != nil {
		out.left = *asked.LimitBytes
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	defer func() { _ = out.control.SetWriteDeadline(time.Time{}) }() // the connection may be used again; if it is gone, it is not
	now := time.Now()
	out.next = log.first(asked, now)
	if err := out.write(log, now); err != nil || !asked.Follow || asked.Previous {
		return // who asked has gone, or has what he asked for
	}
	k.follow(req.Context(), out, pod, container, log)
}

// follow writes the lines of a log as they come, until its container or who asked has ended.
func (k *kubelet) follow(ctx context.Context, out *logWriter, pod *corev1.Pod, container *corev1.Container, log podLog) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var changes <-chan watch.Event // nil: the pod is read first
	for log.end.IsZero() && out.left != 0 {
		var now *corev1.Pod // nil: as it was
		var err error
		if changes == nil {
			if now, changes, err = k.watchPod(ctx, pod); err != nil {
				return // an answer that has begun has no place for it, and ends
			}
		} else {
			next := time.NewTimer(time.Until(log.at(out.next)))
			select {
			case <-ctx.Done():
				next.Stop()
				return
			case change, open := <-changes:
				next.Stop()
				if !open || change.Type == watch.Deleted {
					return
				}
				if change.Type == watch.Error {
					if err := apierrors.FromObject(change.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
						return
					}
					changes = nil
					continue
				}
				if now, _ = change.Object.(*corev1.Pod); now == nil {
					return
				}
			case <-next.C:
			}
		}
		if now != nil {
			if now.UID != pod.UID {
				return
			}
			if log, err = logOf(now, container, false); err != nil {
				return
			}
		}
		if err := out.write(log, time.Now()); err != nil {
			return
		}
	}
}

// watchPod returns what has the name of a pod now, and its changes from then on. They begin at the version of a list: that of a pod that has not
// changed for long may be older than what an apiserver remembers, as all are that were there when it started.
func (k *kubelet) watchPod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, <-chan watch.Event, error) {
	pods, named := k.client.CoreV1().Pods(pod.Namespace), fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name).String()
	list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: named})
	if err != nil {
		return nil, nil, err
	}
	if len(list.Items) == 0 {
		return nil, nil, fmt.Errorf("pod %s/%s is gone", pod.Namespace, pod.Name)
	}
	changes, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = named
			return pods.Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return &list.Items[0], changes.ResultChan(), nil
}

// logWriter writes lines of a log to who asked.
type logWriter struct {
	to      io.Writer
	control *http.ResponseController
	stamped bool
	left    int64 // bytes; negative: as many as there are
	next    int64 // line
}

// write writes what has not been written of a log until now.
func (w *logWriter) write(log podLog, now time.Time) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	written := log.lines(now)
	// Of a status that says that a container has run for ages there are no more lines than are kept, too.
	for w.next = max(w.next, written-mostLines); w.next < written && w.left != 0; w.next++ {
		line := log.line(w.next, w.stamped)
		if w.left > 0 {
			line = line[:min(int64(len(line)), w.left)]
			w.left -= int64(len(line))
		}
		if _, err := io.WriteString(w.to, line); err != nil {
			return err
		}
	}
	return w.control.Flush()
}
