package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// runningPod has run on east-node-0 since then.
func runningPod(since time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "web-1", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "east-node-0", Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}, {Name: "side"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}}},
			{Name: "side", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
		}},
	}
}

func TestPodLog(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	runs := podLog{start: start}
	after := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, tc := range []struct {
		reason      string
		log         podLog
		asked       corev1.PodLogOptions
		now         time.Time
		first, end_ int64
	}{
		{"it has not started", runs, corev1.PodLogOptions{}, after(-1), 0, 0},
		{"the first line is there at once", runs, corev1.PodLogOptions{}, after(0), 0, 1},
		{"a line each second", runs, corev1.PodLogOptions{}, after(3.5), 0, 4},
		{"none after the end", podLog{start: start, end: after(2)}, corev1.PodLogOptions{}, after(3600), 0, 3},
		{"the oldest are not kept", runs, corev1.PodLogOptions{}, after(5000), 4001, 5001},
		{"tail", runs, corev1.PodLogOptions{TailLines: ptr.To[int64](2)}, after(9), 8, 10},
		{"a tail of none", runs, corev1.PodLogOptions{TailLines: ptr.To[int64](0)}, after(9), 10, 10},
		{"a tail of more than there are", runs, corev1.PodLogOptions{TailLines: ptr.To[int64](99)}, after(9), 0, 10},
		{"a tail of more than are kept", runs, corev1.PodLogOptions{TailLines: ptr.To[int64](4000)}, after(5000), 4001, 5001},
		{"since some seconds", runs, corev1.PodLogOptions{SinceSeconds: ptr.To[int64](3)}, after(9), 6, 10},
		{"since longer than time is counted", runs, corev1.PodLogOptions{SinceSeconds: ptr.To[int64](1 << 62)}, after(9), 0, 10},
		{"since a time", runs, corev1.PodLogOptions{SinceTime: ptr.To(metav1.NewTime(after(7)))}, after(9), 7, 10},
		{"since what is to come", runs, corev1.PodLogOptions{SinceTime: ptr.To(metav1.NewTime(after(70)))}, after(9), 10, 10},
		{"of both, what leaves less", runs, corev1.PodLogOptions{SinceSeconds: ptr.To[int64](8), TailLines: ptr.To[int64](3)}, after(9), 7, 10},
	} {
		if first, lines := tc.log.first(&tc.asked, tc.now), tc.log.lines(tc.now); first != tc.first || lines != tc.end_ {
			t.Errorf("%s: lines %d to %d, want %d to %d", tc.reason, first, lines, tc.first, tc.end_)
		}
	}
}

func TestLogOf(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := runningPod(start)
	main, side := &pod.Spec.Containers[0], &pod.Spec.Containers[1]
	log, err := logOf(pod, main, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := log.line(0, false), "pod shop/web-1 container main on node east-node-0: started registry.example/app:1; simulated, no process runs\n"; got != want {
		t.Errorf("the first line is %q, want %q", got, want)
	}
	if got, want := log.line(61, true), "2026-01-01T00:01:01.000000000Z pod shop/web-1 container main on node east-node-0: has run for 1m1s\n"; got != want {
		t.Errorf("line 61 is %q, want %q", got, want)
	}
	ended := &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(start), FinishedAt: metav1.NewTime(start.Add(time.Minute))}
	for _, tc := range []struct {
		reason    string
		change    func(*corev1.ContainerStatus)
		container *corev1.Container
		previous  bool
		ended     bool
		err       string
	}{
		{"it waits", nil, side, false, false, `container "side" in pod "web-1" is waiting to start: ImagePullBackOff`},
		{"nothing ran before", nil, main, true, false, `previous terminated container "main" in pod "web-1" not found`},
		{"nothing is said of it", nil, &corev1.Container{Name: "new"}, false, false, `container "new" in pod "web-1" is not available`},
		{"it has ended", func(s *corev1.ContainerStatus) { s.State = corev1.ContainerState{Terminated: ended} }, main, false, true, ""},
		{"one ran before", func(s *corev1.ContainerStatus) { s.LastTerminationState.Terminated = ended }, main, true, true, ""},
		{"the one that runs, not the one before", func(s *corev1.ContainerStatus) { s.LastTerminationState.Terminated = ended }, main, false, false, ""},
		{"the one before, while the next waits", func(s *corev1.ContainerStatus) {
			s.State, s.LastTerminationState.Terminated = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}, ended
		}, main, false, true, ""},
	} {
		pod := pod.DeepCopy()
		if tc.change != nil {
			tc.change(&pod.Status.ContainerStatuses[0])
		}
		log, err := logOf(pod, tc.container, tc.previous)
		if tc.err != "" {
			if err == nil || err.Error() != tc.err {
				t.Errorf("%s: %v, want %s", tc.reason, err, tc.err)
			}
			continue
		}
		if err != nil || !log.start.Equal(start) || log.end.IsZero() == tc.ended {
			t.Errorf("%s: from %s to %s, %v", tc.reason, log.start, log.end, err)
		}
	}
}

