package throttle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Law 2 where an ACL lets nobody publish, which is a new user's default: nobody hears of
// what happens, but all that happens is complete. Every call leaves the same state as
// where publishing is allowed.
func TestChannelsAreRefused(t *testing.T) {
	t.Parallel()
	heard, refused := newChannels(t, "allchannels"), newChannels(t, "resetchannels")
	require.NoError(t, heard.client.Publish(t.Context(), "any", "").Err())
	require.ErrorContains(t, refused.client.Publish(t.Context(), "any", "").Err(), "NOPERM")
	want, got := heard.play(), refused.play()
	require.Len(t, got, len(want))
	for i := range want {
		assert.Equal(t, want[i], got[i])
	}
	assert.Greater(t, heard.publishes(), 7, "else they see nothing")
	assert.Greater(t, refused.refusals(), 7)
}

// channels plays a scenario in which every script publishes that ever does, as a user of
// Redis with these rights.
type channels struct {
	t       *testing.T
	server  *throttletest.Server
	client  *redis.Client
	limiter *throttle.Limiter
	told    []string // of each call what it told, and what it left
}

func newChannels(t *testing.T, rights string) *channels {
	t.Helper()
	c := &channels{t: t, server: throttletest.Redis(t)}
	admin := c.server.Client()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all", rights).Err())
	options := c.server.Options()
	options.Username, options.Password = "worker", "any"
	c.client = redis.NewClient(options)
	t.Cleanup(func() { assert.NoError(t, c.client.Close()) })
	require.NoError(t, admin.Set(t.Context(), clockKey, noon.UnixMicro(), 0).Err())
	rate := bucket("rate", 1, time.Minute, 1)
	rate.Per = "tenant"
	var err error
	c.limiter, err = throttle.New(c.client, &policy.Config{Policies: []policy.Policy{
		{Name: "slots", Limits: []policy.Limit{slotLimit(1)}}, {Name: "rate", Limits: []policy.Limit{rate}},
	}})
	require.NoError(t, err)
	throttle.RunByClockKey(c.limiter, clockKey)
	return c
}

func (c *channels) play() []string {
	c.t.Helper()
	first, second, parked := c.ask("slots", "/1", true), c.ask("slots", "/2", true), c.ask("slots", "/3", false)
	require.True(c.t, second.Place.StandsBy)
	require.NotNil(c.t, parked.Place)
	c.tell("release", first.Release(c.t.Context())) // which hands the slot on
	second = c.ask("slots", "/2", true)
	require.Equal(c.t, throttle.Granted, second.Outcome)
	c.wake("slots", false)
	c.tell("cancel", second.Cancel(c.t.Context()))
	c.wake("slots", false)
	c.wake("slots", true)

	first, parked = c.ask("rate", "/1", false), c.ask("rate", "/2", false)
	require.NotNil(c.t, parked.Place)
	_, err := c.limiter.Join(c.t.Context(), c.request("rate", "/3", false), time.Time{})
	c.tell("join", err)
	c.wake("rate", false)
	c.tell("review", c.limiter.Line("rate").Review(c.t.Context()))
	c.tell("cancel", first.Cancel(c.t.Context()))
	c.wake("rate", true)
	return c.told
}

func (c *channels) request(policy, task string, standBy bool) throttle.Request {
	r := throttle.Request{Policy: policy, TaskID: task, Park: true, StandBy: standBy, Attributes: map[string]string{"tenant": "a"}}
	if standBy {
		r.MaxWait = time.Second
	}
	return r
}

func (c *channels) ask(policy, task string, standBy bool) *throttle.Reservation {
	c.t.Helper()
	r, err := c.limiter.Reserve(c.t.Context(), c.request(policy, task, standBy))
	c.tell("ask "+task, err)
	require.NoError(c.t, err)
	return r
}

func (c *channels) wake(policy string, leaves bool) {
	c.t.Helper()
	call, err := c.limiter.Line(policy).Wake(c.t.Context(), line.Waking{As: "us", Near: near, Leaves: leaves})
	names := make([]string, len(call.Tasks))
	for i, task := range call.Tasks {
		names[i] = task.TaskID
	}
	c.tell(fmt.Sprintf("wake %v %v", names, call.Next), err)
}

// tell notes what a call told, and all that is kept after it.
func (c *channels) tell(what string, err error) {
	c.t.Helper()
	ctx, admin := c.t.Context(), c.server.Client()
	keys, kept := admin.Keys(ctx, "rm:*").Val(), []string{}
	for _, key := range keys {
		name, value := key, ""
		if mark := strings.Index(key, "/once:"); mark >= 0 {
			name = key[:mark] // the rest is random
		}
		switch admin.Type(ctx, key).Val() {
		case "string":
			value = admin.Get(ctx, key).Val()
		case "zset":
			value = fmt.Sprint(admin.ZRangeWithScores(ctx, key, 0, -1).Val())
		case "hash":
			value = fmt.Sprint(admin.HGetAll(ctx, key).Val())
		case "set":
			value = fmt.Sprint(admin.SMembers(ctx, key).Val())
		}
		kept = append(kept, name+" = "+value)
	}
	slices.Sort(kept)
	c.told = append(c.told, fmt.Sprintf("%s: %v\n%s", what, err, strings.Join(kept, "\n")))
}

// publishes is how often anything was published.
func (c *channels) publishes() int { return c.count("cmdstat_publish:calls=") }

// refusals is how often Redis refused to publish.
func (c *channels) refusals() int { return c.count("cmdstat_publish:") }

func (c *channels) count(field string) int {
	c.t.Helper()
	info := c.server.Client().Info(c.t.Context(), "commandstats").Val()
	_, after, _ := strings.Cut(info, field)
	line, _, _ := strings.Cut(after, "\n")
	if _, rejected, found := strings.Cut(line, "rejected_calls="); found && !strings.HasSuffix(field, "calls=") {
		line = rejected
	}
	var n int
	_, err := fmt.Sscanf(line, "%d", &n)
	require.NoError(c.t, err)
	return n
}
