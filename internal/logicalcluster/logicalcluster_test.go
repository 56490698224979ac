package logicalcluster

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"
)

func TestValidateName(t *testing.T) {
	tests := map[string]struct {
		name   string
		valid  bool
		reason string
	}{
		"root":              {name: "root", valid: true, reason: "the top of the tree has a plain name"},
		"base36":            {name: "1kqx0m2e9zj4s7ab", valid: true, reason: "names of workspaces are 16 characters of base36"},
		"hyphen":            {name: "my-cluster", valid: true, reason: "inner hyphens are logicalcluster's rule"},
		"system":            {name: "system:admin", valid: true, reason: "the server's own clusters"},
		"nested system":     {name: "system:bound-crds:a", valid: true, reason: "system names may have several parts"},
		"longest":           {name: strings.Repeat("a", 63), valid: true, reason: "63 is allowed"},
		"over-long":         {name: strings.Repeat("a", 64), reason: "64 is not"},
		"over-long system":  {name: "system:" + strings.Repeat("a", 57), reason: "the prefix counts"},
		"empty":             {name: "", reason: "an empty segment would address the whole resource"},
		"one letter":        {name: "a", reason: "logicalcluster wants two"},
		"wildcard":          {name: "*", reason: "the wildcard is no cluster"},
		"slash":             {name: "a/b", reason: "two segments"},
		"system slash":      {name: "system:a/b", reason: "logicalcluster alone would let it pass"},
		"system dots":       {name: "system:..", reason: "logicalcluster alone would let it pass"},
		"system wildcard":   {name: "system:*", reason: "logicalcluster alone would let it pass"},
		"system empty":      {name: "system:", reason: "nothing follows"},
		"system empty part": {name: "system:a::b", reason: "an empty part"},
		"dots":              {name: "..", reason: "path traversal"},
		"dot":               {name: "a.b", reason: "no dots at all"},
		"path":              {name: "root:org", reason: "a path is not a name"},
		"upper case":        {name: "Root", reason: "lower case only"},
		"newline":           {name: "root\n", reason: "the rule is anchored at the very end"},
		"nul":               {name: "ro\x00ot", reason: "no control characters"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := ValidateName(tc.name); (err == nil) != tc.valid {
				t.Errorf("%s: ValidateName(%q) = %v, want valid=%v", tc.reason, tc.name, err, tc.valid)
			}
		})
	}
}

// FuzzValidateName: the rule is the one below and no wider than logicalcluster's, whatever the name.
func FuzzValidateName(f *testing.F) {
	rule := regexp.MustCompile(`^([a-z0-9][a-z0-9-]*[a-z0-9]|system:[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)$`)
	for _, name := range []string{"", "a", "ab", "a-", "-a", "a--b", "root", "system:", "system:a", "system:a:", "system:a:b-c", "system::a", "systema", "system:-", "A", "a/b", "ab\n", "..", "*"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want := len(name) <= 63 && rule.MatchString(name)
		if got := ValidateName(name) == nil; got != want {
			t.Errorf("ValidateName(%q) accepts: %v, want %v", name, got, want)
		}
		if want && !logicalcluster.Name(name).IsValid() {
			t.Errorf("%q is valid here and not in kcp", name)
		}
	})
}

// FuzzIsNewName: what counts as a name that the server made, as those of mirrors and of workspaces' logical clusters have to, is 16
// characters that need no escape in a path, a key or a DNS label; and so is every name made of a UID, whatever that is.
func FuzzIsNewName(f *testing.F) {
	rule := regexp.MustCompile(`^[a-z][a-z0-9]{15}$`)
	for _, name := range []string{
		"", "a", "root", "abcdefghijklmnop", "abcdefghijklmno", "abcdefghijklmnopq", "0bcdefghijklmnop", "a123456789012345", "abcdefghijklmnoP", "abcdefg/ijklmnop",
		"abcdefgh\x00jklmno", "abcdefghijklmno\n", "ábcdefghijklmno", "abcdefgh..klmnop", "system:admin1234", "abcdefghijklmno-", "3d2b8c4e-0f5a-4e59-9b0e-000000000000",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if got, want := IsNewName(name), rule.MatchString(name); got != want {
			t.Errorf("IsNewName(%q): %v, want %v", name, got, want)
		} else if got && ValidateName(name) != nil {
			t.Errorf("%q is one that the server makes, and no logical cluster can have", name)
		}
		if made := NameOf(types.UID(name)); !IsNewName(string(made)) || made != NameOf(types.UID(name)) || string(made) == name {
			t.Errorf("NameOf(%q) = %q", name, made)
		}
	})
}

func TestNewName(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		name := NewName().String()
		if err := ValidateName(name); err != nil {
			t.Fatal(err)
		}
		if len(name) != NameLength || name[0] < 'a' || name[0] > 'z' {
			t.Fatalf("NewName() = %q, want %d characters, the first a letter", name, NameLength)
		}
		if !IsNewName(name) {
			t.Fatalf("IsNewName(%q) is false", name)
		}
		if seen[name] {
			t.Fatalf("%q twice in 1000", name)
		}
		seen[name] = true
	}
}

func TestNameOf(t *testing.T) {
	seen := map[string]bool{}
	for i := range 1000 {
		uid := types.UID(fmt.Sprintf("3d2b8c4e-0f5a-4e59-9b0e-%012d", i))
		name := NameOf(uid).String()
		if !IsNewName(name) || ValidateName(name) != nil {
			t.Fatalf("NameOf(%q) = %q, which is not of NewName's form", uid, name)
		}
		if seen[name] {
			t.Fatalf("%q twice in 1000", name)
		}
		seen[name] = true
		if again := NameOf(uid).String(); again != name {
			t.Fatalf("NameOf(%q) is %q and then %q", uid, name, again)
		}
	}
}

func TestIsNewName(t *testing.T) {
	for name, reason := range map[string]string{
		"":                  "no name",
		"root":              "the server's own",
		"system:admin00000": "the server's own",
		"abcdefghijklmno":   "too short",
		"abcdefghijklmnopq": "too long",
		"0bcdefghijklmnop":  "starts with a digit",
		"abcdefgh-jklmnop":  "a hyphen",
		"abcdefgh/jklmnop":  "a slash",
		"Abcdefghijklmnop":  "upper case",
		"abcdefghijklmnö":   "16 bytes, not 16 letters",
	} {
		if IsNewName(name) {
			t.Errorf("%s: IsNewName(%q) is true", reason, name)
		}
	}
}

func TestClusterFrom(t *testing.T) {
	if c, ok := ClusterFrom(context.Background()); ok {
		t.Errorf("a bare context has cluster %v", c)
	}
	want := Cluster{Name: "root", Mirror: true}
	if c, ok := ClusterFrom(WithCluster(context.Background(), want)); !ok || c != want {
		t.Errorf("ClusterFrom = %v, %v, want %v", c, ok, want)
	}
}
