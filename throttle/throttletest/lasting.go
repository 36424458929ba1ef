package throttletest

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// ownKeys matches the keys of Rampmeter.
const ownKeys = "rm:*"

// noExpiry is what go-redis makes of Redis's PTTL of a key that never expires.
const noExpiry = -1

// LastingKeys returns the keys of Rampmeter that never expire, in order. There should be
// none, whatever was done before. Keys of Rampmeter begin with "rm:"; the others are
// somebody else's.
func LastingKeys(ctx context.Context, client *redis.Client) ([]string, error) {
	const page = 200
	var lasting []string
	for cursor := uint64(0); ; {
		keys, next, err := client.Scan(ctx, cursor, ownKeys, page).Result()
		if err != nil {
			return nil, err
		}
		pipeline := client.Pipeline()
		lives := make([]*redis.DurationCmd, len(keys))
		for i, key := range keys {
			lives[i] = pipeline.PTTL(ctx, key)
		}
		if _, err := pipeline.Exec(ctx); err != nil {
			return nil, err
		}
		for i, key := range keys {
			if lives[i].Val() == noExpiry {
				lasting = append(lasting, key)
			}
		}
		if cursor = next; cursor == 0 {
			slices.Sort(lasting)
			return slices.Compact(lasting), nil // a scan may tell of a key twice
		}
	}
}
