package main

import (
	"strings"
	"testing"
)

// Pods without an address may have any of the assumed ranges. Each command says both answers where the
// addresses decide.
func TestPodsWithoutAddresses(t *testing.T) {
	t.Chdir("testdata/places")
	const depends = "if kube-system/coredns is in 10.0.0.0/8"
	for command, tc := range map[string]struct {
		code int
		want string
	}{
		"matrix -f cluster.yaml":                                                                                            {0, "53/UDP reached " + depends + ", not if\n  kube-system/coredns is in 172.16.0.0/12, or 192.168.0.0/16"},
		"matrix -f cluster.yaml --port 53 --protocol UDP -o json":                                                           {0, `"depends":{"shop/deploy/api":{"kube-system/deploy/coredns":"reached ` + depends},
		"matrix -f cluster.yaml -o json":                                                                                    {0, `"kube-system/deploy/coredns":{"depends":"reached ` + depends},
		"matrix -f cluster.yaml --port 53 --protocol UDP -o json --pod-cidr 10.4.0.0/16":                                    {0, `"shop/deploy/api":{"kube-system/deploy/coredns":true`},
		"explain shop/web shop/api --port 80 -f cluster.yaml":                                                               {1, "TCP 80: denied\n"},
		"explain shop/web 1.1.1.1 --port 80 -f cluster.yaml":                                                                {0, "TCP 80: allowed\n"},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml":                                     {2, "depends on addresses that are not known: allowed " + depends + "; denied if kube-system/coredns is in 172.16.0.0/12, or 192.168.0.0/16\n"},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml -o json":                             {2, `"depends": [`},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml --pod-cidr 10.4.0.0/16":              {0, "UDP 53: allowed\n"},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml --pod-cidr 10.4/16":                  {2, "--pod-cidr=10.4/16: must be a CIDR"},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml --pod-cidr 192.168.0.0/16 -o policy": {1, "kind: NetworkPolicy"},
		"explain shop/api kube-system/coredns --port 53 --protocol UDP -f cluster.yaml -o policy":                           {1, "kind: NetworkPolicy"},
		"assert intent.yaml -f cluster.yaml":                                                                                {1, "is not known without addresses, allowed " + depends},
		"assert intent.yaml -f cluster.yaml -o json":                                                                        {1, `"depends": [`},
		"diff -f cluster.yaml -f opened.yaml":                                                                               {1, "newly allowed: shop/deploy/web -> shop/deploy/api, shop/new pod\n"},
		"check -f cluster.yaml":                                                                                             {1, "egress of shop/web is restricted, and nothing allows DNS [no-dns]"},
		"check -f cluster.yaml --pod-cidr 172.16.1.0/24":                                                                    {1, "egress of shop/api is restricted, and nothing allows DNS [no-dns]"},
		"check -f cluster.yaml --disable no-default-deny":                                                                   {1, "info: NetworkPolicy shop/api spec.egress: egress of shop/api is restricted, and whether it allows DNS depends on"},
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", command)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d\n%s%swant %d\n%s", code, stdout, stderr, tc.code, tc.want)
			}
		})
	}
}
