package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// DiscoverEtcd returns the Endpoints of the members that a domain names by DNS, in the SRV records of
// _etcd-client-ssl._tcp, or of _etcd-client._tcp if there are none of the first: https for those, and http
// for these. It asks once. The members may change later; see EtcdConfig.AutoSyncInterval.
func DiscoverEtcd(ctx context.Context, domain string) ([]string, error) {
	return discover(ctx, net.DefaultResolver, domain)
}

func discover(ctx context.Context, resolver *net.Resolver, domain string) ([]string, error) {
	if domain == "" || strings.ContainsAny(domain, "/: \t\r\n") {
		return nil, invalid("domain", "%q is not the name of a domain", domain)
	}
	var causes []error
	for _, service := range []struct{ name, scheme string }{{"etcd-client-ssl", "https"}, {"etcd-client", "http"}} {
		_, records, err := resolver.LookupSRV(ctx, service.name, "tcp", domain)
		var unknown *net.DNSError
		switch {
		case errors.As(err, &unknown) && unknown.IsNotFound:
			causes = append(causes, err)
		case err != nil: // without TLS only if there are no records with it
			return nil, typed(err, ErrUnreachable)
		}
		var endpoints []string
		for _, r := range records {
			host := strings.TrimSuffix(r.Target, ".")
			if host != "" { // that means: no such service
				endpoints = append(endpoints, service.scheme+"://"+net.JoinHostPort(host, strconv.Itoa(int(r.Port))))
			}
		}
		if len(endpoints) > 0 {
			return endpoints, nil
		}
	}
	causes = append(causes, fmt.Errorf("%s has no SRV records of etcd", domain))
	return nil, typed(errors.Join(causes...), ErrUnreachable)
}
