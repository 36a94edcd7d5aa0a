package sim

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A simulated Client sees the same optional interfaces as one without a simulator.
func TestOptionalInterfacesAreForwarded(t *testing.T) {
	var nodes []redis.UniversalClient
	for i := range 3 { // which are not asked
		c := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", i+1)})
		defer c.Close()
		nodes = append(nodes, c)
	}
	for name, store := range map[string]driver.Opener{"memory": memlock.New(), "redis": redislock.New(nodes[0]), "redlock": redlock.New(nodes)} {
		t.Run(name, func(t *testing.T) {
			s := New(Settings{})
			want := optionalOf(opened(t, store))
			for wrapped, opener := range map[string]driver.Opener{"link": s.Remote(store), "watched": observed{s, store}, "both": observed{s, s.Remote(store)}} {
				if got := optionalOf(opened(t, opener)); !slices.Equal(got, want) {
					t.Errorf("%s has %v instead of %v", wrapped, got, want)
				}
			}
		})
	}
}

func opened(t *testing.T, o driver.Opener) driver.Driver {
	t.Helper()
	d, err := o.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// Every interface of package driver is known here, so that a new one is not forgotten.
func TestOptionalInterfacesAreKnown(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../pkg/dlock/driver/driver.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"Driver", "Opener"}
	for _, one := range optional {
		known = append(known, one.name)
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, ok := spec.Type.(*ast.InterfaceType); ok {
				found = append(found, spec.Name.Name)
			}
		}
		return true
	})
	slices.Sort(known)
	slices.Sort(found)
	if !slices.Equal(known, found) {
		t.Errorf("package driver has %v, and the simulator knows %v", found, known)
	}
}
