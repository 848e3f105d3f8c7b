package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A target is one address to connect to.
type target struct {
	// name is what the target was called by, with the address if it has another name.
	name     string
	protocol string         // tcp, udp, sctp or icmp
	address  netip.AddrPort // without a port for icmp
	denied   bool
}

// resolver looks up the addresses of a name.
type resolver func(ctx context.Context, name string) ([]netip.Addr, error)

func lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// parseTargets reads URLs such as tcp://10.0.0.1:80 and icmp://10.0.0.1. A host name stands for
// each of its addresses.
func parseTargets(ctx context.Context, urls []string, denied bool, look resolver) ([]target, error) {
	var targets []target
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("target: %w", err)
		}
		port, err := portOf(u)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", text, err)
		}
		addresses, err := addressesOf(ctx, u.Hostname(), look)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", text, err)
		}
		for _, address := range addresses {
			at := netip.AddrPortFrom(address.Unmap(), uint16(port))
			name := text
			if u.Hostname() != at.Addr().String() {
				name = text + " " + at.Addr().String()
			}
			targets = append(targets, target{name: name, protocol: u.Scheme, address: at, denied: denied})
		}
	}
	return targets, nil
}

// portOf returns the port of a URL, 0 for icmp.
func portOf(u *url.URL) (uint16, error) {
	switch u.Scheme {
	case "tcp", "udp", "sctp":
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || port == 0 || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
			return 0, fmt.Errorf("want %s://HOST:PORT", u.Scheme)
		}
		return uint16(port), nil
	case "icmp":
		if u.Port() != "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
			return 0, errors.New("want icmp://HOST")
		}
		return 0, nil
	}
	return 0, errors.New("want tcp://HOST:PORT, udp://HOST:PORT, sctp://HOST:PORT or icmp://HOST")
}

func addressesOf(ctx context.Context, host string, look resolver) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{address}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return look(ctx, host)
}
