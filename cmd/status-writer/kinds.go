package main

import (
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// statusKinds returns the kinds of policies that get conditions. A cleanup includes
// all kinds.
func (o *writerOptions) statusKinds(dynamicClient dynamic.Interface, discovery rest.Interface, features compile.Features) []status.Kind {
	var kinds []status.Kind
	for _, k := range compile.Kinds {
		if !o.cleanup && !k.Enabled(o.AdminKinds()) {
			continue
		}
		diagnose := func(object compile.Object) []policy.Finding { return k.Diagnose(object, features) }
		kind := status.NewKind(k.Name, k.Resources(), k.New, diagnose, o.sinks(dynamicClient, discovery, k)...)
		kind.Adds = k.Adds(features)
		kinds = append(kinds, kind)
	}
	return kinds
}

// sinks returns the sinks for the conditions of a kind. A cleanup includes all sinks.
func (o *writerOptions) sinks(dynamicClient dynamic.Interface, discovery rest.Interface, kind *compile.Kind) []status.Sink {
	all := o.cleanup || o.sink == sinkAuto
	toStatus, toAnnotation := all || o.sink == status.SubresourceSink, all || o.sink == status.AnnotationSink
	if kind.HasStatus {
		toStatus, toAnnotation = o.cleanup || o.sink != sinkNone, false
	}
	var sinks []status.Sink
	if toStatus {
		sinks = append(sinks, status.NewSubresourceSink(dynamicClient, discovery, kind.Resource.GroupResource(), o.conditionPrefix))
	}
	if toAnnotation {
		sinks = append(sinks, status.NewAnnotationSink(dynamicClient, kind.Resource.GroupResource(), o.conditionPrefix))
	}
	return sinks
}
