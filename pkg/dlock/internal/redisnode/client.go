package redisnode

import (
	"reflect"

	"github.com/redis/go-redis/v9"
)

// IsNil also sees a nil pointer inside a non-nil interface.
func IsNil(client redis.UniversalClient) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
