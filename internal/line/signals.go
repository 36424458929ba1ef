package line

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Listener is told what happens in waiting lines.
type Listener struct {
	// Policy hears of policies whose line has something to do, and of all of them
	// when nobody could listen for a time.
	Policy func(policy string)
	// Task hears of tasks that are called: by [Line.CallTask], or because a slot that
	// they stand by for was handed to them.
	Task func(taskID string, slot Slot)
	// Freed hears how long a task held a slot of a concurrency limit that has ended. It
	// may be nil.
	Freed func(policy string, held time.Duration)
}

// Slot is a slot of a concurrency limit that was handed to a task: when its lease was born,
// and when that ends unless it is renewed, in microseconds by Redis's clock. A task that is
// called without one, which is zero, is to ask.
type Slot struct{ Born, Ends int64 }

// Limiter has the lines that are in force: it is that of package throttle.
type Limiter interface {
	Redis() redis.UniversalClient
	Config() *policy.Config
	Updated() <-chan struct{}
	Line(policy string) *Line
}

// Signals tells a listener what it hears of all lines, until ctx ends. After an Update it
// hears of all policies, too.
func Signals(ctx context.Context, limiter Limiter, listener Listener) {
	updated := limiter.Updated()
	channels, policies := channelsOf(limiter)
	subscription := limiter.Redis().Subscribe(ctx, channels...)
	defer subscription.Close()
	messages := subscription.ChannelWithSubscriptions()
	for {
		select {
		case <-updated:
			updated = limiter.Updated()
			before := channels
			channels, policies = channelsOf(limiter)
			// Redis answers for channels that were subscribed to before as for others. If
			// it can not be asked, they are subscribed to with the next connection.
			_ = subscription.Subscribe(ctx, channels...)
			gone := slices.DeleteFunc(before, func(channel string) bool { return slices.Contains(channels, channel) })
			if len(gone) > 0 {
				_ = subscription.Unsubscribe(ctx, gone...)
			}
		case message, open := <-messages:
			if !open {
				return
			}
			switch message := message.(type) {
			case *redis.Message:
				if policy, ok := policies[message.Channel]; ok {
					listener.hear(policy, message)
				}
			case *redis.Subscription: // also after the connection was lost
				if policy, ok := policies[message.Channel]; ok {
					listener.Policy(policy)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// channelsOf are those that are listened to, and which policies they are about.
func channelsOf(limiter Limiter) (channels []string, policies map[string]string) {
	policies = map[string]string{}
	for _, p := range limiter.Config().Policies {
		line := limiter.Line(p.Name)
		if line.removed != nil {
			continue // just now; the next update tells
		}
		for _, channel := range []string{line.signals(), callKey(p.Name)} {
			policies[channel] = p.Name
			channels = append(channels, channel)
		}
	}
	return channels, policies
}

// hear passes on a message: how long a slot that is free now was held, in us, and where it
// is a call, the slot's lease and the task, as in "<held>,<born>,<ends>/<task>".
func (l Listener) hear(policy string, message *redis.Message) {
	head, task, isCall := strings.Cut(message.Payload, "/")
	numbers := [3]int64{}
	for i, text := range strings.SplitN(head, ",", len(numbers)) {
		numbers[i], _ = strconv.ParseInt(text, 10, 64) // zero where nothing is told
	}
	if held := time.Duration(numbers[0]) * time.Microsecond; held > 0 && l.Freed != nil {
		l.Freed(policy, held)
	}
	if isCall {
		l.Task(task, Slot{Born: numbers[1], Ends: numbers[2]})
	} else {
		l.Policy(policy)
	}
}

// CallTask tells every process that a task's turn has come which waits for it there.
func (l *Line) CallTask(ctx context.Context, taskID string) error {
	return l.wrap("call", l.redis.Publish(ctx, callKey(l.policy), "0/"+taskID).Err())
}

// Listeners tells how many processes listen to the line's signals. In a Redis Cluster it
// is those that do so by way of the node that was asked.
func (l *Line) Listeners(ctx context.Context) (int, error) {
	if l.removed != nil {
		return 0, l.removed
	}
	channel := l.signals()
	counts, err := l.redis.PubSubNumSub(ctx, channel).Result()
	return int(counts[channel]), l.wrap("listeners", err)
}
