package steer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// probeTable is the scratch table. It never has a base chain: removing one
// would drop whatever waits in a queue of this network namespace.
const probeTable = TableName + "-probe"

// Capabilities are features of the kernel: nil means supported, an error that wraps
// errors.ErrUnsupported means not supported, any other error means unknown.
type Capabilities struct {
	// Queue is the queue statement of nftables (CONFIG_NFT_QUEUE).
	Queue error
	// XTables is the NFQUEUE target called from nftables
	// (CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_TARGET_NFQUEUE).
	XTables error
	// SCTPConntrack is connection tracking by SCTP ports
	// (CONFIG_NF_CT_PROTO_SCTP).
	SCTPConntrack error
	// UDPClash is that two packets of one new UDP connection both arrive if their
	// destinations were translated differently and both were queued.
	UDPClash error
	// SourceCheck is the lookup of the route to a packet's source
	// (CONFIG_NFT_FIB_INET).
	SourceCheck error
	// Share is sets that packets update, with a limit for each element.
	Share error
}

// Probe probes the kernel in this process's network namespace. It needs CAP_NET_ADMIN
// and leaves nothing behind. An error means that nothing could be probed; all
// Capabilities are then unknown.
func Probe(ctx context.Context) (Capabilities, error) {
	nft, err := knftables.New(knftables.InetFamily, probeTable)
	if err != nil {
		err = fmt.Errorf("probe nftables: %w", err)
		return unknown(err), err
	}
	// A conntrack expression makes the kernel load connection tracking, without
	// which there is no sysctl to read. It also proves that ENOENT in the next check
	// can only be about the queue statement.
	if err := checkRule(ctx, nft, "ct state new"); err != nil {
		err = fmt.Errorf("probe the ct expression: %w", err)
		return unknown(err), err
	}
	return Capabilities{
		Queue:         probeQueue(ctx, nft),
		XTables:       probeXTables(),
		SCTPConntrack: ProbeSCTPConntrack(),
		UDPClash:      probeUDPClash(),
		SourceCheck:   probeSourceCheck(ctx, nft),
		Share:         probeShare(ctx, nft),
	}, nil
}

// checksSources reports whether sources can be checked. Unknown counts as supported.
func (c Capabilities) checksSources() bool { return !errors.Is(c.SourceCheck, errors.ErrUnsupported) }

// unknown returns Capabilities that are all unknown because of err.
func unknown(err error) Capabilities {
	return Capabilities{Queue: err, XTables: err, SCTPConntrack: err, UDPClash: err, SourceCheck: err, Share: err}
}

// checkRule reports whether the kernel accepts rule, without committing it.
func checkRule(ctx context.Context, nft knftables.Interface, rule string) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "probe"})
	tx.Add(&knftables.Rule{Chain: "probe", Rule: rule})
	return nft.Check(ctx, tx)
}

func probeQueue(ctx context.Context, nft knftables.Interface) error {
	err := checkRule(ctx, nft, "queue to 0")
	switch {
	case err == nil:
		return nil
	case knftables.IsNotFound(err):
		return fmt.Errorf("%w: the kernel has no queue statement (CONFIG_NFT_QUEUE)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe the queue statement: %w", err)
}

func probeSourceCheck(ctx context.Context, nft knftables.Interface) error {
	err := checkRule(ctx, nft, "fib saddr . iif oif missing")
	switch {
	case err == nil:
		return nil
	case knftables.IsNotFound(err):
		return fmt.Errorf("%w: the kernel has no route lookups in nftables (CONFIG_NFT_FIB_INET)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe the fib expression: %w", err)
}

// probeXTables adds and removes a rule in one batch, because nft has no syntax for an
// xtables target and thus cannot check one.
func probeXTables() error {
	// The kernel loads the target's module by an alias that exists for ip but not
	// for inet. The result is that for inet.
	var err error
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		err = tryXTables(family)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: the kernel has no NFQUEUE target for nftables (CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_TARGET_NFQUEUE)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe the NFQUEUE target: %w", err)
}

func tryXTables(family nftables.TableFamily) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: probeTable, Family: family}
	chain := &nftables.Chain{Name: "probe", Table: table}
	conn.AddTable(table)
	conn.AddChain(chain)
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: nfqueueTarget(0, 1, false)})
	conn.DelTable(table)
	return conn.Flush()
}

// ProbeSCTPConntrack returns Capabilities.SCTPConntrack without needing privileges. It
// is unknown until connection tracking is used.
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

// probeUDPClash decides by the version. A backport of the change cannot be detected.
func probeUDPClash() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("probe the kernel's version: %w", err)
	}
	return resolvesUDPClash(unix.ByteSliceToString(name.Release[:]))
}

// resolvesUDPClash decides by a release such as "6.1.0-28-cloud-amd64".
func resolvesUDPClash(release string) error {
	var version [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &version[0], &version[1]); n != 2 {
		return fmt.Errorf("probe the kernel's version: malformed release %q", release)
	}
	if slices.Compare(version[:], clashResolved[:]) < 0 {
		return fmt.Errorf("%w: kernel %s may lose the second packet of a UDP connection in a queue (6.12 does not)", errors.ErrUnsupported, release)
	}
	return nil
}
