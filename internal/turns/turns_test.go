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

func TestFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewFew[string](1, 2)
		end, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		waited := make(chan error, 2)
		for _, key := range []string{"a", "b"} {
			go func() {
				_, err := turns.Take(ctx, key)
				waited <- err
			}()
		}
		synctest.Wait()
		if _, err := turns.Take(t.Context(), "a"); !errors.Is(err, ErrTooMany) || turns.Had() != 1 || len(waited) != 0 {
			t.Errorf("a third of one key: %v, while %d have a turn; want that they are too many, and one has it", err, turns.Had())
		}
		why := errors.New("their client is gone")
		cancel(why)
		for range 2 {
			if err := <-waited; !errors.Is(err, why) {
				t.Errorf("who waits and is gone: %v, want %v", err, why)
			}
		}
		end()
		end, err = turns.Take(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		end()
		if turns.Len() != 0 || turns.Had() != 0 {
			t.Errorf("%d keys and %d turns are left with nobody there", turns.Len(), turns.Had())
		}
	})
}
