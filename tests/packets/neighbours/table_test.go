package neighbours

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// The most frequent texts of the table in docs/install/README.md.
const (
	all     = "all"
	nothing = ""
)

// unanswered are the connections that pass, among those that policies allow, if replies are
// not recognised: replies to isolated pods are decided like first packets.
var unanswered = []labtest.Expectation{
	labtest.Yes("z/out", "x/web", "tcp/80"), labtest.Yes("z/out", "x/web", "udp/80"),
	labtest.No("y/db", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/80"),
	labtest.Yes("node-1", "x/web", "tcp/80"), labtest.Yes("x/web", "node-1", "tcp/80"),
}

// proxied are the connections that pass if the node answers TCP itself, without an entry.
var proxied = []labtest.Expectation{
	labtest.Yes("z/out", "x/web", "tcp/80"), labtest.Yes("z/out", "x/web", "udp/80"), labtest.Yes("y/db", "x/web", "udp/80"),
	labtest.No("y/db", "x/web", "tcp/80"), labtest.Yes("node-1", "x/web", "tcp/80"),
}

// forwardDropped are the connections that pass if the node forwards nothing.
var forwardDropped = []labtest.Expectation{
	labtest.No("y/db", "x/web", "tcp/80"), labtest.No("z/out", "x/web", "tcp/80"),
	labtest.Yes("node-1", "x/web", "tcp/80"), labtest.Yes("x/web", "node-1", "tcp/80"),
}

var neighbours = []neighbour{
	{
		name: "[the upstream agent kube-network-policies](upstream.md)", holds: "all that both allow", reported: "`policy_engine`", cause: "policy_engine",
		make: func(t *testing.T, n node) { startUpstream(t, n) },
	},
	{
		name: "sets of newer versions of nft", holds: all, reported: nothing,
		make: makeTypeofSets, list: listSets,
	},
	{
		name: "`nft flush ruleset`", holds: "all, after milliseconds", reported: "log, `netpol_steer_repairs_total`",
		set: `nft add table inet other`, repeat: "nft flush ruleset",
	},
	{
		name: "iptables-nft: accepts, `iptables -F`, `iptables-restore`", holds: all, reported: nothing, needs: "iptables-nft",
		set: acceptEverything("-nft"), repeat: flushAndRestore("-nft"),
	},
	{
		name: "iptables-legacy: the same", holds: all, reported: nothing, needs: "iptables-legacy", long: true,
		set: acceptEverything("-legacy"), repeat: flushAndRestore("-legacy"),
	},
	{
		name: "Docker, a plugin that accepts what pods forward", holds: all, reported: "`firewall`", needs: "iptables-nft", cause: "firewall",
		set: docker + `for family in '' 6; do
			ip${family}tables-nft -A FORWARD -i pod+ -j ACCEPT
			ip${family}tables-nft -A FORWARD -o pod+ -j ACCEPT
		done`, repeat: flushAndRestore("-nft"),
	},
	{
		name: "Docker, or another firewall that drops what it does not know", holds: "denials; allowed connections need its rules, too", reported: "`firewall`",
		needs: "iptables-nft", cause: "firewall", long: true,
		set: docker, except: forwardDropped, silent: true,
	},
	{
		name: "rules that keep pods from connection tracking (NOTRACK)", holds: "denials; replies to isolated pods are dropped", reported: "`untracked`",
		needs: "iptables-nft",
		set:   `for family in '' 6; do ip${family}tables-nft -t raw -A PREROUTING -i pod+ -j CT --notrack; done`, except: unanswered,
		untracked: true,
	},
	{
		name: "a flowtable with pods' interfaces", holds: all, reported: "`flowtable`", cause: "flowtable",
		kernel: `nft -f - <<<'table ip try { flowtable one { hook ingress priority 0; devices = { lo }; }; }'
			nft delete table ip try`,
		set: `nft -f - <<-END
			table inet fastpath {
				flowtable pods { hook ingress priority 0; devices = { pod1, pod2, pod3, pod4 }; }
				chain forward {
					type filter hook forward priority filter
					meta l4proto { tcp, udp } flow add @pods
				}
			}
			END`,
	},
	{
		name: "NodeLocal DNSCache (NOTRACK for the node's own address)", holds: all, reported: nothing, needs: "iptables-nft", long: true,
		set: `for address in 172.18.0.1 fd00:172:18::1; do
			case $address in *:*) iptables=ip6tables-nft;; *) iptables=iptables-nft;; esac
			$iptables -t raw -A PREROUTING -d $address -p udp --dport 80 -j CT --notrack
			$iptables -t raw -A OUTPUT -s $address -p udp --sport 80 -j CT --notrack
			$iptables -A INPUT -d $address -p udp --dport 80 -j ACCEPT
			$iptables -A OUTPUT -s $address -p udp --sport 80 -j ACCEPT
		done`,
		more: []labtest.Expectation{
			labtest.Yes("x/web", "node-1", "udp/80"), labtest.Yes("y/db", "node-1", "udp/80"), labtest.Yes("z/out", "node-1", "udp/80")},
	},
	{
		name: "a conntrack zone for pods", holds: all, reported: nothing,
		set: zones("ct zone set 5"),
	},
	{
		name: "a conntrack zone of one direction", holds: all, reported: nothing, long: true,
		set: zones("ct original zone set 5"),
	},
	{
		name: "a conntrack zone for each pod", holds: "denials; replies to isolated pods are dropped", reported: nothing, long: true,
		set:    zones("iifname pod1 ct zone set 1; iifname pod2 ct zone set 2; iifname pod3 ct zone set 3; iifname pod4 ct zone set 4"),
		except: unanswered,
	},
	{
		name: "`conntrack -F`", holds: all, reported: nothing, needs: "conntrack", long: true,
		repeat: "conntrack -F",
	},
	{
		name: "firewalld, pods in its zone trusted, and its reload", holds: all, reported: nothing, long: true,
		set: firewalld, repeat: firewalldReload,
	},
	{
		name: "ipset and its rules", holds: all, reported: nothing, needs: "ipset", long: true,
		set: `ipset create watched hash:ip; ipset add watched $WEB4
			iptables-nft -A FORWARD -m set --match-set watched dst -j ACCEPT
			iptables-nft -t nat -A POSTROUTING -m owner --socket-exists -p tcp -m set --match-set watched dst -j SNAT --to-source 169.254.7.127`,
		repeat: `ipset create new hash:ip; ipset add new $WEB4; ipset swap new watched; ipset destroy new`,
	},
	{
		name: "kube-proxy, iptables", holds: all, reported: nothing, needs: "iptables-nft", long: true,
		set: uplink + proxyIPTables, repeat: flushAndRestore("-nft"), more: service,
	},
	{
		name: "kube-proxy, nftables", holds: all, reported: nothing, long: true,
		set: uplink + proxyNFTables, repeat: proxyNFTables, more: service,
	},
	{
		name: "a router by connection marks, as of Amazon VPC CNI", holds: all, reported: nothing, needs: "iptables-nft", long: true,
		set: `ip link add eth7 type veth peer name far7; ip link set eth7 up; ip link set far7 up
			ip rule add pref 512 to 10.244.1.0/24 lookup main
			ip rule add pref 1024 fwmark 0x80/0x80 lookup main
			for pod in $WEB4 $DB4; do ip rule add pref 1536 from $pod lookup 2; done
			ip route add default dev eth7 table 2
			iptables-nft -t mangle -A PREROUTING -i eth7 -m addrtype --dst-type LOCAL -j CONNMARK --set-xmark 0x80/0x80
			iptables-nft -t mangle -A PREROUTING -i pod+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80`,
	},
	{
		name: "rules that set whole connection marks", holds: all, reported: nothing,
		set: `nft -f - <<-END
			table inet marks {
				chain prerouting {
					type filter hook prerouting priority mangle
					iifname "pod*" ct mark set 0x539
				}
			}
			END`,
	},
	{
		name: "rules that set the agent's bit in connection marks", holds: all, reported: "`netpol_copied_marks_total`", copied: true,
		set: `nft -f - <<-END
			table inet marks {
				chain prerouting { type filter hook prerouting priority mangle; ct mark set ct mark | 0x1000; }
				chain forward { type filter hook forward priority mangle; ct mark set ct mark | 0x1000; }
				chain postrouting { type filter hook postrouting priority 94; ct mark set ct mark | 0x1000; }
				chain output { type filter hook output priority mangle; ct mark set ct mark | 0x1000; }
			}
			END`,
	},
	{
		name: "rules that save and restore whole marks, which have the agent's bits", holds: all, reported: "`netpol_copied_marks_total`", copied: true,
		needs: "iptables-nft",
		set: `for family in '' 6; do
			iptables=ip${family}tables-nft
			$iptables -t mangle -A PREROUTING -j CONNMARK --restore-mark
			$iptables -t mangle -A PREROUTING -j MARK --or-mark 0x1000
			$iptables -t mangle -A PREROUTING -j CONNMARK --save-mark
			$iptables -t mangle -A POSTROUTING -j CONNMARK --restore-mark
			$iptables -t mangle -A OUTPUT -j MARK --set-mark 0x1000
			$iptables -t mangle -A OUTPUT -j CONNMARK --save-mark
		done`,
	},
	{
		name: "rules that save whole marks, without the agent's bits", holds: all, reported: nothing, needs: "iptables-nft",
		set: `for family in '' 6; do
			iptables=ip${family}tables-nft
			$iptables -t mangle -A PREROUTING -j CONNMARK --save-mark
			$iptables -t mangle -A POSTROUTING -j CONNMARK --save-mark
			$iptables -t mangle -A OUTPUT -j CONNMARK --save-mark
		done`,
	},
	{
		name: "rules that masquerade what pods get, and save and restore whole marks, as of a VPN", holds: all, reported: nothing, needs: "iptables-nft",
		set: `for family in '' 6; do
			iptables=ip${family}tables-nft
			$iptables -t nat -A POSTROUTING -o pod+ -j MASQUERADE
			$iptables -t mangle -A PREROUTING -j CONNMARK --restore-mark
			$iptables -t mangle -A FORWARD -j CONNMARK --save-mark
			$iptables -t mangle -A OUTPUT -j CONNMARK --restore-mark
		done`,
	},
	{
		name: "a proxy for SYN packets of pods (SYNPROXY)", holds: "denials; its answers to isolated pods are dropped", reported: nothing, needs: "iptables-nft", long: true,
		except: proxied,
		set: `echo 0 >/proc/sys/net/netfilter/nf_conntrack_tcp_loose
			for family in '' 6; do
			iptables=ip${family}tables-nft
			$iptables -t raw -A PREROUTING -i pod+ -p tcp --syn -j CT --notrack
			$iptables -A FORWARD -i pod+ -p tcp -m conntrack --ctstate INVALID,UNTRACKED -j SYNPROXY --sack-perm --timestamp --wscale 7 --mss 1460
		done`,
	},
	{
		name: "packets that arrive with the agent's marks, and rules that save these", holds: all, reported: "`netpol_copied_marks_total`", copied: true,
		set: `nft -f - <<-END
			table netdev marks {
				chain in { type filter hook ingress devices = { pod1, pod2, pod3, pod4 } priority 0; meta mark set 0x1000; }
			}
			table inet marks {
				chain prerouting { type filter hook prerouting priority mangle; ct mark set meta mark; }
			}
			END`,
	},
	{
		name: "packets that arrive with both of the agent's marks", holds: all, reported: nothing,
		set: `nft -f - <<-END
			table netdev marks {
				chain in { type filter hook ingress devices = { pod1, pod2, pod3, pod4 } priority 0; meta mark set 0x1800; }
			}
			END`,
	},
	{
		name: "traffic control that restores connection marks (`connmark`, `ctinfo`), and rules that save packets' marks", holds: all, reported: nothing,
		kernel: actions("connmark", "ctinfo"),
		set: control("action connmark pipe action ctinfo cpmark 0xffffffff") + `nft -f - <<-END
			table inet marks {
				chain prerouting { type filter hook prerouting priority mangle; ct mark set meta mark; }
			}
			END`,
	},
	{
		name: "traffic control that adds connections, with the agent's bits (`ct commit`)", holds: all, reported: nothing,
		kernel: actions("ct"),
		set: control("action ct pipe action goto chain 1") + `for pod in pod1 pod2 pod3 pod4; do
			for family in ip ipv6; do
				tc filter add dev $pod ingress chain 1 protocol $family flower ct_state +trk+new action ct commit mark 0x1000
			done
		done`,
	},
	{
		name: "traffic control that sets whole connection marks with each packet (`ct commit`)", holds: "all for new connections; established ones may go on", reported: nothing,
		kernel: actions("ct"), goesOn: true,
		set: control("action ct commit mark 0x539"),
	},
	{
		name: "IPsec that the node decrypts, with the agent's bits", holds: all, reported: nothing,
		kernel: `ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 1 mode tunnel ` + encryption + `
			ip xfrm state deleteall`,
		make: encryptPods,
	},
	{
		name: "a template with a zone and the agent's bits (CT)", holds: all, reported: nothing, needs: "iptables-nft", long: true,
		set: `for family in '' 6; do
			iptables=ip${family}tables-nft
			$iptables -t raw -A PREROUTING -i pod+ -j CT --zone 5
			$iptables -t raw -A PREROUTING -i pod+ -j MARK --set-mark 0x1800
			$iptables -t raw -A PREROUTING -i pod+ -j CONNMARK --save-mark
		done`,
	},
	{
		name: "a service mesh in the pod (REDIRECT, mark 1337)", holds: all, reported: nothing, needs: "iptables-nft", long: true,
		make: meshInPod,
	},
	{
		name: "strict `rp_filter`", holds: all, reported: nothing, long: true,
		set: `for name in all default pod1 pod2 pod3 pod4; do echo 1 >/proc/sys/net/ipv4/conf/$name/rp_filter; done`,
	},
	{
		name: "a table of the same name in other families", holds: all, reported: nothing, long: true,
		set: `for family in ip ip6 arp netdev; do nft add table $family netpol-agent; done
			nft add chain ip netpol-agent postrouting '{ type filter hook postrouting priority 95; policy accept; }'`,
		list: listTables,
	},
	{
		name: "chains around the agent's that accept", holds: all, reported: nothing, long: true,
		set: `nft -f - <<-END
			table inet around {
				chain before { type filter hook postrouting priority 94; accept; }
				chain same { type filter hook postrouting priority 95; accept; }
				chain between { type filter hook postrouting priority 96; accept; }
				chain after { type filter hook postrouting priority 97; accept; }
				chain input { type filter hook input priority 104; accept; }
			}
			END`,
	},
	{
		name: "rules at devices that send packets on (`fwd`)", holds: "nothing for what they send on", reported: "`data_plane`", long: true,
		set: `nft -f - <<-END
			table netdev other {
				chain in {
					type filter hook ingress device pod2 priority 0
					ip daddr $WEB4 fwd ip to $WEB4 device pod1
				}
			}
			END`,
		bypasses: true, cause: "data_plane",
	},
	{
		name: "eBPF programs of traffic control", holds: "nothing for what they send on", reported: "`data_plane`", needs: "tc", long: true,
		set: `tc qdisc add dev pod2 clsact
			tc filter add dev pod2 ingress bpf bytecode '1,6 0 0 4294967295' action mirred egress redirect dev pod1`,
		bypasses: true, cause: "data_plane",
	},
}

// acceptEverything returns rules that accept in many hooks. variant is "-nft" or "-legacy".
func acceptEverything(variant string) string {
	return `for iptables in iptables` + variant + ` ip6tables` + variant + `; do
		$iptables -A INPUT -m conntrack --ctstate INVALID -j DROP
		$iptables -A FORWARD -j ACCEPT
		$iptables -t raw -A PREROUTING -j ACCEPT
		$iptables -t mangle -A POSTROUTING -j ACCEPT
		$iptables -t nat -A POSTROUTING -o up0 -j MASQUERADE
	done
	`
}

// flushAndRestore removes the rules and restores them.
func flushAndRestore(variant string) string {
	return `for iptables in iptables` + variant + ` ip6tables` + variant + `; do
		saved=$($iptables-save); $iptables -F; $iptables-restore <<<"$saved"
	done
	`
}

// actions returns a script that fails where the kernel has not these actions of traffic control.
func actions(names ...string) string {
	script := "tc qdisc add dev lo clsact\n"
	for _, name := range names {
		script += "tc filter add dev lo ingress matchall action " + name + "\n"
	}
	return script + "tc qdisc del dev lo clsact"
}

// control returns a script that gives IP packets of pods to actions of traffic control, before they reach
// connection tracking.
func control(actions string) string {
	return `for pod in pod1 pod2 pod3 pod4; do
		tc qdisc add dev $pod clsact
		tc filter add dev $pod ingress protocol ip prio 1 matchall ` + actions + `
		tc filter add dev $pod ingress protocol ipv6 prio 2 matchall ` + actions + `
	done
	`
}

// encryption is that of IPsec.
const encryption = "aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128"

// encryptPods makes pods of y send to x/web through IPsec tunnels to the node, which gives the agent's bits
// to the packets that it decrypts, and drops others.
func encryptPods(t *testing.T, n node) {
	t.Helper()
	spi := 0
	for _, pod := range []string{"y/web", "y/db"} {
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			spi++
			from, to := n.Hosts[pod].Addr(family), n.Nodes[0].Host.Addr(family)
			state := fmt.Sprintf("ip xfrm state add src %s dst %s proto esp spi %d reqid %[3]d mode tunnel %s", from, to, spi, encryption)
			policy := fmt.Sprintf("ip xfrm policy add src %s dst %s tmpl src %[1]s dst %[3]s proto esp reqid %d mode tunnel dir ", from, n.Hosts["x/web"].Addr(family), to, spi)
			if out, err := n.Hosts[pod].Run(t.Context(), state+"\n"+policy+"out", "bash", "-e"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			n.run(t, state+" output-mark 0x1000\n"+policy+"fwd")
		}
	}
	n.run(t, `nft -f - <<-END
		table inet encrypted {
			chain prerouting {
				type filter hook prerouting priority mangle
				ip saddr { $OTHER4, $DB4 } ip daddr $WEB4 meta secpath missing drop
				ip6 saddr { $OTHER6, $DB6 } ip6 daddr $WEB6 meta secpath missing drop
			}
		}
		END`)
}

// zones returns rules that assign conntrack zones to packets that the node receives and
// sends.
func zones(rules string) string {
	return `nft -f - <<-END
		table inet zones {
			chain prerouting { type filter hook prerouting priority raw; ` + rules + `; }
			chain output { type filter hook output priority raw; ` + rules + `; }
		}
		END`
}

// docker is what Docker 27 writes with iptables.
const docker = `for family in '' 6; do ip${family}tables-nft-restore <<-END
	*filter
	:FORWARD DROP [0:0]
	:DOCKER - [0:0]
	:DOCKER-ISOLATION-STAGE-1 - [0:0]
	:DOCKER-ISOLATION-STAGE-2 - [0:0]
	:DOCKER-USER - [0:0]
	-A FORWARD -j DOCKER-USER
	-A FORWARD -j DOCKER-ISOLATION-STAGE-1
	-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	-A FORWARD -o docker0 -j DOCKER
	-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
	-A FORWARD -i docker0 -o docker0 -j ACCEPT
	-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
	-A DOCKER-ISOLATION-STAGE-1 -j RETURN
	-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
	-A DOCKER-ISOLATION-STAGE-2 -j RETURN
	-A DOCKER-USER -j RETURN
	COMMIT
	*nat
	:DOCKER - [0:0]
	-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
	-A POSTROUTING -o docker0 -m addrtype --src-type LOCAL -j MASQUERADE
	-A DOCKER -i docker0 -j RETURN
	COMMIT
	END
	done
	`

// firewalld is what firewalld 1.3 writes with the networks of pods in its zone trusted and
// the rest in its zone public, without chains that have no rules here.
const firewalld = `nft -f - <<-END
	table inet firewalld {}
	delete table inet firewalld
	table inet firewalld {
		chain mangle_PREROUTING { type filter hook prerouting priority -140; policy accept; }
		chain nat_PREROUTING { type nat hook prerouting priority -90; policy accept; }
		chain nat_POSTROUTING { type nat hook postrouting priority 110; policy accept; }
		chain filter_PREROUTING {
			type filter hook prerouting priority 10; policy accept
			icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
			meta nfproto ipv6 fib saddr . mark . iif oif missing drop
		}
		chain filter_INPUT {
			type filter hook input priority 10; policy accept
			ct state { established, related } accept
			ct status dnat accept
			iifname "lo" accept
			ct state invalid drop
			ip saddr 10.244.0.0/16 accept
			ip6 saddr fd00:10:244::/48 accept
			tcp dport { 22, 80 } accept
			reject with icmpx type admin-prohibited
		}
		chain filter_FORWARD {
			type filter hook forward priority 10; policy accept
			ct state { established, related } accept
			ct status dnat accept
			iifname "lo" accept
			ct state invalid drop
			ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 type addr-unreachable
			ip saddr 10.244.0.0/16 accept
			ip6 saddr fd00:10:244::/48 accept
			reject with icmpx type admin-prohibited
		}
		chain filter_OUTPUT {
			type filter hook output priority 10; policy accept
			ct state { established, related } accept
			oifname "lo" accept
		}
	}
	END
	`

// firewalldReload closes the node while the rules are replaced, like firewalld.
const firewalldReload = `nft -f - <<-END
	table inet firewalld_policy_drop {
		chain filter_prerouting { type filter hook prerouting priority -290; policy drop; ct state { established, related } accept; }
		chain filter_output { type filter hook output priority -290; policy drop; ct state { established, related } accept; }
	}
	END
	` + firewalld + `nft delete table inet firewalld_policy_drop`

// uplink adds a default route for the addresses of Services, which nodes usually have.
const uplink = `ip link add eth7 type veth peer name far7; ip link set eth7 up; ip link set far7 up
	ip route add default dev eth7 src 172.18.0.1
	`

// service is what policies mean for the addresses of a Service of x/web.
var service = []labtest.Expectation{
	labtest.Yes("y/db", "10.96.0.80", "tcp/80"), labtest.Yes("z/out", "10.96.0.80", "tcp/80"), labtest.Yes("node-1", "10.96.0.80", "tcp/80"),
	labtest.No("y/web", "10.96.0.80", "tcp/80"),
}

// proxyIPTables is a Service of x/web in kube-proxy's mode iptables.
const proxyIPTables = `iptables-nft-restore <<-END
	*filter
	:KUBE-FIREWALL - [0:0]
	:KUBE-FORWARD - [0:0]
	:KUBE-SERVICES - [0:0]
	-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
	-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
	-A INPUT -j KUBE-FIREWALL
	-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
	-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
	-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
	-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	COMMIT
	*nat
	:KUBE-MARK-MASQ - [0:0]
	:KUBE-POSTROUTING - [0:0]
	:KUBE-SEP-WEB - [0:0]
	:KUBE-SERVICES - [0:0]
	:KUBE-SVC-WEB - [0:0]
	-A PREROUTING -j KUBE-SERVICES
	-A OUTPUT -j KUBE-SERVICES
	-A POSTROUTING -j KUBE-POSTROUTING
	-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
	-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
	-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
	-A KUBE-POSTROUTING -j MASQUERADE --random-fully
	-A KUBE-SEP-WEB -s $WEB4 -j KUBE-MARK-MASQ
	-A KUBE-SEP-WEB -p tcp -m tcp -j DNAT --to-destination $WEB4:80
	-A KUBE-SERVICES -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-WEB
	-A KUBE-SVC-WEB ! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
	-A KUBE-SVC-WEB -j KUBE-SEP-WEB
	COMMIT
	END
	`

// proxyNFTables is a Service of x/web in kube-proxy's mode nftables.
const proxyNFTables = `nft -f - <<-END
	table ip kube-proxy {}
	delete table ip kube-proxy
	table ip kube-proxy {
		map service-ips {
			type ipv4_addr . inet_proto . inet_service : verdict
			elements = { 10.96.0.80 . tcp . 80 : goto service-web }
		}
		chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
		chain endpoint-web {
			ip saddr $WEB4 jump mark-for-masquerade
			meta l4proto tcp dnat to $WEB4:80
		}
		chain service-web {
			ip daddr 10.96.0.80 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
			numgen random mod 1 vmap { 0 : goto endpoint-web }
		}
		chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
		chain masquerading {
			mark & 0x4000 == 0 return
			mark set mark xor 0x4000
			masquerade fully-random
		}
		chain filter-prerouting { type filter hook prerouting priority -110; policy accept; }
		chain filter-forward { type filter hook forward priority -110; policy accept; }
		chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
		chain nat-output { type nat hook output priority -100; policy accept; jump services; }
		chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
	}
	END
	`

// meshInPod sets up what a sidecar mesh has in the network namespaces of pods.
func meshInPod(t *testing.T, n node) {
	t.Helper()
	const redirects = `for family in '' 6; do
		iptables=ip${family}tables-nft
		$iptables -t nat -F; $iptables -t mangle -F
		$iptables -t nat -A PREROUTING -p tcp --dport 80 -j REDIRECT --to-port 8080
		$iptables -t mangle -A PREROUTING -p tcp -j MARK --set-mark 1337
		$iptables -t mangle -A PREROUTING -p tcp -j CONNMARK --save-mark
		$iptables -t mangle -A OUTPUT -p tcp -j CONNMARK --restore-mark
	done`
	if out, err := n.Hosts["x/web"].Run(t.Context(), redirects, "bash", "-e"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// listTables lists the tables of other families.
func listTables(t *testing.T, n node) string {
	t.Helper()
	return n.run(t, "for family in ip ip6 arp netdev; do nft list table $family netpol-agent; done")
}
