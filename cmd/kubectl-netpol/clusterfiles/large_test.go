package clusterfiles

import (
	"fmt"
	"strings"
	"testing"
)

// large is the rendered manifest of an application with that many workloads and policies.
func large(workloads, policies int) string {
	var b strings.Builder
	for i := range workloads {
		fmt.Fprintf(&b, `---
# Source: shop/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: app-%d
  namespace: ns-%d
  labels: &labels
    app.kubernetes.io/name: app-%d
    app.kubernetes.io/instance: release
    app.kubernetes.io/version: "1.2.3"
spec:
  replicas: 2
  selector:
    matchLabels: *labels
  template:
    metadata:
      labels: *labels
      annotations:
        prometheus.io/scrape: "true"
    spec:
      serviceAccountName: app
      securityContext:
        runAsNonRoot: true
      containers:
      - name: server
        image: example.com/app:1.2.3
        args: ["--port=8080", "--log=info"]
        env:
        - name: HOST
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: LEVEL
          value: "3"
        ports:
        - name: http
          containerPort: 8080
        - name: metrics
          containerPort: 9090
        readinessProbe:
          httpGet:
            path: /ready
            port: http
        resources:
          requests:
            cpu: 100m
            memory: 64Mi
          limits:
            memory: 128Mi
        volumeMounts:
        - name: data
          mountPath: /data
      volumes:
      - name: data
        emptyDir: {}
`, i, i%20, i)
	}
	for i := range policies {
		fmt.Fprintf(&b, `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: app-%d
  namespace: ns-%d
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: app-%d
  policyTypes:
  - Ingress
  - Egress
  ingress:
  - from:
    - podSelector: {}
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: monitoring
    ports:
    - port: http
    - port: 9090
      protocol: TCP
  egress:
  - to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except: [10.0.0.0/8, 198.18.0.0/15]
`, i, i%20, i)
	}
	return b.String()
}

func TestALargeApplicationIsReadWhole(t *testing.T) {
	o := read(t, large(1000, 300))
	if len(o.Pods) != 1000 || len(o.Policies) != 300 || len(o.Namespaces) != 20 || len(o.AssumedPods) != 1000 {
		t.Errorf("%d pods, %d policies, %d namespaces", len(o.Pods), len(o.Policies), len(o.Namespaces))
	}
}
