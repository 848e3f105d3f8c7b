package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replicated returns a List of the pods of Deployments with four replicas and of a
// DaemonSet on the nodes. Namespaces admit the gateways of their team, and one pod of four
// calls the cache.
func replicated(pods, namespaces int) string {
	var items []string
	add := func(format string, args ...any) { items = append(items, fmt.Sprintf(format, args...)) }
	for i := range namespaces {
		add(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns-%02d","labels":{"team":"team-%d"}}}`, i, i%5)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"closed"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`, i)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"gateway"},"spec":{
			"podSelector":{"matchLabels":{"tier":"gateway"}},"policyTypes":["Ingress"],"ingress":[{"ports":[{"port":443},{"port":443,"protocol":"UDP"}]}]}}`, i)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"api"},"spec":{
			"podSelector":{"matchLabels":{"tier":"api"}},"policyTypes":["Ingress"],"ingress":[{"ports":[{"port":"http"}],"from":[
			{"namespaceSelector":{"matchLabels":{"team":"team-%d"}},"podSelector":{"matchLabels":{"tier":"gateway"}}}]}]}}`, i, i%5)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"cache"},"spec":{
			"podSelector":{"matchLabels":{"tier":"cache"}},"policyTypes":["Ingress"],"ingress":[{"ports":[{"port":6379}],"from":[
			{"podSelector":{"matchLabels":{"tier":"api","canary":"true"}}}]}]}}`, i)
	}
	for i := range pods {
		workload, replica := i/4, i%4
		namespace, tier := workload%namespaces, []string{"gateway", "api", "cache"}[workload/namespaces%3]
		name := fmt.Sprintf("%s-%d", tier, workload/namespaces/3)
		add(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns-%02d","name":"%s-7d4f-%d",
			"labels":{"tier":"%s","pod-template-hash":"7d4f","canary":"%v"},
			"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"%s-7d4f","uid":"u","controller":true}]},
			"spec":{"nodeName":"n%d","containers":[{"name":"c","ports":[{"name":"http","containerPort":8080}]}]},
			"status":{"phase":"Running","podIPs":[{"ip":"10.0.%d.%d"}]}}`,
			namespace, name, replica, tier, replica == 3, name, i%4, i/250, i%250+1)
	}
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",") + `]}`
}

// The golden files are the human-readable outputs, for review. go test ./cmd/kubectl-netpol
// -update rewrites them.
func TestMatricesOfRealSize(t *testing.T) {
	shop, err := filepath.Abs("../../examples/online-shop")
	if err != nil {
		t.Fatal(err)
	}
	forty, thousand := replicated(40, 2), replicated(1000, 10)
	for _, tc := range []struct {
		name, stdin string
		width       int
		command     string
	}{
		{"online-shop", "", 120, "matrix -f " + shop},
		{"online-shop-80", "", 80, "matrix -f " + shop},
		{"online-shop-40", "", 40, "matrix -f " + shop},
		{"online-shop-port", "", 120, "matrix --port 53 --protocol UDP -f " + shop},
		{"online-shop-services", "", 80, "matrix -n orders --from deploy/order --from cart --to svc/order-db --to svc/cart-cache --to 203.0.113.9 -f " + shop},
		{"online-shop-namespaces", "", 120, "matrix --by namespace -f " + shop},
		{"online-shop.json", "", 0, "matrix -n orders -o json -f " + shop},
		{"colours", "", 120, "matrix -n storefront --color always -f " + shop},
		{"40-pods", forty, 120, "matrix -f -"},
		{"40-pods-by-pod", forty, 120, "matrix --by pod -f -"},
		{"40-pods-partly.json", forty, 0, "matrix --port 6379 -n ns-00 -o json -f -"},
		{"1000-pods", thousand, 120, "matrix -f -"},
		{"1000-pods-selected", thousand, 100, "matrix -l tier=cache,canary=true -n ns-03 -f -"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, _ := callAt(t, tc.width, tc.stdin, tc.command)
			if code != 0 {
				t.Fatalf("exit code %d", code)
			}
			path := filepath.Join("testdata", "matrix", tc.name)
			if *update {
				if err := os.WriteFile(path, []byte(stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			if stdout != string(want) {
				t.Errorf("%s: got\n%swant\n%s", tc.command, stdout, want)
			}
		})
	}
}

// Names resolve to sides, and errors explain names that do not.
func TestSidesAreFound(t *testing.T) {
	shop := "-f ../../examples/online-shop"
	for name, want := range map[string]string{
		"deploy/cart -n orders":          "orders/deploy/cart",
		"orders/Deployment/cart":         "orders/deploy/cart",
		"cart -n orders":                 "orders/cart",
		"orders/cart":                    "orders/cart",
		"orders/pod/cart":                "orders/cart",
		"svc/order-db -n orders":         "orders/svc/order-db",
		"payments/cronjob/settlement":    "payments/cronjob/settlement",
		"203.0.113.9":                    "203.0.113.9",
		"outside":                        "outside",
		"deploy/cart -n orders --by pod": "orders/deploy/cart",
		"deploy/car -n orders":           "no pod of deploy/car in namespace orders; there are those of deploy/cart, deploy/checkout, deploy/mailer, deploy/order, sts/cart-cache, sts/order-db",
		"deploy/cart -n none":            "--namespace=none: there is no such namespace; there are ingress",
		"sts/cart -n orders":             "no pod of sts/cart in namespace orders",
		"orders/team/cart":               `"orders/team/cart": "team" is not a kind of workload`,
		"a/b/c/d":                        `"a/b/c/d": must be NAME, KIND/NAME`,
		"svc/none -n orders":             "no service none in namespace orders",
		"svc/checkouts -n orders":        "no service checkouts in namespace orders",
		"orders/carts":                   `no pod "orders/carts"; near it: orders/cart`,
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, "", "matrix -o json --to 198.51.100.1 "+shop+" --from "+name)
			if code == 0 {
				want = `{"from":["` + want + `"],"to":["198.51.100.1"],`
			}
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("got %d\n%s%swant %s", code, stdout, stderr, want)
			}
		})
	}
}

