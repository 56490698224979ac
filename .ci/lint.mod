// What "make lint" looks with (analyzers), apart from go.mod so that the program depends on none of it. staticcheck rather than golangci-lint:
// it comes through the Go module proxy with 5 modules instead of some 250, and is the part that finds most.
module atoll.dev/atoll

go 1.26.0

require (
	golang.org/x/tools v0.51.0
	honnef.co/go/tools v0.8.2
)

require (
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
)
