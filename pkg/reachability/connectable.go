package reachability

// Connectable reports whether src can try to connect to dst at all: both have an address
// of the family and, where the port is a name, dst declares it.
func Connectable(src, dst *Endpoint, port Port, family Family) bool {
	_, _, ok := addresses(src, dst, family)
	if !ok {
		return false
	}
	_, ok = port.on(dst)
	return ok
}
