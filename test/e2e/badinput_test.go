package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/atoll/test/framework"
)

// clearError fails the test unless an error names all that it should, and is for people: no stack trace, no panic.
func clearError(t *testing.T, text, what string, names ...string) {
	t.Helper()
	for _, name := range names {
		if !strings.Contains(text, name) {
			t.Errorf("%s: the error does not say %q:\n%s", what, name, text)
		}
	}
	for _, trace := range []string{"goroutine ", "panic:", "runtime/debug", ".go:1234 +0x", " +0x"} {
		if strings.Contains(text, trace) {
			t.Errorf("%s: the error shows a stack trace:\n%s", what, text)
		}
	}
}

// TestBadInput_Requests: a path that cannot be served gets an error that names it and says what would be right.
func TestBadInput_Requests(t *testing.T) {
	t.Parallel()
	w := &isoWorld{Atoll: framework.StartAtoll(t)}
	w.clients = w.Clients()
	framework.MakeWorkspace(t, w.clients, "root", "a")
	admin := adminHTTP(t, w)
	long := strings.Repeat("a", 64)
	configMap := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	tests := []struct {
		request
		want   int
		says   []string
		reason string
	}{
		{request{path: "/clusters/root:nothere/api/v1/configmaps"}, 404, []string{"root:nothere", "atoll workspace tree"}, "an unknown path"},
		{request{path: "/clusters/root:a:nothere/api/v1/configmaps"}, 404, []string{"root:a:nothere"}, "an unknown path below one that is"},
		{request{path: "/clusters/nothere123/api/v1/configmaps"}, 403, []string{"forbidden"}, "an unknown name says nothing"},
		{request{path: "/clusters/Root/api/v1/configmaps"}, 400, []string{"Root", "lower-case"}, "upper case"},
		{request{path: "/clusters/root:A_b/api/v1/configmaps"}, 400, []string{"root:A_b", "root:org:team"}, "a malformed path"},
		{request{path: "/clusters/root::a/api/v1/configmaps"}, 400, []string{"root::a"}, "an empty segment"},
		{request{path: "/clusters/:root/api/v1/configmaps"}, 400, []string{":root"}, "an empty segment in front"},
		{request{path: "/clusters/" + long + "/api/v1/configmaps"}, 400, []string{"64", "63"}, "an over-long name"},
		{request{path: "/clusters//api/v1/configmaps"}, 400, []string{"name"}, "no name"},
		{request{path: "/clusters/root%2Fa/api/v1/configmaps"}, 400, []string{"root%2Fa", "slash"}, "an escaped slash"},
		{request{path: "/clusters/root%2fa/api/v1/configmaps"}, 400, []string{"slash"}, "in lower case too"},
		{request{path: "/clusters/system:%2e%2e/api/v1/configmaps"}, 400, []string{"system:.."}, "dots after system:"},
		{request{path: "/api/v1/configmaps"}, 404, []string{"/clusters/"}, "no workspace named"},
		{request{method: http.MethodPost, path: "/clusters/*/api/v1/namespaces/default/configmaps", body: configMap}, 405, []string{"/clusters/*", "/clusters/root"}, "a write to all"},
		{request{method: http.MethodDelete, path: "/clusters/*/api/v1/namespaces/default/configmaps"}, 405, []string{"/clusters/*"}, "a deletion in all"},
		{request{path: "/clusters/*/api/v1/namespaces/default/configmaps/x"}, 405, []string{"/clusters/*"}, "one object of all"},
		{request{method: http.MethodPost, path: "/clusters/root/api/v1/namespaces/default/configmaps", body: `{"apiVersion":`}, 400, []string{"JSON"}, "a body that is no JSON"},
		{request{method: http.MethodPost, path: "/clusters/root/api/v1/namespaces/default/configmaps?fieldValidation=Strict", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"dta":{}}`}, 400, []string{"dta"}, "an unknown field"},
		{request{method: http.MethodPost, path: "/clusters/root/api/v1/namespaces/nothere/configmaps", body: configMap}, 404, []string{"nothere"}, "an unknown namespace"},
		{request{method: http.MethodPost, path: "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"` + long + `"}}`}, 422, []string{long, "63"}, "an over-long workspace"},
		{request{method: http.MethodPost, path: "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"a.b"}}`}, 422, []string{"a.b"}, "a workspace that fits no path"},
		{request{path: "/clusters/root/api/v1/configmaps?labelSelector=%3D%3D"}, 400, []string{"=="}, "a malformed selector"},
		{request{path: "/clusters/root/api/v1/configmaps?resourceVersion=x"}, 400, []string{"x"}, "a malformed resourceVersion"},
	}
	for _, test := range tests {
		got := admin(test.request)
		if got.code != test.want {
			t.Errorf("%s: %s %s: %d %s, want %d", test.reason, test.method, test.path, got.code, got.message(), test.want)
			continue
		}
		clearError(t, got.message(), test.reason+": "+test.path, test.says...)
	}
	// None of these hurt the server.
	if got := admin(request{path: "/clusters/root:a/api/v1/namespaces/default"}); got.code != http.StatusOK {
		t.Errorf("afterwards: %d %s", got.code, got.message())
	}
}

// TestBadInput_Start: a server that cannot start says which input is wrong and what to do, and ends.
func TestBadInput_Start(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	running := framework.StartAtoll(t)
	port := strings.TrimPrefix(running.URL, "https://127.0.0.1:")
	if _, err := strconv.Atoi(port); err != nil {
		t.Fatalf("port of %s: %v", running.URL, err)
	}
	write := func(name, content string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plainFile := write("plain", "no directory")
	noCA := write("ca.crt", "no certificate")
	short := write("short.csv", "token-without-user\n")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedPort := silent.Addr().String()
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		says []string
	}{
		"data directory in use":       {[]string{"--root-directory=" + running.Dir, "--secure-port=0"}, []string{running.Dir, "in use by process", "--root-directory"}},
		"port taken":                  {[]string{"--secure-port=" + port}, []string{port, "--secure-port"}},
		"port out of range":           {[]string{"--secure-port=70000"}, []string{"--secure-port", "70000", "65535"}},
		"port that is no number":      {[]string{"--secure-port=https"}, []string{"https", "--secure-port"}},
		"address that is none":        {[]string{"--secure-port=0", "--bind-address=localhost"}, []string{"localhost", "--bind-address"}},
		"address not of this machine": {[]string{"--secure-port=0", "--bind-address=192.0.2.1"}, []string{"192.0.2.1"}},
		"unknown flag":                {[]string{"--sekure-port=0"}, []string{"--sekure-port"}},
		"argument":                    {[]string{"now"}, []string{"now"}},
		"empty root directory":        {[]string{"--secure-port=0", "--root-directory="}, []string{"--root-directory", ".atoll"}},
		"root directory is a file":    {[]string{"--secure-port=0", "--root-directory=" + plainFile}, []string{plainFile}},
		"token file missing":          {[]string{"--secure-port=0", "--token-auth-file=" + dir + "/none.csv"}, []string{"--token-auth-file", dir + "/none.csv"}},
		"token file is a directory":   {[]string{"--secure-port=0", "--token-auth-file=" + dir}, []string{"--token-auth-file", dir, "directory"}},
		"token file with short rows":  {[]string{"--secure-port=0", "--token-auth-file=" + short}, []string{short, "token, user name, user uid"}},
		"client CA missing":           {[]string{"--secure-port=0", "--client-ca-file=" + dir + "/none.crt"}, []string{"--client-ca-file", dir + "/none.crt"}},
		"client CA without any":       {[]string{"--secure-port=0", "--client-ca-file=" + noCA}, []string{"--client-ca-file", noCA}},
		"etcd that is not there":      {[]string{"--secure-port=0", "--etcd-servers=http://" + closedPort}, []string{"Waiting for etcd", closedPort, "is it running there?"}},
		"unknown feature gate":        {[]string{"--secure-port=0", "--feature-gates=NoSuchThing=true"}, []string{"NoSuchThing"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			args := append([]string{"start", "--root-directory=" + root}, test.args...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, framework.Binary(t), args...)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
				t.Fatalf("atoll %s: %v, want an exit code\n%s", strings.Join(args, " "), err, out)
			}
			// The error is what people see last.
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			clearError(t, strings.Join(lines[max(0, len(lines)-4):], "\n"), "atoll "+strings.Join(args, " "), test.says...)
			clearError(t, string(out), "atoll "+strings.Join(args, " "))
			if strings.Contains(string(out), "addrConn") {
				t.Errorf("atoll %s: gRPC has the word:\n%s", strings.Join(args, " "), out)
			}
			if _, err := os.Stat(root); !os.IsNotExist(err) {
				t.Errorf("atoll %s: it leaves %s behind", strings.Join(args, " "), root)
			}
		})
	}
	if out, err := running.Run("kubectl", "get", "namespaces"); err != nil {
		t.Errorf("the running server was hurt: %v\n%s", err, out)
	}
}
