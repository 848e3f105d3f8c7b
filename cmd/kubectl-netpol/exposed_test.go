package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// exposedShop is a shop with an Ingress whose controller is let in.
const exposedShop = `apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: public}
spec: {controller: k8s.io/ingress-nginx}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: edge, name: nginx}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: ingress-nginx}}
  template:
    metadata: {labels: {app.kubernetes.io/name: ingress-nginx, app.kubernetes.io/component: controller}}
    spec: {containers: [{name: nginx, image: nginx}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: web}
spec:
  podSelector: {}
  ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}}]}]
---
` + exposingIngress

const exposingIngress = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  ingressClassName: public
  rules:
  - host: shop.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

const (
	exposedLine = "shop/deploy/web at TCP 8080, by Ingress shop/web (shop.example.com); its controller's pods, edge/deploy/nginx, are "
	isolated    = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: web}\nspec: {podSelector: {}}\n"
)

// Every command that shows the exposed pods says by what they are exposed, and whether that works.
func TestIngressesExpose(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return " -f " + path
	}
	shop, deny := file("shop.yaml", exposedShop), file("deny.yaml", isolated)
	another := file("another.yaml", strings.Replace(exposingIngress, "name: web}", "name: more}", 1))
	const section = "\n\nExposed by Ingresses, routes, Services and host ports:\n- "
	for _, tc := range []struct {
		command string
		code    int
		want    string
	}{
		{"matrix" + shop, 0, section + exposedLine + "let in\n"},
		{"matrix" + shop + deny, 0, section + exposedLine + "not let in\n"},
		{"matrix --to edge/deploy/nginx" + shop, 0, ""},
		{"explain 192.0.2.1 svc/web -n shop" + shop, 1, "Note: exposed: " + exposedLine + "let in.\n"},
		{"diff" + shop + deny, 1, "By Ingresses, routes, Services and host ports:\n  before: " + exposedLine + "let in\n  after: " + exposedLine + "not let in\n"},
		{"diff" + shop + another, 1, "By Ingresses, routes, Services and host ports:\n  newly exposed: " + strings.Replace(exposedLine, "shop/web (", "shop/more (", 1) + "let in\n\nCompared"},
		{"diff -o markdown" + shop + another, 1, "\n- newly exposed: " + strings.Replace(exposedLine, "shop/web (", "shop/more (", 1) + "let in\n"},
		{"diff -n shop" + shop + another, 1, "By Ingresses, routes, Services and host ports:\n  newly exposed: "},
		{"diff -n edge" + shop + another, 0, "Nothing changes.\n"},
		{"diff" + shop + file("same.yaml", exposingIngress), 0, "Nothing changes.\n"},
		{"diff --replace" + shop + file("less.yaml", strings.TrimSuffix(exposedShop, exposingIngress)), 1, "no longer exposed: " + exposedLine},
		{"check" + shop + deny, 1, "Ingress shop/web spec.rules[0].http.paths[0].backend: the controller's pods, edge/nginx, do not reach shop/web at TCP 8080 [backend-denied]"},
		{"check" + shop + deny + file("ignored.yaml", "# netpol:ignore backend-denied not yet\n"+exposingIngress), 0, "1 ignored"},
	} {
		t.Run(strings.ReplaceAll(tc.command, dir, ""), func(t *testing.T) {
			code, stdout, stderr := call(t, "", tc.command)

			if code != tc.code || !strings.Contains(stdout, tc.want) || tc.want == "" && strings.Contains(stdout, "Exposed") {
				t.Errorf("got %d\n%s%swant %d\n%s", code, stdout, stderr, tc.code, tc.want)
			}
		})
	}
}

// A change of objects of any single kind is answered, and what is not compared is named.
func TestDiffOfOneKind(t *testing.T) {
	for name, tc := range map[string]struct {
		changes string
		code    int
		want    string
	}{
		"Namespace":            {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {a: b}}\n", 0, "Nothing changes.\n"},
		"Node":                 {"apiVersion: v1\nkind: Node\nmetadata: {name: n}\n", 0, "Nothing changes.\n"},
		"Service":              {"apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web}\nspec: {selector: {app: gone}, ports: [{port: 80}]}\n", 1, "no longer reached: edge/deploy/nginx, edge/new pod -> service shop/web, TCP 80 (before shop/deploy/web at TCP 8080, now nothing)\n"},
		"IngressClass":         {"apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: other}\nspec: {controller: example.com/x}\n", 0, "Nothing changes.\n"},
		"another kind":         {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", 0, "Nothing changes.\n"},
		"another kind of rule": {"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c}\n", 0, "Nothing that was compared changes.\n"},
		"and it is named":      {"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c}\n", 0, "\nNot compared: 1 CiliumNetworkPolicy (cilium.io)\n"},
		"nothing":              {"\n", 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "shop.yaml")
			if err := os.WriteFile(path, []byte(exposedShop), 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := call(t, tc.changes, "diff -f "+path+" -f -")
			if code != tc.code || !strings.Contains(stdout, tc.want) {
				t.Errorf("got %d\n%s%swant %d\n%s", code, stdout, stderr, tc.code, tc.want)
			}
		})
	}
}

