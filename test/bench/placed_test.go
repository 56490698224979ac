package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestSightings(t *testing.T) {
	s := newSightings()
	first, later := time.Unix(100, 0), time.Unix(200, 0)
	s.see("a", first)
	s.see("a", later)
	if at, err := s.wait(t.Context(), "a"); err != nil || !at.Equal(first) {
		t.Errorf("a was seen at %v, %v, want the first time", at, err)
	}
	s.forget("a")
	waiting := make(chan time.Time)
	go func() {
		at, _ := s.last(t.Context(), []string{"b", "a"})
		waiting <- at
	}()
	s.see("a", later)
	s.see("b", first)
	if at := <-waiting; !at.Equal(later) {
		t.Errorf("the last of a and b was seen at %v, want %v", at, later)
	}

	ended := errors.New("ended")
	s.end(ended)
	if _, err := s.wait(t.Context(), "c"); !errors.Is(err, ended) {
		t.Errorf("wait for what is not seen any more: %v, want %v", err, ended)
	}
	if at, err := s.wait(t.Context(), "a"); err != nil || !at.Equal(later) {
		t.Errorf("what was seen before the end: %v, %v", at, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newSightings().wait(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a context that has ended: %v", err)
	}
}
