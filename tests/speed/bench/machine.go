package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// leastConnections is enough for a burst and for the connections that remain from the
// previous run.
const leastConnections = 2 * burst

// connectionLimit returns the maximum number of connections of each namespace. The setting
// does not exist before a namespace tracks connections.
func connectionLimit() (int, error) {
	const path = "/proc/sys/net/netfilter/nf_conntrack_max"
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if limit < leastConnections {
		return 0, fmt.Errorf("nf_conntrack_max is %d, and this needs %d", limit, leastConnections)
	}
	return limit, nil
}

// within limits floods to half of the conntrack table. When the table is full, the kernel
// drops new connections in every setup.
func (a amounts) within(limit int) amounts {
	a.flows = min(a.flows, limit/2)
	a.bystander = min(a.bystander, time.Duration(limit/2/floodRate)*time.Second)
	return a
}

// machineLoad returns the load of the machine in the last minutes.
func machineLoad() (results.Fact, error) {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return results.Fact{}, err
	}
	averages := strings.Fields(string(content))[:3] // of 1, 5 and 15 minutes
	return results.Fact{Key: "load-before", Value: strings.Join(averages, " ")}, nil
}

// describe prints the machine and its load before the first measurement.
func describe(out io.Writer, load results.Fact, limit int) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return os.NewSyscallError("uname", err)
	}
	for _, fact := range []results.Fact{
		{Key: "cores", Value: fmt.Sprint(runtime.NumCPU())},
		{Key: "kernel", Value: unix.ByteSliceToString(name.Release[:])},
		{Key: "go", Value: runtime.Version()},
		{Key: "conntrack-max", Value: fmt.Sprint(limit)},
		load,
	} {
		fmt.Fprintln(out, fact)
	}
	return nil
}
