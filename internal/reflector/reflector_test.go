package reflector

import (
	"context"
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// unlucky is a server whose lists and watches fail while it is down.
type unlucky struct {
	down  func() bool
	list  error // of a list while it is down
	watch func() (watch.Interface, error)
	// watched gets a value when a watch has begun while the server is up.
	watched chan struct{}
}

func (unlucky) IsWatchListSemanticsUnSupported() bool { return true }

func (u unlucky) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	if u.down() && u.list != nil {
		return nil, u.list
	}
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (u unlucky) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if u.down() {
		return u.watch()
	}
	u.watched <- struct{}{}
	return watch.NewFake(), nil
}

func (u unlucky) List(o metav1.ListOptions) (runtime.Object, error) {
	return u.ListWithContext(context.Background(), o)
}

func (u unlucky) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return u.WatchWithContext(context.Background(), o)
}

// However long, and in whichever way, a server was away: it is seen within seconds after it is back.
func TestSeesAServerThatIsBack(t *testing.T) {
	// They remember by the clock when the last error was, over all tests, and wait.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	defer func() { utilruntime.ErrorHandlers = handlers }()
	refused := func() (watch.Interface, error) { return nil, syscall.ECONNREFUSED }
	ended := func(events ...watch.Event) func() (watch.Interface, error) {
		return func() (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(len(events), false)
			for _, e := range events {
				w.Action(e.Type, e.Object)
			}
			w.Stop()
			return w, nil
		}
	}
	expired := apierrors.NewResourceExpired("too old resource version").Status()
	for name, u := range map[string]unlucky{
		"refuses connections":  {list: syscall.ECONNREFUSED, watch: refused},
		"refuses watches":      {watch: refused},
		"cuts connections":     {list: io.ErrUnexpectedEOF, watch: func() (watch.Interface, error) { return nil, io.ErrUnexpectedEOF }},
		"ends watches at once": {watch: ended()},
		"forgets":              {watch: ended(watch.Event{Type: watch.Error, Object: &expired})},
		"overloaded":           {list: apierrors.NewTooManyRequests("come back", 1), watch: func() (watch.Interface, error) { return nil, apierrors.NewTooManyRequests("come back", 1) }},
		"starting":             {list: apierrors.NewServiceUnavailable("starting"), watch: func() (watch.Interface, error) { return nil, apierrors.NewServiceUnavailable("starting") }},
		"knows nobody":         {list: apierrors.NewUnauthorized("who?"), watch: func() (watch.Interface, error) { return nil, apierrors.NewUnauthorized("who?") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				up := time.Now().Add(time.Hour)
				u.down = func() bool { return time.Now().Before(up) }
				u.watched = make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					Run(ctx, Config{From: u, Example: &corev1.Pod{}, Description: "pods",
						Queue: cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
							KeyFunction: cache.MetaNamespaceKeyFunc, KnownObjects: cache.NewStore(cache.MetaNamespaceKeyFunc)}),
						Process: func(any, bool) error { return errors.New("there is no pod") }})
				}()
				<-u.watched
				if took := time.Since(up); took > 10*time.Second {
					t.Errorf("seen after %s", took)
				}
				cancel()
				<-done
			})
		})
	}
}