// For several pods one connection is explained, a denied one if they differ.
func TestExplanationOfSeveralPods(t *testing.T) {
	cluster := replicated(40, 2)
	for command, want := range map[string]string{
		"ns-00/deploy/api-0 ns-00/deploy/cache-0 --port 6379":   "ns-00/api-0-7d4f-0 -> ns-00/cache-0-7d4f-0, TCP 6379: denied\nDenied by ingress of ns-00/cache-0-7d4f-0.\nNote: of 16 connections from ns-00/deploy/api-0 to ns-00/deploy/cache-0, 4 are allowed and 12 denied; this is one of them.\n",
		"ns-00/deploy/gateway-0 ns-00/deploy/api-0 --port http": "Note: of 16 connections from ns-00/deploy/gateway-0 to ns-00/deploy/api-0, 16 are allowed and 0 denied; this is one of them.\n",
		"ns-00/deploy/api-0 ns-00/deploy/api-0 --port http":     "Note: of 12 connections from ns-00/deploy/api-0 to ns-00/deploy/api-0, 0 are allowed and 12 denied; this is one of them.\n",
		"ns-00/api-0-7d4f-3 ns-00/deploy/cache-0 --port 6379":   "Note: of 4 connections from ns-00/api-0-7d4f-3 to ns-00/deploy/cache-0, 4 are allowed and 0 denied; this is one of them.\n",
		"ns-00/api-0-7d4f-3 ns-00/cache-0-7d4f-0 --port 6379":   "ns-00/api-0-7d4f-3 -> ns-00/cache-0-7d4f-0, TCP 6379: allowed\nEgress and ingress allow it.\n\n",
	} {
		t.Run(command, func(t *testing.T) {
			if code, stdout, stderr := call(t, cluster, "explain -f - "+command); !strings.Contains(stdout, want) {
				t.Errorf("got %d\n%s%swant %s", code, stdout, stderr, want)
			}
		})
	}
}

// The matrix shows exposure without flags: what is outside, and pods that may come. Sides that
// the user names are alone.
func TestTheMatrixShowsExposure(t *testing.T) {
	t.Chdir("testdata")
	for flags, want := range map[string]string{
		"":                        "monitoring/new pod,monitoring/node-exporter,monitoring/prometheus,new namespace/new pod,outside,shop/api,shop/db,shop/new pod,shop/web",
		"-n shop":                 "new namespace/new pod,outside,shop/api,shop/db,shop/new pod,shop/web",
		"-n shop -l app=web":      "outside,shop/web",
		"--by namespace":          "monitoring,new namespace,outside,shop",
		"--by pod -n shop":        "new namespace/new pod,outside,shop/api,shop/db,shop/new pod,shop/web",
		"--from shop/web -n shop": "shop/web",
	} {
		t.Run(flags, func(t *testing.T) {
			_, stdout, stderr := call(t, "", "matrix -o json -f shop "+flags)
			var got struct{ From []string }
			if err := json.Unmarshal([]byte(stdout), &got); err != nil || strings.Join(got.From, ",") != want {
				t.Errorf("got %v %s\n%s", got.From, err, stderr)
			}
		})
	}

	// The web pods are open to what is outside of 10.0.0.0/8, and to no pod that may come.
	_, stdout, _ := call(t, "", "matrix -o json -f shop -n shop")
	var got struct {
		Reaches map[string]map[string]struct{ Ports, Partly []string }
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	for pair, want := range map[[2]string]string{
		{"outside", "shop/web"}:                   "[] [8080/TCP]",
		{"shop/web", "outside"}:                   "[all] []",
		{"new namespace/new pod", "shop/web"}:     "[] []",
		{"outside", "outside"}:                    "[] []",
		{"shop/new pod", "new namespace/new pod"}: "[all] []",
	} {
		if cell := got.Reaches[pair[0]][pair[1]]; fmt.Sprint(cell.Ports, " ", cell.Partly) != want {
			t.Errorf("%s reaches of %s: got %v, want %s", pair[0], pair[1], cell, want)
		}
	}
}
