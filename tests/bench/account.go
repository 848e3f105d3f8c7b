package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/bench/results"
)

// account holds what a run uses: CPU time and queued packets.
type account struct {
	setup            *setup
	process, machine time.Duration // CPU time of the deciding process, and of the whole machine
	asked            int           // packets that the kernel wanted to queue
}

// open opens an account for a run that begins now, with an empty table of
// connections.
func (s *setup) open() (account, error) {
	if err := s.forgetConnections(); err != nil {
		return account{}, err
	}
	return s.usage()
}

// close returns the cost of each of done. It is an error if the packets were not
// queued: then not the measured process has decided. A few may be missing: a port
// that is soon reused is an old connection to the kernel.
func (a account) close(wanted, done int, each string) ([]results.Value, error) {
	now, err := a.setup.usage()
	if err != nil || done == 0 {
		return nil, err
	}
	cost := func(used time.Duration, of string) results.Value {
		return results.Value{Number: float64(int(used) / done), Unit: of + "-cpu-ns/" + each}
	}
	values := []results.Value{cost(now.machine-a.machine, "machine")}
	if a.setup.pid == 0 {
		return values, nil
	}
	if asked := now.asked - a.asked; asked < wanted*9/10 {
		return nil, fmt.Errorf("of %d packets only %d came to the queue", wanted, asked)
	}
	return append(values, cost(now.process-a.process, "process")), nil
}

// usage returns what was used until now.
func (s *setup) usage() (account, error) {
	a := account{setup: s}
	stats, err := s.stats()
	if err != nil {
		return a, err
	}
	for _, queue := range stats {
		a.asked += int(queue.PacketID + queue.QueueDropped)
	}
	// user, system, irq and softirq of all cores
	if a.machine, err = cpuTime("/proc/stat", "cpu ", 0, 2, 5, 6); err != nil || s.pid == 0 {
		return a, err
	}
	// user and system, behind the name of the program
	a.process, err = cpuTime(fmt.Sprintf("/proc/%d/stat", s.pid), ") ", 11, 12)
	return a, err
}

// tick is the unit of CPU times in /proc, USER_HZ.
const tick = 10 * time.Millisecond

// cpuTime adds up columns of a file in /proc, counted from the first occurrence of
// behind.
func cpuTime(path, behind string, columns ...int) (sum time.Duration, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(content), behind)
	fields := strings.Fields(rest)
	for _, column := range columns {
		if column >= len(fields) {
			return 0, fmt.Errorf("%s has %d columns behind %q, want more than %d", path, len(fields), behind, column)
		}
		n, err := strconv.Atoi(fields[column])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// deleteConnections is IPCTNL_MSG_CT_DELETE of linux/netfilter/nfnetlink_conntrack.h.
const deleteConnections = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

// forgetConnections empties the node's conntrack table, so that each run can use all
// of it. The kernel tests of pkg/steer repeat these lines: they must not depend on
// the benchmarks, and the agent itself never empties the table.
func (s *setup) forgetConnections() error {
	namespace, err := os.Open(s.node.NetNS())
	if err != nil {
		return err
	}
	defer namespace.Close()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(namespace.Fd())})
	if err != nil {
		return fmt.Errorf("open the conntrack table: %w", err)
	}
	defer conn.Close()
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: deleteConnections, Flags: netlink.Request | netlink.Acknowledge},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("empty the conntrack table: %w", err)
	}
	return nil
}
