package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap/zapcore"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// options is what the command line and the environment say.
type options struct {
	config          string
	redis           string
	embedded        bool
	listen          string
	concurrency     int
	queues          queueWeights
	shutdownTimeout time.Duration
	allowHosts      []string
	httpTimeout     time.Duration
	logLevel        zapcore.Level
}

// defaultRedis is where a Redis is that nobody has configured.
const defaultRedis = "redis://127.0.0.1:6379"

// flags returns the flag set that fills in o, with the defaults in place.
func (o *options) flags() *flag.FlagSet {
	o.queues = queueWeights{"default": 1}
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run says what is wrong, and once
	fs.StringVar(&o.config, "config", "", "policies `FILE`: limits, and the task types they are for; required")
	fs.StringVar(&o.redis, "redis", "", "`URI` of the Redis with tasks and limits: redis://, rediss://, redis-socket://\nor redis-sentinel://; without one, "+defaultRedis)
	fs.BoolVar(&o.embedded, "embedded", false, "start a Redis inside this process instead, for development;\nits data ends with it")
	fs.StringVar(&o.listen, "listen", "", "`ADDR` to serve /healthz and /metrics on, like :8080; empty serves neither")
	fs.IntVar(&o.concurrency, "concurrency", 50, "run or hold at most `N` tasks at once")
	fs.Var(&o.queues, "queues", "queues to serve as `NAME=WEIGHT,...`; a queue of weight 6 is looked at\nsix times as often as one of weight 1")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 8*time.Second, "`TIME` for running tasks to end on SIGTERM; the rest go back to their queue")
	fs.Func("allow-hosts", "the only `HOSTS` that http:request may call, as host, host:port\nor *.domain, separated by commas; empty allows all", o.readHosts)
	fs.DurationVar(&o.httpTimeout, "http-timeout", 30*time.Second, "most `TIME` an http:request call may take, body included")
	fs.Var(&o.logLevel, "log-level", "`LEVEL` from which on to log: debug, info, warn or error")
	return fs
}

// parseOptions reads the flags, and for those not given the environment. It
// returns flag.ErrHelp when help was asked for.
func parseOptions(args []string, getenv func(string) string) (options, error) {
	var o options
	fs := o.flags()
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; all arguments are flags", fs.Arg(0))
	}
	// -redis and -embedded say the same thing, so a flag of one outranks the other's variable.
	var outranked []string
	if o.redis != "" || o.embedded {
		outranked = []string{"redis", "embedded"}
	}
	return o, errors.Join(program.ReadEnvironment(fs, getenv, outranked...), o.validate())
}

// validate joins everything that is wrong with options each fine by itself.
func (o *options) validate() error {
	var problems []error
	if o.config == "" {
		problems = append(problems, errors.New("no policies file: name one with -config FILE or RAMPMETER_CONFIG"))
	}
	if o.embedded && o.redis != "" {
		problems = append(problems, errors.New("-redis and -embedded exclude each other: give one of them"))
	}
	if _, err := o.redisConn(); err != nil {
		problems = append(problems, err)
	}
	if o.concurrency < 1 {
		problems = append(problems, fmt.Errorf("-concurrency is %d; it must be at least 1", o.concurrency))
	}
	if o.shutdownTimeout <= 0 {
		problems = append(problems, fmt.Errorf("-shutdown-timeout is %s; it must be positive, like 8s", o.shutdownTimeout))
	}
	if o.httpTimeout <= 0 {
		problems = append(problems, fmt.Errorf("-http-timeout is %s; it must be positive, like 30s", o.httpTimeout))
	} else if _, err := o.httpHandler(); err != nil {
		problems = append(problems, fmt.Errorf("-allow-hosts: %w", err))
	}
	return errors.Join(problems...)
}

// redisConn is the way to the Redis that the options name.
func (o *options) redisConn() (asynq.RedisConnOpt, error) {
	conn, err := worker.ParseRedisURI(cmp.Or(o.redis, defaultRedis))
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return conn, nil
}

// httpHandler makes the handler of http:request tasks.
func (o *options) httpHandler() (asynq.Handler, error) {
	return httprequest.NewHandler(httprequest.Config{AllowHosts: o.allowHosts, Timeout: o.httpTimeout})
}
