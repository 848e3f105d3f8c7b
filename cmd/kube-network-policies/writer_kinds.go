package main

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// statusKinds returns the kinds of policies to tell about. What is to be cleaned
// up may be on any of them.
func (o *writerOptions) statusKinds(dynamicClient dynamic.Interface, client kubernetes.Interface, features compile.Features) []status.Kind {
	sinks := func(resource schema.GroupVersionResource) []status.Sink {
		return o.sinks(dynamicClient, client, resource)
	}
	kinds := []status.Kind{
		status.NetworkPolicies(with(features, compile.DiagnoseNetworkPolicy), sinks(status.NetworkPolicyResource)...),
	}
	if o.kinds.AdminNetworkPolicy || o.cleanup {
		kinds = append(kinds, status.AdminNetworkPolicies(with(features, compile.DiagnoseAdminNetworkPolicy), sinks(status.AdminNetworkPolicyResource)...))
	}
	if o.kinds.BaselineAdminNetworkPolicy || o.cleanup {
		kinds = append(kinds, status.BaselineAdminNetworkPolicies(with(features, compile.DiagnoseBaselineAdminNetworkPolicy), sinks(status.BaselineAdminNetworkPolicyResource)...))
	}
	if o.kinds.ClusterNetworkPolicy || o.cleanup {
		kinds = append(kinds, status.ClusterNetworkPolicies(with(features, compile.DiagnoseClusterNetworkPolicy), sinks(status.ClusterNetworkPolicyResource)...))
	}
	return kinds
}

// with makes diagnose judge by features.
func with[O any](features compile.Features, diagnose func(O, compile.Features) []policy.Finding) func(O) []policy.Finding {
	return func(o O) []policy.Finding { return diagnose(o, features) }
}

// sinks returns the ways to store the conditions of a kind. What is to be cleaned
// up may be in any of them.
func (o *writerOptions) sinks(dynamicClient dynamic.Interface, client kubernetes.Interface, resource schema.GroupVersionResource) []status.Sink {
	all := o.cleanup || o.sink == sinkAuto
	toStatus, toAnnotation := all || o.sink == status.SubresourceSink, all || o.sink == status.AnnotationSink
	if resource != status.NetworkPolicyResource { // all other kinds are served with a status
		toStatus, toAnnotation = o.cleanup || o.sink != sinkNone, false
	}
	var sinks []status.Sink
	if toStatus {
		sinks = append(sinks, status.NewSubresourceSink(dynamicClient, client.Discovery(), resource, o.conditionPrefix))
	}
	if toAnnotation {
		sinks = append(sinks, status.NewAnnotationSink(dynamicClient, resource, o.conditionPrefix))
	}
	return sinks
}
