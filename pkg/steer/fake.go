package steer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
)

// NewFake returns a Steerer over a fake kernel, for tests. It uses the queue statement,
// and no commits are notified.
func NewFake(cfg Config, fake *knftables.Fake) (*Steerer, error) {
	return newFakeSteerer(cfg, fake, fake)
}

// newFakeSteerer returns a Steerer that writes through an interface that may wrap fake.
func newFakeSteerer(cfg Config, through knftables.Interface, fake *knftables.Fake) (*Steerer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("steer: %w", err)
	}
	cfg.Divert, cfg.EarlyUDP = DivertQueue, cfg.EarlyUDP.choose(Capabilities{})
	k := &fakeKernel{nft: through, fake: fake, chains: chains(cfg), now: 1, notify: make(chan commit)}
	return newSteerer(cfg, Capabilities{}, k, k, &fakeVerdicts{fake: fake}), nil
}

// fakeKernel reads and writes a knftables.Fake through nft, which may inject faults. Generations
// count all transactions.
type fakeKernel struct {
	nft    knftables.Interface
	fake   *knftables.Fake
	chains []chain
	last   *knftables.Transaction
	now    uint32
	notify chan commit // commits for listen to report
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

// queues decodes divertRules.
func (k *fakeKernel) queues(ctx context.Context) ([]uint16, error) {
	rules, err := k.nft.ListRules(ctx, divertChain)
	if err != nil && !knftables.IsNotFound(err) {
		return nil, err
	}
	var numbers []uint16
	for _, r := range rules {
		_, to, _ := strings.Cut(r.Rule, " to ")
		var first, last uint16
		if n, _ := fmt.Sscanf(to, "%d-%d", &first, &last); n == 1 {
			last = first
		}
		if to != "" {
			numbers = append(numbers, queueRange{first, last - first + 1}.numbers()...)
		}
	}
	return numbers, nil
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

func (k *fakeKernel) read(ctx context.Context) (*observedState, error) {
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
	if o.named = slices.Contains(objects["set"], holderSet); o.named {
		listed, err := k.nft.ListElements(ctx, "set", holderSet)
		if err != nil {
			return nil, err
		}
		if len(listed) == 1 {
			o.holder = parseHolder(listed[0].Key)
		}
	}
	if !isOurs(k.chains, objects) {
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
	for _, spec := range setSpecs {
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
