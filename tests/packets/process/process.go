// Package process reads the resource usage of a process.
package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc, USER_HZ.
const tick = 10 * time.Millisecond

// CPUTime returns the CPU time of a process and of the children that it has waited for,
// such as nft.
func CPUTime(pid int) (sum time.Duration, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The columns after the name include user, system, and both for children.
	_, rest, _ := strings.Cut(string(content), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/%d/stat: %q has too few columns", pid, content)
	}
	for _, field := range fields[11:15] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// Resident returns the current and the peak resident memory of a process in bytes.
func Resident(pid int) (now, peak int, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(line, ":")
		field := map[string]*int{"VmRSS": &now, "VmHWM": &peak}[key]
		if field == nil {
			continue
		}
		kilobytes, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/%d/status: %s: %w", pid, key, err)
		}
		*field = kilobytes << 10
	}
	if now == 0 || peak == 0 {
		return 0, 0, fmt.Errorf("/proc/%d/status has no VmRSS or no VmHWM", pid)
	}
	return now, peak, nil
}
