package turns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := New[string](2)
		gone, cancel := context.WithCancelCause(t.Context())
		why := errors.New("its client is gone")
		cancel(why)
		first, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := turns.Take(gone, "a"); !errors.Is(err, why) {
			t.Errorf("who waits and is gone: %v, want %v", err, why)
		}
		var second func()
		answered := make(chan error, 1)
		go func() {
			var err error
			second, err = turns.Take(t.Context(), "a")
			answered <- err
		}()
		synctest.Wait()
		if _, err := turns.Take(t.Context(), "a"); !errors.Is(err, ErrTooMany) {
			t.Errorf("a third: %v, want %v", err, ErrTooMany)
		}
		other, err := turns.Take(t.Context(), "b")
		if err != nil {
			t.Fatalf("of another key: %v", err)
		}
		if len(answered) != 0 {
			t.Error("two have one turn")
		}
		first()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		second()
		other()
		if n := turns.Len(); n != 0 {
			t.Errorf("%d keys are left with nobody there", n)
		}
	})
}
