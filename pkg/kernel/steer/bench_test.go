package steer

import (
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

func manyPods(n int) (s Sets) {
	for i := range n {
		v4 := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		v6 := netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
		s.Pods = append(s.Pods, v4, v6)
	}
	s.Ingress, s.Egress = s.Pods, s.Pods
	s.IngressRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	return s
}

// usedCPU returns the CPU time of this process and of the processes that it has waited for.
func usedCPU(b *testing.B) time.Duration {
	var used time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		used += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return used
}

// acceptance matches queue statements, which are replaced for nft because this kernel may lack them.
var acceptance = regexp.MustCompile(`queue (flags [a-z,]+ )?to [0-9-]+`)

// BenchmarkKernelWrite writes one element, and the whole table of a node with 110 pods, over netlink
// and, for comparison, with the nft program.
func BenchmarkKernelWrite(b *testing.B) {
	caps, err := Probe(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	cfg := testConfig()
	remembering(&cfg)
	cfg.SourceCheck, cfg.Share, cfg.OverflowQueue = true, DefaultShare, 105
	s, err := New(cfg, caps)
	if err != nil {
		b.Fatal(err)
	}
	writers := map[string]func(*nft.Transaction) error{
		"netlink": func(tx *nft.Transaction) error { return s.table.RunAt(b.Context(), tx, 0) },
		"nft": func(tx *nft.Transaction) error {
			replayed := knftables.NewFake(knftables.InetFamily, TableName).NewTransaction()
			tx.Replay(replayed)
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(acceptance.ReplaceAllString(replayed.String(), "accept"))
			return cmd.Run()
		},
	}
	for what, plans := range map[string][]func(*nft.Transaction){
		"element": {
			func(tx *nft.Transaction) {
				tx.Add(&knftables.Element{Set: "ingress-v4", Key: []string{"192.0.2.1"}})
			},
			func(tx *nft.Transaction) {
				tx.Delete(&knftables.Element{Set: "ingress-v4", Key: []string{"192.0.2.1"}})
			},
		},
		"table": {func(tx *nft.Transaction) {
			*tx = *wholeTable(s)
			planElements(tx, setSpecs, Sets{}.contents(), manyPods(110).contents())
		}},
	} {
		for _, writer := range []string{"netlink", "nft"} {
			b.Run(what+"/"+writer, func(b *testing.B) {
				if err := s.table.RunAt(b.Context(), wholeTable(s), 0); err != nil {
					b.Fatal(err)
				}
				used, n := usedCPU(b), 0
				for b.Loop() {
					tx := &nft.Transaction{}
					plans[n%len(plans)](tx)
					if err := writers[writer](tx); err != nil {
						b.Fatal(err)
					}
					n++
				}
				b.ReportMetric(float64(usedCPU(b)-used)/float64(n), "cpu-ns/op")
			})
		}
	}
	if err := removeTable(b.Context(), knftables.InetFamily, TableName); err != nil {
		b.Fatal(err)
	}
}

// wholeTable returns the transaction that replaces any table with an empty one of ours.
func wholeTable(s *Steerer) *nft.Transaction {
	tx := &nft.Transaction{}
	s.observed = &observedState{layout: incompatible}
	s.planBase(tx)
	return tx
}
