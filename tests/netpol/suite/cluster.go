package suite

import (
	"context"
	"flag"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
)

// ClusterFlags registers the flags of the backend "cluster". The returned function creates
// the backend once the flags are parsed.
func ClusterFlags(flags *flag.FlagSet) NewBackend {
	var cfg cluster.Config
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "cluster: path of the kubeconfig; the default is $KUBECONFIG")
	families := flags.String("families", "IPv4", "cluster: address families of its pods: IPv4, IPv6, or both with a comma")
	flags.StringVar(&cfg.Image, "image", "registry.k8s.io/e2e-test-images/agnhost:2.66.1", "cluster: image of the pods, agnhost of Kubernetes, 2.63 or later")
	flags.StringVar(&cfg.Prober, "prober", "", "cluster: image with the prober of kube-network-policies, in place of -image; also play what agnhost cannot do: ICMP, -sctp, -outside, and established connections")
	flags.BoolVar(&cfg.ViaServices, "via-services", false, "cluster: connect to every pod through a Service in front of it")
	flags.BoolVar(&cfg.HostNetwork, "host-network", false, "cluster: also play scenarios with pods in the network of their node, which serve ports there")
	flags.BoolVar(&cfg.SCTP, "sctp", false, "cluster: also play scenarios with SCTP, whose packets take raw sockets")
	outside := flags.String("outside", "", "cluster: command that runs a program on a host outside the cluster, see the README; also play scenarios with such hosts")
	flags.BoolVar(&cfg.SilentDrops, "silent-drops", false, "cluster: a denied connection that is refused instead of timing out fails")
	flags.BoolVar(&cfg.CutsEstablished, "cuts-established", false, "cluster: an established connection that goes on although a change denies it fails")
	flags.IntVar(&cfg.Scale.Pods, "pods", 0, "cluster: further pods, which are only objects with a status")
	flags.IntVar(&cfg.Scale.Namespaces, "namespaces", 0, "cluster: namespaces of these pods and of -policies")
	flags.IntVar(&cfg.Scale.Policies, "policies", 0, "cluster: further policies, which select only these pods")
	flags.Float64Var(&cfg.Scale.Churn, "churn", 0, "cluster: changes of these pods and policies in a second")
	return func(ctx context.Context) (netpol.Backend, error) {
		access, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
		if err != nil {
			return nil, err
		}
		access.QPS, access.Burst = -1, 0          // scenarios change many objects
		access.WarningHandler = rest.NoWarnings{} // their strange objects are on purpose
		for family := range strings.SplitSeq(*families, ",") {
			cfg.Families = append(cfg.Families, corev1.IPFamily(family))
		}
		cfg.Outside = strings.Fields(*outside)
		return cluster.New(ctx, access, cfg)
	}
}
