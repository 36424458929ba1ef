package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Session is a Redis to measure on, with what tells how it fares.
type Session struct {
	Redis *redis.Options
	// Version is the server's, or empty when it does not tell.
	Version  string
	Meter    *Meter
	Progress *Progress

	stop func() error
}

// Open connects to the Redis at a URI, or starts one where there is none. Progress goes to
// stderr. The caller closes the session. A database that holds anything is an error: the
// bench empties its database again and again.
func Open(ctx context.Context, uri string, stderr io.Writer) (_ *Session, err error) {
	s := &Session{Progress: NewProgress(stderr), stop: func() error { return nil }}
	if uri == "" {
		server, err := throttletest.StartRedis(ctx, throttletest.RedisConfig{})
		if err != nil {
			return nil, err
		}
		s.Redis, s.stop = server.Options(), server.Close
	} else if s.Redis, err = redis.ParseURL(uri); err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	if s.Meter, err = NewMeter(ctx, s.Redis); err != nil {
		return nil, errors.Join(fmt.Errorf("-redis: %w", err), s.stop())
	}
	size, err := s.Meter.Client.DBSize(ctx).Result()
	if err == nil && size > 0 {
		err = fmt.Errorf("database %d holds %d keys, and the bench empties its database again and again; "+
			"name an empty one, as in redis://host:6379/9", s.Redis.DB, size)
	}
	if err != nil {
		s.Meter.Close()
		return nil, errors.Join(fmt.Errorf("-redis: %w", err), s.stop())
	}
	info, _ := s.Meter.Client.InfoMap(ctx, "server").Result()
	s.Version = info["Server"]["redis_version"]
	return s, nil
}

// Close empties the database and disconnects.
func (s *Session) Close() error {
	s.Progress.Clear()
	err := s.Meter.Client.FlushDB(context.Background()).Err()
	s.Meter.Close()
	return errors.Join(err, s.stop())
}

// URI is how worker processes are told of a Redis.
func URI(options *redis.Options) string {
	address := url.URL{Scheme: "redis", Host: options.Addr, Path: fmt.Sprintf("/%d", options.DB)}
	if options.TLSConfig != nil {
		address.Scheme = "rediss"
	}
	if options.Password != "" {
		address.User = url.UserPassword(options.Username, options.Password)
	}
	return address.String()
}
