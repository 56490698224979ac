package exceptions

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	got, err := parse("# comment\na\n\twhy a\nb\n\twhy b\n")
	if diff := cmp.Diff([]Exception{{"a", "why a"}, {"b", "why b"}}, got); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
	for _, text := range []string{"a", "a\nb\n\twhy", "\twhy", "a\n\t", "b\n\twhy\na\n\twhy", "a\n\twhy\na\n\twhy", "a\n\twhy\n\tmore"} {
		if _, err := parse(text); err == nil {
			t.Errorf("no error for exceptions %q", text)
		}
	}
}

func TestList(t *testing.T) {
	got := List([]Exception{{"a [Conformance]", "Why."}, {"b [Conformance]", "Why else."}, {"c [Conformance]", "Why."}})
	if want := "- Why. `a`, `c`.\n- Why else. `b`.\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
