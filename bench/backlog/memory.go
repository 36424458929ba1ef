package backlog

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// ourKeys are all of Rampmeter's.
const ourKeys = "rm:*"

// memoryOfOurs is the memory of Rampmeter's keys.
func memoryOfOurs(ctx context.Context, client *redis.Client) (sum int64, err error) {
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = client.Scan(ctx, cursor, ourKeys, 10_000).Result(); err != nil {
			return 0, err
		}
		pipe := client.Pipeline()
		for _, key := range keys {
			pipe.MemoryUsage(ctx, key, 1000) // of so many members, the average counts for all
		}
		answers, err := pipe.Exec(ctx)
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
		for _, answer := range answers {
			sum += answer.(*redis.IntCmd).Val() // 0 for a key that has just expired
		}
		if cursor == 0 {
			return sum, nil
		}
	}
}
