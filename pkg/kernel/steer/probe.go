package steer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// probeTable is a scratch table. It never has a base chain, because removing one would drop the
// packets in all queues of this network namespace.
const probeTable = TableName + "-probe"

// probeTimeout is longer than that of other transactions: the first rule of each kind has the kernel
// load a module, one after the other, and an agent that cannot probe ends.
const probeTimeout = 30 * time.Second

// Capabilities are features of the kernel. Nil means supported, an error that wraps
// errors.ErrUnsupported means not supported, and any other error means unknown.
type Capabilities struct {
	// Queue is the queue statement of nftables (CONFIG_NFT_QUEUE).
	Queue error
	// XTables is the NFQUEUE target called from nftables
	// (CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_TARGET_NFQUEUE).
	XTables error
	// SCTPConntrack is connection tracking by SCTP ports
	// (CONFIG_NF_CT_PROTO_SCTP).
	SCTPConntrack error
	// UDPClash means that two packets of one new UDP connection both arrive if both were queued
	// and their destinations were translated differently.
	UDPClash error
	// SourceCheck is the lookup of the route to a packet's source
	// (CONFIG_NFT_FIB_INET).
	SourceCheck error
	// Share means sets that packets update, with a limit in each element.
	Share error
	// Remember means sets of addresses, protocols and ports to which packets add elements with
	// a counter.
	Remember error
	// Reject means that rules can answer packets at prerouting, too (CONFIG_NFT_REJECT_INET).
	Reject error
}

// Probe probes the kernel in this process's network namespace. It needs CAP_NET_ADMIN and leaves
// nothing behind. An error means that nothing could be probed; all Capabilities are then unknown.
//
// First packets wait for it when an agent starts, so it must be fast: it runs no program, and sends
// only one batch, because the kernel waits for all cores before it discards a batch.
func Probe(ctx context.Context) (Capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	errs, err := tryRules(ctx, probeRules)
	if err == nil {
		// A conntrack expression makes the kernel load connection tracking, whose sysctls are
		// read below. It also proves that ENOENT for another rule is about that rule's own
		// expressions.
		err = errs[probeConntrack]
	}
	switch {
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("CAP_NET_ADMIN is missing: probe nftables: %w", err)
	case err != nil:
		err = fmt.Errorf("probe nftables: %w", err)
	}
	if err != nil {
		return unknown(err), err
	}
	return Capabilities{
		Queue:         supports(errs[probeQueue], "queue statement (CONFIG_NFT_QUEUE)"),
		XTables:       supports(errs[probeXTables], "NFQUEUE target for nftables (CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_TARGET_NFQUEUE)"),
		SCTPConntrack: ProbeSCTPConntrack(),
		UDPClash:      probeRelease(resolvesUDPClash),
		SourceCheck:   supports(errs[probeSourceCheck], "route lookups in nftables (CONFIG_NFT_FIB_INET)"),
		Share:         supports(errs[probeShare], "limits for each element of a set (CONFIG_NFT_LIMIT)"),
		Remember:      supports(errs[probeRemember], "counters for each element of a set"),
		Reject:        cmp.Or(supports(errs[probeReject], "answers to packets (CONFIG_NFT_REJECT_INET)"), probeRelease(rejectsEarly)),
	}, nil
}

// features returns the capabilities by the names that metrics give them.
func (c Capabilities) features() map[string]error {
	return map[string]error{
		"queue": c.Queue, "xtables": c.XTables, "sctp_conntrack": c.SCTPConntrack, "udp_clash": c.UDPClash,
		"source_check": c.SourceCheck, "share": c.Share, "remember": c.Remember, "reject": c.Reject,
	}
}

// Answers reports whether the kernel can answer denied packets. It treats unknown as not supported,
// because policies are enforced without answers, too.
func (c Capabilities) Answers() bool { return c.Reject == nil && c.SourceCheck == nil }

