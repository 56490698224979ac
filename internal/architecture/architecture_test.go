package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "atoll.dev/atoll/"

// layers, from the top; a package imports those below its own, and its own folder. Folders of one layer do not import
// each other, except those of the layer internal.
var layers = [][]string{
	{"cmd", "test", "contrib"},
	{"server", "workspaces", "apiexport", "placement", "splitter", "syncer", "syncagent", "regions", "console"},
	{"client", "embedded-etcd"},
	{"internal"},
	{"apis"},
}

// allowed are the exceptions, each with its reason.
var allowed = map[string]string{
	"internal -> client": "internal/cli and test vocabulary speak to a server",
	"contrib -> test":    "tests of contrib/physical use the framework that starts it",
}

func layerOf(folder string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, folder) })
}

// fault says why a package of one folder may not import one of another; empty if it may.
func fault(from, to string) string {
	_, exception := allowed[from+" -> "+to]
	a, b := layerOf(from), layerOf(to)
	switch {
	case from == to || exception:
		return ""
	case a < 0 || b < 0:
		return "a folder without a layer: add it to layers"
	case to == "contrib":
		return "nothing imports contrib"
	case a == b:
		return "components meet at API objects, not in code"
	case a > b:
		return "imports go down only"
	}
	return ""
}

func TestImportsGoDownOnly(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := 0
	for d := json.NewDecoder(bytes.NewReader(out)); ; packages++ {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		check := func(imports []string, test bool) {
			for _, i := range imports {
				// Tests of every package may use the test framework, and a server to run against.
				if !strings.HasPrefix(i, module) || test && (folder(i) == "test" || folder(i) == "server") {
					continue
				}
				if why := fault(folder(p.ImportPath), folder(i)); why != "" {
					t.Errorf("%s imports %s: %s", p.ImportPath, i, why)
				}
			}
		}
		check(p.Imports, false)
		check(append(p.TestImports, p.XTestImports...), true)
	}
	if packages < 10 {
		t.Errorf("go list found %d packages only", packages)
	}
}

func folder(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, module), "/")
	return first
}

func TestFault(t *testing.T) {
	for imports, want := range map[string]bool{
		"cmd -> server": true, "server -> client": true, "server -> apis": true, "client -> internal": true, "internal -> apis": true,
		"internal -> client": true, "server -> server": true,
		"server -> placement": false, "splitter -> syncer": false, "client -> server": false, "apis -> internal": false,
		"cmd -> contrib": false, "test -> contrib": false, "server -> cmd": false, "server -> nowhere": false,
	} {
		from, to, _ := strings.Cut(imports, " -> ")
		if got := fault(from, to) == ""; got != want {
			t.Errorf("%s: allowed is %v, want %v", imports, got, want)
		}
	}
}
