package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// Attributes of linux/netfilter/nf_tables.h that x/sys/unix does not have.
const (
	nftaTableHandle   = 4
	nftaSetHandle     = 16
	nftaObjHandle     = 6
	nftaSetElemKeyEnd = 10
)

// nfgenLen is the length of struct nfgenmsg, which begins each message.
const nfgenLen = 4

// netlinkKernel reads nftables of this process's network namespace over netlink. It keeps one socket, if
// kept is not nil: a change must not wait for a file descriptor while clients of the agent have all of
// them.
type netlinkKernel struct{ kept *keptConn }

// keptConn is a socket without unread answers.
type keptConn struct {
	mu   sync.Mutex
	conn *netlink.Conn // nil while it is used, and after an error
}

// take removes and returns the socket, nil if there is none.
func (k *keptConn) take() *netlink.Conn {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	conn := k.conn
	k.conn = nil
	return conn
}

// release keeps conn, whose requests are answered if err is nil, or closes it.
func (k netlinkKernel) release(conn *netlink.Conn, err error) {
	if k.kept == nil || err != nil || conn.SetDeadline(time.Time{}) != nil {
		conn.Close()
		return
	}
	k.kept.mu.Lock()
	defer k.kept.mu.Unlock()
	if k.kept.conn != nil {
		conn.Close()
		return
	}
	k.kept.conn = conn
}

// conn returns a socket with the deadline of ctx.
func (k netlinkKernel) conn(ctx context.Context) (conn *netlink.Conn, err error) {
	conn = k.kept.take()
	if conn == nil {
		conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// argument is an attribute of a request.
type argument struct {
	kind  uint16
	value []byte
}

func stringArgument(kind uint16, s string) argument { return argument{kind, append([]byte(s), 0)} }

func uint32Argument(kind uint16, n uint32) argument {
	return argument{kind, binary.BigEndian.AppendUint32(nil, n)}
}

// tableArgument limits a request to our table. NFTA_*_TABLE is 1 in all requests.
var tableArgument = stringArgument(1, TableName)

// request returns an nftables message with these attributes.
func request(family byte, what netlink.HeaderType, flags netlink.HeaderFlags, arguments ...argument) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | what, Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, encode(arguments...)...),
	}
}

func encode(arguments ...argument) []byte {
	var b nlattr.Buffer
	for _, a := range arguments {
		b.Bytes(a.kind, a.value)
	}
	return b
}

// get sends one request and returns the attributes of each answer. what is one of NFT_MSG_GET*.
func get(conn *netlink.Conn, what netlink.HeaderType, flags netlink.HeaderFlags, arguments ...argument) ([][]byte, error) {
	messages, err := conn.Execute(request(unix.NFPROTO_INET, what, flags, arguments...))
	if err != nil {
		return nil, err
	}
	answers := make([][]byte, 0, len(messages))
	for _, m := range messages {
		if len(m.Data) < nfgenLen {
			return nil, errors.New("nftables message too short")
		}
		answers = append(answers, m.Data[nfgenLen:])
	}
	return answers, nil
}

// align rounds n up to NLMSG_ALIGNTO.
func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func (k netlinkKernel) generation(ctx context.Context) (uint32, error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return 0, err
	}
	now, err := generation(conn)
	k.release(conn, err)
	return now, err
}

func generation(conn *netlink.Conn) (uint32, error) {
	answers, err := get(conn, unix.NFT_MSG_GETGEN, 0)
	if err == nil && len(answers) == 0 {
		err = errors.New("no answer")
	}
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	return uint32(nlattr.Number(nlattr.Get(answers[0], unix.NFTA_GEN_ID))), nil
}

// flowtables reports whether a table of any family has a flowtable.
func (k netlinkKernel) flowtables(ctx context.Context) (bool, error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return false, err
	}
	found, err := conn.Execute(request(unix.NFPROTO_UNSPEC, unix.NFT_MSG_GETFLOWTABLE, netlink.Dump))
	k.release(conn, err)
	return len(found) > 0, err
}

func (k netlinkKernel) counters(ctx context.Context) (map[string]uint64, error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return nil, err
	}
	answers, err := get(conn, unix.NFT_MSG_GETOBJ, netlink.Dump, tableArgument, uint32Argument(unix.NFTA_OBJ_TYPE, objectCounter))
	k.release(conn, err)
	if err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	packets := make(map[string]uint64, len(answers))
	for _, a := range answers {
		packets[nlattr.Text(nlattr.Get(a, unix.NFTA_OBJ_NAME))] = nlattr.Number(nlattr.Get(a, unix.NFTA_OBJ_DATA, unix.NFTA_COUNTER_PACKETS))
	}
	return packets, nil
}
