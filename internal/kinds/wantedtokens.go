package kinds

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Token is one that pods want.
type Token struct {
	// Account is the name of the ServiceAccount.
	Account string
	// Audience is whom it is shown to, empty for the API of the workspace.
	Audience string
}

// WantedTokens returns the tokens that the pods of a leaf want now, each once and sorted; of a pod that is bound, as its mirror shows it. The
// leaf is the only record of them: the server issues by it what its syncer asks for by it. What was rendered before pods had any wants none, whatever
// somebody wrote into it then; nor does what has ended; what goes does until its pods have had their time.
func (k Kind) WantedTokens(leaf ctrlclient.Object, now time.Time) []Token {
	if !k.MakesPods() || APIAccessOf(leaf) == NoAPIAccess || k.HasEnded(leaf) {
		return nil
	}
	spec := &k.Template(leaf).Spec
	if goes := leaf.GetDeletionTimestamp(); goes != nil {
		grace := int64(0) // that of a pod is over at its deletionTimestamp
		if k.HasLeaves() {
			grace = ptr.Deref(spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
		}
		if now.Unix()-goes.Unix() >= grace {
			return nil
		}
	}
	return tokensOf(spec)
}

// tokensOf reads back of a rendered template what giveAPIAccess has given it: the files of the Secret of its own ServiceAccount.
func tokensOf(spec *corev1.PodSpec) (wanted []Token) {
	account := AccountOf(spec)
	secret := TokenSecret(account)
	for _, v := range spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.Secret == nil || s.Secret.Name != secret {
				continue
			}
			for _, item := range s.Secret.Items {
				if audience, ok := audienceOf(item.Key); ok {
					wanted = append(wanted, Token{account, audience})
				}
			}
		}
	}
	slices.SortFunc(wanted, func(a, b Token) int { return cmp.Compare(a.Audience, b.Audience) })
	return slices.Compact(wanted)
}
