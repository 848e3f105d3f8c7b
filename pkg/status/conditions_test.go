package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func finding(path, reason, message string) policy.Finding {
	return policy.Finding{Field: field.NewPath(path), Reason: reason, Message: message}
}

func whole(f policy.Finding) policy.Finding {
	f.Whole = true
	return f
}

// lines formats conditions as "Type=Status Reason message".
func lines(conditions []metav1.Condition) []string {
	var out []string
	for _, c := range conditions {
		out = append(out, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return out
}

func TestFindingsBecomeConditions(t *testing.T) {
	endPort := finding("spec.ingress[2].ports[0].endPort", policy.FeatureNotSupported, "endPort is switched off; the port matches nothing")
	cidr := finding("spec.egress[0].to[1].ipBlock.cidr", policy.InvalidCIDR, `"x" is no prefix; the peer matches nothing`)
	for _, tc := range []struct {
		name     string
		findings []policy.Finding
		want     []string
	}{
		{"clean", nil, []string{
			"Accepted=True PolicyAccepted The whole spec can be enforced.",
			"PartialFailure=False NoFailure No problem was found.",
			"Failure=False NoFailure No problem was found.",
		}},
		{"one problem", []policy.Finding{endPort}, []string{
			"Accepted=True PolicyAccepted Enforced with 1 problem, see PartialFailure.",
			"PartialFailure=True FeatureNotSupported spec.ingress[2].ports[0].endPort: endPort is switched off; the port matches nothing.",
			"Failure=False NoFailure The policy is enforced in part, see PartialFailure.",
		}},
		{"two problems, one of them twice: most severe reason, order of the spec", []policy.Finding{endPort, cidr, endPort}, []string{
			"Accepted=True PolicyAccepted Enforced with 2 problems, see PartialFailure.",
			`PartialFailure=True InvalidCIDR spec.ingress[2].ports[0].endPort: endPort is switched off; the port matches nothing. spec.egress[0].to[1].ipBlock.cidr: "x" is no prefix; the peer matches nothing.`,
			"Failure=False NoFailure The policy is enforced in part, see PartialFailure.",
		}},
		{"the whole policy", []policy.Finding{whole(finding("spec.podSelector", policy.InvalidSelector, "bad")), endPort}, []string{
			"Accepted=False InvalidSelector The policy is not enforced, see Failure.",
			"PartialFailure=False NoFailure The policy is not enforced at all, see Failure.",
			"Failure=True InvalidSelector spec.podSelector: bad. spec.ingress[2].ports[0].endPort: endPort is switched off; the port matches nothing.",
		}},
		{"unknown reasons: the first by name", []policy.Finding{finding("spec", "Zebra", "z"), finding("spec", "Ape", "a")}, []string{
			"Accepted=True PolicyAccepted Enforced with 2 problems, see PartialFailure.",
			"PartialFailure=True Ape spec: z. spec: a.",
			"Failure=False NoFailure The policy is enforced in part, see PartialFailure.",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Conditions(7, tc.findings, false)
			if diff := cmp.Diff(tc.want, lines(got)); diff != "" {
				t.Errorf("conditions differ (-want +got):\n%s", diff)
			}
			for _, c := range got {
				if c.ObservedGeneration != 7 || !c.LastTransitionTime.IsZero() {
					t.Errorf("%s: generation %d, time %v; want 7 and none", c.Type, c.ObservedGeneration, c.LastTransitionTime)
				}
			}
		})
	}
}

func TestEveryReasonHasSeverity(t *testing.T) {
	for _, reason := range []string{policy.FeatureNotSupported, policy.UnsupportedProtocol, policy.InvalidPort, policy.InvalidCIDR, policy.InvalidSelector, policy.InvalidPeer} {
		if !slices.Contains(severity, reason) {
			t.Errorf("%s has no severity", reason)
		}
	}
}

func TestMessagesAreTruncated(t *testing.T) {
	var many []policy.Finding
	for i := range 5000 {
		many = append(many, finding(fmt.Sprintf("spec.ingress[%d]", i), policy.InvalidPort, "wrong"))
	}
	for _, tc := range []struct {
		name     string
		findings []policy.Finding
		end      string
	}{
		{"many", many, ". And 4960 more."},
		{"one long", []policy.Finding{finding("spec", policy.InvalidCIDR, strings.Repeat("é", 2000))}, "é…."},
		{"long and short", []policy.Finding{finding("spec", policy.InvalidCIDR, strings.Repeat("é", 2000)), finding("spec", policy.InvalidCIDR, "x")}, "é…. And 1 more."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			message := Conditions(1, tc.findings, false)[1].Message
			if len(message) > maxMessage || !utf8.ValidString(message) || !strings.HasSuffix(message, tc.end) {
				t.Errorf("%d bytes, valid UTF-8 %v, want at most %d bytes that end in %q: %s", len(message), utf8.ValidString(message), maxMessage, tc.end, message)
			}
		})
	}
}

func TestTransitionTimes(t *testing.T) {
	past, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	old := withTimes(nil, Conditions(1, nil, false), past)
	got := withTimes(old, Conditions(2, []policy.Finding{finding("spec", policy.InvalidPort, "x")}, false), now)
	for i, want := range []time.Time{past.Time, now.Time, past.Time} {
		if !got[i].LastTransitionTime.Time.Equal(want) {
			t.Errorf("%s changed at %v, want %v", got[i].Type, got[i].LastTransitionTime, want)
		}
	}
	if sameConditions(old, got) {
		t.Error("conditions of two generations count as equal")
	}
	slices.Reverse(old)
	if !sameConditions(old, Conditions(1, nil, false)) {
		t.Error("conditions that differ in order and time count as different")
	}
}
