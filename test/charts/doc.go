// Package charts is twenty Helm charts in the manner of popular ones, and what is asked of them: that a release of each has the same life in a
// workspace over two physical clusters as in a plain cluster, and that a user sees the same of it.
//
// A chart is a folder here, with a second set of values (values-upgrade.yaml) for its upgrade. Its images are names: pods are simulated.
// Every kind and feature of docs/kinds.md is in at least three of them (features_test.go), and every kind in one, the application in three
// tiers; the table is in docs/charts.md.
//
// TestT9_Charts installs, tests, upgrades, rolls back, applies once more and uninstalls each on both sides. After each step all that a user
// can list of the release is made comparable by rule (visible_test.go) and compared (compare_test.go). What differs is listed in
// differences.tsv, by exact path and with its reason and a chart that shows it. That list only gets shorter, has nothing of any spec, and
// everything in it has to differ still.
//
// It reads the charts, runs helm and the server's binaries, and writes nothing but docs/charts.md, where it is told to (`make generate`,
// `make charts`). In CI it runs three charts.
//
// Read charts_test.go first.
package charts

//go:generate go test -vet=off -count=1 -run ^TestRendered$ . -write
