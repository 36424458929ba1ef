package producer_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// intercept is told of each call that enqueues a task of numbered; its payload
// is like "#7#".
type intercept func(payload string, enqueue func() error) error

// interceptedOn returns a producer whose connection lets a test fail, hold or
// repeat single calls.
func interceptedOn(t *testing.T, srv *throttletest.Server, hook intercept) *producer.Producer {
	t.Helper()
	p, err := producer.New(intercepted{connection(srv), hook})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

type intercepted struct {
	asynq.RedisClientOpt

	hook intercept
}

func (i intercepted) MakeRedisClient() any {
	client := i.RedisClientOpt.MakeRedisClient().(*redis.Client)
	client.AddHook(i.hook)
	return client
}

func (i intercept) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i intercept) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

var number = regexp.MustCompile(`#\d+#`)

func (i intercept) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		payload := ""
		if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			payload = number.FindString(fmt.Sprintf("%s", cmd.Args()))
		}
		if payload == "" {
			return next(ctx, cmd)
		}
		err := i(payload, func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}