// Services without a selector, and the ways from outside, are answered by every command, and what
// is not known is named.
func TestServicesExpose(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return " -f " + path
	}
	shop := file("shop.yaml", strings.Replace(exposedShop, "spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}", "spec: {ports: [{name: web, port: 80}]}", 1))
	endpoints := func(address string) string {
		return "apiVersion: v1\nkind: Endpoints\nmetadata: {namespace: shop, name: web}\nsubsets: [{addresses: [{ip: " + address + "}], ports: [{name: web, port: 8080}]}]\n"
	}
	outside, moved := file("outside.yaml", endpoints("192.0.2.7")), file("moved.yaml", endpoints("192.0.2.8"))
	confined := file("confined.yaml", `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: edge, name: nginx}
spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.7/32}}]}]}
`)
	nodePort := file("nodeport.yaml", "apiVersion: v1\nkind: Service\nmetadata: {namespace: edge, name: nginx}\nspec: {type: NodePort, selector: {app.kubernetes.io/name: ingress-nginx}, ports: [{port: 80, nodePort: 30080}]}\n")
	clusterIP := file("clusterip.yaml", "apiVersion: v1\nkind: Service\nmetadata: {namespace: edge, name: nginx}\nspec: {clusterIP: 10.96.0.9, selector: {app.kubernetes.io/name: ingress-nginx}, ports: [{port: 80}]}\n")
	toClusterIP := file("to.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: edge, name: nginx}\nspec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.9/32}}]}]}\n")
	hostPort := file("hostport.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {namespace: edge, name: proxy}\nspec: {containers: [{name: c, image: c, ports: [{containerPort: 8443, hostPort: 443}, {containerPort: 8443, hostPort: 444}, {containerPort: 9, hostPort: 9, hostIP: '::1'}]}]}\n")
	balancer := file("balancer.yaml", "apiVersion: v1\nkind: Service\nmetadata: {namespace: edge, name: nginx}\nspec: {type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24], selector: {app.kubernetes.io/name: ingress-nginx}, ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.80}]}}\n")
	closed := file("closed.yaml", strings.ReplaceAll(isolated, "shop", "edge"))
	const (
		by      = "by Ingress shop/web (shop.example.com)"
		unknown = by + ": what is behind service shop/web is not known: it has no selector, and no Endpoints or EndpointSlice with that port"
		letIn   = ", " + by + "; its controller's pods, edge/deploy/nginx, are let in\n"
	)
	for _, tc := range []struct {
		command string
		code    int
		want    string
	}{
		{"matrix" + shop, 0, "\n- " + unknown + "\n"},
		{"matrix" + shop + outside, 0, "\n- 192.0.2.7 at TCP 8080" + letIn},
		{"matrix" + shop + moved + confined, 0, "192.0.2.8 at TCP 8080, " + by + "; its controller's pods, edge/deploy/nginx, are not let in\n"},
		{"check" + shop + outside + confined, 1, "2 findings in 2 policies: 1 warning, 1 info\n"},
		{"check" + shop + moved + confined, 1, "the controller's pods, edge/nginx, do not reach 192.0.2.8 at TCP 8080 [backend-denied]"},
		{"check -o json" + shop + confined, 1, "not checked, as it is not known what is behind service shop/web: it has no selector"},
		{"diff" + shop + confined, 1, "Not compared: " + unknown + "\n"},
		{"diff" + shop + file("same.yaml", exposingIngress), 0, "Nothing that was compared changes.\n"},
		{"diff" + shop + outside, 1, "newly exposed: 192.0.2.7 at TCP 8080" + letIn},
		{"diff" + shop + outside + " -o json", 1, `"servicesReached": [`},
		{"diff -n edge" + shop + outside, 1, "newly reached: edge/deploy/nginx, edge/new pod -> service shop/web, TCP 80 (before nothing, now 192.0.2.7 at TCP 8080)\n"},
		{"diff --port 81" + shop + outside, 1, "newly exposed"},
		{"diff" + shop + nodePort, 1, "newly exposed: edge/deploy/nginx at TCP 80, by Service edge/nginx (NodePort 30080); all addresses outside are let in\n"},
		{"diff" + shop + nodePort + " -o markdown", 1, "\n- newly exposed: edge/deploy/nginx at TCP 80, by Service edge/nginx (NodePort 30080); all addresses outside are let in\n"},
		{"matrix" + shop + nodePort + closed, 0, "- edge/deploy/nginx at TCP 80, by Service edge/nginx (NodePort 30080); no address outside is let in\n"},
		{"explain 203.0.113.9 edge/svc/nginx" + shop + nodePort + closed, 1, "Note: exposed: edge/deploy/nginx at TCP 80, by Service edge/nginx (NodePort 30080); no address outside is let in.\n"},
		{"check" + shop + nodePort + closed, 1, "Service edge/nginx spec.ports[0]: no address outside reaches edge/nginx at TCP 80, by NodePort 30080 [backend-denied]"},
		{"matrix" + shop + hostPort, 0, "- edge/proxy at TCP 8443, by Pod edge/proxy (hostPort 443, hostPort 444); all addresses outside are let in\n"},
		{"matrix -n edge" + shop + hostPort, 0, "hostPort 444); all addresses outside are let in\n"},
		{"matrix -n shop" + shop + hostPort, 0, "\n- " + unknown + "\n"},
		{"diff" + shop + hostPort, 1, "newly exposed: edge/proxy at TCP 8443, by Pod edge/proxy (hostPort 443, hostPort 444); all addresses outside are let in\n"},
		{"matrix" + shop + hostPort + closed, 0, "(hostPort 443, hostPort 444); no address outside is let in\n"},
		{"check" + shop + hostPort + closed, 0, "1 finding in 2 policies: 1 info\n"},
		{"matrix" + shop + balancer, 0, "by Service edge/nginx (LoadBalancer 203.0.113.80); all addresses outside are let in; only the load balancer is limited to 198.51.100.0/24, by loadBalancerSourceRanges and not by policies\n"},
		{"explain 192.0.2.1 203.0.113.80 --port 80" + shop + balancer, 0, "Note: 192.0.2.1 is in none of loadBalancerSourceRanges of service edge/nginx (198.51.100.0/24): the load balancer refuses it, whatever policies say.\n"},
		{"matrix --from edge/deploy/nginx -o json" + shop + clusterIP + toClusterIP, 0, "\"reaches\":"},
	} {
		t.Run(strings.ReplaceAll(tc.command, dir, ""), func(t *testing.T) {
			code, stdout, stderr := call(t, "", tc.command)

			if code != tc.code || !strings.Contains(stdout, tc.want) {
				t.Errorf("got %d\n%s%swant %d\n%s", code, stdout, stderr, tc.code, tc.want)
			}
		})
	}
}

