// Command agnhost is the agnhost of the tests' pods where the kernel has no SCTP
// sockets. It serves and connects SCTP itself, with an INIT chunk and its answer in
// raw sockets. For everything else it runs the real program.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// realAgnhost is the program of Kubernetes' own tests.
const realAgnhost = "/agnhost-real"

func main() {
	if err := run(os.Args[1:], os.Environ()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args, environ []string) error {
	if len(args) > 0 && args[0] == "porter" {
		ports, err := sctpPorts(environ)
		if err != nil {
			return err
		}
		if len(ports) > 0 {
			return serve(ports)
		}
	}
	if len(args) > 0 && args[0] == "connect" {
		c, err := parseConnect(args[1:])
		if err != nil {
			return err
		}
		if c.protocol == "sctp" {
			return connect(c.address, c.timeout)
		}
	}
	return syscall.Exec(realAgnhost, append([]string{realAgnhost}, args...), environ)
}

// sctpPorts returns the ports of the variables SERVE_SCTP_PORT_NUMBER.
func sctpPorts(environ []string) (map[uint16]bool, error) {
	ports := make(map[uint16]bool)
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		number, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_")
		if !ok {
			continue
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", name, err)
		}
		ports[uint16(port)] = true
	}
	return ports, nil
}

// A connectCommand is what "agnhost connect" is asked for.
type connectCommand struct {
	address, protocol string
	timeout           time.Duration
}

// parseConnect reads the flags that matter here. Both forms, --name=value and --name
// value, occur.
func parseConnect(args []string) (connectCommand, error) {
	var c connectCommand
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if !strings.HasPrefix(name, "-") {
			c.address = name
			continue
		}
		if !joined && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		var err error
		switch strings.TrimLeft(name, "-") {
		case "protocol":
			c.protocol = value
		case "timeout":
			c.timeout, err = time.ParseDuration(value)
		}
		if err != nil {
			return c, fmt.Errorf("UNKNOWN: flag %s: %w", name, err)
		}
	}
	return c, nil
}

// serve answers each INIT chunk to one of the ports.
func serve(ports map[uint16]bool) error {
	ended := make(chan error)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		socket, err := net.ListenPacket(network, "")
		if err != nil {
			return err
		}
		go func() { ended <- answer(socket, ports) }()
	}
	return <-ended
}

func answer(socket net.PacketConn, ports map[uint16]bool) error {
	buffer := make([]byte, 1500)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		c, ok := parseChunk(buffer[:n])
		if !ok || c.kind != initChunk || !ports[c.to] {
			continue
		}
		if _, err := socket.WriteTo(chunk{kind: initAckChunk, from: c.to, to: c.from, verification: c.tag, tag: c.tag}.bytes(), from); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// connect sends an INIT chunk, as often as SCTP would, and waits for the answer.
func connect(address string, timeout time.Duration) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	destination, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	socket, err := net.DialIP("ip:132", nil, destination)
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer socket.Close()
	tag := uint32(os.Getpid())<<16 ^ uint32(time.Now().UnixNano()) | 1
	request := chunk{kind: initChunk, from: 32768 + uint16(tag>>1%28000), to: uint16(number), tag: tag}
	buffer := make([]byte, 1500)
	for end := time.Now().Add(timeout); ; {
		if time.Until(end) <= 0 {
			return fmt.Errorf("TIMEOUT")
		}
		if _, err := socket.Write(request.bytes()); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		if err := socket.SetReadDeadline(time.Now().Add(min(time.Second, time.Until(end)))); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		for {
			n, _, err := socket.ReadFromIP(buffer) // without the IP header
			if err != nil {
				break // the time is over, or an ICMP error
			}
			if c, ok := parseChunk(buffer[:n]); ok && c.kind == initAckChunk && c.verification == tag && c.to == request.from {
				return nil
			}
		}
	}
}
