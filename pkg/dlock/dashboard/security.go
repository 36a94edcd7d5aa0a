package dashboard

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// policy lets the page load its own assets, talk to its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// secured adds the security headers to every answer, and refuses requests under a foreign name.
func (h *Handler) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		if r.URL.Path != healthPath && !h.allowedHost(r) {
			h.refused[refusedHost].Add(1)
			fail(w, http.StatusMisdirectedRequest, "host_not_allowed",
				"this page is not served under this host name; the operator allows names with --allow-host or WithAllowedHosts")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowedHost protects against DNS rebinding: a foreign site can make its name resolve to our
// address, but the browser still sends that name.
func (h *Handler) allowedHost(r *http.Request) bool {
	name, port := splitHost(r.Host)
	if name == "localhost" || slices.Contains(h.settings.hosts, name) || slices.Contains(h.settings.ports, net.JoinHostPort(name, port)) {
		return true
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	return addr.Unmap().IsLoopback() || addr.Unmap() == localAddr(r)
}

// splitHost returns the name and the port of a host, in one spelling: browsers and operators write
// addresses and names in several. The port may be missing.
func splitHost(host string) (name, port string) {
	name = strings.ToLower(host)
	if n, p, err := net.SplitHostPort(name); err == nil {
		name, port = n, p
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr.String(), port
	}
	return strings.TrimSuffix(name, "."), port
}

// localAddr returns the address at which the connection arrived. Only an address can match it, and
// an address needs no DNS.
func localAddr(r *http.Request) netip.Addr {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return netip.Addr{}
	}
	full, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return netip.Addr{}
	}
	return full.Addr().Unmap()
}

// authorized answers 401 unless the request has the token, if there is one.
func (h *Handler) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := h.settings.token; want != nil {
			scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			got := sha256.Sum256([]byte(strings.TrimSpace(token))) // of one length, so the comparison tells nothing
			if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") {
				h.refused[refusedToken].Add(1)
				w.Header().Set("WWW-Authenticate", `Bearer realm="locks"`)
				fail(w, http.StatusUnauthorized, "unauthorized", "the token is missing or wrong")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses what another site makes a browser send.
func (h *Handler) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isSameOrigin(r) {
			h.refused[refusedOrigin].Add(1)
			fail(w, http.StatusForbidden, "cross_origin", "the request comes from another site")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isSameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return true // the browser knows it, also if a proxy has changed the Host
	case "":
	case "none": // typed by the user, which only reads
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return false
		}
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true // no browser, or a request of the page itself
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}
