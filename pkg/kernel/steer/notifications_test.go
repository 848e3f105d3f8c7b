package steer

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// notifiedPort is the netlink port of commits in these tests.
const notifiedPort = 4711

// message returns an nftables notification.
func message(t testing.TB, what uint16, family byte, attributes ...argument) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	for _, a := range attributes {
		ae.Bytes(a.kind, a.value)
	}
	encoded, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte{family, 0, 0, 0}, encoded...)
	header := make([]byte, unix.NLMSG_HDRLEN)
	binary.NativeEndian.PutUint32(header, uint32(len(header)+len(body)))
	binary.NativeEndian.PutUint16(header[4:], unix.NFNL_SUBSYS_NFTABLES<<8|what)
	binary.NativeEndian.PutUint32(header[12:], notifiedPort)
	return append(header, body...)
}

func newGeneration(t testing.TB, generation uint32) []byte {
	return message(t, unix.NFT_MSG_NEWGEN, 0, uint32Argument(unix.NFTA_GEN_ID, generation),
		uint32Argument(unix.NFTA_GEN_PROC_PID, 42), stringArgument(unix.NFTA_GEN_PROC_NAME, "nft"))
}

func TestNotificationsNameProcess(t *testing.T) {
	element := func(family byte, table string) []byte {
		return message(t, unix.NFT_MSG_NEWSETELEM, family, stringArgument(1, table), stringArgument(2, "ingress-v4"))
	}
	ours := element(unix.NFPROTO_INET, TableName)
	by := func(generation uint32, touched bool) commit {
		return commit{generation: generation, process: "nft", pid: 42, touched: touched, port: notifiedPort}
	}
	for _, tt := range []struct {
		name      string
		datagrams [][]byte
		want      []commit
	}{
		{"our table", [][]byte{ours, newGeneration(t, 7)}, []commit{by(7, true)}},
		{"one datagram", [][]byte{slices.Concat(ours, newGeneration(t, 7), newGeneration(t, 8))}, []commit{by(7, true), by(8, false)}},
		{"another table", [][]byte{element(unix.NFPROTO_INET, "kube-proxy"), newGeneration(t, 7)}, []commit{by(7, false)}},
		{"our name in another family", [][]byte{element(unix.NFPROTO_IPV4, TableName), newGeneration(t, 7)}, []commit{by(7, false)}},
		{"a longer name", [][]byte{element(unix.NFPROTO_INET, TableName+"-probe"), newGeneration(t, 7)}, []commit{by(7, false)}},
		{"no table at all", [][]byte{message(t, unix.NFT_MSG_NEWRULE, unix.NFPROTO_INET), newGeneration(t, 7)}, []commit{by(7, true)}},
		{"cut off", [][]byte{ours[:len(ours)-8], newGeneration(t, 7)}, []commit{by(7, true)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s scanner
			var got []commit
			for _, d := range tt.datagrams {
				s.scan(d, func(c commit) { got = append(got, c) })
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNotificationsOfOtherTablesDoNotAllocate(t *testing.T) {
	var datagram []byte
	for range 1000 {
		datagram = append(datagram, message(t, unix.NFT_MSG_NEWSETELEM, unix.NFPROTO_IPV4, stringArgument(1, "kube-proxy"))...)
	}
	var s scanner
	if n := testing.AllocsPerRun(10, func() { s.scan(datagram, func(commit) {}) }); n > 0 || s.touched {
		t.Errorf("%v allocations, touched %v", n, s.touched)
	}
}

func FuzzNotifications(f *testing.F) {
	f.Add(slices.Concat(message(f, unix.NFT_MSG_NEWRULE, unix.NFPROTO_INET, stringArgument(1, TableName)), newGeneration(f, 1)))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		var s scanner
		s.scan(datagram, func(commit) {}) // must not panic
	})
}
