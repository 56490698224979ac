// Package splitter divides what users applied over physical clusters.
package splitter
