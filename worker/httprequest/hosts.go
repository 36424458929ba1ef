package httprequest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// hostRules are the hosts that may be called; none of them means any.
type hostRules []hostRule

// hostRule allows a host, or with below set every name that ends in it, on one
// port or with an empty port on any.
type hostRule struct {
	entry      string // as the user wrote it
	host, port string
	below      bool
}

// parseHostRules reads the entries of an allow list and joins their problems.
func parseHostRules(entries []string) (hostRules, error) {
	var rules hostRules
	var problems []error
	for _, entry := range entries {
		rule, err := parseHostRule(entry)
		if err != nil {
			problems = append(problems, fmt.Errorf("allowed host %q %w", entry, err))
			continue
		}
		rules = append(rules, rule)
	}
	return rules, errors.Join(problems...)
}

func parseHostRule(entry string) (hostRule, error) {
	rule := hostRule{entry: entry, host: strings.TrimSpace(entry)}
	if strings.Contains(rule.host, "/") || strings.Contains(rule.host, "@") {
		return rule, errors.New("is more than a host: write host or host:port, without scheme and path")
	}
	if host, port, err := net.SplitHostPort(rule.host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return rule, fmt.Errorf("has the port %q: write a number from 1 to 65535", port)
		}
		rule.host, rule.port = host, port
	}
	rule.host, rule.below = strings.CutPrefix(rule.host, "*.")
	rule.host = canonicalHost(strings.Trim(rule.host, "[]"))
	switch {
	case rule.host == "":
		return rule, errors.New("names no host")
	case rule.host == "*":
		return rule, errors.New("is every host: leave the list empty for that")
	case strings.Contains(rule.host, "*"):
		return rule, errors.New("has a * in the wrong place: only a leading *. stands for names below")
	case strings.ContainsAny(rule.host, " \t,"):
		return rule, errors.New("holds a separator: give each host an entry of its own")
	}
	return rule, nil
}

// check returns an error when a URL's scheme or host may not be called.
func (rules hostRules) check(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("scheme %q is not http or https", u.Scheme)
	}
	if len(rules) == 0 {
		return nil
	}
	host := canonicalHost(u.Hostname())
	var entries []string
	for _, rule := range rules {
		if rule.allows(host, portOf(u)) {
			return nil
		}
		entries = append(entries, rule.entry)
	}
	return fmt.Errorf("host %q is not allowed; allowed are %s", u.Host, strings.Join(entries, ", "))
}

func (r hostRule) allows(host, port string) bool {
	if r.port != "" && r.port != port {
		return false
	}
	if r.below {
		return strings.HasSuffix(host, "."+r.host)
	}
	return host == r.host
}

// canonicalHost is how host names are compared: DNS knows no case, and its
// names may end in a dot.
func canonicalHost(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// portOf returns the port a URL is called on, said or not.
func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}
