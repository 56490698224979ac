package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
)

func main() {
	program := flag.String("program", "bin/atoll", "Program of the image: of linux, linked statically.")
	output := flag.String("output", "", "File to write.")
	name := flag.String("name", "", "Name and tag of the image, such as atoll:v1.")
	revision := flag.String("revision", "", "Commit that the program was built of.")
	created := flag.Int64("created", 0, "Time of everything in the image, in seconds since 1970: that of the commit.")
	flag.Parse()
	if err := run(*program, *output, *name, *revision, time.Unix(*created, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(program, output, name, revision string, created time.Time) error {
	if output == "" {
		return errors.New("--output is empty: name the file to write")
	}
	// As docker, containerd and kubelets read it: atoll:v1 is docker.io/library/atoll:v1.
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return fmt.Errorf("--name %q: %w", name, err)
	}
	tagged, ok := named.(reference.NamedTagged)
	if !ok {
		return fmt.Errorf("--name %q: want a name and a tag, such as atoll:v1", name)
	}
	img, err := build(content{program: program, version: tagged.Tag(), revision: revision, created: created})
	if err != nil {
		return fmt.Errorf("build the image of %s: %w", program, err)
	}
	if err := writeWhole(output, func(w io.Writer) error { return write(w, img, tagged, created) }); err != nil {
		return fmt.Errorf("write the image to %s: %w", output, err)
	}
	info, err := os.Stat(output)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("Wrote %s: %s, %d MB, %s\n", output, name, info.Size()/1e6, digest)
	return nil
}

// writeWhole lets fill write a file, which gets its name only once it is whole.
func writeWhole(name string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	if err := errors.Join(fill(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
