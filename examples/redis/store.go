package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed store.lua
var storeSource string

var storeScript = redis.NewScript(storeSource)

// store writes a result, unless a holder with a greater token has already written.
func store(ctx context.Context, client redis.Scripter, token int64, value string) error {
	stored, err := storeScript.Run(ctx, client, []string{"example:result"}, token, value).Bool()
	if err == nil && !stored {
		err = fmt.Errorf("token %d came too late", token)
	}
	return err
}
