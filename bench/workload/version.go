package workload

import (
	"context"
	"encoding/json"
	"net/http"
)

// etcdVersion asks the server.
func etcdVersion(ctx context.Context, endpoint string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/version", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	var v struct {
		Server string `json:"etcdserver"`
	}
	return v.Server, json.NewDecoder(resp.Body).Decode(&v)
}
