package producer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A producer that knows the workers' policies puts tasks that would have to wait into
// line itself.
func Example() {
	redis, end := exampleRedis()
	defer end()

	tasks, err := producer.Open(redis, "testdata/policies.yaml")
	if err != nil {
		fmt.Println(err)
	}
	defer tasks.Close()

	task := asynq.NewTaskWithHeaders("github:sync", nil, map[string]string{"installation": "42"})
	info, err := tasks.Enqueue(context.Background(), task) // was: client.Enqueue(task)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println("by itself:", info.State)

	line := `{"type":"github:sync","attributes":{"installation":"42"}}` + "\n"
	summary, err := tasks.Batch(context.Background(), strings.NewReader(strings.Repeat(line, 100)), producer.BatchConfig{})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println("of a batch:", summary.Enqueued, "enqueued,", summary.Parked, "of them in line")
	// Output:
	// by itself: pending
	// of a batch: 100 enqueued, 99 of them in line
}

// exampleRedis is wherever the program's Redis is.
func exampleRedis() (asynq.RedisClientOpt, func()) {
	server, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{})
	if err != nil {
		panic(err)
	}
	return asynq.RedisClientOpt{Addr: server.Addr()}, func() { _ = server.Close() }
}
