package server

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

// TestHealthSaysWhatIsWrong: /readyz fails while etcd does not answer, names the check, and says why to who asks for that
// check; /livez does not, since nothing gets better by starting the server again.
func TestHealthSaysWhatIsWrong(t *testing.T) {
	etcd, err := embeddedetcd.Start(context.Background(), embeddedetcd.Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	must(t, err)
	r := serveOn(t, etcd.Client, few{}, withTokens(t))
	health := func(path string) answer { return r.ask(t, asked{path: path, token: root}) }
	for _, path := range []string{"/livez?verbose", "/readyz?verbose"} {
		if got := health(path); got.code != http.StatusOK || !strings.Contains(got.body, "[+]") {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	if got := health("/readyz?verbose"); !strings.Contains(got.body, "[+]etcd ok") || !strings.Contains(got.body, "[+]watch-caches ok") || !strings.Contains(got.body, "[+]custom-resource-definitions ok") {
		t.Errorf("what is checked: %s", got.body)
	}

	must(t, etcd.Stop())
	waitFor(t, time.Minute, "/readyz fails", func() (string, bool) {
		got := health("/readyz?verbose")
		return got.body, got.code == http.StatusInternalServerError && strings.Contains(got.body, "[-]etcd failed")
	})
	if got := health("/readyz/etcd"); got.code != http.StatusInternalServerError || !strings.Contains(got.body, "etcd does not answer within 2s: ") {
		t.Errorf("why: %d %s", got.code, got.body)
	}
	if got := health("/livez"); got.code != http.StatusOK {
		t.Errorf("/livez: %d %s", got.code, got.body)
	}
}

// TestHealthSaysThatRowsAreDamaged: damage to single rows is at /healthz and takes nobody else's objects away.
func TestHealthSaysThatRowsAreDamaged(t *testing.T) {
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	must(t, err)
	t.Cleanup(func() { must(t, etcd.Stop()) })
	var damage error
	tokens := withTokens(t)
	r := serveOn(t, etcd.Client, few{}, func(o *Options) {
		tokens(o)
		o.StoreDamage = func() error { return damage }
	})
	health := func(path string) answer { return r.ask(t, asked{path: path, token: root}) }
	if got := health("/healthz?verbose"); got.code != http.StatusOK || !strings.Contains(got.body, "[+]etcd-rows ok") {
		t.Errorf("%d %s", got.code, got.body)
	}
	damage = errors.New("1 rows are not what was written")
	if got := health("/healthz?verbose"); got.code != http.StatusInternalServerError || !strings.Contains(got.body, "[-]etcd-rows failed") {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := health("/healthz/etcd-rows"); !strings.Contains(got.body, damage.Error()) {
		t.Errorf("why: %s", got.body)
	}
	if got := health("/readyz"); got.code != http.StatusOK {
		t.Errorf("/readyz: %d %s", got.code, got.body)
	}
}
