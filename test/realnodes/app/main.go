// Command app is what the pods of test/realnodes run. It needs nothing but its file.
package main

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Files whose presence is what the probes of serve find.
const (
	unready = "/tmp/unready"
	dead    = "/tmp/dead"
)

// account is where Kubernetes puts what a client in a pod needs.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name == "app" && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if err := run(name, args); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(command string, args []string) error {
	commands := map[string]struct {
		args int // -1: any
		run  func([]string) error
	}{
		"serve":   {0, serve},
		"judge":   {1, judge},
		"echo":    {-1, func(args []string) error { _, err := fmt.Println(strings.Join(args, " ")); return err }},
		"cat":     {0, func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err }},
		"exit":    {1, exit},
		"touch":   {1, func(args []string) error { return os.WriteFile(args[0], nil, 0o600) }},
		"rm":      {1, func(args []string) error { return os.Remove(args[0]) }},
		"read":    {1, read},
		"env":     {1, func(args []string) error { _, err := fmt.Println(os.Getenv(args[0])); return err }},
		"resolve": {1, resolve},
		"get":     {1, get},
		"api":     {1, api},
		"tar":     {-1, tarCommand},
	}
	c, ok := commands[command]
	if !ok {
		return fmt.Errorf("no command %q", command)
	}
	if c.args >= 0 && len(args) != c.args {
		return fmt.Errorf("%s takes %d arguments", command, c.args)
	}
	return c.run(args)
}

// serve answers at port 8080 until SIGTERM, and prints a line for each request and one when it begins and ends.
func serve([]string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	absent := func(file string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				http.Error(w, file+" is there", http.StatusServiceUnavailable)
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", absent(unready))
	mux.HandleFunc("/healthz", absent(dead))
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		fmt.Printf("%s %s\n", req.Method, req.URL.Path)
		fmt.Fprintf(w, "%s from %s", req.URL.Path, host)
	})
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Println("serving", host)
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		fmt.Println("told to end", host)
		return nil
	}
}

// judge answers as an admission webhook at port 8443, by the certificate in a directory: it allows all but what is called "unwanted".
func judge(args []string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/judge", func(w http.ResponseWriter, req *http.Request) {
		var review struct {
			APIVersion, Kind string
			Request          struct{ UID, Name string }
		}
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Println("asked about", review.Request.Name)
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": map[string]any{ // whoever asked has gone
			"uid": review.Request.UID, "allowed": review.Request.Name != "unwanted", "status": map[string]any{"message": "nobody wants it"},
		}})
	})
	server := &http.Server{Addr: ":8443", Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServeTLS(filepath.Join(args[0], "tls.crt"), filepath.Join(args[0], "tls.key"))
}

func exit(args []string) error {
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

func read(args []string) error {
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(data)
	return err
}

// resolve prints the addresses of a name.
func resolve(args []string) error {
	addresses, err := net.LookupHost(args[0])
	if err != nil {
		return err
	}
	slices.Sort(addresses)
	fmt.Println(strings.Join(addresses, " "))
	return nil
}

// get prints what a URL answers.
func get(args []string) error { return request(&http.Client{Timeout: 10 * time.Second}, args[0], "") }

// api prints what the API answers at a path, asked as clients in pods do. Without a host in the path it is where the variables say.
func api(args []string) error {
	url := args[0]
	if strings.HasPrefix(url, "/") {
		url = "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) + url
	}
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return errors.New("ca.crt has no certificates")
	}
	return request(&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}, url, string(token))
}

func request(client *http.Client, url, token string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// tarCommand is as much of tar as kubectl cp asks for: "tar cf - FILE" and "tar -xmf - -C DIR".
func tarCommand(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "cf" && args[1] == "-":
		data, err := os.ReadFile(args[2])
		if err != nil {
			return err
		}
		w := tar.NewWriter(os.Stdout)
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(args[2], "/"), Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return errors.Join(err, w.Close())
	case len(args) >= 2 && strings.HasPrefix(args[0], "-x") && args[1] == "-":
		dir := "."
		if len(args) == 4 && args[2] == "-C" {
			dir = args[3]
		}
		for r := tar.NewReader(os.Stdin); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			data, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, filepath.Clean("/"+header.Name)), data, 0o600); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("tar %s: this is not what kubectl cp asks for", strings.Join(args, " "))
}
