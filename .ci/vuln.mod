// The tool of .ci/vulnerabilities, apart from go.mod so that the program does not depend on it, and from lint.mod so that
// staticcheck keeps its versions.
module atoll.dev/atoll

go 1.26.0

tool golang.org/x/vuln/cmd/govulncheck

require (
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/telemetry v0.0.0-20260924152758-ed294f943157 // indirect
	golang.org/x/tools v0.51.0 // indirect
	golang.org/x/vuln v1.1.4 // indirect
)
