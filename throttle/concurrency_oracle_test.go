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

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// slotsOracle is a concurrency limit by its definition: leases of holders, of
// which those count that end after now. A lease is told from an earlier one of the
// same holder by its birth.
type slotsOracle struct {
	slots, lease int64
	frozenUntil  int64
	leases       map[string]*modelLease
	granted      []modelLease
}

type modelLease struct {
	who              string
	cost, born, ends int64
	isNew            bool // put by the change that is going on
}

func newSlotsOracle(l Limit) *slotsOracle {
	o := &slotsOracle{leases: map[string]*modelLease{}}
	o.change(0, l)
	return o
}

func (o *slotsOracle) live(now int64, who string) *modelLease {
	if l := o.leases[who]; l != nil && l.ends > now {
		return l
	}
	return nil
}

// others is the cost of the leases that end after an instant, without who's.
func (o *slotsOracle) others(after int64, who string) int64 {
	var sum int64
	for name, l := range o.leases {
		if name != who && l.ends > after {
			sum += l.cost
		}
	}
	return sum
}

func (o *slotsOracle) reserve(now, wait, cost int64, who string) (bool, int64) {
	granted, at := o.decide(now, wait, cost, who)
	o.settle(now, granted)
	return granted, at
}

func (o *slotsOracle) decide(now, wait, cost int64, who string) (bool, int64) {
	opens := max(now, o.frozenUntil)
	own := o.live(now, who)
	if own != nil && own.cost >= cost || o.others(now, who)+cost <= o.slots {
		if opens-now > max(0, wait) {
			return false, opens
		}
		born := now
		if own != nil {
			born = max(born, own.born+1)
		}
		o.leases[who] = &modelLease{who, cost, born, opens + o.lease, true}
		o.granted = append(o.granted, *o.leases[who])
		return true, opens
	}
	at := int64(-1)
	for _, l := range o.leases {
		if l.ends > now && o.others(l.ends, who)+cost <= o.slots && (at < 0 || l.ends < at) {
			at = l.ends
		}
	}
	return false, max(at, opens)
}

// settle is what a new lease, or a new term of one, brings with it: leases that ran out are gone for good,
// and one that was born later than now ends a period from now.
func (o *slotsOracle) settle(now int64, changed bool) {
	if !changed {
		return
	}
	for who, l := range o.leases {
		switch {
		case l.ends <= now:
			delete(o.leases, who)
		case l.born > now && !l.isNew:
			l.ends = min(l.ends, now+o.lease)
		}
		l.isNew = false
	}
}

func (o *slotsOracle) cancel(now int64, nth int) {
	l := o.granted[nth]
	own := o.live(now, l.who)
	ends := own != nil && own.born == l.born
	if ends {
		delete(o.leases, l.who)
	}
	if ends && o.others(now, "") == 0 {
		clear(o.leases) // with the last one the key goes
	}
}

func (o *slotsOracle) adjust(int64, int, int64) {}

func (o *slotsOracle) renew(now int64, nth int) bool {
	l := o.granted[nth]
	own := o.live(now, l.who)
	if own != nil && own.born != l.born || own == nil && o.others(now, l.who)+l.cost > o.slots {
		return false
	}
	if own != nil {
		l.cost = own.cost
	}
	l.ends, l.isNew = now+o.lease, true
	o.leases[l.who] = &l
	o.settle(now, true)
	return true
}

func (o *slotsOracle) change(_ int64, l Limit) { o.slots, o.lease = l.Slots, l.Lease.Microseconds() }

func (o *slotsOracle) status(now int64) (remaining, resetAfter int64) {
	for _, l := range o.leases {
		resetAfter = max(resetAfter, l.ends-now)
	}
	return max(0, o.slots-o.others(now, "")), resetAfter
}

func (o *slotsOracle) flush() {
	o.frozenUntil, o.leases, o.granted = 0, map[string]*modelLease{}, nil
}

var _ oracle = (*slotsOracle)(nil)

// slotsDuel tells the same random story to the scripts and to the oracle.
type slotsDuel struct {
	t       testing.TB
	client  *redis.Client
	random  *rand.Rand
	limit   Limit
	limiter *Limiter
	oracle  *slotsOracle
	now     int64
	granted []*Reservation
	ended   map[int]bool
	story   []string
}

