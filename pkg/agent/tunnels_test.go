package agent

import (
	"slices"
	"strings"
	"testing"
)

func TestParsePodTunnel(t *testing.T) {
	var got PodTunnels
	for _, s := range []string{"udp/8472", "gre", "udp/65535", "ipip"} {
		if err := got.ParsePodTunnel(s); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got.Ports, []uint16{8472, 65535}) || !slices.Equal(got.Protocols, []uint8{47, 4}) {
		t.Errorf("got %+v", got)
	}
	for s, want := range map[string]string{
		"udp/0": "1-65535", "udp/65536": "1-65535", "udp/x": "1-65535",
		"tcp/80": "gre, ipip", "": "gre, ipip", "47": "gre, ipip",
	} {
		t.Run(s, func(t *testing.T) {
			if err := new(PodTunnels).ParsePodTunnel(s); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
		})
	}
}
