package flows

import (
	"encoding/json"
	"io"
	"net/http"
)

// ServeHTTP serves the records that the query selects, see ParseFilter, as lines of JSON.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	f, err := ParseFilter(request.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	// An error means that the client is gone.
	_ = Encode(w, r.Read(f))
}

// Encode writes records as lines of JSON.
func Encode(w io.Writer, records []Record) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for i := range records {
		if err := enc.Encode(&records[i]); err != nil {
			return err
		}
	}
	return nil
}
