package resolvers

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.0.10":               "10.96.0.10:53",
		"10.96.0.10:5353":          "10.96.0.10:5353",
		"169.254.20.10":            "169.254.20.10:53",
		"fd00::a":                  "[fd00::a]:53",
		"[fd00::a]:5353":           "[fd00::a]:5353",
		"::ffff:10.96.0.10":        "10.96.0.10:53",
		"[::ffff:10.96.0.10]:5353": "10.96.0.10:5353",

		"":             "",
		"dns":          "",
		"10.96.0":      "",
		"10.96.0.10:":  "",
		"10.96.0.10:0": "",
		"[fd00::a]":    "",
		"10.0.0.0/8":   "",
		"127.0.0.53":   "",
		"::1":          "",
		"0.0.0.0":      "",
		"::":           "",
		"224.0.0.251":  "",
		"fe80::1%eth0": "",
	} {
		t.Run(in, func(t *testing.T) {
			got, err := Parse(in)
			switch {
			case want == "" && err == nil:
				t.Errorf("Parse(%q) = %v, want an error", in, got)
			case want == "" && !strings.Contains(err.Error(), fmt.Sprintf("%q", in)):
				t.Errorf("the error of Parse(%q) does not contain it: %v", in, err)
			case want != "" && (err != nil || got.String() != want):
				t.Errorf("Parse(%q) = %v, %v; want %s", in, got, err, want)
			}
		})
	}
}

func TestParseResolvConf(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"one", "nameserver 192.0.2.1\n", "192.0.2.1:53"},
		{"without a newline", "nameserver 192.0.2.1", "192.0.2.1:53"},
		{"spaces and a comment", "  nameserver\t192.0.2.1  # the first\r\n\nnameserver 2001:db8::1\n", "192.0.2.1:53 [2001:db8::1]:53"},
		{"mapped address", "nameserver ::ffff:192.0.2.1\n", "192.0.2.1:53"},
		{"comments and other keywords", "# nameserver 192.0.2.1\n;nameserver 192.0.2.2\nsearch nameserver 192.0.2.3\n", ""},
		{"malformed", "nameserver\nnameserver dns.test\nnameservers 192.0.2.1\nNAMESERVER 192.0.2.2\n", ""},
		{"unreachable for pods", "nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 0.0.0.0\n", ""},
		{"with options", "options ndots:5\nsearch a.test b.test\nnameserver 192.0.2.1\n", "192.0.2.1:53"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := show(parseResolvConf(tc.text)); got != tc.want {
				t.Errorf("%q has %q, want %q", tc.text, got, tc.want)
			}
		})
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\n")
	f.Add("nameserver fe80::1%eth0\r\nnameserver ::ffff:127.0.0.1")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseResolvConf(text) {
			again, err := Parse(r.String())
			if err != nil || again != r {
				t.Fatalf("%q has %v, which Parse parses as %v, %v", text, r, again, err)
			}
		}
	})
}
