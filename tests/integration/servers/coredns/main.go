// Command coredns is CoreDNS with the plugins that a cluster's DNS and the tests of DNS
// need and no others: those for the clouds make most of its size and of the time to build it.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order in which a query passes them.
	dnsserver.Directives = []string{"health", "ready", "log", "errors", "cache", "hosts", "kubernetes"}
	coremain.Run()
}
