package connector

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

// TLSConfig says how to use TLS. Any field that is set enables TLS; the zero value and nil leave it
// off.
type TLSConfig struct {
	// Enabled alone means TLS with the system's certificate authorities.
	Enabled bool `json:"enabled" yaml:"enabled" mapstructure:"enabled" env:"ENABLED"`
	// CAFile contains the authorities to trust instead of the system's, in PEM.
	CAFile string `json:"ca_file" yaml:"ca_file" mapstructure:"ca_file" env:"CA_FILE"`
	// CertFile and KeyFile are the client certificate, in PEM. They are read again for every
	// connection, so that a new certificate needs no restart.
	CertFile string `json:"cert_file" yaml:"cert_file" mapstructure:"cert_file" env:"CERT_FILE"`
	KeyFile  string `json:"key_file" yaml:"key_file" mapstructure:"key_file" env:"KEY_FILE"`
	// ServerName is the name in the certificate of every server, if it is not the host that is
	// dialed. Sentinels and clusters mostly name servers by address.
	ServerName string `json:"server_name" yaml:"server_name" mapstructure:"server_name" env:"SERVER_NAME"`
	// InsecureSkipVerify accepts any certificate, and therefore any server.
	InsecureSkipVerify bool `json:"insecure_skip_verify" yaml:"insecure_skip_verify" mapstructure:"insecure_skip_verify" env:"INSECURE_SKIP_VERIFY"`
	// MinVersion is 1.2, the default, or 1.3.
	MinVersion string `json:"min_version" yaml:"min_version" mapstructure:"min_version" env:"MIN_VERSION"`
}

// String makes the fields visible behind a pointer.
func (t TLSConfig) String() string {
	type plain TLSConfig
	return fmt.Sprintf("%+v", plain(t))
}

func (t *TLSConfig) on() bool { return t != nil && *t != TLSConfig{} }

var tlsVersions = map[string]uint16{"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

func (t *TLSConfig) validate() error {
	if t == nil {
		return nil
	}
	if tlsVersions[t.MinVersion] == 0 {
		return invalid("TLS.MinVersion", "%q is neither 1.2 nor 1.3", t.MinVersion)
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return invalid("TLS.CertFile", "and TLS.KeyFile need each other")
	}
	return nil
}

// load reads the files.
func (t *TLSConfig) load() (*tls.Config, error) {
	cfg := &tls.Config{
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
		MinVersion:         tlsVersions[t.MinVersion],
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, invalid("TLS.CAFile", "cannot be read: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("TLS.CAFile", "has no certificate in it")
		}
	}
	if t.CertFile != "" {
		pair, err := t.absolute()
		if err != nil {
			return nil, invalid("TLS.CertFile", "or TLS.KeyFile cannot be found: %w", err)
		}
		if _, err := pair.own(nil); err != nil {
			return nil, invalid("TLS.CertFile", "or TLS.KeyFile is no good: %w", err)
		}
		cfg.GetClientCertificate = pair.own
	}
	return cfg, nil
}

// absolute is t with the files that are read again later. They stay the same when the
// process changes its working directory.
func (t *TLSConfig) absolute() (pair TLSConfig, err error) {
	pair = *t
	pair.CertFile, err = filepath.Abs(t.CertFile)
	if err != nil {
		return pair, err
	}
	pair.KeyFile, err = filepath.Abs(t.KeyFile)
	return pair, err
}

func (t *TLSConfig) own(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	return &cert, err
}
