package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// oracle is a limit as its definition says it, for one key, written without
// looking at the script. Times and durations are in microseconds.
type oracle interface {
	// reserve tells whether a request is granted and for when, or when it would
	// first pass.
	reserve(now, wait, cost int64, who string) (granted bool, at int64)
	// cancel gives back the nth granted reservation, counted from 0.
	cancel(now int64, nth int)
	// adjust corrects what the nth granted reservation took.
	adjust(now int64, nth int, more int64)
	// change sets other numbers, in force from the next operation on.
	change(now int64, l policy.Limit)
	// status tells what is left, and when the limit is full again.
	status(now int64) (remaining, resetAfter int64)
	// flush forgets everything, as an emptied Redis does.
	flush()
}

// comparisons compare the scripts of every algorithm with its oracle, on so many random
// operations.
var comparisons = map[string]func(t *testing.T, client *redis.Client, operations int){
	"token bucket":          against(bucketNumbers, newBucketOracle),
	"interval bucket":       against(intervalNumbers, newIntervalOracle),
	"fixed window by clock": against(windowNumbers(policy.AnchorClock), newWindowOracle),
	"fixed window by first": against(windowNumbers(policy.AnchorFirst), newWindowOracle),
	"sliding log":           against(logNumbers, newLogOracle),
	"long line of a log":    compareLongLine,
	"sliding window":        against(slidingNumbers, newSlidingOracle),
	"concurrency":           compareConcurrency,
	"spacing":               against(spacingNumbers, newSpacingOracle),
}

func TestScriptsAgainstOracles(t *testing.T) {
	t.Parallel()
	compareWithOracles(t, 12_000)
}

func compareWithOracles(t *testing.T, operations int) {
	t.Helper()
	for name, compare := range comparisons {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, throttletest.Redis(t).Client(), operations/len(comparisons))
		})
	}
}

// episodeOps is the length of one random story; each begins on an empty server.
const episodeOps = 400

// comparison tells the same random story to a script and to its oracle.
type comparison struct {
	t       testing.TB
	seed    uint64
	client  *redis.Client
	random  *rand.Rand
	limit   policy.Limit
	limiter *Limiter
	oracle  oracle
	now     int64
	granted []*Reservation
	ended   map[int]bool    // granted reservations that were cancelled, or are of other numbers
	had     map[string]bool // numbers
	story   []string
	// crowded is set where requests come several at a time.
	crowded bool
}

const (
	comparisonClock = "clock"
	comparisonEpoch = 1_800_000_000_000_000 // microseconds; a whole minute
)

// against tells random stories until enough operations were compared. numbers makes the
// limit of a story, and other numbers for the same limit later.
func against(numbers func(*rand.Rand) policy.Limit, newOracle func(policy.Limit) oracle) func(*testing.T, *redis.Client, int) {
	return func(t *testing.T, client *redis.Client, operations int) {
		t.Helper()
		eachEpisode(t, client, operations, episodeOps, func(seed uint64) { tellStory(t, client, seed, numbers, newOracle) })
	}
}

// eachEpisode tells stories of so many operations each. Each change of a limit's numbers
// makes new scripts, and a server keeps them all until it is told to forget them.
func eachEpisode(t *testing.T, client *redis.Client, operations, each int, tell func(seed uint64)) {
	t.Helper()
	for seed := range uint64((operations + each - 1) / each) {
		if seed%100 == 99 {
			require.NoError(t, client.ScriptFlush(t.Context()).Err())
		}
		tell(seed)
	}
}

func tellStory(t testing.TB, client *redis.Client, seed uint64, numbers func(*rand.Rand) policy.Limit, newOracle func(policy.Limit) oracle) {
	t.Helper()
	tell(t, &comparison{client: client, seed: seed, crowded: true}, numbers, newOracle)
}

// tellLonelyStory is tellStory where nobody comes along.
func tellLonelyStory(t testing.TB, client *redis.Client, seed uint64, numbers func(*rand.Rand) policy.Limit, newOracle func(policy.Limit) oracle) {
	t.Helper()
	tell(t, &comparison{client: client, seed: seed}, numbers, newOracle)
}

