package queue

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// statsPath is the file of the calling thread's network namespace; /proc/net would be that of the
// process's main thread.
const statsPath = "/proc/thread-self/net/netfilter/nfnetlink_queue"

// readStats reads the file at path. If it does not exist, there are no queues.
func readStats(path string) ([]Stat, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read queue statistics: %w", err)
	}
	defer f.Close()
	stats, err := parseStats(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return stats, nil
}

// parseStats parses one queue per line: number, peer port, waiting packets, copy mode, copy range,
// queue dropped, user dropped, id sequence, and a 1. If a queue is bound while the file is read, the
// kernel may list another queue twice.
func parseStats(r io.Reader) ([]Stat, error) {
	var stats []Stat
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		s, err := parseStat(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		if i := slices.IndexFunc(stats, func(earlier Stat) bool { return earlier.Number == s.Number }); i >= 0 {
			stats[i] = s
			continue
		}
		stats = append(stats, s)
	}
	return stats, lines.Err()
}

func parseStat(line string) (Stat, error) {
	const columns = 8 // the 1 and any later columns are ignored
	var v [columns]uint32
	fields := strings.Fields(line)
	if len(fields) < columns {
		return Stat{}, fmt.Errorf("%d columns, want %d", len(fields), columns)
	}
	for i := range v {
		bits := 32
		switch i {
		case 0:
			bits = 16
		case 3:
			bits = 8
		}
		n, err := strconv.ParseUint(fields[i], 10, bits)
		if err != nil {
			return Stat{}, err
		}
		v[i] = uint32(n)
	}
	return Stat{
		Number:       uint16(v[0]),
		PortID:       v[1],
		Waiting:      v[2],
		CopyMode:     uint8(v[3]),
		CopyRange:    v[4],
		QueueDropped: v[5],
		UserDropped:  v[6],
		PacketID:     v[7],
	}, nil
}
