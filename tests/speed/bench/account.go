package main

import (
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// account is what a run uses: CPU time and queued packets.
type account struct {
	setup        *setup
	decider, own time.Duration // CPU time of the deciding process, and of this one, which sends and receives
	asked        int           // packets that the kernel wanted to queue
}

// open opens an account for a run that begins now. It empties the table of connections.
func (s *setup) open() (account, error) {
	if err := s.forgetConnections(); err != nil {
		return account{}, err
	}
	return s.usage()
}

// close returns the cost of each of the done operations. If a process decides about all
// packets but they were not queued, something else decided, which is an error. A few may be
// missing: to the kernel, a port that is soon reused is an old connection.
func (a account) close(wanted, done int, each string) ([]results.Value, error) {
	now, err := a.setup.usage()
	if err != nil || done == 0 {
		return nil, err
	}
	cost := func(used time.Duration, unit string) results.Value {
		return results.Value{Number: float64(int(used) / done), Unit: unit + "/" + each}
	}
	decider := now.decider - a.decider
	values := []results.Value{cost(decider+now.own-a.own, "cpu-ns"), cost(decider, "decider-cpu-ns")}
	if a.setup.pid == 0 {
		return values, nil
	}
	asked := now.asked - a.asked
	if !a.setup.remembers && 10*asked < 9*wanted {
		return nil, fmt.Errorf("of %d packets only %d came to the queue", wanted, asked)
	}
	return append(values, results.Value{Number: float64(100 * asked / done), Unit: "asked-percent"}), nil
}

// usage returns what was used so far.
func (s *setup) usage() (account, error) {
	a := account{setup: s}
	stats, err := s.stats()
	if err != nil {
		return a, err
	}
	for _, queue := range stats {
		a.asked += int(queue.PacketID + queue.QueueDropped)
	}
	if a.own, err = cpuTime(os.Getpid()); err != nil || s.pid == 0 {
		return a, err
	}
	a.decider, err = cpuTime(s.pid)
	return a, err
}

// cpuTime returns the CPU time of a process so far. It includes the time that the kernel
// spends on packets in the process's system calls, and in interrupts while it runs. The
// clock is that of clock_getcpuclockid(3).
func cpuTime(pid int) (time.Duration, error) {
	const processClock = 2 // CPUCLOCK_SCHED of linux/posix-timers.h, of all threads
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// deleteConnections is IPCTNL_MSG_CT_DELETE of linux/netfilter/nfnetlink_conntrack.h.
const deleteConnections = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

// forgetConnections empties the node's conntrack table, so that each run can use all of it.
// The kernel tests of pkg/kernel/steer repeat these lines, because they must not depend on
// the benchmarks. The agent itself never empties the table.
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
