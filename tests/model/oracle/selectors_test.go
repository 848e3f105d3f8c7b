package oracle

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestSelectors(t *testing.T) { // NP-24
	for _, test := range []struct {
		selector, labels string
		want             bool
	}{
		{`{}`, "", true},
		{`{}`, "a=x", true},
		{`{matchLabels: {a: x}}`, "a=x,b=w", true},
		{`{matchLabels: {a: x}}`, "a=w", false},
		{`{matchLabels: {a: x, b: w}}`, "a=x", false},
		{`{matchLabels: {a: ""}}`, "a=", true},
		{`{matchLabels: {a: ""}}`, "b=x", false},
		{`{matchExpressions: [{key: a, operator: In, values: [x, w]}]}`, "a=w", true},
		{`{matchExpressions: [{key: a, operator: In, values: [x, w]}]}`, "a=z", false},
		{`{matchExpressions: [{key: a, operator: In, values: [""]}]}`, "", false},
		{`{matchExpressions: [{key: a, operator: NotIn, values: [x]}]}`, "a=x", false},
		{`{matchExpressions: [{key: a, operator: NotIn, values: [x]}]}`, "a=w", true},
		{`{matchExpressions: [{key: a, operator: NotIn, values: [x]}]}`, "", true},
		{`{matchExpressions: [{key: a, operator: Exists}]}`, "a=", true},
		{`{matchExpressions: [{key: a, operator: Exists}]}`, "b=", false},
		{`{matchExpressions: [{key: a, operator: DoesNotExist}]}`, "b=", true},
		{`{matchExpressions: [{key: a, operator: DoesNotExist}]}`, "a=", false},
		{`{matchLabels: {b: w}, matchExpressions: [{key: a, operator: Exists}]}`, "a=x,b=w", true},
		{`{matchLabels: {b: w}, matchExpressions: [{key: a, operator: Exists}]}`, "a=x", false},
		// An unreadable selector selects nothing, even if its text would match.
		{`{matchLabels: {a: "x!"}}`, "a=x!", false},
		{`{matchLabels: {"a b": x}}`, "a b=x", false},
		{`{matchExpressions: [{key: a, operator: In, values: []}]}`, "a=x", false},
		{`{matchExpressions: [{key: a, operator: In, values: [x, "x!"]}]}`, "a=x", false},
		{`{matchExpressions: [{key: a, operator: NotIn, values: ["x!"]}]}`, "a=x", false},
		{`{matchExpressions: [{key: a, operator: Exists, values: [x]}]}`, "a=x", false},
		{`{matchExpressions: [{key: a, operator: DoesNotExist, values: [x]}]}`, "", false},
		{`{matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}`, "a=2", false},
		{`{matchExpressions: [{key: a, operator: ""}]}`, "a=2", false},
	} {
		t.Run(test.selector+" on "+test.labels, func(t *testing.T) {
			var s metav1.LabelSelector
			if err := yaml.UnmarshalStrict([]byte(test.selector), &s); err != nil {
				t.Fatal(err)
			}
			if got := selects(s, labels(test.labels)); got != test.want {
				t.Errorf("%s on {%s}: got %v, want %v", test.selector, test.labels, got, test.want)
			}
		})
	}
}
