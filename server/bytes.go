package server

import (
	"github.com/spf13/pflag"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"atoll.dev/atoll/server/admission"
)

// Bytes is a flag for a number of bytes, as a quantity: 64Mi, 1Gi, or the plain number. What it may be beyond a whole number is
// Validate's to say.
func Bytes(n *int64) pflag.Value { return (*byteCount)(n) }

type byteCount int64

func (b *byteCount) String() string {
	return apiresource.NewQuantity(int64(*b), apiresource.BinarySI).String()
}

func (b *byteCount) Type() string { return "quantity" }

func (b *byteCount) Set(value string) error {
	n, err := admission.ParseWhole(value)
	if err != nil {
		return err
	}
	*b = byteCount(n)
	return nil
}
