package status

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
)

// cleanupPage is the number of objects in one page of a list.
const cleanupPage = 500

// Cleanup removes only our conditions from all objects, at the rate of writes. A writer that
// still leads would write them again. Cleanup continues after errors and returns all of them.
func (w *Writer) Cleanup(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "status")
	ctx = klog.NewContext(ctx, logger)
	var errs []error
	for _, k := range w.cfg.Kinds {
		cleared, err := w.cleanupKind(ctx, k)
		logger.Info("Conditions removed", "kind", k.Name, "policies", cleared)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// cleanupKind returns the number of changed objects. A kind that is not served in any version
// has none.
func (w *Writer) cleanupKind(ctx context.Context, k Kind) (cleared int, err error) {
	r, found, err := w.served(ctx, k)
	switch {
	case errors.As(err, new(*served.OtherVersionsError)):
		return 0, err
	case err != nil:
		r = k.Resources[0]
	case !found:
		return 0, nil
	}
	var errs []error
	options := metav1.ListOptions{Limit: cleanupPage}
	for {
		list, err := w.cfg.Dynamic.Resource(r).List(ctx, options)
		if err != nil {
			return cleared, errors.Join(append(errs, fmt.Errorf("list %s: %w", r.Resource, err))...)
		}
		for i := range list.Items {
			done, err := w.clear(ctx, k, &list.Items[i])
			errs = append(errs, err)
			if done {
				cleared++
			}
		}
		options.Continue = list.GetContinue()
		if options.Continue == "" || ctx.Err() != nil {
			return cleared, errors.Join(append(errs, ctx.Err())...)
		}
	}
}

// clear removes the conditions of all sinks from o, and reports whether there were any.
func (w *Writer) clear(ctx context.Context, k Kind, o *unstructured.Unstructured) (bool, error) {
	var errs []error
	done := false
	for _, s := range k.Sinks {
		if !s.Marked(o) {
			continue
		}
		if err := w.wait(ctx); err != nil {
			return done, err
		}
		err := s.Clear(ctx, o)
		r := resultOf(err)
		w.metrics.writes.WithLabelValues(k.Name, s.Name(), string(r)).Inc()
		switch r {
		case success:
			done = true
		case gone, conflict, unserved: // nothing of ours can remain there
		default:
			errs = append(errs, fmt.Errorf("clear conditions of %s %s/%s in the %s: %w", k.Name, o.GetNamespace(), o.GetName(), s.Name(), err))
		}
	}
	return done, errors.Join(errs...)
}
