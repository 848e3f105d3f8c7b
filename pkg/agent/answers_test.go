package agent

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

// Each answer has the token that is in the file then, and without one there is no answer.
func TestAnswersHaveTheToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	served := 0
	h := proven(klog.Background(), file, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for _, tc := range []struct {
		token  string // none if empty
		status int
	}{{"", http.StatusServiceUnavailable}, {"first", http.StatusOK}, {"second", http.StatusOK}} {
		if tc.token != "" {
			if err := os.WriteFile(file, []byte(tc.token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/denials", nil))
		if got := w.Header().Get(writerkey.TokenHeader); got != tc.token || w.Code != tc.status {
			t.Errorf("got token %q and status %d, want %q and %d", got, w.Code, tc.token, tc.status)
		}
	}
	if served != 2 {
		t.Errorf("%d requests were served, want 2", served)
	}
}
