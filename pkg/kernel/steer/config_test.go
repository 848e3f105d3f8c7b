package steer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.Queues = 0 }, "Queues is 0"},
		{func(c *Config) { c.Queue, c.Queues = 65534, 3 }, "Queues: the last queue would be 65536, above 65535"},
		{func(c *Config) { c.Mark = 0 }, "Mark 0x0 is not exactly one bit"},
		{func(c *Config) { c.Mark = 0x3000 }, "Mark 0x3000 is not exactly one bit"},
		{func(c *Config) { c.Mark = 0x4000 }, "Mark 0x4000 belongs to kube-proxy"},
		{func(c *Config) { c.Mark = 0x8000 }, "Mark 0x8000 belongs to kube-proxy"},
		{func(c *Config) { c.BlockMark = DefaultMark }, "BlockMark 0x1000 is the same bit as Mark"},
		{func(c *Config) { c.BlockMark = 0x4000 }, "BlockMark 0x4000 belongs to kube-proxy"},
		{func(c *Config) { c.BlockMark = 0x0c00 }, "BlockMark 0xc00 is not exactly one bit"},
		{func(c *Config) { c.BlockMark = 0x0800 }, ""},
		{func(c *Config) { c.ObserveQueue = 103 }, "ObserveQueue 103 is one of the other queues"},
		{func(c *Config) { c.ObserveQueue = 104 }, ""},
		{func(c *Config) { c.ObserveQueue = 99 }, ""},
		{func(c *Config) { c.EarlyUDP = 3 }, "EarlyUDP 3 is unknown"},
		{func(c *Config) { c.Divert = 7 }, "Divert 7 is unknown"},
		{func(c *Config) { c.Registerer = nil }, "Registerer is nil"},
		{func(c *Config) { c.Queues, c.Mark = 0, 0 }, "Queues is 0\nMark 0x0 is not exactly one bit"},
		{func(c *Config) { c.Queue, c.Queues = 65535, 1 }, ""},
	} {
		t.Run(cmp.Or(tt.want, "valid"), func(t *testing.T) {
			cfg := testConfig()
			tt.edit(&cfg)
			got := ""
			if err := cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDivertAutoByCapabilities(t *testing.T) {
	no := fmt.Errorf("%w here", errors.ErrUnsupported)
	unknown := errors.New("not permitted")
	for _, tt := range []struct {
		ask     Divert
		caps    Capabilities
		want    Divert
		wantErr string
	}{
		{DivertAuto, Capabilities{}, DivertQueue, ""},
		{DivertAuto, Capabilities{Queue: no}, DivertXTables, ""},
		{DivertAuto, Capabilities{Queue: unknown}, DivertXTables, ""},
		{DivertAuto, Capabilities{Queue: no, XTables: unknown}, 0, "divert=queue: unsupported operation here\ndivert=xtables: not permitted"},
		{DivertQueue, Capabilities{Queue: no}, 0, "divert=queue: unsupported operation here"},
		{DivertXTables, Capabilities{}, DivertXTables, ""},
		{DivertXTables, Capabilities{XTables: no}, 0, "divert=xtables: unsupported operation here"},
	} {
		t.Run(fmt.Sprintf("%v of %+v", tt.ask, tt.caps), func(t *testing.T) {
			got, err := tt.ask.choose(tt.caps)
			if tt.wantErr != "" {
				if err == nil || err.Error() != tt.wantErr {
					t.Errorf("%v of %+v: error %v, want %s", tt.ask, tt.caps, err, tt.wantErr)
				}
				return
			}
			if got != tt.want || err != nil {
				t.Errorf("%v of %+v: %v, %v, want %v", tt.ask, tt.caps, got, err, tt.want)
			}
		})
	}
}

func TestEarlyUDPAutoByKernelVersion(t *testing.T) {
	for _, tt := range []struct {
		release string
		want    EarlyUDP
	}{
		{"6.1.0-28-cloud-amd64", EarlyOn},
		{"5.14.0-503.el9.x86_64", EarlyOn},
		{"6.11.11", EarlyOn},
		{"6.12", EarlyOff},
		{"6.12.0-1-amd64", EarlyOff},
		{"6.18.44", EarlyOff},
		{"7.0.1", EarlyOff},
		{"", EarlyOn},
		{"linux", EarlyOn},
	} {
		t.Run(tt.release, func(t *testing.T) {
			caps := Capabilities{UDPClash: resolvesUDPClash(tt.release)}
			if got := EarlyAuto.choose(caps); got != tt.want {
				t.Errorf("kernel %q: %v, want %v", tt.release, got, tt.want)
			}
			for _, forced := range []EarlyUDP{EarlyOn, EarlyOff} {
				if got := forced.choose(caps); got != forced {
					t.Errorf("kernel %q: %v became %v", tt.release, forced, got)
				}
			}
		})
	}
	if err := resolvesUDPClash("6.1.0"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("kernel 6.1: %v, want unsupported", err)
	}
	if err := resolvesUDPClash("linux"); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("kernel linux: %v, want unknown", err)
	}
}

func TestProbeSCTPConntrack(t *testing.T) {
	dir := t.TempDir()
	if err := probeSCTPConntrack(dir); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without connection tracking: %v, want unknown", err)
	}
	touch(t, dir, "nf_conntrack_max")
	if err := probeSCTPConntrack(dir); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without SCTP: %v, want unsupported", err)
	}
	touch(t, dir, "nf_conntrack_sctp_timeout_established")
	if err := probeSCTPConntrack(dir); err != nil {
		t.Errorf("with SCTP: %v", err)
	}
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMarks(t *testing.T) {
	for _, tt := range []struct {
		text    string
		want    Marks
		wantErr string // a part of it
	}{
		{"0x1800", DefaultMarks, ""},
		{"3", Marks{Decided: 2, Lower: 1}, ""},
		{"0x80000001", Marks{Decided: 1 << 31, Lower: 1}, ""},
		{"0x2200", Marks{Decided: 0x2000, Lower: 0x200}, ""},
		{"0", Marks{}, "exactly two bits"},
		{"7", Marks{}, "exactly two bits"},
		{"0x1000", Marks{}, "has one bit: write the mask of two, such as 0x1800"},
		{"0x2000", Marks{}, "such as 0x2800"},
		{"0x800", Marks{}, "such as 0xc00"},
		{"0x200", Marks{}, "such as 0x300"},
		{"1", Marks{}, "such as 0x1800"},
		{"0x4800", Marks{}, "0x4000 belongs to kube-proxy"},
		{"0x18000", Marks{}, "0x8000 belongs to kube-proxy"},
		{"0x1100000000", Marks{}, "32 bits"},
		{"-3", Marks{}, "32 bits"},
		{"both", Marks{}, "32 bits"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			var got Marks
			err := got.UnmarshalText([]byte(tt.text))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q in it", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}
