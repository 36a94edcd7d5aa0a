package dashboard

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"strings"
)

//go:embed web openapi.json
var assets embed.FS

const healthPath = "/healthz"

// newRoutes returns the paths of the Handler. openapi.json describes those of the API.
func (h *Handler) newRoutes() http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("GET /api/v1/stream", h.stream)
	api.HandleFunc("HEAD /api/v1/stream", func(w http.ResponseWriter, _ *http.Request) { // which GET includes
		w.Header().Set("Allow", http.MethodGet)
		fail(w, http.StatusMethodNotAllowed, "method", "a stream needs GET")
	})
	api.HandleFunc("GET /api/v1/locks", h.getLocks)
	api.HandleFunc("GET /api/v1/lock", h.getLock)
	api.HandleFunc("GET /api/v1/leaders", h.getLeaders)
	api.HandleFunc("GET /api/v1/jobs", h.getJobs)
	api.HandleFunc("GET /api/v1/health", h.getHealth)
	api.HandleFunc("POST /api/v1/evict", h.evict)
	api.HandleFunc("GET /metrics", h.getMetrics)
	data := h.sameOrigin(h.authorized(api))
	mux := http.NewServeMux()
	mux.Handle("/api/", data)
	mux.Handle("/metrics", data)
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		http.ServeFileFS(w, r, assets, "openapi.json")
	})
	web, err := fs.Sub(assets, "web")
	if err != nil {
		panic(err) // the name is not a path
	}
	files := http.FileServerFS(web)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			fail(w, http.StatusMethodNotAllowed, "method", "the page can only be read")
			return
		}
		if _, err := fs.Stat(web, strings.TrimPrefix(r.URL.Path, "/")); err != nil && r.URL.Path != "/" {
			fail(w, http.StatusNotFound, "not_found", "there is no such page")
			return
		}
		files.ServeHTTP(w, r)
	})
	return h.secured(mux)
}

// A failure is the body of an answer that is not a success.
type failure struct {
	Error string `json:"error"` // a stable code
	Text  string `json:"text"`
}

func fail(w http.ResponseWriter, status int, code, text string) {
	answer(w, status, failure{code, text})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
