package admission

import (
	"sync"

	"k8s.io/component-base/metrics"
)

// boundSeries keeps names that tenants choose out of upstream's metrics: in these labels, every value is shown as
// "unexpected". Series stay for ever. It comes before the first of them is written.
var boundSeries = sync.OnceFunc(func() {
	none := map[string]string{}
	for _, metric := range []string{
		"webhook_admission_duration_seconds", "webhook_rejection_count", "webhook_fail_open_count", "webhook_request_total",
		"match_condition_evaluation_errors_total", "match_condition_exclusions_total", "match_condition_evaluation_seconds",
	} {
		none["apiserver_admission_"+metric+",name"] = ""
	}
	for _, policy := range []string{"apiserver_validating_admission_policy_", "apiserver_mutating_admission_policy_"} {
		for _, metric := range []string{"check_total", "check_duration_seconds"} {
			none[policy+metric+",policy"] = ""
			none[policy+metric+",policy_binding"] = ""
		}
	}
	metrics.SetLabelAllowList(none)
})
