package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/schollz/progressbar/v3"

	"github.com/rampmeter/rampmeter/internal/embedded"
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// demonstrate runs the whole story and returns what the API saw of it.
func demonstrate(ctx context.Context, o *options, stderr io.Writer) (*seen, error) {
	redisURI, stopRedis, err := findRedis(ctx, o.redis)
	if err != nil {
		return nil, err
	}
	defer stopRedis()
	api, err := listenAPI(ctx, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer api.stop()

	if err := enqueue(ctx, redisURI, api.url, o.tasks); err != nil {
		return nil, err
	}
	j := job{Redis: redisURI}
	if !o.naive {
		folder, err := os.MkdirTemp("", "rampmeter-example-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
		j.Policies = filepath.Join(folder, "policies.yaml")
		if err := os.WriteFile(j.Policies, policiesFile, 0o600); err != nil {
			return nil, err
		}
	}
	workers, err := startFleet(o.workers, j)
	if err != nil {
		return nil, err
	}
	watch(ctx, api, o, stderr)
	told, err := workers.stop()
	if err != nil {
		return nil, err
	}
	return look(api, o, told), nil
}

// findRedis returns the Redis to use: the one at uri, or an embedded one.
func findRedis(ctx context.Context, uri string) (string, func(), error) {
	if uri == "" {
		server, err := embedded.Start("", nil)
		if err != nil {
			return "", nil, err
		}
		return "redis://" + server.Addr(), server.Close, nil
	}
	opt, err := asynq.ParseRedisURI(uri)
	if err != nil {
		return "", nil, fmt.Errorf("-redis %q: %w", uri, err)
	}
	logging.Disable() // the error below says it once
	client := opt.MakeRedisClient().(redis.UniversalClient)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	size, err := client.DBSize(ctx).Result()
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("no Redis at %s: %w (start one, or leave -redis out for an embedded one)", uri, err)
	case size > 0:
		return "", nil, fmt.Errorf("the Redis at %s: it holds data; give the example a Redis database of its own, as in redis://127.0.0.1:6379/9", uri)
	}
	return uri, func() {}, nil
}

// enqueue puts the tasks into the queue, each a call of its own.
func enqueue(ctx context.Context, redisURI, url string, tasks int) error {
	opt, err := asynq.ParseRedisURI(redisURI)
	if err != nil {
		return err
	}
	to, err := producer.New(opt)
	if err != nil {
		return err
	}
	defer to.Close()
	for i := range tasks {
		call := httprequest.Payload{Method: "GET", URL: fmt.Sprintf("%s/repos/octo/%d", url, i)}
		if _, err := to.HTTP(ctx, call, map[string]string{"installation": "42"}); err != nil {
			return fmt.Errorf("enqueueing task %d: %w", i, err)
		}
	}
	return nil
}

// watch returns when the API has accepted every task's call, or ctx ends. On a
// terminal it shows how far it is.
func watch(ctx context.Context, api *api, o *options, stderr io.Writer) {
	bar := progressbar.NewOptions(o.tasks,
		progressbar.OptionSetVisibility(program.IsTerminal(stderr)), progressbar.OptionSetWriter(stderr),
		progressbar.OptionSetDescription(fmt.Sprintf("%d workers, %d calls per %s", o.workers, quota.Limit, quota.Window)),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("calls"),
		progressbar.OptionClearOnFinish())
	for done := api.Accepted(); done < o.tasks; done = api.Accepted() {
		if err := api.WaitCalls(ctx, api.Count()+1); err != nil {
			break
		}
		_ = bar.Set(done)
	}
	_ = bar.Finish()
}