func tell(t testing.TB, d *comparison, numbers func(*rand.Rand) policy.Limit, newOracle func(policy.Limit) oracle) {
	t.Helper()
	d.begin(t, 42, numbers, newOracle)
	for range episodeOps {
		d.step(numbers)
	}
}

// begin begins a story; kind keeps those of one kind apart from those of another.
func (d *comparison) begin(t testing.TB, kind uint64, numbers func(*rand.Rand) policy.Limit, newOracle func(policy.Limit) oracle) {
	t.Helper()
	d.t, d.random, d.now = t, rand.New(rand.NewPCG(d.seed, kind)), comparisonEpoch
	d.limit = numbers(d.random)
	d.limit.Name = "limit"
	d.oracle = newOracle(d.limit)
	d.flush()
	d.remake()
}

func (d *comparison) step(numbers func(*rand.Rand) policy.Limit) {
	switch n := d.random.IntN(100); {
	case n < 55:
		d.reserve()
	case n < 63:
		d.cancel()
	case n < 70:
		d.adjust()
	case n < 94:
		d.tick()
	case n < 97:
		d.change(numbers(d.random))
	case n < 98:
		d.tell("flush")
		d.flush()
		d.oracle.flush()
	}
	if d.random.IntN(3) == 0 {
		d.compareStatus()
	}
}

func (d *comparison) tell(format string, args ...any) {
	d.story = append(d.story, fmt.Sprintf("%8d "+format, append([]any{d.now - comparisonEpoch}, args...)...))
}

func (d *comparison) fail(format string, args ...any) {
	d.t.Helper()
	const last = 25
	story := d.story[max(0, len(d.story)-last):]
	for _, line := range story {
		d.t.Log(line)
	}
	state, _ := d.client.Get(d.t.Context(), "rm:{api}:limit").Result()
	members, _ := d.client.ZRangeWithScores(d.t.Context(), "rm:{api}:limit", 0, -1).Result() // of a log, or slots
	d.t.Logf("story %d, state %q %v", d.seed, state, members)
	d.t.Fatalf(format, args...)
}

func (d *comparison) request(cost, wait int64) Request {
	return Request{
		Policy: "api", TaskID: "task", MaxWait: time.Duration(wait) * time.Microsecond,
		Attributes: map[string]string{"cost": strconv.FormatInt(cost, 10)},
	}
}

func (d *comparison) reserve() {
	d.t.Helper()
	cost := 1 + d.random.Int64N(d.mostCost())
	if d.random.IntN(2) == 0 {
		cost = 1
	}
	wait := int64(0)
	if d.random.IntN(2) == 0 {
		wait = d.random.Int64N(4 * d.limit.Rate.Period.Microseconds())
	}
	for _, r := range d.together(d.request(cost, wait)) {
		granted, at := d.oracle.reserve(d.now, wait, cost, "task")
		d.compareAnswer(r, granted, at)
		d.compare(r.Limits[0])
	}
	d.callEnded()
}

// mostCost is the most that a request costs in the story.
func (d *comparison) mostCost() int64 {
	if d.limit.Algorithm == policy.Spacing {
		return 5 // of as many as fit into 30 years
	}
	return d.limit.MostCost()
}

// compareAnswer holds an answer against the oracle's.
func (d *comparison) compareAnswer(r *Reservation, granted bool, at int64) {
	d.t.Helper()
	d.tell("reserve %s cost %d wait %s -> %v %d",
		r.claim.request.TaskID, r.claim.costs[0], r.claim.request.MaxWait, r.Outcome, r.At.UnixMicro()-comparisonEpoch)
	if (r.Outcome == Granted) != granted || r.At.UnixMicro() != at {
		d.fail("%s: the oracle says granted %v at %d", d.limit.String(), granted, at-comparisonEpoch)
	}
	if granted {
		d.granted = append(d.granted, r)
	}
}

// callEnded tells the oracle, if it wants to know, that a script call of several
// requests has ended.
func (d *comparison) callEnded() {
	if o, ok := d.oracle.(interface{ ended(now int64) }); ok {
		o.ended(d.now)
	}
}

// together makes the same request a few times in one script call.
func (d *comparison) together(request Request) []*Reservation {
	d.t.Helper()
	requests := 1
	if d.crowded && d.random.IntN(4) == 0 {
		requests += d.random.IntN(6)
	}
	reservations, err := ReserveTogether(d.limiter, slices.Repeat([]Request{request}, requests)...)
	require.NoError(d.t, err)
	return reservations
}

