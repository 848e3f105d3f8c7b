package steer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// newFakeSteerer returns a Steerer on a fake kernel, which it accesses through an interface that may
// inject faults. It uses the queue statement.
func newFakeSteerer(cfg Config, through knftables.Interface, fake *knftables.Fake) (*Steerer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("steer: %w", err)
	}
	cfg.Divert, cfg.EarlyUDP = DivertQueue, cfg.EarlyUDP.choose(Capabilities{})
	for _, cfg.answers = range []bool{true, false} {
		for _, c := range chains(cfg) {
			steertest.Learn(c.rules...)
		}
	}
	k := &fakeKernel{nft: through, fake: fake, now: 1, notify: make(chan commit)}
	s := newSteerer(cfg, Capabilities{}, k, k, &fakeVerdicts{fake: fake})
	s.former = &fakeFormer{}
	return s, nil
}

// fakeKernel reads and writes a knftables.Fake through nft, which may inject faults. The generation
// counts all transactions.
type fakeKernel struct {
	nft    knftables.Interface
	fake   *knftables.Fake
	last   *knftables.Transaction
	now    uint32
	notify chan commit // read by listen

	hasFlowtables bool
}

// RunAt implements table.
func (k *fakeKernel) RunAt(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	now, err := k.generation(ctx)
	if err != nil {
		return err
	}
	if generation != 0 && generation != now {
		return nft.ErrGeneration
	}
	replayed := k.nft.NewTransaction()
	tx.Replay(replayed)
	return k.nft.Run(ctx, replayed)
}

// tablePort is the netlink port of commits of fakeKernel.
const tablePort = 2

// Port implements table.
func (k *fakeKernel) Port() uint32 { return tablePort }

func (k *fakeKernel) flowtables(context.Context) (bool, error) { return k.hasFlowtables, nil }

func (k *fakeKernel) generation(context.Context) (uint32, error) {
	k.fake.Lock() // guards last and now, too
	defer k.fake.Unlock()
	if k.fake.LastTransaction != k.last {
		k.last = k.fake.LastTransaction
		k.now++
	}
	return k.now, nil
}

func (k *fakeKernel) counters(ctx context.Context) (map[string]uint64, error) {
	k.fake.RLock() // ListCounters, unlike the other lists, does not lock
	defer k.fake.RUnlock()
	counters, err := k.nft.ListCounters(ctx)
	packets := make(map[string]uint64)
	for _, c := range counters {
		// The fake lists nil counters before the real ones.
		if c != nil && c.Packets != nil {
			packets[c.Name] = *c.Packets
		}
	}
	return packets, err
}

func (k *fakeKernel) listen(ctx context.Context, started func(), report func(commit)) error {
	started()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-k.notify:
			report(c)
		}
	}
}

func (k *fakeKernel) exists(context.Context) (bool, error) {
	k.fake.RLock()
	defer k.fake.RUnlock()
	return k.fake.Table != nil, nil
}

func (k *fakeKernel) read(ctx context.Context, want tableLayout) (*observedState, error) {
	generation, _ := k.generation(ctx)
	objects, err := k.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		o := emptyTable()
		o.generation = generation
		return o, nil
	}
	if err != nil {
		return nil, err
	}
	delete(objects, "table")
	o := &observedState{generation: generation, layout: incompatible}
	o.named = slices.Contains(objects["set"], holderSet)
	if o.named {
		listed, err := k.nft.ListElements(ctx, "set", holderSet)
		if err != nil {
			return nil, err
		}
		if len(listed) == 1 {
			o.holder = parseHolder(listed[0].Key)
		}
	}
	if !want.isOurs(objects) {
		if changeable(objects) {
			o.names = objects
		}
		return o, nil
	}
	o.layout, o.base, o.sets = ours, base{rules: make(map[string][]string)}, make(contents)
	rules, err := k.nft.ListRules(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		o.base.rules[r.Chain] = append(o.base.rules[r.Chain], fmt.Sprint(*r.Handle, " ", r.Rule))
	}
	for _, spec := range want.specs {
		if o.sets[spec.name], err = k.readSet(ctx, spec); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (k *fakeKernel) owners(ctx context.Context) ([]element, error) {
	var owners []element
	for _, spec := range ownersSpecs() {
		listed, err := k.nft.ListElements(ctx, "set", spec.name)
		if err != nil && !knftables.IsNotFound(err) {
			return nil, err
		}
		for _, l := range listed {
			if e, ok := spec.parse(l.Key); ok {
				owners = append(owners, e)
			}
		}
	}
	return owners, nil
}

func (k *fakeKernel) readSet(ctx context.Context, spec setSpec) (elements, error) {
	listed, err := k.nft.ListElements(ctx, "set", spec.name)
	if err != nil {
		return nil, err
	}
	e := make(elements, len(listed))
	for _, l := range listed {
		element, ok := spec.parse(l.Key)
		if !ok {
			return nil, nil
		}
		e[element] = struct{}{}
	}
	return e, nil
}

// parseHolder decodes an element as element makes it, the zero Holder if it is not one.
func parseHolder(key []string) handover.Holder {
	if len(key) != 2 {
		return handover.Holder{}
	}
	started, errStarted := strconv.ParseUint(key[0], 0, 32)
	queue, errQueue := strconv.ParseUint(key[1], 0, 16)
	if errStarted != nil || errQueue != nil {
		return handover.Holder{}
	}
	return handover.Holder{Started: uint32(started), Queue: uint16(queue)}
}

// parse decodes a key as written by key or nft.
func (s setSpec) parse(key []string) (element, bool) {
	if s.keyType != "" && len(key) == 1 {
		return element{value: key[0]}, true
	}
	return parseElement(key)
}

// parseElement decodes an address, with or without a number.
func parseElement(key []string) (e element, ok bool) {
	switch len(key) {
	case 1:
	case 2:
		number, err := strconv.ParseUint(key[1], 0, 32)
		if err != nil {
			return element{}, false
		}
		e.number = uint32(number)
	default:
		return element{}, false
	}
	if a, err := netip.ParseAddr(key[0]); err == nil {
		e.prefix = netip.PrefixFrom(a, a.BitLen())
		return e, true
	}
	var err error
	e.prefix, err = netip.ParsePrefix(key[0])
	return e, err == nil
}
