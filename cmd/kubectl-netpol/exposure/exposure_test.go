package exposure_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func pod(namespace, name, address string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP},
		}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// objects parses documents of the package's kinds.
func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for doc := range strings.SplitSeq(text, "---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

const ingress = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  rules:
  - host: b.example.com
    http: {paths: [{backend: {service: {name: web, port: {number: 80}}}}, {backend: {service: {name: web, port: {name: web}}}}]}
  - host: a.example.com
    http: {paths: [{backend: {service: {name: web, port: {number: 80}}}}, {backend: {service: {name: gone, port: {number: 80}}}}, {backend: {resource: {kind: Bucket}}}]}
`

const route = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: shop, name: web}
spec:
  parentRefs: [{name: gateway, namespace: infra}, {group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80}, {group: example.com, kind: Bucket, name: web, port: 80}, {name: web, port: 81}]}]
`

// openShift is a Route with a port.
func openShift(port string) string {
	return `apiVersion: route.openshift.io/v1
kind: Route
metadata: {namespace: shop, name: web}
spec: {host: c.example.com, to: {kind: Service, name: web, weight: 100}, alternateBackends: [{kind: Service, name: gone}], ` + port + `}
`
}

const gateway = `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: gateway}
spec: {gatewayClassName: c}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: c}
spec: {controllerName: traefik.io/gateway-controller}
`

func class(controller, annotation string) string {
	return fmt.Sprintf(`---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: c, annotations: {ingressclass.kubernetes.io/is-default-class: %q}}
spec: {controller: %s}
`, annotation, controller)
}

// Every backend with pods is exposed once for each controller, and the pods of the controller
// are those with its well-known labels.
func TestFind(t *testing.T) {
	named := strings.Replace(ingress, "spec:\n", "spec:\n  ingressClassName: c\n", 1)
	former := strings.Replace(ingress, "name: web}", `name: web, annotations: {kubernetes.io/ingress.class: c}}`, 1)
	const byIngress = "shop/web-0 at TCP http by Ingress shop/web (a.example.com, b.example.com): "
	const byRoute = "shop/web-0 at TCP http by HTTPRoute shop/web: "
	const byRouter = "shop/web-0 at TCP http by Route shop/web (c.example.com): [openshift-ingress/router-0] "
	nginx, traefik := "[infra/nginx-0] ", "[infra/traefik-0] "
	for _, tc := range []struct {
		name, objects, from string // from is the only pod that may connect
		want                string
	}{
		{"by class", named + class("k8s.io/ingress-nginx", ""), "nginx", byIngress + nginx + "all"},
		{"by the former annotation", former + class("k8s.io/ingress-nginx", ""), "nginx", byIngress + nginx + "all"},
		{"by the default class", ingress + class("k8s.io/ingress-nginx", "true"), "nginx", byIngress + nginx + "all"},
		{"denied", named + class("k8s.io/ingress-nginx", ""), "traefik", byIngress + nginx + "none"},
		{"without a class", ingress + class("k8s.io/ingress-nginx", ""), "nginx", byIngress + "[] unknown it names no class, and no IngressClass in the input is the default"},
		{"of a class that is not there", named, "nginx", byIngress + "[] unknown no IngressClass c in the input"},
		{"of a controller with a suffix", named + class("haproxy.org/ingress-controller/x", ""), "nginx", byIngress + "[] unknown no pods of haproxy.org/ingress-controller/x in the input"},
		{"of an unknown controller", named + class("example.com/x", ""), "nginx", byIngress + "[] unknown the labels of the pods of example.com/x are not known"},
		{"by the labels of a Gateway", strings.Replace(route, "infra", "edge", 1), "gateway", byRoute + "[edge/gateway-0] all"},
		{"by the class of a Gateway", route + gateway, "traefik", byRoute + traefik + "all"},
		{"by a Route", openShift(""), "router", byRouter + "all"},
		{"by a Route to the port of the pods", openShift("port: {targetPort: http}"), "router", byRouter + "all"},
		{"by a Route to the port of the Service", openShift("port: {targetPort: web}"), "traefik", byRouter + "none"},
		{"by a Route to a number that pods do not have", openShift("port: {targetPort: 80}"), "router", ""},
		{"by a Gateway that is not there", route, "traefik", byRoute + "[] unknown no pods of Gateway infra/gateway in the input"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pods := []*corev1.Pod{
				pod("shop", "web-0", "10.0.0.1", map[string]string{"app": "web"}),
				pod("infra", "nginx-0", "10.0.0.2", map[string]string{"app.kubernetes.io/name": "ingress-nginx", "app.kubernetes.io/component": "controller", "may": "nginx"}),
				pod("infra", "nginx-job", "10.0.0.3", map[string]string{"app.kubernetes.io/name": "ingress-nginx", "app.kubernetes.io/component": "admission-webhook"}),
				pod("infra", "traefik-0", "10.0.0.4", map[string]string{"app.kubernetes.io/name": "traefik", "may": "traefik"}),
				pod("edge", "gateway-0", "10.0.0.5", map[string]string{"gateway.networking.k8s.io/gateway-name": "gateway", "may": "gateway"}),
				pod("openshift-ingress", "router-0", "10.0.0.6", map[string]string{"ingresscontroller.operator.openshift.io/deployment-ingresscontroller": "default", "may": "router"}),
			}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "web"},
				Ports:    []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromString("http")}},
			}}
			policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
					NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"may": tc.from}},
				}}}},
			}}
			var namespaces []*corev1.Namespace
			for _, name := range []string{"shop", "infra", "edge", "openshift-ingress"} {
				namespaces = append(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			c := reachability.New(clusterstate.Input{Namespaces: namespaces, Pods: pods, Policies: []compile.Object{policy}})

			found := exposure.Find(&exposure.Input{Cluster: c, Pods: pods, Services: []*corev1.Service{service}, Objects: objects(t, tc.objects)})

			var got []string
			for _, x := range found {
				if len(x.Pods) == 0 {
					continue // see TestFindWhatIsMissing
				}
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s at %s by %s: %v %s %s", strings.Join(x.Pods, ","), x.Port, x.By(), x.Controller, x.LetIn, x.Why)))
			}
			if got := strings.Join(got, "\n"); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// isolatedWeb lets only some addresses into shop/web.
func isolatedWeb(cidrs ...string) *networkingv1.NetworkPolicy {
	var peers []networkingv1.NetworkPolicyPeer
	for _, cidr := range cidrs {
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	if len(peers) > 0 {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	}
	return p
}

// Services are exposed by node ports, load balancers and external addresses: to addresses outside
// and, with externalTrafficPolicy Cluster, to the addresses of other nodes.
func TestFindServices(t *testing.T) {
	nodePort := corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080}}}
	local := nodePort
	local.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	balanced := corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: nodePort.Ports}
	manifest := corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}
	external := corev1.ServiceSpec{ExternalIPs: []string{"203.0.113.7"}, Ports: []corev1.ServicePort{{Port: 80}}}
	inside := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}
	const everyone, nodes, some = "0.0.0.0/0", "192.168.0.0/24", "203.0.113.0/24"
	for _, tc := range []struct {
		name   string
		spec   corev1.ServiceSpec
		policy *networkingv1.NetworkPolicy // nil for none
		want   string
	}{
		{"without a policy", nodePort, nil, "TCP 8080 by Service shop/web (NodePort 30080): all all"},
		{"denied", nodePort, isolatedWeb(), "TCP 8080 by Service shop/web (NodePort 30080): none none"},
		{"to some addresses", nodePort, isolatedWeb(some), "TCP 8080 by Service shop/web (NodePort 30080): some none"},
		{"to some addresses and nodes", nodePort, isolatedWeb(some, nodes), "TCP 8080 by Service shop/web (NodePort 30080): some all"},
		{"to nodes", nodePort, isolatedWeb("192.168.0.2/32", "192.168.0.3/32"), "TCP 8080 by Service shop/web (NodePort 30080): none all"},
		{"to one of two other nodes", nodePort, isolatedWeb("192.168.0.3/32"), "TCP 8080 by Service shop/web (NodePort 30080): none some"},
		{"to everyone", nodePort, isolatedWeb(everyone), "TCP 8080 by Service shop/web (NodePort 30080): all all"},
		{"keeping the clients' addresses", local, isolatedWeb(some), "TCP 8080 by Service shop/web (NodePort 30080): some"},
		{"by a load balancer", balanced, nil, "TCP 8080 by Service shop/web (LoadBalancer, NodePort 30080): all all"},
		{"by a manifest without the node port", manifest, nil, "TCP 80 by Service shop/web (NodePort): all all"},
		{"by external addresses", external, nil, "TCP 80 by Service shop/web (external address 203.0.113.7): all all"},
		{"only inside", inside, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.spec.Selector = map[string]string{"app": "web"}
			in := clusterstate.Input{
				Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
				Pods:       []*corev1.Pod{pod("shop", "web-0", "10.0.0.1", map[string]string{"app": "web"})},
			}
			for name, address := range map[string]string{"n": "192.168.0.1", "other": "192.168.0.2", "another": "192.168.0.3"} {
				in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
					Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "198.51.100." + address[len(address)-1:]}, {Type: corev1.NodeInternalIP, Address: address}},
				}})
			}
			if tc.policy != nil {
				in.Policies = []compile.Object{tc.policy}
			}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: tc.spec}

			found := exposure.Find(&exposure.Input{Cluster: reachability.New(in), Pods: in.Pods, Nodes: in.Nodes, Services: []*corev1.Service{service}})

			got := ""
			for _, x := range found {
				got += strings.TrimSpace(fmt.Sprintf("%s by %s: %s %s", x.Port, x.By(), x.LetIn, x.Nodes))
			}
			if got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// Host ports of pods that have a network of their own are a way from outside, each once for all pods
