package integration

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver/kubeaccess"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// With the rights that docs/operations.md names, an agent allows whoever may get /metrics.
func TestMetricsAreForWhoeverTheAPIServerAllows(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		c := newCluster(t, plane)
		admin := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(plane.Admin()))
		tokens := make(map[string]string)
		for _, name := range []string{"agent", "reader", "other"} {
			must[*corev1.ServiceAccount](t)(admin.CoreV1().ServiceAccounts(c.namespace).Create(t.Context(),
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
			config, err := plane.ServiceAccount(t.Context(), c.namespace, name)
			if err != nil {
				t.Fatal(err)
			}
			tokens[name] = config.BearerToken
		}
		reviewer := kubeaccess.New(apiclient.TokenReviews(clientOf(t, plane, c.namespace, authenticationv1.SchemeGroupVersion)),
			apiclient.SubjectAccessReviews(clientOf(t, plane, c.namespace, authorizationv1.SchemeGroupVersion)), "/metrics", "", klog.Background())
		if err := reviewer.Authorize(t.Context(), tokens["reader"]); err == nil || errors.Is(err, httpserver.ErrForbidden) || errors.Is(err, httpserver.ErrUnauthenticated) {
			t.Errorf("an agent without rights decides: %v", err)
		}
		bind(t, admin, c.namespace, "agent", "system:auth-delegator")
		reads := &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: c.namespace + "-metrics-reader"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}}},
		}
		must[*rbacv1.ClusterRole](t)(admin.RbacV1().ClusterRoles().Create(t.Context(), reads, metav1.CreateOptions{}))
		bind(t, admin, c.namespace, "reader", reads.Name)
		for _, tc := range []struct {
			who, token string
			want       error
		}{
			{"the reader", tokens["reader"], nil},
			{"another account", tokens["other"], httpserver.ErrForbidden},
			{"the agent itself", tokens["agent"], httpserver.ErrForbidden},
			{"an invalid token", tokens["reader"] + "x", httpserver.ErrUnauthenticated},
		} {
			t.Run(tc.who, func(t *testing.T) {
				eventually(t, func() string { // rights take a moment to be in force
					if err := reviewer.Authorize(t.Context(), tc.token); !errors.Is(err, tc.want) {
						return fmt.Sprintf("got %v, want %v", err, tc.want)
					}
					return ""
				})
			})
		}
	})
}

// The program does what its flag says, with a certificate of its own.
func TestProgramServesMetricsSecurely(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		w := startWriter(t, plane.Admin(), "--metrics-tls=self-signed")
		url := strings.Replace(w.metrics, "http:", "https:", 1)
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		defer client.CloseIdleConnections()
		for _, tc := range []struct {
			name          string
			authorization string
			status        int
			metrics       bool
		}{
			{"the administrator", "Bearer " + plane.Admin().BearerToken, http.StatusOK, true},
			{"an invalid token", "Bearer x", http.StatusUnauthorized, false},
			{"no token", "", http.StatusUnauthorized, false},
		} {
			t.Run(tc.name, func(t *testing.T) {
				eventually(t, func() string { // the program starts
					request := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))
					request.Header.Set("Authorization", tc.authorization)
					response, err := client.Do(request)
					if err != nil {
						return err.Error()
					}
					defer response.Body.Close()
					body := must[[]byte](t)(io.ReadAll(response.Body))
					if response.StatusCode != tc.status || strings.Contains(string(body), "netpol_status_leader") != tc.metrics {
						return fmt.Sprintf("got %s %.200s", response.Status, body)
					}
					return ""
				})
			})
		}
	})
}

// clientOf returns a client of a group with the token of the service account agent.
func clientOf(t *testing.T, plane *controlplane.ControlPlane, namespace string, version schema.GroupVersion) rest.Interface {
	t.Helper()
	config, err := plane.ServiceAccount(t.Context(), namespace, "agent")
	if err != nil {
		t.Fatal(err)
	}
	return must[rest.Interface](t)(apiclient.New(config, nil, version))
}

// bind gives a service account the rights of a ClusterRole.
func bind(t *testing.T, admin kubernetes.Interface, namespace, account, role string) {
	t.Helper()
	must[*rbacv1.ClusterRoleBinding](t)(admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{}))
}
