package objectname

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checkGenerated checks a name that Name makes of base, which is any text.
func checkGenerated(t *testing.T, base, suffix string) {
	t.Helper()
	got := Valid(base, suffix)
	if faults := validation.IsDNS1123Subdomain(got); len(faults) > 0 || !strings.HasSuffix(got, suffix) {
		t.Errorf("Valid(%q, %q) is %q: %v", base, suffix, got, faults)
	}
	if len(validation.IsDNS1123Subdomain(base)) == 0 && len(base)+len(suffix) <= validation.DNS1123SubdomainMaxLength && got != base+suffix {
		t.Errorf("Valid(%q, %q) is %q, and not the valid name that it was made of", base, suffix, got)
	}
}

// TestNamesAreValid makes names of valid names of every length, with every kind of character
// where they are cut.
func TestNamesAreValid(t *testing.T) {
	for _, pattern := range []string{"a", "a-", "a.", "a--", "a.b-", "0", "a.0--0."} {
		for n := 1; n <= validation.DNS1123SubdomainMaxLength; n++ {
			base := strings.Repeat(pattern, n)[:n-1] + "z"
			if faults := validation.IsDNS1123Subdomain(base); len(faults) > 0 {
				t.Fatalf("%q is no valid name: %v", base, faults)
			}
			for _, suffix := range []string{"", "-2", "-999", ".0123456789abcdef"} {
				checkGenerated(t, base, suffix)
			}
		}
	}
}

func FuzzName(f *testing.F) {
	for _, base := range []string{"", ".", "-", "web", "Web_Server:1", "a.-b", "a-.b", "a..b", "-.-a", "é", strings.Repeat("-.", 200) + "a", strings.Repeat("a-", 200)} {
		f.Add(base)
	}
	f.Fuzz(func(t *testing.T, base string) {
		for _, suffix := range []string{"", "-999", ".0123456789abcdef"} {
			checkGenerated(t, base, suffix)
		}
	})
}
