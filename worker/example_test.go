package worker_test

import (
	"context"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// An asynq program that keeps to the policies of a file: four lines are new.
func Example() {
	redis, end := exampleRedis()
	defer end()
	synced := make(chan string)
	sync := func(_ context.Context, task *asynq.Task) error {
		synced <- task.Headers()["installation"]
		return nil
	}

	pace := worker.Must(worker.Open(redis, "testdata/policies.yaml")) // new
	defer pace.Close()                                                // new

	mux := asynq.NewServeMux()
	mux.Use(pace.Wrap) // new
	mux.HandleFunc("github:sync", sync)

	server := asynq.NewServer(redis, pace.Configure(asynq.Config{ // new: pace.Configure
		Concurrency: 10,
		LogLevel:    asynq.FatalLevel,
	}))
	if err := server.Start(mux); err != nil {
		fmt.Println(err)
	}
	defer server.Shutdown()

	client := asynq.NewClient(redis)
	defer client.Close()
	task := asynq.NewTaskWithHeaders("github:sync", nil, map[string]string{"installation": "42"})
	if _, err := client.Enqueue(task); err != nil {
		fmt.Println(err)
	}
	fmt.Println("synced installation", <-synced)
	// Output: synced installation 42
}

// exampleRedis is wherever the program's Redis is.
func exampleRedis() (asynq.RedisClientOpt, func()) {
	server, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{})
	if err != nil {
		panic(err)
	}
	return asynq.RedisClientOpt{Addr: server.Addr()}, func() { _ = server.Close() }
}
