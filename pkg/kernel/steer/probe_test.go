package steer

import (
	"errors"
	"os/exec"
	"testing"
)

// Probe leaves nothing unknown, and commits nothing.
func TestKernelProbe(t *testing.T) {
	newNode(t)
	before, err := netlinkKernel{}.generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	caps, err := Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for feature, err := range caps.features() {
		t.Logf("feature %s: %v", feature, err) // make kernels reads it
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", feature, err)
		}
	}
	if after, err := (netlinkKernel{}).generation(t.Context()); after != before || err != nil {
		t.Errorf("the generation was %d and is %d, %v", before, after, err)
	}
}

// The kernel answers Probe as it answers nft.
func TestKernelProbeAgreesWithNft(t *testing.T) {
	newNode(t)
	caps, err := Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		got  error
		rule string
	}{
		{caps.Queue, "queue to 0"},
		{caps.SourceCheck, "fib saddr . iif oif missing"},
		{caps.Share, "update @probe { ip saddr limit rate 1/second burst 1 packets }"},
		{caps.Reject, "reject with icmpx type admin-prohibited"},
	} {
		cmd := exec.Command("nft", "--check", "table inet probe { set probe { type ipv4_addr; size 65536; flags dynamic,timeout; timeout 1m; }; chain probe { "+tt.rule+"; }; }")
		if out, err := cmd.CombinedOutput(); (err == nil) != (tt.got == nil) {
			t.Errorf("%s: nft says %v: %s; Probe says %v", tt.rule, err, out, tt.got)
		}
	}
}
