package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func forwardingNamespace(value string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{ForwardedSourcesAnnotation: value, "other": "kept out"}}}
}

// TestForwardedSources: FW-2, an invalid prefix allows nothing and is reported; valid ones are
// allowed.
func TestForwardedSources(t *testing.T) {
	list := func(n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf("10.%d.0.0/16", i))
		}
		return strings.Join(items, ",")
	}
	for _, tt := range []struct {
		value string
		want  string // the prefixes
		found []string
	}{
		{"10.8.0.0/24", "10.8.0.0/24", nil},
		{" 2001:db8::/32 , 10.8.0.0/24,10.8.0.0/24 ", "10.8.0.0/24 2001:db8::/32", nil},
		{"192.0.2.7/32", "192.0.2.7/32", nil},
		{"", "", []string{`"" is not a CIDR; it is not allowed`}},
		{"10.8.0.0/24,", "10.8.0.0/24", []string{`"" is not a CIDR; it is not allowed`}},
		{"10.8.0.1", "", []string{`"10.8.0.1" is not a CIDR; it is not allowed`}},
		{"10.8.0.1/24,10.9.0.0/24", "10.9.0.0/24", []string{`"10.8.0.1/24" has host bits, 10.8.0.0/24 has none; it is not allowed`}},
		{"010.8.0.0/24", "", []string{`"010.8.0.0/24" is not a CIDR; it is not allowed`}},
		{"10.8.0.0/24;10.9.0.0/24", "", []string{`"10.8.0.0/24;10.9.0.0/24" is not a CIDR; it is not allowed`}},
		{"\u202e\u009b2J", "", []string{`"\u202e\u009b2J" is not a CIDR; it is not allowed`}},
		{"0.0.0.0/0", "", []string{`"0.0.0.0/0" overlaps 0.0.0.0/8, which no router forwards; it is not allowed`}},
		{"::/0", "", []string{`"::/0" overlaps ::/127, which no router forwards; it is not allowed`}},
		{"127.0.0.1/32,fe80::/64", "", []string{
			`"127.0.0.1/32" overlaps 127.0.0.0/8, which no router forwards; it is not allowed`,
			`"fe80::/64" overlaps fe80::/10, which no router forwards; it is not allowed`}},
		{"169.254.169.254/32", "", []string{`"169.254.169.254/32" overlaps 169.254.0.0/16, which no router forwards; it is not allowed`}},
		{"239.1.0.0/16", "", []string{`"239.1.0.0/16" overlaps 224.0.0.0/3, which no router forwards; it is not allowed`}},
		{"::ffff:10.8.0.0/120", "", []string{`"::ffff:10.8.0.0/120" overlaps ::ffff:0.0.0.0/96, which no router forwards; it is not allowed`}},
		{"2000::/3", "2000::/3", nil},
		{list(MaxForwardedSources), strings.ReplaceAll(list(MaxForwardedSources), ",", " "), nil},
		{list(MaxForwardedSources + 1), "", []string{"has 65 prefixes, the maximum is 64; none is allowed"}},
	} {
		t.Run(tt.value[:min(len(tt.value), 40)], func(t *testing.T) {
			ns := forwardingNamespace(tt.value)
			ns.Annotations = StripAnnotations(ns.Annotations)
			sources, findings := ForwardedSources(ns)
			if got := strings.Trim(fmt.Sprint(sources), "[]"); !sameElements(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			var found []string
			for _, f := range findings {
				found = append(found, f.Message)
				const field = "Namespace x: metadata.annotations[kube-network-policies.x-k8s.io/forwarded-sources]: "
				if f.String() != field+f.Message {
					t.Errorf("found %q, want it to begin with %q", f, field)
				}
			}
			if !slices.Equal(found, tt.found) {
				t.Errorf("found %q, want %q", found, tt.found)
			}
			if diagnosed := DiagnoseNamespace(ns); len(diagnosed) != len(findings) {
				t.Errorf("diagnosed %v, want %v", diagnosed, findings)
			}
		})
	}
	if sources, findings := ForwardedSources(&corev1.Namespace{}); sources != nil || findings != nil {
		t.Errorf("without an annotation: %v, %v", sources, findings)
	}
}

// sameElements compares lists separated by spaces in any order.
func sameElements(a, b string) bool {
	as, bs := strings.Fields(a), strings.Fields(b)
	slices.Sort(as)
	slices.Sort(bs)
	return slices.Equal(as, bs)
}

// TestFindingsAboutForwardedSourcesAreShort: a value may have 256 KiB, and findings are
// logged.
func TestFindingsAboutForwardedSourcesAreShort(t *testing.T) {
	_, findings := ForwardedSources(forwardingNamespace(strings.Repeat("1", 100_000)))
	if len(findings) != 1 || len(findings[0].Message) > 200 {
		t.Errorf("got %d findings, %.300v", len(findings), findings)
	}
}

func FuzzForwardedSources(f *testing.F) {
	for _, value := range []string{"10.8.0.0/24,2001:db8::/32", "10.8.0.1/24", "::/0", "::ffff:1.2.3.0/120", ",", "fe80::%eth0/64"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		sources, findings := ForwardedSources(forwardingNamespace(value))
		if len(sources) == 0 && len(findings) == 0 {
			t.Fatal("nothing is allowed, and nothing reported")
		}
		if len(sources) > MaxForwardedSources {
			t.Fatalf("%d prefixes are allowed", len(sources))
		}
		for i, p := range sources {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Errorf("%s is allowed", p)
			}
			if i > 0 && p == sources[i-1] {
				t.Errorf("%s is allowed twice", p)
			}
			for _, a := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.169.254", "::", "::1", "fe80::1", "ff02::1"} {
				if p.Contains(netip.MustParseAddr(a)) {
					t.Errorf("%s is allowed with %s", p, a)
				}
			}
		}
	})
}
