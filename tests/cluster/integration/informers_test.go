package integration

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/link"
)

const port = 80

// shop is a cluster with an isolated pod, web, which only client may reach.
type shop struct {
	*cluster
	web, client, visitor string // addresses
}

func newShop(t *testing.T, plane *controlplane.ControlPlane) *shop {
	t.Helper()
	c := newCluster(t, plane)
	s := &shop{cluster: c, web: c.address(1), client: c.address(2), visitor: c.address(102)}
	c.createPod("web", c.node, s.web)
	c.createPod("client", c.node, s.client)
	c.createPod("visitor", c.otherNode, s.visitor)
	c.createPolicy("guard", "web", fromApp("client"))
	return s
}

// guarded returns the claims that hold in an unchanged shop.
func (s *shop) guarded() []claim {
	return []claim{allowed(s.client, s.web, port), denied(s.visitor, s.web, port), allowed(s.visitor, s.client, port)}
}

// through returns the admin's configuration with a link between client and server.
func through(t *testing.T, plane *controlplane.ControlPlane) (*link.Link, *rest.Config) {
	t.Helper()
	l, err := link.New(plane.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	config := plane.Admin()
	config.Host = "https://" + l.Address()
	return l, config
}

func TestObjectsReachTheSnapshot(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		c := newCluster(t, plane)
		objectsReach(t, c, newView(t, plane.Admin(), c.node))
	})
}

// objectsReach changes a cluster in every way that v shows.
func objectsReach(t *testing.T, c *cluster, v *view) {
	t.Helper()
	web, client, visitor := c.address(1), c.address(2), c.address(102)
	c.createPod("web", c.node, web)
	c.createPod("client", c.node, client)
	c.createPod("visitor", c.otherNode, visitor)
	v.eventually(allowed(client, web, port), allowed(visitor, web, port))
	v.always(allowed(web, visitor, port))

	c.createPolicy("guard", "web", fromApp("client"), fromNamespaces("trusted", "yes"))
	v.eventually(allowed(client, web, port), denied(visitor, web, port))
	c.labelPod("visitor", "client")
	v.eventually(allowed(visitor, web, port))
	c.labelPod("visitor", "visitor")
	v.eventually(denied(visitor, web, port))
	c.labelNamespace(c.namespace, "trusted", "yes")
	v.eventually(allowed(visitor, web, port))
	c.labelNamespace(c.namespace, "trusted", "no")
	v.eventually(denied(visitor, web, port))
	c.deletePod(t.Context(), "client")
	v.eventually(denied(client, web, port))
	c.deletePolicy(t.Context(), "guard")
	v.eventually(allowed(visitor, web, port))
}

// The node's own pod ranges contain the addresses of pods that are too new to be
// known.
func TestAgentReadsOnlyItsNode(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		var asked requests
		v := newView(t, asked.note(plane.Admin()), s.node)
		v.eventually(denied(s.visitor, s.address(9), port), allowed(s.visitor, s.address(109), port))
		questions := asked.matching(func(q request) bool { return q.path == "/api/v1/nodes" })
		if len(questions) == 0 {
			t.Error("no request for nodes")
		}
		for _, q := range questions {
			if want := "metadata.name=" + s.node; q.fieldSelector != want {
				t.Errorf("request for nodes with field selector %q, want %q", q.fieldSelector, want)
			}
		}
	})
}

func TestFirstSnapshotIsComplete(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		l, config := through(t, plane)
		l.Down()
		v := newView(t, config, s.node, s.guarded()...)
		l.Up()
		v.eventually(s.guarded()...)
	})
}

func TestBrokenWatchesChangeNoDecision(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		l, config := through(t, plane)
		v := newView(t, config, s.node, s.guarded()...)
		v.eventually(s.guarded()...)
		l.Break()
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
		l.Break()
		s.deletePolicy(t.Context(), "more")
		v.eventually(allowed(s.web, s.client, port))
	})
}

// Without the right to read nodes, policies are enforced, and the missing right is reported
// until it is granted.
func TestAllButNodesIsEnforcedWithoutTheRightToReadThem(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		meta := metav1.ObjectMeta{Name: s.namespace}
		accounts := s.cluster.client.CoreV1().ServiceAccounts(s.namespace)
		must[*corev1.ServiceAccount](t)(accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}))
		right := func(group string, resources ...string) rbacv1.PolicyRule {
			return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
		}
		role := must[*rbacv1.ClusterRole](t)(s.cluster.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: meta, Rules: []rbacv1.PolicyRule{right("", "namespaces", "pods"), right("networking.k8s.io", "networkpolicies")},
		}, metav1.CreateOptions{}))
		must[*rbacv1.ClusterRoleBinding](t)(s.cluster.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: meta.Name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		}, metav1.CreateOptions{}))
		t.Cleanup(func() {
			_ = s.cluster.client.RbacV1().ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
			_ = s.cluster.client.RbacV1().ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
		})

		v := newView(t, must[*rest.Config](t)(plane.ServiceAccount(t.Context(), s.namespace, meta.Name)), s.node)
		v.eventually(s.guarded()...)
		if err := v.healthy(); err == nil || !strings.Contains(err.Error(), "not listed yet: Node: nodes ") || !strings.Contains(err.Error(), "is forbidden") {
			t.Errorf("without the right: %v", err)
		}

		role.Rules = append(role.Rules, right("", "nodes"))
		must[*rbacv1.ClusterRole](t)(s.cluster.client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}))
		eventually(t, func() string {
			if err := v.healthy(); err != nil {
				return "with the right: " + err.Error()
			}
			return ""
		})
		v.eventually(s.guarded()...)
	})
}