// checksSources reports whether sources can be checked. It treats unknown as supported.
func (c Capabilities) checksSources() bool { return !errors.Is(c.SourceCheck, errors.ErrUnsupported) }

// unknown returns Capabilities that are all unknown, with the error err.
func unknown(err error) Capabilities {
	return Capabilities{Queue: err, XTables: err, SCTPConntrack: err, UDPClash: err, SourceCheck: err, Share: err, Remember: err, Reject: err}
}

// Indexes of probeRules.
const (
	probeConntrack = iota
	probeQueue
	probeXTablesOfIPv4
	probeXTables
	probeSourceCheck
	probeShare
	probeRemember
	probeReject
)

// probeRule is a rule that the kernel accepts if it has a feature.
type probeRule struct {
	family  byte // an NFPROTO
	rule    rule.Rule
	xtables bool
}

var probeRules = []probeRule{
	probeConntrack: {family: unix.NFPROTO_INET, rule: rule.Rule{rule.CTState.Any(rule.New)}},
	probeQueue:     {family: unix.NFPROTO_INET, rule: rule.Rule{rule.Queue{Count: 1}}},
	// The kernel loads the target's module by an alias that exists for ip but not for inet. So
	// this rule loads it, and the result is that of the next one.
	probeXTablesOfIPv4: {family: unix.NFPROTO_IPV4, rule: rule.Rule{rule.Queue{Count: 1}}, xtables: true},
	probeXTables:       {family: unix.NFPROTO_INET, rule: rule.Rule{rule.Queue{Count: 1}}, xtables: true},
	probeSourceCheck:   {family: unix.NFPROTO_INET, rule: rule.Rule{noWayBack}},
	probeShare:         {family: unix.NFPROTO_INET, rule: rule.Rule{rule.Update{Set: probeName, Key: rule.Key{rule.IPv4.Saddr}, PerSecond: 1, Burst: 1}}},
	probeRemember:      {family: unix.NFPROTO_INET, rule: rule.Rule{rule.Add{Set: probeClassesName, Key: families[0].class(), Seconds: 30}}},
	probeReject:        {family: unix.NFPROTO_INET, rule: rule.Rule{rule.RejectWithICMP}},
}

const (
	probeName        = "probe" // of the chain and the set
	probeSetID       = 1
	probeClassesName = "probe-classes"
	probeClassesID   = 2
	// nftTypeIPAddr is the number that nft uses for the type ipv4_addr.
	nftTypeIPAddr = 7
	// nftTypeClass is the number that nft uses for the type of allowed IPv4 classes, with 6
	// bits for each part.
	nftTypeClass = nftTypeIPAddr<<18 | nftTypeIPAddr<<12 | 12<<6 | 13
)

