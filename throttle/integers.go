package throttle

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// integers runs a script whose reply is a list of integers, as [redis.Script.Run]
// does, but without a value on the heap for each of them.
func integers(ctx context.Context, client redis.UniversalClient, script *redis.Script, keys []string, args []any) ([]int64, error) {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, "evalsha", script.Hash(), len(keys))
	for _, key := range keys {
		line = append(line, key)
	}
	cmd := redis.NewIntSliceCmd(ctx, append(line, args...)...)
	err := client.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return script.Run(ctx, client, keys, args...).Int64Slice()
	}
	return cmd.Val(), err
}
