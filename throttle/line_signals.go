package throttle

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Listener is told what happens in waiting lines.
type Listener struct {
	// Policy hears of policies whose line has something to do, and of all of them
	// when nobody could listen for a time.
	Policy func(policy string)
	// Task hears of tasks that are called: by [Limiter.CallTask], or because a slot that
	// they stand by for is free.
	Task func(taskID string)
	// Freed hears how long a task held a slot of a concurrency limit that has ended. It
	// may be nil.
	Freed func(policy string, held time.Duration)
}

// Signals tells a listener what it hears, until ctx ends. After an Update it hears of all
// policies, too.
func (l *Limiter) Signals(ctx context.Context, listener Listener) {
	updated := l.Updated()
	channels, policies := l.inForce.Load().channels()
	subscription := l.redis.Subscribe(ctx, channels...)
	defer subscription.Close()
	messages := subscription.ChannelWithSubscriptions()
	for {
		select {
		case <-updated:
			updated = l.Updated()
			before := channels
			channels, policies = l.inForce.Load().channels()
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

// channels are those that are listened to, and which policies they are about.
func (g *generation) channels() (channels []string, policies map[string]string) {
	policies = make(map[string]string, 2*len(g.policies))
	for name, calls := range g.policies {
		for _, channel := range []string{calls.line.signals(), callKey(name)} {
			policies[channel] = name
			channels = append(channels, channel)
		}
	}
	return channels, policies
}

// hear passes on a message: how long a slot that is free now was held, in us, and
// behind that, where it is a call, the task.
func (l Listener) hear(policy string, message *redis.Message) {
	held, task, isCall := strings.Cut(message.Payload, "/")
	if us, err := strconv.ParseInt(held, 10, 64); err == nil && us > 0 && l.Freed != nil {
		l.Freed(policy, time.Duration(us)*time.Microsecond)
	}
	if isCall {
		l.Task(task)
	} else {
		l.Policy(policy)
	}
}

// CallTask tells every process that a task's turn has come which waits for it there.
func (l *Limiter) CallTask(ctx context.Context, policy, taskID string) error {
	return wrapCall("call", policy, l.redis.Publish(ctx, callKey(policy), "0/"+taskID).Err())
}

// Listeners tells how many processes listen to a policy's signals. In a Redis Cluster
// it is those that do so by way of the node that was asked.
func (l *Limiter) Listeners(ctx context.Context, policy string) (int, error) {
	calls, err := l.calls(policy)
	if err != nil {
		return 0, err
	}
	channel := calls.line.signals()
	counts, err := l.redis.PubSubNumSub(ctx, channel).Result()
	return int(counts[channel]), wrapCall("listeners", policy, err)
}
