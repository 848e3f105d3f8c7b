package inforce

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

func TestCheck(t *testing.T) {
	answer := func(edit func(*Kind)) *Answer {
		k := Kind{Kind: "NetworkPolicy", Version: "100", Seen: "120"}
		if edit != nil {
			edit(&k)
		}
		return &Answer{Node: "n", Kinds: []Kind{{Kind: "Pod", Version: "900", Seen: "900"}, k}}
	}
	for name, tt := range map[string]struct {
		answer  *Answer
		version string
		want    string
	}{
		"the same":             {answer(nil), "100", ""},
		"an older one":         {answer(nil), "99", ""},
		"received":             {answer(nil), "101", "NetworkPolicy: version 101 is received, and version 100 is in force"},
		"not received":         {answer(nil), "121", "NetworkPolicy: version 121 is not received, only version 120"},
		"longer than 64 bits":  {answer(nil), "99999999999999999999999", "is not received"},
		"not a number":         {answer(nil), "9x", "is not received"},
		"zero":                 {answer(nil), "0", "is not received"},
		"not watched":          {answer(func(k *Kind) { k.Behind = "not watched" }), "1", "not watched"},
		"nothing in force yet": {answer(func(k *Kind) { k.Version = "" }), "1", "NetworkPolicy: none is in force"},
		"after a restore":      {answer(func(k *Kind) { k.Version, k.Seen = "7", "7" }), "100", "version 100 is not received, only version 7"},
		"another kind":         {&Answer{Node: "n"}, "1", "the agent does not enforce NetworkPolicy"},
		"a problem":            {&Answer{Node: "n", Problem: "x", Kinds: answer(nil).Kinds}, "1", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tt.answer.Check("NetworkPolicy", tt.version); err != nil {
				got = err.Error()
			}
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	many, err := json.Marshal(Answer{Node: "n", Kinds: make([]Kind, bounds.InForceKinds+1)})
	if err != nil {
		t.Fatal(err)
	}
	uncertain, err := json.Marshal(Answer{Node: "n", Uncertain: make([]Uncertain, bounds.InForceUncertain+1)})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(uncertain): "33 policies with uncertain pods, more than 32",

		"":           "not readable",
		"{}":         "no node",
		"[]":         "not readable",
		`{"node":1}`: "not readable",
		string(many): "33 kinds, more than 32",
		`{"node":"` + strings.Repeat("x", bounds.InForceBytes): "longer than 65536 bytes",
	} {
		if _, err := Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	a, err := Decode(strings.NewReader(`{"node":"n","problem":"a\u001b[0m` + strings.Repeat("x", 1000) + `"}`))
	if err != nil || len(a.Problem) > bounds.InForceText || strings.Contains(a.Problem, "\x1b") {
		t.Errorf("%q, %v", a.Problem, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"node":"n","problem":"p","kinds":[{"kind":"Pod","version":"1","seconds":2.5,"seen":"3","behind":"b"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		// Whatever an agent says, only a version that is at least as high counts.
		for i := range a.Kinds {
			if a.Check(a.Kinds[i].Kind, "100") == nil && !Reaches(a.Kinds[i].Version, "100") {
				for j := range i {
					if a.Kinds[j].Kind == a.Kinds[i].Kind {
						return // the first of a kind counts
					}
				}
				t.Fatalf("%+v reaches version 100", a.Kinds[i])
			}
		}
	})
}
