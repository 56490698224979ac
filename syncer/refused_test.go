package syncer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A syncer whose certificate is refused for good ends, and one that is refused in passing does not.
func TestUntilRefused(t *testing.T) {
	for _, tc := range []struct {
		reason string
		codes  []int
		ends   bool
	}{
		{"it was removed", []int{200, 200, 401}, true},
		{"a hub that starts refuses in passing", []int{401, 401, 401, 200}, false},
		{"a hub that is away refuses nobody", []int{200, 503}, false},
		{"a proxy before it refuses now and then", slices.Concat(slices.Repeat([]int{401, 503}, 100), []int{200}), false},
		{"what it may not do is no reason to end", []int{403}, false},
		{"removed while requests got lost", []int{0, 401, 0, 401}, true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				hub := &rest.Config{Host: "https://atoll.example/clusters/" + testMirror, Transport: &hubOf{tc.codes}}
				makeImpatient(hub)
				began, last := time.Now(), error(nil)
				err := untilRefused(ctx, hub, func(ctx context.Context, hub *rest.Config) error {
					kube := kubernetes.NewForConfigOrDie(hub)
					for ctx.Err() == nil {
						_, last = kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
						time.Sleep(time.Second)
					}
					return nil
				})
				if took := time.Since(began); errors.Is(err, ErrCertificateRefused) != tc.ends || tc.ends && took > 2*time.Minute {
					t.Errorf("%v after %s; want it to end: %t; the last answer was %v", err, took, tc.ends, last)
				}
			})
		})
	}
}