// pick chooses a granted reservation that was not cancelled, mostly a late one.
func (d *comparison) pick() (int, bool) {
	if len(d.granted) == 0 {
		return 0, false
	}
	n := len(d.granted) - 1 - d.random.IntN(min(8, len(d.granted)))
	return n, !d.ended[n]
}

func (d *comparison) cancel() {
	n, ok := d.pick()
	if !ok {
		return
	}
	d.ended[n] = true
	d.tell("cancel %d, of slot %d", n, d.granted[n].At.UnixMicro()-comparisonEpoch)
	d.oracle.cancel(d.now, n)
	r := d.granted[n]
	require.NoError(d.t, r.Cancel(d.t.Context()))
}

func (d *comparison) adjust() {
	n, ok := d.pick()
	if !ok {
		return
	}
	r := d.granted[n]
	actual := d.random.Int64N(2 * d.mostCost())
	more := actual - r.claim.costs[0]
	d.tell("adjust %d by %d", n, more)
	d.oracle.adjust(d.now, n, more)
	require.NoError(d.t, r.Adjust(d.t.Context(), map[string]string{"cost": strconv.FormatInt(actual, 10)}))
}

func (d *comparison) tick() {
	period := d.limit.Rate.Period.Microseconds()
	switch d.random.IntN(8) {
	case 0:
		d.now += d.random.Int64N(5 * period)
	case 1:
		d.now -= d.random.Int64N(period)
	case 2:
		d.now++
	default:
		d.now += d.random.Int64N(period/2 + 1)
	}
	d.tell("is the time")
	d.setClock()
}

// change changes the numbers, to some that the story had not before: then there is only
// one view to tell of. Receipts are those of the view before.
func (d *comparison) change(to policy.Limit) {
	d.t.Helper()
	to.Name = "limit"
	if d.had[to.String()+to.BucketLength().String()] {
		return
	}
	d.had[to.String()+to.BucketLength().String()] = true
	for i := range d.granted {
		d.ended[i] = true
	}
	d.tell("change to %s", to.String())
	d.limit = to
	d.oracle.change(d.now, to)
	require.NoError(d.t, d.limiter.Update(d.config()))
	RunByClockKey(d.limiter, comparisonClock)
}

func (d *comparison) compareStatus() {
	d.t.Helper()
	got, err := d.limiter.Peek(d.t.Context(), d.request(1, 0))
	require.NoError(d.t, err)
	d.compare(got.Limits[0])
}

// compare holds what a limit says of itself against the oracle.
func (d *comparison) compare(status LimitStatus) {
	d.t.Helper()
	remaining, reset := d.oracle.status(d.now)
	if status.Remaining != remaining || status.ResetAfter.Microseconds() != reset {
		d.fail("%s: remaining %d, reset after %d; the oracle says %d, %d",
			d.limit.String(), status.Remaining, status.ResetAfter.Microseconds(), remaining, reset)
	}
}

func (d *comparison) flush() {
	lasting, err := throttletest.LastingKeys(d.t.Context(), d.client)
	require.NoError(d.t, err)
	require.Empty(d.t, lasting, "law 12")
	require.NoError(d.t, d.client.FlushDB(d.t.Context()).Err())
	d.setClock()
	d.granted, d.ended, d.had = nil, map[int]bool{}, map[string]bool{}
	if d.limit.Algorithm != "" {
		d.had[d.limit.String()+d.limit.BucketLength().String()] = true
	}
}

func (d *comparison) setClock() {
	require.NoError(d.t, d.client.Set(d.t.Context(), comparisonClock, d.now, 0).Err())
}

// remake makes a Limiter for the numbers of now.
func (d *comparison) remake() {
	limiter, err := New(d.client, d.config())
	require.NoError(d.t, err)
	RunByClockKey(limiter, comparisonClock)
	d.limiter = limiter
}

func (d *comparison) config() *policy.Config {
	d.limit.Cost = "cost"
	return &policy.Config{Policies: []policy.Policy{{Name: "api", Limits: []policy.Limit{d.limit}}}}
}
