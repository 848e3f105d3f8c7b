package main

import (
	"errors"
	"fmt"
	"net"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/sctp"
)

// An sctpServer answers the INITs of one address family for a port. It keeps nothing of a client,
// and ignores all else.
type sctpServer struct {
	conn        *net.IPConn
	ipv4        bool
	port        uint16
	destination destination
}

// listenSCTP opens a raw socket for the address, or one of each family for every address.
func listenSCTP(at *net.TCPAddr) ([]*sctpServer, error) {
	addresses := []net.IPAddr{{IP: at.IP, Zone: at.Zone}}
	if at.IP.IsUnspecified() && at.IP.To4() == nil {
		addresses = []net.IPAddr{{IP: net.IPv4zero}, {IP: net.IPv6unspecified}}
	}
	var servers []*sctpServer
	for _, address := range addresses {
		s, err := listenRaw(&address, uint16(at.Port))
		if err != nil {
			for _, s := range servers {
				err = errors.Join(err, s.conn.Close())
			}
			return nil, fmt.Errorf("listen sctp %s: %w", at, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

func listenRaw(address *net.IPAddr, port uint16) (*sctpServer, error) {
	ipv4 := address.IP.To4() != nil
	conn, err := net.ListenIP(rawNetwork(ipv4), address)
	if err != nil {
		return nil, rawError(err)
	}
	d, err := receiveDestinations(conn, address.IP)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &sctpServer{conn, ipv4, port, d}, nil
}

func (s *sctpServer) serve() error {
	buffer := make([]byte, 1500)
	for {
		n, size, _, from, err := s.conn.ReadMsgIP(buffer, s.destination.message)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		p, ok := sctp.Parse(afterHeader(buffer[:n], s.ipv4))
		if !ok || p.Type != sctp.Init || p.DstPort != s.port {
			continue
		}
		// An answer that cannot be sent is one that the client does not get.
		_, _, _ = s.conn.WriteMsgIP(p.Answer(sctp.NewTag()).Bytes(), s.destination.asSource(size), from)
	}
}
