package harness

import (
	"context"
	"fmt"
	"net/url"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// OpenRedis connects to the Redis at a URI, or starts one where there is none.
// The returned function closes what was opened. A database that holds anything is
// an error: the bench empties its database again and again.
func OpenRedis(ctx context.Context, uri string) (*redis.Options, func() error, error) {
	if uri == "" {
		server, err := throttletest.StartRedis(ctx, throttletest.RedisConfig{})
		if err != nil {
			return nil, nil, err
		}
		return server.Options(), server.Close, nil
	}
	options, err := redis.ParseURL(uri)
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	size, err := client.DBSize(ctx).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	if size > 0 {
		return nil, nil, fmt.Errorf("-redis: database %d holds %d keys, and the bench empties its database again and again; "+
			"name an empty one, as in redis://host:6379/9", options.DB, size)
	}
	return options, func() error { return nil }, nil
}

// RedisVersion is that of the server, or empty when it does not tell.
func RedisVersion(ctx context.Context, client *redis.Client) string {
	info, err := client.InfoMap(ctx, "server").Result()
	if err != nil {
		return ""
	}
	return info["Server"]["redis_version"]
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
