package handover

import "slices"

// The holder of the table is the one agent that writes it and to whose queues it sends
// packets. The table names its holder. Another agent takes the table over if it started
// later, as the new one of an upgrade or rollback, or if the holder is gone: no process
// has bound its number. So of all agents of a node exactly one writes, whatever their
// order, and there is always one that does.

// Holder identifies an agent. The zero value is no agent.
type Holder struct {
	// Started is when the agent has started, in tenths of a second since the machine
	// has. A worker that is started again in its container keeps it.
	Started uint32
	// Queue is a queue number that the agent has bound for all its life.
	Queue uint16
}

// Newer reports whether h started after o.
func (h Holder) Newer(o Holder) bool {
	if h.Started != o.Started {
		return h.Started > o.Started
	}
	return h.Queue > o.Queue
}

// Agents is what is known of the agents of the node.
type Agents interface {
	// Bound reports whether a process has bound a queue number.
	Bound(queue uint16) bool
	// Listening reports whether all queues of this agent are bound.
	Listening() bool
	// Alone reports whether there is no other agent on the node, see Place.Alone.
	Alone() bool
}

// Record is what the table says about its holder.
type Record struct {
	// Holder is zero after the holder has released the table.
	Holder Holder
	// Named is false in tables of versions that know of no holders. Then Queues are the
	// numbers in the rules, without those of this agent.
	Named  bool
	Queues []uint16
}

// Standby is why the table is not written.
type Standby struct {
	// Reason is empty while this agent writes the table.
	Reason string
	// Behind are the queue numbers of the agent that holds the table. It is gone when
	// none is bound.
	Behind []uint16
	// Next is set if this agent takes over as soon as it can decide packets.
	Next bool
}

// Over reports whether this agent may take over now, or the agent that holds the table is gone.
// decides reports whether this agent has a snapshot.
func (b Standby) Over(agents Agents, decides bool) bool {
	return b.Next && decides && agents.Listening() || !slices.ContainsFunc(b.Behind, agents.Bound)
}

// Stand decides whether the agent h may write the table with this record.
func (h Holder) Stand(r Record, agents Agents, decides bool) Standby {
	switch {
	case !r.Named:
		b := Standby{Reason: "an agent of an earlier version holds the table until it ends", Behind: r.Queues}
		if b.Over(agents, false) {
			return Standby{}
		}
		return b
	case r.Holder == Holder{}, r.Holder.Queue == h.Queue, !agents.Bound(r.Holder.Queue):
		return Standby{} // of no agent, of this one, or of one that had its number before
	case !h.Newer(r.Holder):
		return Standby{Reason: "a newer agent holds the table", Behind: []uint16{r.Holder.Queue}}
	case !decides || !agents.Listening():
		return Standby{Reason: "an older agent holds the table until this one can decide packets", Behind: []uint16{r.Holder.Queue}, Next: true}
	}
	return Standby{}
}