func randomSlots(random *rand.Rand) Limit {
	return Limit{
		Name: "limit", Algorithm: Concurrency, Cost: "cost", Slots: 1 + random.Int64N(8),
		Lease: time.Second + time.Duration(random.Int64N(5_000_000))*time.Microsecond,
	}
}

// Every answer of the scripts against the oracle's. RAMPMETER_MODEL_OPS sets how
// many operations are compared.
func TestConcurrencyAgainstOracle(t *testing.T) {
	t.Parallel()
	client := throttletest.Redis(t).Client()
	for seed := range uint64((modelOps(t) + episodeOps - 1) / episodeOps) {
		forgetScripts(t, client, seed)
		tellSlotsStory(t, client, seed)
	}
}

func FuzzConcurrencyAgainstOracle(f *testing.F) {
	client := throttletest.Redis(f).Client()
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { tellSlotsStory(t, client, seed) })
}

func tellSlotsStory(t testing.TB, client *redis.Client, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 10))
	d := &slotsDuel{t: t, client: client, random: random, limit: randomSlots(random), now: comparisonEpoch}
	d.oracle = newSlotsOracle(d.limit)
	d.flush()
	d.remake()
	for range episodeOps {
		d.step()
		d.compareStatus()
	}
}

func (d *slotsDuel) step() {
	switch n := d.random.IntN(100); {
	case n < 40:
		d.reserve(1)
	case n < 48:
		d.reserve(2 + d.random.IntN(6)) // in one call
	case n < 62:
		d.end()
	case n < 74:
		d.renew()
	case n < 76:
		d.adjust()
	case n < 94:
		d.tick()
	case n < 97:
		d.limit = randomSlots(d.random)
		d.tell("change to %s, lease %s", d.limit.String(), d.limit.Lease)
		d.oracle.change(d.now, d.limit)
		require.NoError(d.t, d.limiter.Update(d.config()))
		RunByClockKey(d.limiter, comparisonClock)
	case n < 99:
		d.freeze()
	default:
		d.tell("flush")
		d.flush()
		d.oracle.flush()
	}
}

func (d *slotsDuel) tell(format string, args ...any) {
	d.story = append(d.story, fmt.Sprintf("%9d "+format, append([]any{d.now - comparisonEpoch}, args...)...))
}

func (d *slotsDuel) fail(format string, args ...any) {
	d.t.Helper()
	for _, line := range d.story[max(0, len(d.story)-25):] {
		d.t.Log(line)
	}
	state, _ := d.client.ZRangeWithScores(d.t.Context(), "rm:{api}:limit", 0, -1).Result()
	d.t.Logf("state %v", state)
	d.t.Fatalf(format, args...)
}

func (d *slotsDuel) request(who string, cost, wait int64) Request {
	return Request{
		Policy: "api", TaskID: who, MaxWait: time.Duration(wait) * time.Microsecond,
		Attributes: map[string]string{"cost": strconv.FormatInt(cost, 10)},
	}
}

// reserve asks n times in one call.
func (d *slotsDuel) reserve(n int) {
	d.t.Helper()
	calls := CallsOf(d.limiter, "api")
	var passengers []*passenger
	var grants []bool
	var instants []int64
	for range n {
		who, cost, wait := string(rune('a'+d.random.IntN(7))), int64(1), d.random.Int64N(3_000_000)
		if d.random.IntN(3) == 0 {
			cost = 1 + d.random.Int64N(d.limit.Slots)
		}
		granted, at := d.oracle.decide(d.now, wait, cost, who)
		grants, instants = append(grants, granted), append(instants, at)
		c, err := newClaim(calls.policy, d.request(who, cost, wait))
		require.NoError(d.t, err)
		passengers = append(passengers, newPassenger(c, d.limiter))
	}
	d.oracle.settle(d.now, slices.Contains(grants, true))
	calls.reserveAll(passengers)
	for i, p := range passengers {
		r := p.reservation
		require.NoError(d.t, p.err)
		d.tell("%d of %d: reserve %s cost %d wait %s -> %v %d", i+1, n, p.claim.request.TaskID, p.claim.costs[0],
			p.claim.request.MaxWait, r.Outcome, r.At.UnixMicro()-comparisonEpoch)
		if (r.Outcome == Granted) != grants[i] || r.At.UnixMicro() != instants[i] {
			d.fail("%s: the oracle says granted %v at %d", d.limit.String(), grants[i], instants[i]-comparisonEpoch)
		}
		if grants[i] {
			d.granted = append(d.granted, r)
		}
	}
}

