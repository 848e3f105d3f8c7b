package steer

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
)

// read asks the kernel what it holds.
func (s *Steerer) read(ctx context.Context) (*held, error) {
	objects, err := s.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		return emptyTable(), nil
	}
	if err != nil {
		return nil, err
	}
	if !s.isOurs(objects) {
		return &held{layout: foreign}, nil
	}
	h := &held{layout: ours, sets: make(contents, len(setSpecs))}
	if h.rules, err = s.readRules(ctx); err != nil {
		return nil, err
	}
	for _, spec := range setSpecs {
		if h.sets[spec.name], err = s.readSet(ctx, spec.name); err != nil {
			return nil, fmt.Errorf("set %s: %w", spec.name, err)
		}
	}
	return h, nil
}

// isOurs reports whether the names in a table, by the kind of object, are
// exactly the ones that planBase makes.
func (s *Steerer) isOurs(objects map[string][]string) bool {
	want := map[string][]string{"counter": {steeredCounter}}
	for _, c := range chains(s.cfg) {
		want["chain"] = append(want["chain"], c.name)
	}
	for _, spec := range setSpecs {
		want["set"] = append(want["set"], spec.name)
	}
	for kind, names := range objects {
		if kind == "table" {
			continue
		}
		if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want[kind]))) {
			return false
		}
		delete(want, kind)
	}
	return len(want) == 0
}

func (s *Steerer) readRules(ctx context.Context) (ruleHandles, error) {
	rules, err := s.nft.ListRules(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	handles := make(ruleHandles)
	for _, r := range rules {
		if r.Handle != nil {
			handles[r.Chain] = append(handles[r.Chain], *r.Handle)
		}
	}
	return handles, nil
}

// readSet returns nil elements for a set that holds what we would not write,
// such as a range that is no prefix. Such a set is written anew.
func (s *Steerer) readSet(ctx context.Context, name string) (elements, error) {
	listed, err := s.nft.ListElements(ctx, "set", name)
	if err != nil {
		return nil, err
	}
	e := make(elements, len(listed))
	for _, l := range listed {
		element, ok := parseElement(l.Key)
		if !ok {
			return nil, nil
		}
		e[element] = struct{}{}
	}
	return e, nil
}
