package compile

import (
	"reflect"
	"testing"
)

// A feature without a row in the table of gates could not be switched on or off.
func TestEachFeatureHasItsGate(t *testing.T) {
	gates := map[*bool]string{}
	var f Features
	for _, g := range Gates {
		field := g.Field(&f)
		if other, taken := gates[field]; taken {
			t.Errorf("the gates %s and %s switch the same field of Features", other, g.Name)
		}
		gates[field] = g.Name
	}
	fields := reflect.ValueOf(&f).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if name == "SCTPUntracked" {
			continue // the kernel decides
		}
		if field, ok := fields.Field(i).Addr().Interface().(*bool); !ok || gates[field] != name {
			t.Errorf("Features.%s has no row of its name in Gates", name)
		}
	}
}
