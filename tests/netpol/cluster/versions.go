package cluster

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	clientv1alpha2 "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/typed/apis/v1alpha2"
)

// clusterPolicyClient is the client of ClusterNetworkPolicies, in whatever version they are served.
type clusterPolicyClient interface {
	policyClient[*v1beta1.ClusterNetworkPolicy]
	List(context.Context, metav1.ListOptions) (*v1beta1.ClusterNetworkPolicyList, error)
}

func (b *Backend) clusterPolicies() clusterPolicyClient {
	if b.older {
		return older{b.policies.PolicyV1alpha2().ClusterNetworkPolicies()}
	}
	return b.policies.PolicyV1beta1().ClusterNetworkPolicies()
}

// older is the client of v1alpha2, which has the fields of v1beta1.
type older struct {
	clientv1alpha2.ClusterNetworkPolicyInterface
}

func (c older) Create(ctx context.Context, p *v1beta1.ClusterNetworkPolicy, o metav1.CreateOptions) (*v1beta1.ClusterNetworkPolicy, error) {
	return through(p, func(p *v1alpha2.ClusterNetworkPolicy) (any, error) {
		return c.ClusterNetworkPolicyInterface.Create(ctx, p, o)
	})
}

func (c older) Update(ctx context.Context, p *v1beta1.ClusterNetworkPolicy, o metav1.UpdateOptions) (*v1beta1.ClusterNetworkPolicy, error) {
	return through(p, func(p *v1alpha2.ClusterNetworkPolicy) (any, error) {
		return c.ClusterNetworkPolicyInterface.Update(ctx, p, o)
	})
}

func (c older) List(ctx context.Context, o metav1.ListOptions) (*v1beta1.ClusterNetworkPolicyList, error) {
	list, err := c.ClusterNetworkPolicyInterface.List(ctx, o)
	if err != nil {
		return nil, err
	}
	return as[v1beta1.ClusterNetworkPolicyList](list)
}

// through makes a request about p in the older version.
func through(p *v1beta1.ClusterNetworkPolicy, request func(*v1alpha2.ClusterNetworkPolicy) (any, error)) (*v1beta1.ClusterNetworkPolicy, error) {
	old, err := as[v1alpha2.ClusterNetworkPolicy](p)
	if err != nil {
		return nil, err
	}
	answer, err := request(old)
	if err != nil {
		return nil, err
	}
	return as[v1beta1.ClusterNetworkPolicy](answer)
}

// as returns an object or a list in the type of another version.
func as[T any](o any) (*T, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var other T
	return &other, json.Unmarshal(text, &other)
}
