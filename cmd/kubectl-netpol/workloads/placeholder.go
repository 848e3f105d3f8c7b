package workloads

import (
	"encoding/binary"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// The addresses of pods whose address is not known: those of "this network" (RFC 1122) and of the
// discard-only block (RFC 6666), which no pod can have.
var placeholders = [...]netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100::/64")}

// Placeholders returns address n, from 1, of each family of pods whose address is not known.
func Placeholders(n int, v4, v6 bool) []corev1.PodIP {
	var ips []corev1.PodIP
	for i, wanted := range []bool{v4, v6} {
		if bytes := placeholders[i].Addr().AsSlice(); wanted {
			last := bytes[len(bytes)-4:]
			binary.BigEndian.PutUint32(last, uint32(n))
			addr, _ := netip.AddrFromSlice(bytes)
			ips = append(ips, corev1.PodIP{IP: addr.String()})
		}
	}
	return ips
}

// IsPlaceholder reports whether an address is one of Placeholders.
func IsPlaceholder(a netip.Addr) bool {
	return placeholders[0].Contains(a) || placeholders[1].Contains(a)
}