// pick chooses a granted reservation that has not ended, mostly a late one.
func (d *slotsDuel) pick() (int, *Reservation) {
	if len(d.granted) == 0 {
		return 0, nil
	}
	n := len(d.granted) - 1 - d.random.IntN(min(8, len(d.granted)))
	if d.ended[n] {
		return n, nil
	}
	return n, d.granted[n]
}

func (d *slotsDuel) end() {
	n, r := d.pick()
	if r == nil {
		return
	}
	d.ended[n] = true
	d.tell("end %d of %s", n, r.claim.request.TaskID)
	d.oracle.cancel(d.now, n)
	if d.random.IntN(2) == 0 {
		require.NoError(d.t, r.Cancel(d.t.Context()))
	} else {
		require.NoError(d.t, r.Release(d.t.Context()))
	}
}

func (d *slotsDuel) renew() {
	n, r := d.pick()
	if r == nil {
		return
	}
	leases := r.leases()
	has, err := leases.renew(d.t.Context(), []*hold{leases.newHold(r)})
	require.NoError(d.t, err)
	d.tell("renew %d of %s -> %v", n, r.claim.request.TaskID, has[0])
	if has[0] != d.oracle.renew(d.now, n) {
		d.fail("the oracle says otherwise")
	}
}

func (d *slotsDuel) adjust() {
	if n, r := d.pick(); r != nil {
		d.tell("adjust %d", n)
		costs := r.claim
		require.NoError(d.t, r.Adjust(d.t.Context(), map[string]string{"cost": "7"}))
		r.claim = costs // the lease has the cost that was taken
	}
}

func (d *slotsDuel) freeze() {
	us := d.random.Int64N(2_000_000)
	d.tell("freeze for %d", us)
	require.NoError(d.t, d.limiter.Freeze(d.t.Context(), "api", time.Duration(us)*time.Microsecond))
	d.oracle.frozenUntil = max(d.oracle.frozenUntil, d.now+us)
}

func (d *slotsDuel) tick() {
	lease := d.limit.Lease.Microseconds()
	switch d.random.IntN(8) {
	case 0:
		d.now += d.random.Int64N(2 * lease)
	case 1:
		d.now -= d.random.Int64N(3 * lease)
	case 2:
		d.now++
	case 3: // to the end of a lease, or just before it
		ends := int64(0)
		for _, l := range d.oracle.leases {
			ends = max(ends, l.ends)
		}
		d.now = max(d.now, ends-d.random.Int64N(2))
	default:
		d.now += d.random.Int64N(lease/2 + 1)
	}
	d.tell("is the time")
	d.setClock()
}

func (d *slotsDuel) compareStatus() {
	d.t.Helper()
	remaining, reset := d.oracle.status(d.now)
	got, err := d.limiter.Peek(d.t.Context(), d.request("peek", 1, 0))
	require.NoError(d.t, err)
	status := got.Limits[0]
	if status.Remaining != remaining || status.ResetAfter.Microseconds() != reset {
		d.fail("%s: remaining %d, reset after %d; the oracle says %d, %d",
			d.limit.String(), status.Remaining, status.ResetAfter.Microseconds(), remaining, reset)
	}
}

func (d *slotsDuel) flush() {
	require.NoError(d.t, d.client.FlushDB(d.t.Context()).Err())
	d.setClock()
	d.granted, d.ended = nil, map[int]bool{}
}

func (d *slotsDuel) setClock() {
	require.NoError(d.t, d.client.Set(d.t.Context(), comparisonClock, d.now, 0).Err())
}

// remake makes a Limiter for the numbers of now.
func (d *slotsDuel) remake() {
	limiter, err := New(d.client, d.config())
	require.NoError(d.t, err)
	RunByClockKey(limiter, comparisonClock)
	d.limiter = limiter
}

func (d *slotsDuel) config() *Config {
	return &Config{Policies: []Policy{{Name: "api", Limits: []Limit{d.limit}}}}
}
