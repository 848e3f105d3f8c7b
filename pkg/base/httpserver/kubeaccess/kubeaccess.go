// Package kubeaccess asks the API server who may read the metrics: a TokenReview identifies
// the user of a bearer token, and a SubjectAccessReview decides whether the user may get
// the path. The API server's own library (k8s.io/apiserver) does not fit: it neither limits
// reviews of unknown tokens, which any pod can send, nor serves known clients while the API
// server is unavailable.
package kubeaccess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

const (
	// allowedFor is how long a positive answer is reused.
	allowedFor = time.Minute
	// withoutServer limits how long a positive answer is reused while the API server does not
	// answer, so that agents can be monitored during an outage. retryEvery is the interval of
	// new attempts.
	withoutServer = time.Hour
	retryEvery    = 10 * time.Second
	// reviewTimeout covers both requests of a review.
	reviewTimeout = 4 * time.Second
	// logInterval is the minimum time between log lines about failed reviews.
	logInterval = time.Minute
)

// Creator creates objects of one kind and returns the API server's answer.
type Creator[O any] interface {
	Create(ctx context.Context, object O, o metav1.CreateOptions) (O, error)
}

// Reviewer decides who may read a path. Its methods may be called from any goroutine.
type Reviewer struct {
	tokens   Creator[*authenticationv1.TokenReview]
	rights   Creator[*authorizationv1.SubjectAccessReview]
	path     string
	audience string
	logger   klog.Logger

	unknown *rate.Limiter // of tokens that were not allowed before
	failed  rate.Sometimes

	mu      sync.Mutex
	readers map[[sha256.Size]byte]reader // by the hash of the token
}

// reader is a token that the API server has allowed.
type reader struct {
	allowed time.Time // when it was last allowed
	until   time.Time // when to review it again
}

// New returns a Reviewer for a path, such as "/metrics". Tokens must be for the audience;
// "" is the API server's.
func New(tokens Creator[*authenticationv1.TokenReview], rights Creator[*authorizationv1.SubjectAccessReview], path, audience string, logger klog.Logger) *Reviewer {
	return &Reviewer{
		tokens:   tokens,
		rights:   rights,
		path:     path,
		audience: audience,
		logger:   logger,
		unknown:  rate.NewLimiter(bounds.ReviewRate, bounds.ReviewBurst),
		failed:   rate.Sometimes{Interval: logInterval},
		readers:  make(map[[sha256.Size]byte]reader),
	}
}

// Authorize implements Authorize of httpserver.Access for the path.
func (r *Reviewer) Authorize(ctx context.Context, token string) error {
	key, now := sha256.Sum256([]byte(token)), time.Now()
	known, ok := r.reader(key)
	switch {
	case ok && now.Before(known.until):
		return nil
	case !ok && !r.unknown.Allow():
		return httpserver.ErrBusy
	}
	denial, err := r.review(ctx, token)
	switch {
	case denial != nil:
		r.forget(key)
		return denial
	case err == nil:
		r.remember(key, reader{allowed: now, until: now.Add(allowedFor)})
		return nil
	}
	r.failed.Do(func() { r.logger.Error(err, "Access to the metrics cannot be decided", "path", r.path) })
	if ok && now.Sub(known.allowed) < withoutServer {
		r.remember(key, reader{allowed: known.allowed, until: now.Add(retryEvery)})
		return nil
	}
	return err
}

// review asks the API server. It returns a denial, an error if there was no answer, or
// neither if the token is allowed.
func (r *Reviewer) review(ctx context.Context, token string) (denial, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := authenticationv1.TokenReviewSpec{Token: token}
	if r.audience != "" {
		asked.Audiences = []string{r.audience}
	}
	tokenReview, err := r.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: asked}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review the token: %w", err)
	}
	// An API server that ignores audiences does not return the requested one.
	if !tokenReview.Status.Authenticated || r.audience != "" && !slices.Contains(tokenReview.Status.Audiences, r.audience) {
		return httpserver.ErrUnauthenticated, nil
	}
	user := tokenReview.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := r.rights.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review the rights of %s: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return fmt.Errorf("%w: user %q may not get %s", httpserver.ErrForbidden, user.Username, r.path), nil
	}
	return nil, nil
}

func (r *Reviewer) reader(key [sha256.Size]byte) (reader, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.readers[key]
	return known, ok
}

func (r *Reviewer) forget(key [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, key)
}

// remember adds a reader. If there are too many, it evicts the one that was allowed longest
// ago.
func (r *Reviewer) remember(key [sha256.Size]byte, now reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers[key] = now
	if len(r.readers) > bounds.Tokens {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.readers)), func(a, b [sha256.Size]byte) int {
			return cmp.Compare(r.readers[a].allowed.UnixNano(), r.readers[b].allowed.UnixNano())
		})
		delete(r.readers, oldest)
	}
}
