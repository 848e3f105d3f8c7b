package steer

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutDescriptors runs f while the process can open no file.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// Clients of the agent may have all file descriptors: a change does not need another one.
func TestKernelChangesNeedNoFileDescriptor(t *testing.T) {
	newNode(t)
	s := newReal(t, func(c *Config) {
		remembering(c)
	})
	mustSync(t, s, Sets{})
	list := func() {
		t.Helper()
		if err := verdictsOf(s).All(testContext(t), func(RememberedVerdict) {}); err != nil {
			t.Error(err)
		}
	}
	list()
	withoutDescriptors(t, func() {
		for i := range 5 {
			if i == 3 {
				s.observed = nil // it is read again
			}
			mustSync(t, s, Sets{Egress: []netip.Addr{v4, v6}[:1+i%2]})
			mustOverride(t, s, Overrides{Closed: []End{{Addr: v4}}, Again: []End{{Addr: v6}}})
			list()
		}
	})
	if table := listTable(t); strings.Count(table, v4.String()) < 3 {
		t.Errorf("the change is missing:\n%s", table)
	}
}
