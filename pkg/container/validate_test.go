package container_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Validate and New agree, on every backend, about everything that needs no file.
func TestValidateAgreesWithNew(t *testing.T) {
	refused := map[dlock.BackendType]int{}
	for _, backend := range []dlock.BackendType{dlock.BackendRedis, dlock.BackendEtcd, dlock.BackendRedlock, dlock.BackendFile, dlock.BackendMemory, "zookeeper"} {
		for _, ttl := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 99 * time.Millisecond, 100 * time.Millisecond, 999 * time.Millisecond, time.Second, 25 * time.Hour} {
			for _, batch := range []int{0, 2} {
				for _, fair := range []bool{false, true} {
					cfg := &container.Config{
						Redis: &connector.RedisConfig{Addr: "127.0.0.1:1"}, Etcd: &connector.EtcdConfig{Endpoints: []string{"127.0.0.1:1"}},
						Redlock: &connector.RedlockConfig{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}}, File: &container.FileConfig{Dir: t.TempDir()},
						DLock: &dlock.Config{Backend: backend, DefaultTTL: ttl, LocalBatch: batch, RequireFair: fair},
					}
					name := fmt.Sprintf("%s, a TTL of %v, LocalBatch %d, RequireFair %v", backend, ttl, batch, fair)
					valid := cfg.Validate()
					app, err := container.New(cfg, container.WithLogger(clog.Logger{}))
					if app != nil {
						_ = app.Close()
					}
					if (valid == nil) != (err == nil) || valid != nil && err.Error() != "container: "+valid.Error() {
						t.Errorf("%s: Validate: %v, New: %v", name, valid, err)
					}
					if valid != nil {
						refused[backend]++
					}
				}
			}
		}
	}
	// So that the table of what backends can do is not found to agree with itself alone.
	for backend, want := range map[dlock.BackendType]int{"redis": 8*4 - 3*6, "etcd": 8*4 - 2*2, "redlock": 8*4 - 1*4, "file": 8*4 - 2*6, "memory": 8*4 - 3*6, "zookeeper": 8 * 4} {
		if refused[backend] != want {
			t.Errorf("%s: %d of 32 are refused, want %d", backend, refused[backend], want)
		}
	}
}

func TestConfigOfLocksValidatesWhatItCan(t *testing.T) {
	cfg := dlock.Config{RequireFair: true, LocalBatch: 4}
	valid := cfg.Validate()
	_, err := dlock.New(&cfg, dlock.WithBackend(memlock.New()))
	if valid == nil || err == nil {
		t.Errorf("Validate: %v, New: %v", valid, err)
	}
}
