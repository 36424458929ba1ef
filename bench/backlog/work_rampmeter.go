package backlog

import (
	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/worker"
)

// openRampmeter is what the README tells the owner of an asynq program to write.
// Attempts are counted outside of it.
func (j *job) openRampmeter(connection asynq.RedisConnOpt, config asynq.Config, tell *teller, call asynq.Handler) (*workServer, error) {
	pace, err := worker.Open(connection, j.Policies)
	if err != nil {
		return nil, err
	}
	server := asynq.NewServer(connection, pace.Configure(config))
	return &workServer{
		start: func() error { return server.Start(tell.counting(pace.Wrap(call))) },
		stop: func() {
			server.Stop()
			pace.Drain()
			server.Shutdown()
			_ = pace.Close()
		},
	}, nil
}
