package worker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/hibiken/asynq"
)

// ParseRedisURI reads the URI of a Redis as [asynq.ParseRedisURI] does, and besides
// the user's name, which that leaves out, and a missing port. Its errors say how to
// write it, and never show a password.
func ParseRedisURI(uri string) (asynq.RedisConnOpt, error) {
	const usage = "write it like redis://:password@host:6379/0"
	conn, err := asynq.ParseRedisURI(uri)
	if err != nil {
		if quoted, ok := errors.AsType[*url.Error](err); ok {
			err = quoted.Err
		}
		return nil, fmt.Errorf("%w; %s", err, usage)
	}
	single, ok := conn.(asynq.RedisClientOpt)
	if !ok || single.Network == "unix" {
		return conn, nil
	}
	u, err := url.Parse(uri)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("the URI names no host; " + usage)
	}
	single.Username = u.User.Username()
	if u.Port() == "" {
		single.Addr = strings.TrimSuffix(u.Host, ":") + ":6379"
	}
	return single, nil
}
