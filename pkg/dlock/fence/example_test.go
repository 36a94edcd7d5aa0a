package fence_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

func ExampleMemory() {
	var checker fence.Memory
	ctx := context.Background()
	fmt.Println(checker.Check(ctx, "order:123", 34))
	fmt.Println(checker.Check(ctx, "order:123", 33))
	// Output:
	// <nil>
	// fence "order:123": token 33 is stale, the resource has seen 34: another process has the lock, stop writing
}

func ExampleSQL_Statement() {
	statement, err := fence.SQL{Dialect: fence.PostgreSQL, Table: "shop.fences"}.Statement()
	fmt.Println(statement, err)
	// Output:
	// CREATE TABLE IF NOT EXISTS "shop"."fences" (resource TEXT COLLATE "C" PRIMARY KEY, token BIGINT NOT NULL) <nil>
}

func ExampleNewHandler() {
	ship := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		fmt.Println("shipped with token", holder.Token)
	})
	handler, err := fence.NewHandler(ship, &fence.Memory{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, token := range []string{"34", "33", ""} {
		req := httptest.NewRequestWithContext(context.Background(), http.MethodPut, "/", nil)
		if token != "" {
			req.Header.Set(fence.HeaderToken, token)
			req.Header.Set(fence.HeaderResource, "order:123")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		fmt.Println(w.Code)
	}
	// Output:
	// shipped with token 34
	// 200
	// 412
	// 428
}
