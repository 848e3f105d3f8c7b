package manifestyaml

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plain are documents that appendJSON renders, and odd those that it leaves to the YAML package.
var plain, odd = []string{
	"a: 1\nb: [true, no, ~, 2.5, -7, x]\nc: {d: 'e'}\n\"f\": |\n  g\n",
	"port: 0x1f90\nmode: 0644\nlong: 123456789012345678901234567890\nminus: -0\nplus: +5\nlow: 1_000\n",
	"date: 2026-01-02\n2026-01-02: key\n1: number\ntrue: yes\n~: null\n",
	"text: \"<\\u2028\\x01\\\\\\\"ä\"\nempty:\nquoted: '1'\nbinary: !!binary aGVsbG8=\nforced: !!str 1\n",
	"a: &a {b: 1}\n", "[]", "{}", "text", "[[], {}, [{}]]",
}, []string{
	"a: &a {b: 1}\nc: *a\n", "a: &a {b: 1}\nc:\n  <<: *a\n  d: 2\n",
	"a: 1\na: 2\n", "1: a\n'1': b\n", "[a]: b\n", "a: .nan\n", "a: !own {b: 1}\n", ": <<", "a: !!int b\n",
}

func TestPlainDocumentsNeedNoDecoding(t *testing.T) {
	for _, test := range []struct {
		texts []string
		want  bool
	}{{plain, true}, {odd, false}} {
		for _, text := range test.texts {
			for d, err := range Documents([]byte(text)) {
				if err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				if _, got := appendJSON(nil, d.node); got != test.want {
					t.Errorf("%q: rendered directly is %v, want %v", text, got, test.want)
				}
			}
		}
	}
}

// What is rendered directly means what the YAML package decodes.
func FuzzJSON(f *testing.F) {
	for _, text := range append(plain, odd...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for d, err := range Documents([]byte(text)) {
			if err != nil {
				return
			}
			data, ok := appendJSON(nil, d.node)
			if !ok {
				continue
			}
			want, err := decodedJSON(d.node)
			if err != nil {
				t.Fatalf("%q: rendered as %s, want the error %v", text, data, err)
			}
			if diff := cmp.Diff(valueOf(t, want), valueOf(t, data)); diff != "" {
				t.Fatalf("%q (-want +got):\n%s", text, diff)
			}
		}
	})
}

func valueOf(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return value
}
