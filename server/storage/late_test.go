//go:build late

package storage

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

func TestLate(t *testing.T) {
	t.Setenv("ATOLL_LATE_SEED", "any")
	resource := schema.GroupResource{Resource: "configmaps"}
	by := lateBy("any", resource)
	if by <= 0 || by > latest {
		t.Fatalf("late by %s, want more than nothing and at most %s", by, latest)
	}
	object := func(version int) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)}}
	}

	synctest.Test(t, func(t *testing.T) {
		live := watch.NewFake()
		w := late(live, resource)
		const events = 3
		const apart = 10 * time.Millisecond
		began := time.Now()
		for i := range events {
			live.Add(object(i)) // nobody reads the late ones yet
			time.Sleep(apart)
		}
		live.Stop()
		for i := range events {
			event, ok := <-w.ResultChan()
			if !ok {
				t.Fatalf("the watch ended before event %d of %d", i, events)
			}
			if got, want := event.Object.(*corev1.ConfigMap).ResourceVersion, strconv.Itoa(i); got != want {
				t.Errorf("event %d is of resourceVersion %s, want %s", i, got, want)
			}
			if got, want := time.Since(began), time.Duration(i)*apart+by; got != want {
				t.Errorf("event %d came after %s, want %s", i, got, want)
			}
		}
		if event, ok := <-w.ResultChan(); ok {
			t.Errorf("an event after the last: %v", event)
		}
	})

	synctest.Test(t, func(t *testing.T) {
		live := watch.NewFake()
		w := late(live, resource)
		live.Add(object(1))
		w.Stop()
		synctest.Wait()
		if !live.IsStopped() {
			t.Error("stopped, it goes on with the watch behind it")
		}
		if event, ok := <-w.ResultChan(); ok {
			t.Errorf("an event after Stop: %v", event)
		}
	})
}
