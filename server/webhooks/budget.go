package webhooks

import "atoll.dev/atoll/internal/budget"

// How many bytes of memory the answers may take that are read and unpacked at once, by weight: of all logical clusters, and of one of
// them. Somebody else decides what is in them and how long they last.
const (
	mostOfAll = 1 << 30
	mostOfOne = mostOfAll / 4
)

// newBudget counts what answers take.
func newBudget(most, mostOfOne int64) *budget.Budget {
	return budget.New(most, mostOfOne, "the answers of the workspace's webhooks", "the answers of webhooks to this server")
}