// of a workload.
func TestFindHostPorts(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	owner := func(p *corev1.Pod) *corev1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "proxy", Controller: new(true)}}
		return p
	}
	with := func(name string, f func(*corev1.PodSpec), ports ...corev1.ContainerPort) *corev1.Pod {
		p := pod("shop", name, "10.0.0."+name[len(name)-1:], map[string]string{"app": "web"})
		p.Spec.Containers[0].Ports = ports
		if f != nil {
			f(&p.Spec)
		}
		return p
	}
	port := corev1.ContainerPort{ContainerPort: 8443, HostPort: 443}
	for _, tc := range []struct {
		name   string
		pods   []*corev1.Pod
		policy *networkingv1.NetworkPolicy
		want   string
	}{
		{"of a workload", []*corev1.Pod{owner(with("a1", nil, port)), owner(with("b2", nil, port))}, nil, "shop/a1,shop/b2 TCP 8443 by DaemonSet shop/proxy (hostPort 443): all\n"},
		{"of single pods", []*corev1.Pod{with("a1", nil, port), with("b2", nil, port)}, nil, "shop/a1 TCP 8443 by Pod shop/a1 (hostPort 443): all\nshop/b2 TCP 8443 by Pod shop/b2 (hostPort 443): all\n"},
		{"denied", []*corev1.Pod{with("a1", nil, port)}, isolatedWeb(), "shop/a1 TCP 8443 by Pod shop/a1 (hostPort 443): none\n"},
		{"to some", []*corev1.Pod{with("a1", nil, port)}, isolatedWeb("203.0.113.0/24"), "shop/a1 TCP 8443 by Pod shop/a1 (hostPort 443): some\n"},
		{"at an address", []*corev1.Pod{with("a1", nil, corev1.ContainerPort{ContainerPort: 53, HostPort: 53, Protocol: corev1.ProtocolUDP, HostIP: "2001:db8::1"})}, nil, "shop/a1 UDP 53 by Pod shop/a1 (hostPort [2001:db8::1]:53): all\n"},
		{"at all addresses", []*corev1.Pod{with("a1", nil, corev1.ContainerPort{ContainerPort: 53, HostPort: 53, HostIP: "0.0.0.0"})}, nil, "shop/a1 TCP 53 by Pod shop/a1 (hostPort 53): all\n"},
		{"at a loopback address", []*corev1.Pod{with("a1", nil, corev1.ContainerPort{ContainerPort: 53, HostPort: 53, HostIP: "127.0.0.1"})}, nil, ""},
		{"of a sidecar", []*corev1.Pod{with("a1", func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{port}}, {Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}}}}
		})}, nil, "shop/a1 TCP 8443 by Pod shop/a1 (hostPort 443): all\n"},
		{"of a host-network pod", []*corev1.Pod{with("a1", func(s *corev1.PodSpec) { s.HostNetwork = true }, port)}, nil, ""},
		{"none", []*corev1.Pod{with("a1", nil, corev1.ContainerPort{ContainerPort: 8443})}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := clusterstate.Input{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}, Pods: tc.pods}
			if tc.policy != nil {
				in.Policies = []compile.Object{tc.policy}
			}

			got := ""
			for _, x := range exposure.Find(&exposure.Input{Cluster: reachability.New(in), Pods: in.Pods}) {
				got += fmt.Sprintf("%s %s by %s: %s\n", strings.Join(x.Pods, ","), x.Port, x.By(), x.LetIn)
				if !x.Outside() || !x.HostPort() {
					t.Errorf("%s is not said to be a way from outside through a host port", x.By())
				}
			}
			if got != tc.want {
				t.Errorf("got\n%swant\n%s", got, tc.want)
			}
		})
	}
}

