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

// Capabilities are three-valued answers about the kernel: nil is yes, an error
// that wraps errors.ErrUnsupported is no, any other error means that it could
// not be told.
type Capabilities struct {
	// Queue is about the queue statement of nftables (CONFIG_NFT_QUEUE).
	Queue error
	// XTables is about the NFQUEUE target called from nftables
	// (CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_TARGET_NFQUEUE).
	XTables error
	// SCTPConntrack is about connection tracking that reads SCTP ports
	// (CONFIG_NF_CT_PROTO_SCTP).
	SCTPConntrack error
	// UDPClash is about two packets of one new UDP connection that leave a queue
	// with destinations that were translated differently: whether both arrive.
	UDPClash error
	// SourceCheck is about looking up the route back to a packet's source
	// (CONFIG_NFT_FIB_INET).
	SourceCheck error
	// Share is about sets that packets update, with a limit for each element.
	Share error
}

// Probe asks the kernel of this process's network namespace. It needs
// CAP_NET_ADMIN and leaves nothing behind. The error tells why nothing could be
// asked at all; the answers are then "could not tell".
func Probe(ctx context.Context) (Capabilities, error) {
	nft, err := knftables.New(knftables.InetFamily, probeTable)
	if err != nil {
		err = fmt.Errorf("probe nftables: %w", err)
		return unknown(err), err
	}
	// A conntrack expression makes the kernel load connection tracking, without
	// which there is no sysctl to look at. It also proves that ENOENT in the
	// next check can only be about the queue statement.
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

// checksSources takes an answer that could not be told for yes.
func (c Capabilities) checksSources() bool { return !errors.Is(c.SourceCheck, errors.ErrUnsupported) }

// unknown is when err keeps everything from being asked.
func unknown(err error) Capabilities {
	return Capabilities{Queue: err, XTables: err, SCTPConntrack: err, UDPClash: err, SourceCheck: err, Share: err}
}

// checkRule asks whether the kernel would take rule, without committing it.
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
		return fmt.Errorf("%w: the kernel does not look routes up for nftables (CONFIG_NFT_FIB_INET)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe the fib expression: %w", err)
}

// probeXTables adds and removes a rule in one batch, because nft cannot write
// an xtables target and thus cannot check one.
func probeXTables() error {
	// The kernel loads the target's module by a name that it knows for ip and
	// not for inet. The answer is that for inet.
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

// ProbeSCTPConntrack gives Probe's answer for Capabilities.SCTPConntrack, without
// rights. Where nothing has used connection tracking yet it could not be told.
func ProbeSCTPConntrack() error { return probeSCTPConntrack("/proc/sys/net/netfilter") }

// probeSCTPConntrack looks into dir, where connection tracking has its sysctls.
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

// clashResolved is the kernel that leaves two packets of one new connection to
// connection tracking, as if they had not been queued: commit 8af79d3edb5f.
var clashResolved = [2]int{6, 12}

// probeUDPClash goes by the version. Whether a distribution has ported the change
// back cannot be seen.
func probeUDPClash() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("probe the kernel's version: %w", err)
	}
	return resolvesUDPClash(unix.ByteSliceToString(name.Release[:]))
}

// resolvesUDPClash reads a release such as "6.1.0-28-cloud-amd64".
func resolvesUDPClash(release string) error {
	var version [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &version[0], &version[1]); n != 2 {
		return fmt.Errorf("probe the kernel's version: %q is none", release)
	}
	if slices.Compare(version[:], clashResolved[:]) < 0 {
		return fmt.Errorf("%w: kernel %s may lose the second packet of a UDP connection in a queue (6.12 does not)", errors.ErrUnsupported, release)
	}
	return nil
}
