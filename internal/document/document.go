// Package document writes into documents what is made of something else.
package document

import (
	"fmt"
	"strings"
)

// Section is what is between two lines of a document.
type Section struct{ Begin, End string }

// Cut parts a document into what comes before the section, the section, and what comes after it.
func (s Section) Cut(document string) (before, between, after string, _ error) {
	before, rest, begun := strings.Cut(document, s.Begin)
	between, after, ended := strings.Cut(rest, s.End)
	if !begun || !ended {
		return "", "", "", fmt.Errorf("there are no lines %q and %q", s.Begin, s.End)
	}
	return before, between, after, nil
}

// Replace makes text the section of a document.
func (s Section) Replace(document, text string) (string, error) {
	before, _, after, err := s.Cut(document)
	if err != nil {
		return "", err
	}
	return before + s.Begin + "\n" + text + s.End + after, nil
}