// A load balancer takes connections from its source ranges, which policies do not know.
func TestSourceRanges(t *testing.T) {
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": "web"}}
	narrowed, nodePort := spec, spec
	narrowed.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
	nodePort.Type, nodePort.LoadBalancerSourceRanges = corev1.ServiceTypeNodePort, narrowed.LoadBalancerSourceRanges
	annotated := map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: "192.0.2.0/24, 198.51.100.0/24"}
	for _, tc := range []struct {
		name        string
		spec        corev1.ServiceSpec
		annotations map[string]string
		want        []string
	}{
		{"none", spec, nil, nil},
		{"of the spec", narrowed, nil, []string{"203.0.113.0/24"}},
		{"of the annotation", spec, annotated, []string{"192.0.2.0/24", "198.51.100.0/24"}},
		{"of both", narrowed, annotated, []string{"203.0.113.0/24"}},
		{"without a load balancer", nodePort, annotated, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pods := []*corev1.Pod{pod("shop", "web-0", "10.0.0.1", map[string]string{"app": "web"})}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: tc.annotations}, Spec: tc.spec}

			found := exposure.Find(&exposure.Input{Cluster: reachability.New(clusterstate.Input{Pods: pods}), Pods: pods, Services: []*corev1.Service{service}})

			if len(found) != 1 || !slices.Equal(found[0].SourceRanges, tc.want) {
				t.Errorf("got %+v, want ranges %v", found, tc.want)
			}
		})
	}
}

