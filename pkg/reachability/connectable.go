package reachability

// Connectable reports whether src can try to connect to dst at all: both have an address
// of the family and, where the port is a name, dst declares it. The number is that of the
// port on dst, 0 where the protocol has no ports.
func Connectable(src, dst *Endpoint, port Port, family Family) (number uint16, ok bool) {
	if _, _, ok := addresses(src, dst, family); !ok {
		return 0, false
	}
	return port.on(dst)
}
