package connector_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/connector"
)

// The certificate is read again for every connection, and from the same file when the
// process has changed its working directory.
func TestRelativeCertificate(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("127.0.0.1", time.Now().Add(time.Hour))
	t.Chdir(filepath.Dir(cert))
	conn := newRedis(t, connector.RedisConfig{
		Addr: "127.0.0.1:1", TLS: &connector.TLSConfig{CertFile: filepath.Base(cert), KeyFile: filepath.Base(key)},
	})
	defer closeOnce(t, conn)
	t.Chdir(t.TempDir())
	client, ok := conn.Client().(*redis.Client)
	if !ok {
		t.Fatalf("a %T", conn.Client())
	}
	own, err := client.Options().TLSConfig.GetClientCertificate(nil)
	if err != nil || len(own.Certificate) == 0 {
		t.Errorf("the certificate: %v", err)
	}
}
