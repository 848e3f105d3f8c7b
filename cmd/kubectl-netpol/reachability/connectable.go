package reachability

// Connectable reports whether src can try to connect to dst: both need an address of the
// family, and dst must declare the port if it is a name. number is the port on dst, 0 for
// protocols without ports.
func Connectable(src, dst *Endpoint, port Port, family Family) (number uint16, ok bool) {
	if _, _, ok := addresses(src, dst, family); !ok {
		return 0, false
	}
	return port.numberOn(dst)
}