// TestKubeletRequests is what the kubelet refuses and what ends its answers, each alone.
func TestKubeletRequests(t *testing.T) {
	const path = "/containerLogs/shop/web-1/main?follow=true"
	// serve answers for a pod that runs. What it returns last is told of each watch: the fake has no history, so that a change before one is not seen.
	serve := func(t *testing.T, slots int64, longest time.Duration) (*fake.Clientset, string, <-chan struct{}) {
		client, watching := fake.NewClientset(runningPod(time.Now())), make(chan struct{}, 16)
		client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
			defer func() { watching <- struct{}{} }()
			w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
			return true, w, err
		})
		k := newKubelet(&options{name: "east", dir: t.TempDir()}, client)
		k.slots, k.longest = semaphore.NewWeighted(slots), longest
		server := httptest.NewUnstartedServer(k.handler())
		server.Config.ConnContext = withConn
		server.Start()
		t.Cleanup(server.Close)
		return client, server.URL, watching
	}
	ask := func(t *testing.T, ctx context.Context, method, url string) (int, *bufio.Reader) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.StatusCode, bufio.NewReader(resp.Body)
	}
	// follow returns when the log is being followed.
	follow := func(t *testing.T, ctx context.Context, url string) *bufio.Reader {
		t.Helper()
		code, body := ask(t, ctx, http.MethodGet, url+path)
		if line, err := body.ReadString('\n'); code != http.StatusOK || err != nil || !strings.Contains(line, "started registry.example/app:1") {
			t.Fatalf("the log begins with %d %q, %v", code, line, err)
		}
		return body
	}

	t.Run("refusals", func(t *testing.T) {
		_, url, _ := serve(t, 1, time.Hour)
		for _, tc := range []struct {
			method, path string
			code         int
			says         string
		}{
			{http.MethodGet, "/containerLogs/shop/web-2/main", http.StatusNotFound, `pod "web-2" does not exist`},
			{http.MethodGet, "/containerLogs/other/web-1/main", http.StatusNotFound, `pod "web-1" does not exist`},
			{http.MethodGet, "/containerLogs/shop/web-1/none", http.StatusNotFound, `container "none" not found in pod "web-1"`},
			{http.MethodGet, "/containerLogs/shop/web-1/side", http.StatusBadRequest, "ImagePullBackOff"},
			{http.MethodGet, "/containerLogs/shop/web-1/main?tailLines=-1", http.StatusUnprocessableEntity, "tailLines"},
			{http.MethodGet, "/containerLogs/shop/web-1/main?tailLines=some", http.StatusBadRequest, "some"},
			{http.MethodPost, "/exec/shop/web-1/main?command=true&output=1", http.StatusForbidden, "--exec-on-host"},
			{http.MethodPost, "/attach/shop/web-1/main", http.StatusNotImplemented, "attach does not work here"},
			{http.MethodPost, "/portForward/shop/web-1", http.StatusNotImplemented, "portForward does not work here"},
			{http.MethodGet, "/pods", http.StatusNotFound, ""},
		} {
			code, body := ask(t, t.Context(), tc.method, url+tc.path)
			if said, err := io.ReadAll(body); err != nil || code != tc.code || !strings.Contains(string(said), tc.says) {
				t.Errorf("%s %s: %d %s, %v, want %d %s", tc.method, tc.path, code, said, err, tc.code, tc.says)
			}
		}
	})

	t.Run("no more than it has slots for, and one again when somebody goes", func(t *testing.T) {
		_, url, _ := serve(t, 2, time.Hour)
		follow(t, t.Context(), url)
		ctx, leave := context.WithCancel(t.Context())
		follow(t, ctx, url)
		if code, body := ask(t, t.Context(), http.MethodGet, url+path); code != http.StatusTooManyRequests {
			said, _ := io.ReadAll(body)
			t.Errorf("the third is answered with %d %s", code, said)
		}
		leave()
		eventually(t, "a slot to be free", func(ctx context.Context) (bool, string) {
			code, _ := ask(t, ctx, http.MethodGet, url+strings.TrimSuffix(path, "?follow=true"))
			return code == http.StatusOK, fmt.Sprint(code)
		})
	})

	t.Run("no longer than it may take", func(t *testing.T) {
		_, url, _ := serve(t, 1, time.Second)
		if _, err := io.Copy(io.Discard, follow(t, t.Context(), url)); err != nil {
			t.Errorf("the log ends with %v", err)
		}
	})

	t.Run("no longer than the pod", func(t *testing.T) {
		client, url, watching := serve(t, 1, time.Hour)
		body := follow(t, t.Context(), url)
		<-watching
		if err := client.CoreV1().Pods("shop").Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Errorf("the log ends with %v", err)
		}
	})

	t.Run("no longer than the container", func(t *testing.T) {
		client, url, watching := serve(t, 1, time.Hour)
		body := follow(t, t.Context(), url)
		<-watching
		pod := runningPod(time.Now())
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
		if _, err := client.CoreV1().Pods("shop").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Errorf("the log ends with %v", err)
		}
	})

	// expires has the first watch of a pod begin too late.
	expires := func(client *fake.Clientset) {
		var once sync.Once
		client.PrependWatchReactor("pods", func(clienttesting.Action) (handled bool, w watch.Interface, _ error) {
			once.Do(func() {
				late := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
				late.Error(&apierrors.NewResourceExpired("too old resource version").ErrStatus)
				handled, w = true, late
			})
			return handled, w, nil
		})
	}

	t.Run("a version that expires is read anew", func(t *testing.T) {
		client, url, _ := serve(t, 1, time.Hour)
		expires(client)
		body := follow(t, t.Context(), url)
		if line, err := body.ReadString('\n'); err != nil || !strings.Contains(line, "has run for 1s") {
			t.Errorf("the next line is %q, %v", line, err)
		}
	})

	t.Run("no longer than the pod, which another has replaced", func(t *testing.T) {
		client, url, _ := serve(t, 1, time.Hour)
		expires(client)
		var reads atomic.Int64
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			pod := runningPod(time.Now())
			if reads.Add(1) > 1 {
				pod.UID = "another"
			}
			return true, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Pod{*pod}}, nil
		})
		if _, err := io.Copy(io.Discard, follow(t, t.Context(), url)); err != nil || reads.Load() != 2 {
			t.Errorf("the log ends with %v after the pod was read %d times", err, reads.Load())
		}
	})

	t.Run("a line that comes is written", func(t *testing.T) {
		_, url, _ := serve(t, 1, time.Hour)
		body := follow(t, t.Context(), url)
		for _, want := range []string{"has run for 1s", "has run for 2s"} {
			if line, err := body.ReadString('\n'); err != nil || !strings.Contains(line, want) {
				t.Errorf("the next line is %q, %v, want %s", line, err, want)
			}
		}
	})

	t.Run("bytes are limited", func(t *testing.T) {
		_, url, _ := serve(t, 1, time.Hour)
		_, body := ask(t, t.Context(), http.MethodGet, url+path+"&limitBytes=10")
		if got, err := io.ReadAll(body); err != nil || string(got) != "pod shop/w" {
			t.Errorf("10 bytes of a log that is followed are %q, %v", got, err)
		}
	})
}
