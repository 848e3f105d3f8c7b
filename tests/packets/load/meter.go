package load

import (
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names in the table of a Meter.
const (
	meterTable   = "bench-meter"
	meterCounter = "packets"
)

// What a Meter does with the packets that it counts.
const (
	Pass = expr.VerdictAccept // they continue
	Drop = expr.VerdictDrop   // they cost the receiver nothing more
)

// Meter counts the UDP packets to a port that a network namespace receives, with a rule in
// prerouting before connection tracking.
type Meter struct {
	namespace *os.File
	conn      *nftables.Conn
	counter   *nftables.CounterObj
}

// OpenMeter starts counting inside a namespace.
func OpenMeter(netns string, port uint16, verdict expr.VerdictKind) (m *Meter, err error) {
	m = &Meter{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("count packets to port %d: %w", port, err), m.Close())
		}
	}()
	if m.namespace, err = os.Open(netns); err != nil {
		return nil, err
	}
	if m.conn, err = nftables.New(nftables.WithNetNSFd(int(m.namespace.Fd())), nftables.AsLasting()); err != nil {
		return nil, err
	}
	table := m.conn.AddTable(&nftables.Table{Name: meterTable, Family: nftables.TableFamilyINet})
	m.counter = &nftables.CounterObj{Table: table, Name: meterCounter}
	m.conn.AddObj(m.counter)
	chain := m.conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	m.conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: meterCounter},
		&expr.Verdict{Kind: verdict},
	}})
	return m, m.conn.Flush()
}

// Packets returns the number of packets so far.
func (m *Meter) Packets() (int, error) {
	obj, err := m.conn.GetObject(m.counter)
	if err != nil {
		return 0, fmt.Errorf("read a counter: %w", err)
	}
	return int(obj.(*nftables.CounterObj).Packets), nil
}

// Close closes the connection to the kernel. The rule stays.
func (m *Meter) Close() error {
	var err error
	if m.conn != nil {
		err = m.conn.CloseLasting()
	}
	if m.namespace != nil {
		err = errors.Join(err, m.namespace.Close())
	}
	return err
}
