package throttletest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)

func TestClockIsTheServersTime(t *testing.T) {
	t.Parallel()
	srv, clock := EmbeddedAt(t, noon)
	for _, step := range []struct{ advance, shows time.Duration }{
		{0, 0},
		{time.Microsecond, time.Microsecond},
		{999_998 * time.Microsecond, 999_999 * time.Microsecond},
		{time.Microsecond, time.Second},
		{999 * time.Nanosecond, time.Second},
		{time.Nanosecond, time.Second + time.Microsecond},
		{-2 * time.Second, -time.Second + time.Microsecond},
	} {
		now := clock.Advance(step.advance)
		assert.Equal(t, clock.Now(), now)
		want := noon.Add(step.shows)
		assert.WithinDuration(t, want, timeInScript(t, srv), 0, "inside a script, after %s more", step.advance)
		got, err := srv.Client().Time(t.Context()).Result()
		require.NoError(t, err)
		assert.WithinDuration(t, want, got, 0, "after %s more", step.advance)
	}
	clock.Set(noon.Add(time.Hour))
	assert.WithinDuration(t, noon.Add(time.Hour), timeInScript(t, srv), 0)
}

func TestClockExpiresToTheMicrosecond(t *testing.T) {
	t.Parallel()
	srv, clock := EmbeddedAt(t, noon)
	ctx := t.Context()
	// Set by a script, as a limiter does.
	require.NoError(t, srv.Client().Eval(ctx,
		`redis.call('SET', KEYS[1], 1) return redis.call('PEXPIRE', KEYS[1], 1500)`, []string{"k"}).Err())

	clock.Advance(1500*time.Millisecond - time.Microsecond)
	assert.EqualValues(t, 1, srv.Client().Exists(ctx, "k").Val(), "gone a microsecond early")
	clock.Advance(time.Microsecond)
	assert.Zero(t, srv.Client().Exists(ctx, "k").Val(), "still here when its time has come")
}

func TestClockMovingBackKeepsWhatIsLeftOfALife(t *testing.T) {
	t.Parallel()
	srv, clock := EmbeddedAt(t, noon)
	ctx := t.Context()
	require.NoError(t, srv.Client().Set(ctx, "k", "v", 10*time.Second).Err())
	clock.Advance(4 * time.Second)
	assert.Equal(t, 6*time.Second, srv.Client().PTTL(ctx, "k").Val())
	clock.Advance(-time.Hour)
	assert.Equal(t, 6*time.Second, srv.Client().PTTL(ctx, "k").Val())
	clock.Advance(6 * time.Second)
	assert.Zero(t, srv.Client().Exists(ctx, "k").Val())
}

func TestClockDrivesSeveralServers(t *testing.T) {
	t.Parallel()
	clock := NewClock(noon)
	one := startFor(t, EmbeddedConfig{Clock: clock})
	two := startFor(t, EmbeddedConfig{Clock: clock})
	clock.Advance(time.Minute)
	assert.WithinDuration(t, noon.Add(time.Minute), timeInScript(t, one), 0)
	assert.WithinDuration(t, noon.Add(time.Minute), timeInScript(t, two), 0)

	require.NoError(t, one.Close())
	assert.Len(t, clock.driven, 1, "a closed server should be let go")
	clock.Advance(time.Minute)
	assert.WithinDuration(t, noon.Add(2*time.Minute), timeInScript(t, two), 0)
}

func TestClockLetsGoOfAServerThatDidNotStart(t *testing.T) {
	t.Parallel()
	clock := NewClock(noon)
	_, err := StartEmbedded(EmbeddedConfig{Addr: Embedded(t).Addr(), Clock: clock})
	require.Error(t, err)
	assert.Empty(t, clock.driven)
}

func TestClockRefusesTimesThatRedisCanNotTell(t *testing.T) {
	t.Parallel()
	assert.Panics(t, func() { NewClock(time.Time{}) })
	clock := NewClock(time.Unix(5, 0))
	assert.Panics(t, func() { clock.Advance(-6 * time.Second) })
	assert.Panics(t, func() { clock.Set(time.Unix(-1, 0)) })
	assert.Equal(t, time.Unix(5, 0), clock.Now(), "a refused time should change nothing")
}
