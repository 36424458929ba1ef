package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
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

func newSlotsOracle(l policy.Limit) *slotsOracle {
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

// settle is what every change brings with it: leases that ran out are gone for good, and
// one that was born later than now ends a period from now.
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
	o.settle(now, ends)
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

func (o *slotsOracle) change(_ int64, l policy.Limit) {
	o.slots, o.lease = l.Slots, l.Lease.Microseconds()
}

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

// slotsComparison is a comparison of the scripts that know slots.
type slotsComparison struct {
	comparison
	slots *slotsOracle
}

func randomSlots(random *rand.Rand) policy.Limit {
	return policy.Limit{
		Algorithm: policy.Concurrency, Slots: 1 + random.Int64N(8),
		Lease: time.Second + time.Duration(random.Int64N(5_000_000))*time.Microsecond,
	}
}

func compareConcurrency(t *testing.T, client *redis.Client, operations int) {
	t.Helper()
	eachEpisode(t, client, operations, episodeOps, func(seed uint64) { tellSlotsStory(t, client, seed) })
}

func FuzzConcurrencyAgainstOracle(f *testing.F) {
	client := throttletest.Redis(f).Client()
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { tellSlotsStory(t, client, seed) })
}

func tellSlotsStory(t testing.TB, client *redis.Client, seed uint64) {
	t.Helper()
	d := &slotsComparison{comparison: comparison{client: client, seed: seed}}
	d.begin(t, 10, randomSlots, func(l policy.Limit) oracle {
		d.slots = newSlotsOracle(l)
		return d.slots
	})
	for range episodeOps {
		d.step()
		d.compareStatus()
	}
}

func (d *slotsComparison) step() {
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
		d.change(randomSlots(d.random))
	case n < 99:
		d.freeze()
	default:
		d.tell("flush")
		d.flush()
		d.oracle.flush()
	}
}

func (d *slotsComparison) freeze() {
	us := d.random.Int64N(2_000_000)
	d.tell("freeze for %d", us)
	require.NoError(d.t, d.limiter.Freeze(d.t.Context(), "api", time.Duration(us)*time.Microsecond))
	d.slots.frozenUntil = max(d.slots.frozenUntil, d.now+us)
}

// reserve asks n times in one call.
func (d *slotsComparison) reserve(n int) {
	d.t.Helper()
	var asks []Request
	var grants []bool
	var instants []int64
	for range n {
		who, cost, wait := string(rune('a'+d.random.IntN(7))), int64(1), d.random.Int64N(3_000_000)
		if d.random.IntN(3) == 0 {
			cost = 1 + d.random.Int64N(d.limit.Slots)
		}
		granted, at := d.slots.decide(d.now, wait, cost, who)
		grants, instants = append(grants, granted), append(instants, at)
		ask := d.request(cost, wait)
		ask.TaskID = who
		asks = append(asks, ask)
	}
	d.slots.settle(d.now, slices.Contains(grants, true))
	answers, err := ReserveTogether(d.limiter, asks...)
	require.NoError(d.t, err)
	for i, r := range answers {
		d.compareAnswer(r, grants[i], instants[i])
	}
}

func (d *slotsComparison) end() {
	n, ok := d.pick()
	if !ok {
		return
	}
	r := d.granted[n]
	d.ended[n] = true
	d.tell("end %d of %s", n, r.claim.request.TaskID)
	d.oracle.cancel(d.now, n)
	if d.random.IntN(2) == 0 {
		require.NoError(d.t, r.Cancel(d.t.Context()))
	} else {
		require.NoError(d.t, r.Release(d.t.Context()))
	}
}

func (d *slotsComparison) renew() {
	n, ok := d.pick()
	if !ok {
		return
	}
	r := d.granted[n]
	leases := r.leases()
	has, err := leases.renew(d.t.Context(), []*hold{leases.newHold(r)})
	require.NoError(d.t, err)
	d.tell("renew %d of %s -> %v", n, r.claim.request.TaskID, has[0])
	if has[0] != d.slots.renew(d.now, n) {
		d.fail("the oracle says otherwise")
	}
}

func (d *slotsComparison) adjust() {
	if n, ok := d.pick(); ok {
		r := d.granted[n]
		d.tell("adjust %d", n)
		costs := r.claim
		require.NoError(d.t, r.Adjust(d.t.Context(), map[string]string{"cost": "7"}))
		r.claim = costs // the lease has the cost that was taken
	}
}

func (d *slotsComparison) tick() {
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
		for _, l := range d.slots.leases {
			ends = max(ends, l.ends)
		}
		d.now = max(d.now, ends-d.random.Int64N(2))
	default:
		d.now += d.random.Int64N(lease/2 + 1)
	}
	d.tell("is the time")
	d.setClock()
}
