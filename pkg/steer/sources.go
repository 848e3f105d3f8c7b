package steer

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// Names of what checks the sources of packets.
const (
	sourcesChain = "sources"
	checkedSet   = "checked"
	uncheckedSet = "unchecked"

	forgedSourcesCounter = "forged-sources"
)

// wordSpecs are the sets whose elements are no addresses.
var wordSpecs = []setSpec{
	{name: checkedSet, words: "nf_proto"},
	uncheckedSpec,
	{name: tunnelPortsSet, words: "inet_service"},
	{name: tunnelProtocolsSet, words: "inet_proto"},
}

var uncheckedSpec = setSpec{name: uncheckedSet, words: "ifname"}

// sourceChains drop what comes in by an interface that leads to a pod, or that is
// not known yet, and has a source address that is reached by another interface.
// They see a packet before connection tracking does, so that a forged one neither
// makes an entry nor uses somebody else's.
func sourceChains() []chain {
	return []chain{
		{name: sourcesChain, rules: sourceRules()},
		{
			name:     "prerouting-" + sourcesChain,
			hook:     knftables.PreroutingHook,
			priority: knftables.RawPriority,
			rules:    []string{"goto " + sourcesChain},
		},
	}
}

func sourceRules() []string {
	return []string{
		// Duplicate address detection and multicast listener discovery. No router
		// forwards a packet from there. Newer kernels know this by themselves.
		"ip6 saddr :: meta l4proto icmpv6 accept",
		fmt.Sprintf("meta nfproto @%s iifname != @%s fib saddr . iif oif missing counter name %s drop",
			checkedSet, uncheckedSet, forgedSourcesCounter),
	}
}

// tableCounters are the names of the counters of the table.
var tableCounters = []string{steeredCounter, forgedSourcesCounter, tunnelsCounter}

// addSources sorts what s says of sources into the sets.
func (c contents) addSources(s Sets) {
	if !s.CheckSources {
		return
	}
	for _, protocol := range protocols {
		c[checkedSet][element{word: protocol}] = struct{}{}
	}
	for _, name := range s.Unchecked {
		if plainName(name) {
			c[uncheckedSet][uncheckedSpec.word(name)] = struct{}{}
		}
	}
}

// plainName tells whether nft reads name as the kernel means it. A name may have
// quotes and other characters; such an interface is checked.
func plainName(name string) bool {
	return name != "" && len(name) < unix.IFNAMSIZ && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-@", r))
	})
}

// word is an element as key writes it, from what key or nft have written.
func (s setSpec) word(w string) element {
	if s.words == "ifname" {
		w = strconv.Quote(strings.Trim(w, `"`))
	}
	return element{word: w}
}

// protocols are the words for elements of type nf_proto.
var protocols = map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}

// wordOf reads an element as the kernel lists it.
func (s setSpec) wordOf(k setKey) (element, bool) {
	switch {
	case k.flags != 0:
		return element{}, false
	case s.words == "ifname":
		name := text(k.bytes)
		return s.word(name), plainName(name)
	case len(k.bytes) == 0:
		return element{}, false
	}
	if s.words != "nf_proto" {
		return s.word(strconv.FormatUint(number(k.bytes), 10)), true
	}
	word, ok := protocols[k.bytes[0]]
	return s.word(word), ok
}