// tryRules returns the kernel's error for each rule, nil if it accepts the rule. The batch has no end
// message, so the kernel discards it.
func tryRules(ctx context.Context, rules []probeRule) ([]error, error) {
	conn, err := netlinkKernel{}.conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	batch, err := conn.SendMessages(probeBatch(rules))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, m := range batch[1:] {
		_, err := conn.Receive() // one answer to each message, in the same order
		switch m.Header.Type & 0xff {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWCHAIN:
			if err != nil {
				return nil, err // there may be no more answers
			}
		case unix.NFT_MSG_NEWRULE:
			errs = append(errs, err)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
	}
	return errs, nil
}

// probeBatch returns the messages that add rules, without the end of the batch.
func probeBatch(rules []probeRule) []netlink.Message {
	batch := []netlink.Message{{
		Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}}
	add := func(family byte, what netlink.HeaderType, arguments ...argument) {
		batch = append(batch, request(family, what, netlink.Create|netlink.Acknowledge, append(arguments, stringArgument(1, probeTable))...))
	}
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_INET} {
		add(family, unix.NFT_MSG_NEWTABLE)
		add(family, unix.NFT_MSG_NEWCHAIN, stringArgument(unix.NFTA_CHAIN_NAME, probeName))
	}
	size := encode(uint32Argument(unix.NFTA_SET_DESC_SIZE, shareSize))
	addSet := func(name string, id, keyType, keyLen uint32) {
		add(unix.NFPROTO_INET, unix.NFT_MSG_NEWSET,
			stringArgument(unix.NFTA_SET_NAME, name), uint32Argument(unix.NFTA_SET_ID, id),
			uint32Argument(unix.NFTA_SET_KEY_TYPE, keyType), uint32Argument(unix.NFTA_SET_KEY_LEN, keyLen),
			uint32Argument(unix.NFTA_SET_FLAGS, unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT),
			argument{unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(shareTimeout.Milliseconds()))},
			argument{unix.NFTA_SET_DESC | unix.NLA_F_NESTED, size})
	}
	addSet(probeName, probeSetID, nftTypeIPAddr, 4)
	addSet(probeClassesName, probeClassesID, nftTypeClass, 16)
	for _, r := range rules {
		add(r.family, unix.NFT_MSG_NEWRULE, stringArgument(unix.NFTA_RULE_CHAIN, probeName),
			argument{unix.NFTA_RULE_EXPRESSIONS | unix.NLA_F_NESTED, r.rule.Encode(rule.Options{XTables: r.xtables}).Exprs})
	}
	return batch
}

// supports returns the result of the probe for feature. err is the kernel's error.
func supports(err error, feature string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: the kernel has no %s", errors.ErrUnsupported, feature)
	}
	return fmt.Errorf("probe the %s: %w", feature, err)
}

// ProbeSCTPConntrack returns Capabilities.SCTPConntrack. It needs no privileges. The result is
// unknown until connection tracking is used.
func ProbeSCTPConntrack() error { return probeSCTPConntrack("/proc/sys/net/netfilter") }

// probeSCTPConntrack reads dir, the directory of connection tracking sysctls.
func probeSCTPConntrack(dir string) error {
	if _, err := os.Stat(dir + "/nf_conntrack_max"); err != nil {
		return fmt.Errorf("probe connection tracking: %w", err)
	}
	_, err := os.Stat(dir + "/nf_conntrack_sctp_timeout_established")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the kernel tracks SCTP by addresses only (CONFIG_NF_CT_PROTO_SCTP)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe SCTP connection tracking: %w", err)
}

// clashResolved is the kernel version in which connection tracking resolves the clash
// of two queued packets of one new connection: commit 8af79d3edb5f.
var clashResolved = [2]int{6, 12}

// rejectSince is the kernel version in which rules at prerouting can answer packets: commit f53b9b0bdc59.
var rejectSince = [2]int{5, 9}

// rejectsEarly decides by a release such as "6.1.0-28-cloud-amd64": a probe has no base chain.
func rejectsEarly(release string) error {
	older, err := isOlder(release, rejectSince)
	if older {
		err = fmt.Errorf("%w: kernel %s cannot answer packets at prerouting (5.9 can)", errors.ErrUnsupported, release)
	}
	return err
}

// resolvesUDPClash decides like rejectsEarly. It cannot detect a backport of the change.
func resolvesUDPClash(release string) error {
	older, err := isOlder(release, clashResolved)
	if older {
		err = fmt.Errorf("%w: kernel %s may lose the second packet of a UDP connection in a queue (6.12 does not)", errors.ErrUnsupported, release)
	}
	return err
}

// probeRelease returns what decide says about the kernel's release.
func probeRelease(decide func(release string) error) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("probe the kernel's version: %w", err)
	}
	return decide(unix.ByteSliceToString(name.Release[:]))
}

func isOlder(release string, version [2]int) (bool, error) {
	var v [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); n != 2 {
		return false, fmt.Errorf("probe the kernel's version: malformed release %q", release)
	}
	return slices.Compare(v[:], version[:]) < 0, nil
}
