package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Variants of the agent are measured only if it has their flags.
func TestSupportedVariants(t *testing.T) {
	for _, tc := range []struct{ help, want string }{
		{"--mark BIT\n", "agent[]"},
		{"--remember-verdicts duration  how long\n", "agent[--remember-verdicts=30s] asking[--remember-verdicts=0]"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			names, args := supported(tc.help)
			var got []string
			for _, name := range names {
				got = append(got, name+fmt.Sprint(args[name]))
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%q supports %v, want %s", tc.help, got, tc.want)
			}
		})
	}
}

// Ways that are only for comparison get only brief measurements. Ways that accept
// everything are not measured with denied packets.
func TestMeasurementsOfWays(t *testing.T) {
	count := func(w way) (n int, denied bool) {
		for _, m := range measurements {
			if m.appliesTo(w) {
				n++
				denied = denied || m.name == "Flood/denied"
			}
		}
		return n, denied
	}
	for _, tc := range []struct {
		way    way
		all    bool
		denied bool
	}{
		{way{denies: true}, true, true},
		{way{}, false, false},
		{way{brief: true, denies: true}, false, false},
	} {
		t.Run(fmt.Sprintf("denies %v, brief %v", tc.way.denies, tc.way.brief), func(t *testing.T) {
			if n, denied := count(tc.way); (n == len(measurements)) != tc.all || denied != tc.denied || n == 0 {
				t.Errorf("%d of %d measurements, denied: %v", n, len(measurements), denied)
			}
		})
	}
}

// A way that the kernel does not support is left out. Any other error ends the bench.
func TestUnsupportedWays(t *testing.T) {
	labtest.Need(t)
	failing := errors.New("failing")
	for _, tc := range []struct {
		err, want   error
		unsupported bool
	}{{nil, nil, false}, {errors.ErrUnsupported, nil, true}, {failing, failing, false}} {
		t.Run(fmt.Sprint(tc.err), func(t *testing.T) {
			setups, err := setUp(t.Context(), []way{{name: "way", start: func(context.Context, *setup) error { return tc.err }}})
			if !errors.Is(err, tc.want) || len(setups) != 1 || setups[0].unsupported != tc.unsupported {
				t.Errorf("%v, %d setups", err, len(setups))
			}
			for _, s := range setups {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
