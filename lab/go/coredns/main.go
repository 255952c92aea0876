// CoreDNS with the plugins that a lab cluster uses and no others: the full
// set pulls in cloud SDKs that take minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// A query passes the plugins in this order. "template" is last: it answers
	// NXDOMAIN for every name outside the cluster, so that nothing is forwarded.
	dnsserver.Directives = []string{
		"reload", "errors", "health", "ready", "cache", "hosts", "kubernetes", "loop", "forward", "template",
	}
	coremain.Run()
}