// Behind a Service without a selector is what its endpoints have. Where nothing is known, the answer
// says what is missing.
func TestFindWhatIsMissing(t *testing.T) {
	const backend = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
`
	ports := []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080)}}
	at := func(address string, port int32) exposure.Backend {
		return exposure.Backend{Address: address, PortName: "web", Protocol: corev1.ProtocolTCP, Port: port}
	}
	for _, tc := range []struct {
		name    string
		service *corev1.ServiceSpec
		behind  []exposure.Backend
		want    string
	}{
		{"no Service", nil, nil, " at : that Service is not in the input"},
		{"no port", &corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 81}}}, nil, " at : it has no port 80"},
		{"another name", &corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example.com"}, nil, " at : it is another name for db.example.com"},
		{"no pods", &corev1.ServiceSpec{Selector: map[string]string{"app": "gone"}, Ports: ports}, nil, " at : it selects no pod of the input (app=gone)"},
		{"no endpoints", &corev1.ServiceSpec{Ports: ports}, nil, " at : it has no selector, and no Endpoints or EndpointSlice with that port"},
		{"endpoints of pods and outside", &corev1.ServiceSpec{Ports: ports}, []exposure.Backend{at("10.0.0.1", 8080), at("172.18.0.2", 8080)}, "172.18.0.2,shop/web-0 at TCP 8080: "},
		{"endpoints with two ports", &corev1.ServiceSpec{Ports: ports}, []exposure.Backend{at("10.0.0.1", 8080), at("172.18.0.2", 8081)}, "shop/web-0 at TCP 8080: ; 172.18.0.2 at TCP 8081: "},
		{"endpoints that are none", &corev1.ServiceSpec{Ports: ports}, []exposure.Backend{at("db.example.com", 8080)}, ` at : its endpoints: "db.example.com" is neither an address nor namespace/pod`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pods := []*corev1.Pod{pod("shop", "web-0", "10.0.0.1", map[string]string{"app": "web"})}
			in := exposure.Input{
				Cluster: reachability.New(clusterstate.Input{Pods: pods}), Pods: pods,
				Behind: exposure.Backends{"shop/web": tc.behind}, Objects: objects(t, backend),
			}
			if tc.service != nil {
				in.Services = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: *tc.service}}
			}

			var got []string
			for _, x := range exposure.Find(&in) {
				why := ""
				if len(x.Pods) == 0 {
					why = x.Why
				}
				got = append(got, fmt.Sprintf("%s at %s: %s", strings.Join(x.Pods, ","), x.Port, why))
			}
			if strings.Join(got, "; ") != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}
