package status

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
)

// runKind writes for one kind until ctx ends, in the best version that the server serves, if
// any. The CustomResourceDefinition of a kind may be installed late, replaced, removed and
// reinstalled.
func (w *Writer) runKind(ctx context.Context, k Kind, spaces *namespaces) {
	logger := klog.FromContext(ctx)
	said := ""
	for {
		r, found, err := w.served(ctx, k)
		w.kinds.setServed(k.Name, found || err != nil)
		switch {
		case found:
			said = ""
			w.logLacking(ctx, k, r)
			w.newKindWriter(k, r, spaces).run(ctx)
		case err != nil && !errors.As(err, new(*served.OtherVersionsError)):
			for _, r := range k.Resources { // if discovery fails, the list shows which version is served
				w.newKindWriter(k, r, spaces).run(ctx)
			}
			err = nil
			w.kinds.setServed(k.Name, false)
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && said != err.Error():
			logger.Error(err, "Kind cannot be read, waiting for it", "kind", k.Name)
			said = err.Error()
		case err == nil && !found && said != notServed:
			logger.Info("Kind not served, waiting for it", "kind", k.Name, "resource", k.Resources[0].GroupResource().String())
			said = notServed
		}
		select {
		case <-time.After(rediscover):
		case <-ctx.Done():
			return
		}
	}
}

// logLacking logs which fields of k.Adds the server does not have, and what to do. They are those
// of proposals, for which the CustomResourceDefinition needs a patch.
func (w *Writer) logLacking(ctx context.Context, k Kind, r schema.GroupVersionResource) {
	if len(k.Adds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	logger := klog.FromContext(ctx).WithValues("kind", k.Name, "version", r.Version)
	switch lacking, err := lackingFields(ctx, w.cfg.Discovery, r.GroupVersion().WithKind(k.Name), k.Adds); {
	case err != nil:
		logger.Error(err, "Cannot read whether the API server has the fields of the proposals that --feature-gates enables")
	case len(lacking) > 0:
		logger.Error(nil, "The API server lacks fields of proposals that --feature-gates enables, and drops or refuses them: patch the CustomResourceDefinition as docs/early-feedback.md says, or disable the gates", "fields", lacking)
	}
}

// notServed is the logged reason if discovery returned no error.
const notServed = "not served"

// served returns the best resource of a kind that the server serves.
func (w *Writer) served(ctx context.Context, k Kind) (r schema.GroupVersionResource, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return served.First(ctx, w.cfg.Discovery, k.Resources)
}
