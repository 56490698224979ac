package server

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/server/storage"
)

func TestRaiseLevel(t *testing.T) {
	row := func(level string) storage.InstallationRow {
		return storage.InstallationRow{Value: []byte(level), Revision: 4}
	}
	stale := row("2")
	stale.Stale = true
	for name, tc := range map[string]struct {
		rows   *oneRow
		want   string // what the row says then
		writes int
		later  bool // whether ErrLaterLevel is what is wrong
		wrong  string
		reason string
	}{
		"none":                        {rows: &oneRow{}, want: "2", writes: 1, reason: "versions before knew of no level"},
		"an earlier one":              {rows: &oneRow{row: row("1")}, want: "2", writes: 1},
		"its own":                     {rows: &oneRow{row: row("2")}, want: "2", reason: "who leads asks every two seconds: no write"},
		"a later one":                 {rows: &oneRow{row: row("3")}, want: "3", later: true, wrong: "start that version again", reason: "it never goes down"},
		"no number":                   {rows: &oneRow{row: row("two")}, want: "two", wrong: `"two", want a number`, reason: "nobody knows who may lead"},
		"a negative one":              {rows: &oneRow{row: row("-1")}, want: "-1", wrong: "want a number"},
		"encrypted":                   {rows: &oneRow{row: stale}, want: "2", writes: 1, reason: "a server from before the row did so: it is to be read whatever becomes of keys"},
		"another raises it, too":      {rows: &oneRow{contend: []byte("2")}, want: "2", writes: 1},
		"another raises it to a next": {rows: &oneRow{row: row("1"), contend: []byte("3")}, want: "3", writes: 1, later: true, wrong: "level 3", reason: "it was compared"},
	} {
		t.Run(name, func(t *testing.T) {
			err := raiseLevel(t.Context(), tc.rows, 2)
			if (err != nil) != (tc.wrong != "") || err != nil && !strings.Contains(err.Error(), tc.wrong) || errors.Is(err, ErrLaterLevel) != tc.later {
				t.Errorf("error %v, want %q, and that a later version has led: %v: %s", err, tc.wrong, tc.later, tc.reason)
			}
			if got := string(tc.rows.row.Value); got != tc.want || tc.rows.attempts != tc.writes || tc.rows.row.Stale {
				t.Errorf("the row is %+v after %d writes, want %s after %d: %s", tc.rows.row, tc.rows.attempts, tc.want, tc.writes, tc.reason)
			}
		})
	}
}

// TestCheckLevel: a server that starts changes nothing of the level, and does not start below it.
func TestCheckLevel(t *testing.T) {
	for level, refused := range map[string]bool{"": false, "1": false, "2": false, "3": true, "?": true} {
		rows := &oneRow{}
		if level != "" {
			rows.row = storage.InstallationRow{Value: []byte(level), Revision: 4}
		}
		got, err := checkLevel(t.Context(), rows, 2)
		if (err != nil) != refused || rows.attempts != 0 {
			t.Errorf("at level %q: error %v, want one: %v; %d writes", level, err, refused, rows.attempts)
		}
		if err == nil && level != "" && strconv.Itoa(got) != level {
			t.Errorf("the level is %d, want %s", got, level)
		}
	}
}

// TestLevelIsOfTheKinds: a kind that goes down is one that a version before takes no notice of. Whoever adds one raises Level, and adds
// the kind here at that level.
func TestLevelIsOfTheKinds(t *testing.T) {
	levels := [][]string{
		{"ConfigMap", "Deployment", "Secret", "Service", "ServiceAccount"},
		{"DaemonSet"},
		{"Ingress", "Job", "LimitRange", "NetworkPolicy", "StatefulSet"},
		{}, // the splitter's finalizer on Jobs
		{"PersistentVolumeClaim", "Pod"},
		{"ReplicaSet"},
		{"ReplicationController"},
		{}, // EndpointSlices and Endpoints, which would lead to pods that are gone
		{}, // definitions that are compressed
		{}, // templates by which pods are told their namespace, which would be replaced
	}
	want := slices.Sorted(slices.Values(slices.Concat(levels...)))
	var got []string
	for _, k := range kinds.All {
		got = append(got, k.GVK.Kind)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(levels) != Level+1 {
		t.Errorf("level %d is of %v, and what goes down is %v", Level, want, got)
	}
}

// TestLevelOfAFirstServer: a shared store that nobody has used is at the level of its first server from the start, since another
// may be of a version that would not read what that writes. An embedded one, which may be of a version of before, is when the
// server leads.
func TestLevelOfAFirstServer(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := startServer(t, func(o *Options) { o.CompareAuthorities, o.SharedStore = true, shared })
		level, _, err := storedLevel(t.Context(), r.backend)
		must(t, err)
		if want := map[bool]int{false: 0, true: Level}[shared]; level != want {
			t.Errorf("shared: %v: at the start the level is %d, want %d", shared, level, want)
		}
		must(t, r.RaiseLevel(t.Context()))
		level, _, err = storedLevel(t.Context(), r.backend)
		must(t, err)
		if level != Level {
			t.Errorf("shared: %v: the level is %d when it leads, want %d", shared, level, Level)
		}
	}
}
