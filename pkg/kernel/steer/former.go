package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// FormerName is the name of the tables in versions up to 0.2.0. The upstream agent gives it to its own
// table, which this agent never changes.
const FormerName = "kube-network-policies"

// formerPoll is how often the former table is looked at while there is one. Without one, it is every
// verifyInterval.
const formerPoll = 100 * time.Millisecond

// former is the table with FormerName, if an earlier version of this agent has written it.
type former struct {
	ours   bool
	record handover.Record
}

// formerTable reads and writes the former table.
type formerTable interface {
	read(context.Context) (former, error)
	// take removes all rules and makes h the holder, so that the agents of the table stand by.
	take(ctx context.Context, h handover.Holder) error
	// remove removes the tables with FormerName of all families. This drops queued packets.
	remove(context.Context) error
}

// retireFormer takes over the former table once this agent's own table is complete: until then both
// decide, and an agent that dies in between leaves no gap. The table stays without rules while an
// agent of an earlier version lives, because that one would create it again.
func (s *Steerer) retireFormer(ctx context.Context) error {
	if s.cfg.Agents == nil || !s.steers() || time.Now().Before(s.formerDue) {
		return nil
	}
	f, err := s.former.read(ctx)
	if err != nil {
		return fmt.Errorf("read table %s: %w", FormerName, err)
	}
	s.formerDue = time.Now().Add(verifyInterval)
	if !f.ours {
		return nil
	}
	s.formerDue = time.Now().Add(formerPoll)
	time.AfterFunc(formerPoll, s.runner.Poke)
	h := f.record.Holder
	lives := s.livesAt(append(f.record.Queues, h.Queue)...)
	if lives {
		s.formerQueue = h.Queue
	}
	switch {
	case lives && (!f.record.Named || h.Newer(s.cfg.Holder)):
		return nil // both decide until that agent ends
	case lives:
	case s.cfg.Agents.Alone() && !s.livesAt(s.formerQueue):
		klog.FromContext(ctx).Info("Table of an earlier version removed", "table", FormerName)
		return s.former.remove(ctx)
	}
	if h == s.cfg.Holder {
		return nil
	}
	return s.former.take(ctx, s.cfg.Holder)
}

// handBack is called while this agent ends. It gives the former table back to an agent of an earlier
// version, and removes this agent's own when that one decides. back is false if there is none.
func (s *Steerer) handBack(ctx context.Context) (back bool, err error) {
	if !s.livesAt(s.formerQueue) {
		return false, nil
	}
	f, err := s.former.read(ctx)
	if err != nil || !f.ours {
		return false, err
	}
	time.AfterFunc(holderPoll, s.runner.Poke)
	switch h := f.record.Holder; {
	case h == s.cfg.Holder:
		return true, s.former.take(ctx, handover.Holder{})
	case s.livesAt(h.Queue):
		s.setHolder(h)
		return true, s.write(ctx, removal(), 0)
	}
	return true, nil
}

// steers reports whether the table has the desired state of the first snapshot or a later one, and
// this agent writes it.
func (s *Steerer) steers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inPlace && s.applied.final()
}

// livesAt reports whether another process has bound one of the queue numbers. 0 is none.
func (s *Steerer) livesAt(queues ...uint16) bool {
	return slices.ContainsFunc(queues, func(queue uint16) bool {
		return queue != 0 && queue != s.cfg.Holder.Queue && !s.cfg.deciding().Contains(queue) && s.cfg.Agents.Bound(queue)
	})
}

// netlinkFormer is the former table of this process's network namespace.
type netlinkFormer struct{ netlinkKernel }

var formerArgument = stringArgument(tableArgument.kind, FormerName)

func (n netlinkFormer) read(ctx context.Context) (f former, err error) {
	_, err = n.readConsistently(ctx, func(conn *netlink.Conn) (err error) {
		f, err = readFormer(conn)
		return err
	})
	return f, err
}

func readFormer(conn *netlink.Conn) (f former, err error) {
	sets, err := setNames(conn, formerArgument)
	if err != nil {
		return f, err
	}
	f.ours = slices.Contains(sets, familyName(ingressSet, false))
	f.record.Named = slices.Contains(sets, holderSet)
	switch {
	case f.record.Named:
		f.record.Holder, err = readHolder(conn, formerArgument)
	case f.ours:
		f.record.Queues, err = queueNumbers(conn, formerArgument, divertChain)
	}
	return f, err
}

// setNames returns the names of the sets of a table, none if it does not exist.
func setNames(conn *netlink.Conn, table argument) (names []string, err error) {
	answers, err := get(conn, unix.NFT_MSG_GETSET, netlink.Dump, table)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	for _, a := range answers {
		names = append(names, nlattr.Text(nlattr.Get(a, unix.NFTA_SET_NAME)))
	}
	return names, nil
}

func (netlinkFormer) take(ctx context.Context, h handover.Holder) error {
	tx := &nft.Transaction{}
	tx.Flush(&knftables.Table{})
	tx.Flush(&knftables.Set{Name: holderSet})
	tx.Add(holderElement(h))
	return writeOnce(ctx, knftables.InetFamily, FormerName, tx)
}

func (netlinkFormer) remove(ctx context.Context) error {
	return errors.Join(removeTable(ctx, knftables.BridgeFamily, FormerName), removeTable(ctx, knftables.InetFamily, FormerName))
}

// removeTable removes a table, if it exists.
func removeTable(ctx context.Context, family knftables.Family, name string) error {
	err := writeOnce(ctx, family, name, removal())
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the kernel has no tables of this family
	}
	return err
}

func removal() *nft.Transaction {
	tx := &nft.Transaction{}
	tx.Add(&knftables.Table{}) // deleting a missing table is an error
	tx.Delete(&knftables.Table{})
	return tx
}

// writeOnce commits tx from a socket of its own.
func writeOnce(ctx context.Context, family knftables.Family, name string, tx *nft.Transaction) error {
	table, err := nft.New(family, name, nft.Options{Sets: []*knftables.Set{holderObject()}})
	if err != nil {
		return err
	}
	defer table.Close()
	if err := table.Run(ctx, tx); err != nil {
		return fmt.Errorf("write table %s %s: %w", family, name, err)
	}
	return nil
}
