package architecture

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestDependenciesAreExplained holds docs/dependencies.md against the direct requirements of go.mod.
func TestDependenciesAreExplained(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]{5,} \\|$").FindAllSubmatch(document, -1) {
		explained[string(m[1])] = true
	}
	direct := 0
	for _, r := range mod.Require {
		if !r.Indirect {
			direct++
			if !explained[r.Path] {
				t.Errorf("docs/dependencies.md does not say why go.mod requires %s", r.Path)
			}
		}
		delete(explained, r.Path)
	}
	for path := range explained {
		t.Errorf("docs/dependencies.md explains %s, which go.mod does not require", path)
	}
	if direct == 0 {
		t.Error("go.mod has no direct requirement")
	}
}