var (
	kindIngress      = &compile.Kind{Name: "Ingress", Resource: networkingv1.SchemeGroupVersion.WithResource("ingresses"), Namespaced: true}
	kindIngressClass = &compile.Kind{Name: "IngressClass", Resource: networkingv1.SchemeGroupVersion.WithResource("ingressclasses")}
)

// Ingresses of the live cluster are read as far as the user may, and what may not be read is a
// limit of the answers that would have it.
func TestIngressesOfTheLiveClusterExpose(t *testing.T) {
	t.Chdir("testdata")
	for _, tc := range []struct {
		name             string
		may              may
		exposed, limited bool
	}{
		{"all", everywhere, true, false},
		{"no Ingresses", except("ingresses"), false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := server(t, tc.may, "shop")
			api := s.Config.Handler.(*apiServer)
			api.objects[kindService] = append(api.objects[kindService], &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
			})
			api.store(kindIngress, &networkingv1.Ingress{
				TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "Ingress"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
				}}},
			})
			api.store(kindIngressClass)

			code, stdout, stderr := call(t, "", "matrix -o json --context shop --kubeconfig "+kubeconfig(t, s.URL))

			var got struct {
				Exposed []struct{ Kind, Port, LetIn string }
				Limits  []string
			}
			if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
				t.Fatalf("%v: %d\n%s%s", err, code, stdout, stderr)
			}
			if (len(got.Exposed) == 1) != tc.exposed || (len(got.Limits) == 1) != tc.limited {
				t.Errorf("got %+v\n%s", got, stderr)
			}
		})
	}
}
