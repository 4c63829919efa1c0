// Command kubebox is every Kubernetes component of the testbed in one binary:
// etcd, the control plane, the node components, CoreDNS, the testbed's own
// volume provisioner, and its CSI driver with the controllers of snapshots. One
// binary instead of nine shares most of its code (135 MB in place of roughly
// 500 MB) and is linked once.
//
// The first argument, or the name it is called by, chooses the component; all
// further arguments are that component's own.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// binaryName is the name under which the first argument chooses the component.
const binaryName = "kubebox"

// components maps a component's name to what runs it; os.Args is already that
// component's own when it is called. The value is the exit status.
var components = map[string]func() int{
	"coredns":                 runCoreDNS,
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return runCobra(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return runCobra(controllers.NewControllerManagerCommand()) },
	"kube-proxy":              func() int { return runCobra(proxy.NewProxyCommand()) },
	"kube-scheduler":          func() int { return runCobra(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return runCobra(kubelet.NewKubeletCommand(context.Background())) },
	"provisioner":             runProvisioner,
	"snapshotter":             runSnapshotter,
}

func main() {
	name := filepath.Base(os.Args[0])
	if strings.HasPrefix(name, binaryName) && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	run, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kubebox: unknown component %q; one of: %s\n", name, strings.Join(componentNames(), ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

func componentNames() []string {
	names := make([]string, 0, len(components))
	for name := range components {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func runCobra(command *cobra.Command) int {
	return cli.Run(command)
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runCoreDNS() int {
	// CoreDNS runs plugins in this order, whatever the Corefile's own order is.
	dnsserver.Directives = []string{"bind", "errors", "health", "ready", "cache", "kubernetes"}
	coremain.Run()
	return 0
}
