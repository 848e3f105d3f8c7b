package steer

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// NewFake returns a Steerer over a fake kernel, for tests. It queues by the queue
// statement and hears of no commits.
func NewFake(cfg Config, fake *knftables.Fake) (*Steerer, error) {
	return newFakeSteerer(cfg, fake, fake)
}

// newFakeSteerer has nft between the Steerer and fake.
func newFakeSteerer(cfg Config, nft knftables.Interface, fake *knftables.Fake) (*Steerer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("steer: %w", err)
	}
	cfg.Divert, cfg.EarlyUDP = DivertQueue, cfg.EarlyUDP.choose(Capabilities{})
	return newSteerer(cfg, Capabilities{}, nft, &fakeKernel{nft: nft, fake: fake, chains: chains(cfg), notify: make(chan commit)}), nil
}

// fakeKernel asks a knftables.Fake, perhaps behind something that interferes.
// Generations count the transactions of anybody.
type fakeKernel struct {
	nft    knftables.Interface
	fake   *knftables.Fake
	chains []chain
	last   *knftables.Transaction
	now    uint32
	notify chan commit // what listen reports
}

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
	k.fake.RLock() // which ListCounters, unlike the other lists, does not take
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

func (k *fakeKernel) read(ctx context.Context) (*held, error) {
	generation, _ := k.generation(ctx)
	objects, err := k.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		h := emptyTable()
		h.generation = generation
		return h, nil
	}
	if err != nil {
		return nil, err
	}
	delete(objects, "table")
	if !isOurs(k.chains, objects) {
		return &held{generation: generation, layout: foreign}, nil
	}
	h := &held{generation: generation, layout: ours, base: base{rules: make(map[string][]string)}, sets: make(contents)}
	rules, err := k.nft.ListRules(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		h.base.rules[r.Chain] = append(h.base.rules[r.Chain], fmt.Sprint(*r.Handle, " ", r.Rule))
	}
	for _, spec := range setSpecs {
		if h.sets[spec.name], err = k.readSet(ctx, spec); err != nil {
			return nil, err
		}
	}
	return h, nil
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
