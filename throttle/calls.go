package throttle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/lua"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// policyCalls makes the script calls for one policy.
type policyCalls struct {
	redis   redis.UniversalClient
	scripts lua.Scripts
	// head is what every script on the policy's limits is told first: their numbers.
	head      []any
	policy    *policy.Policy
	freezeKey string
	// remembers is set when a limit keeps who its tokens went to.
	remembers bool
	// lateness is how much later than its slot a start may be; zero where no limit counts
	// over every interval.
	lateness time.Duration
	// oneCount is set when all requests go to the same counts: what one of them hears
	// of the next free slot is true for all.
	oneCount bool
	// headroom is set when a limit keeps something for urgent tasks.
	headroom bool
	line     *line.Line
	timeout  sharedTimeout // of calls that several callers share
	flight   flight
	// looks and joins carry tasks into the line whose start nobody asks for: a producer
	// sees that they would have to wait.
	looks, joins flight
	leases       *leases // nil without a concurrency limit
	about        []int   // places of the limits that keep what the upstream says
	// aboutHead is head, of these limits alone.
	aboutHead []any
	// closures are what this process knows to be closed.
	closures *closures
	// outdated is closed when an update brings other limits.
	outdated chan struct{}
	bridges  sync.Map // by their predecessors; see Limiter.heir
}

func newPolicyCalls(client redis.UniversalClient, p *policy.Policy) *policyCalls {
	c := &policyCalls{
		redis: client, policy: p, freezeKey: line.FreezeKey(p.Name),
		closures: new(closures), outdated: make(chan struct{}),
	}
	for i := range p.Limits {
		limit := &p.Limits[i]
		c.remembers = c.remembers || limit.Algorithm == policy.SlidingLog || limit.Algorithm == policy.Concurrency
		if late := latenessOf(limit); late > 0 && (c.lateness == 0 || late < c.lateness) {
			c.lateness = late
		}
	}
	c.oneCount = !slices.ContainsFunc(p.Limits, func(l policy.Limit) bool { return l.Per != "" })
	c.headroom = slices.ContainsFunc(p.Limits, func(l policy.Limit) bool { return l.Kept() > 0 })
	c.scripts, c.head = lua.New(), lua.Head(scriptLimits(p)...)
	c.flight.most = max(1, mostKeys/len(p.Limits))
	c.flight.land = c.reserveAll
	c.looks, c.joins = c.parking("look"), c.parking("join")
	c.line = line.New(client, c.scripts, p, c.head)
	c.leases = newLeases(c)
	c.about = aboutUpstream(p)
	c.aboutHead = headOf(p, c.about)
	return c
}

// mostKeys bounds the work of one script call, and stays well below what Lua
// can unpack.
const mostKeys = 1024

// keys returns the keys of a call for the given claims.
func (c *policyCalls) keys(claims ...*claim) []string {
	n := len(c.policy.Limits)
	keys := make([]string, 1, 1+len(claims)*n)
	keys[0] = c.freezeKey
	for _, claim := range claims {
		for i := range c.policy.Limits {
			keys = append(keys, line.StateKey(c.policy.Name, c.policy.Limits[i].Name, claim.keys[i]))
		}
	}
	return keys
}

// args begins the arguments of an operation on the policy's limits.
func (c *policyCalls) args(operation string, more ...any) []any {
	args := append(make([]any, 0, len(c.head)+2*len(more)+16), c.head...)
	return append(append(args, operation), more...)
}

// requests makes the keys and arguments of reserve, or of ask for tasks that stand in
// line. Requests mostly share keys, and are mostly equal to their neighbours: both
// are sent once.
func (c *policyCalls) requests(operation string, claims []*claim) (keys []string, args []any) {
	keys = c.keys()
	args = c.args(operation)
	inLine := operation != "reserve"
	if inLine {
		keys = append(keys, c.line.Key)
		tasks := make([]line.Task, len(claims))
		for i, claim := range claims {
			if claim.parks() {
				tasks[i] = claim.inLine()
			}
		}
		args = append(args, c.line.Asking(tasks))
	}
	places := make(map[string]int, len(c.policy.Limits))
	for len(claims) > 0 {
		first := claims[0]
		times := 1
		for times < len(claims) && c.equal(first, claims[times]) {
			times++
		}
		claims = claims[times:]
		attempt := 0
		if first.request.Attempt != "" {
			keys = append(keys, c.attemptKey(first))
			attempt = len(keys) // Lua counts from 1
		}
		args = append(args, times, first.request.MaxWait.Microseconds(), c.who(first), attempt)
		args = c.priority(args, first)
		if inLine {
			since := first.since
			if !first.parks() {
				since = 0
			}
			args = append(args, first.deferUS(), since, first.request.StandBy)
		}
		for i := range c.policy.Limits {
			key := line.StateKey(c.policy.Name, c.policy.Limits[i].Name, first.keys[i])
			place, there := places[key]
			if !there {
				keys = append(keys, key)
				place = len(keys)
				places[key] = place
			}
			args = append(args, place, first.costs[i])
		}
	}
	return keys, args
}

// equal reports whether two claims ask for the same.
func (c *policyCalls) equal(a, b *claim) bool {
	return a.request.Attempt == "" && b.request.Attempt == "" &&
		a.request.MaxWait == b.request.MaxWait && a.request.MaxDefer == b.request.MaxDefer && a.urgent == b.urgent && a.since == b.since &&
		a.request.StandBy == b.request.StandBy &&
		c.who(a) == c.who(b) && a.request.Park == b.request.Park && a.weight == b.weight &&
		(!a.request.Park || c.line.Lane(a.request.Attributes) == c.line.Lane(b.request.Attributes)) &&
		slices.Equal(a.keys, b.keys) && slices.Equal(a.costs, b.costs)
}

// priority appends whether a claim is urgent, where that matters to limits.
func (c *policyCalls) priority(args []any, claim *claim) []any {
	if !c.headroom {
		return args
	}
	return append(args, claim.urgent)
}

// attemptKey is where the answer to a claim's attempt is kept.
func (c *policyCalls) attemptKey(claim *claim) string {
	return line.KeyPrefix(c.policy.Name) + "/attempt:" + line.KeyName(claim.request.Attempt)
}

// who names the task of a claim to limits that remember it.
func (c *policyCalls) who(claim *claim) string {
	if !c.remembers {
		return ""
	}
	return line.KeyName(claim.request.TaskID)
}

// reserveAll decides on all passengers in one script call, in their order.
func (c *policyCalls) reserveAll(passengers []*passenger) {
	operation := "reserve"
	if slices.ContainsFunc(passengers, func(p *passenger) bool { return p.claim.parks() }) {
		operation = "ask"
	}
	c.decide(operation, passengers, func(last *Reservation) {
		if c.oneCount {
			c.flight.learn(last)
		}
	})
}

// decide answers all passengers by one call of an operation. What learn makes of the last
// answer comes before that is delivered.
func (c *policyCalls) decide(operation string, passengers []*passenger, learn func(*Reservation)) {
	claims := make([]*claim, len(passengers))
	for i, p := range passengers {
		claims[i] = p.claim
	}
	keys, args := c.requests(operation, claims)
	sent := time.Now()
	reply, err := integers(c.timeout.context(), c.redis, c.scripts.Limits, keys, args)
	received := time.Now()
	var answers [][]int64
	if err == nil {
		answers, err = c.answers(reply, len(passengers))
	}
	for i, p := range passengers {
		if err != nil {
			p.answer(nil, err)
			continue
		}
		r := c.reservation(p, reply[0], answers[i], sent, received)
		if i == len(passengers)-1 {
			learn(r)
		}
		p.answer(r, nil)
	}
}

// answers reads the reply of reserve to so many requests: of each stretch, the answers
// that lie evenly between the first and the last, too.
func (c *policyCalls) answers(reply []int64, requests int) ([][]int64, error) {
	answers := make([][]int64, 0, requests)
	size := 4 + 4*len(c.policy.Limits)
	for rest := reply[1:]; len(rest) > size; {
		stretch := int(rest[0])
		first, last := rest[1:1+size], rest[1:1+size]
		rest = rest[1+size:]
		if stretch > 1 && len(rest) >= size {
			last, rest = rest[:size], rest[size:]
		}
		answers = appendEvenly(answers, stretch, first, last)
	}
	if len(answers) != requests {
		return nil, fmt.Errorf("a reply of %d numbers for %d requests", len(reply), requests)
	}
	return answers, nil
}

// appendEvenly appends so many answers, the first and the last of which are given.
func appendEvenly(answers [][]int64, n int, first, last []int64) [][]int64 {
	answers = append(answers, first)
	if n < 2 {
		return answers
	}
	size, steps := len(first), int64(n-1)
	between := make([]int64, (n-2)*size)
	for i := int64(1); i < steps; i++ {
		for j := range first {
			between[j] = first[j] + (last[j]-first[j])/steps*i
		}
		answers = append(answers, between[:size:size])
		between = between[size:]
	}
	return append(answers, last)
}

// reservation reads one request's part of the reply of reserve.
func (c *policyCalls) reservation(p *passenger, now int64, reply []int64, sent, received time.Time) *Reservation {
	n := len(c.policy.Limits)
	r := &Reservation{
		Decision: Decision{
			Policy: c.policy.Name,
			Now:    time.UnixMicro(now),
			At:     time.UnixMicro(reply[0]),
			HeldBy: c.heldBy(reply[2]),
			Limits: c.statuses(p.claim, reply[4+2*n:]),
		},
		limiter:  p.limiter,
		calls:    c,
		claim:    p.claim,
		sent:     sent,
		received: received,
		lateness: c.lateness,
		receipts: reply[4 : 4+2*n],
	}
	switch answer := reply[1]; answer {
	case 0:
	case 2, 3, 4:
		r.TurnedAway = answer == 3
		r.Place = &Place{
			Lane:     c.line.Lane(p.claim.request.Attributes),
			Position: reply[4],
			Since:    time.UnixMicro(reply[5]),
			Expected: r.At,
			StandsBy: answer == 4,
		}
	default:
		r.Outcome = Granted
		r.place = c.placeOf(p.claim, now, answer)
	}
	if reply[3] > 0 {
		r.useBy = time.UnixMicro(reply[3])
	}
	if r.HeldBy == HeldByFreeze && r.Outcome == Denied {
		c.closures.close("", r.RetryAfter())
	}
	return r
}

// placeOf is where a task that was granted its slot would stand in line again: where it
// stood, if that is the answer, or by when it came.
func (c *policyCalls) placeOf(claim *claim, now, answer int64) int64 {
	switch {
	case answer > 1:
		return answer
	case claim.since > 0:
		return claim.since
	case claim.urgent:
		return now - urgentLead.Microseconds()
	}
	return now
}

func (c *policyCalls) peek(ctx context.Context, claim *claim) (Decision, error) {
	keys, args := c.keys(claim), c.args("peek", line.KeyName(claim.request.TaskID))
	args = c.priority(args, claim)
	for _, cost := range claim.costs {
		args = append(args, cost)
	}
	reply, err := integers(ctx, c.redis, c.scripts.Limits, keys, args)
	if err == nil && len(reply) != 3+2*len(c.policy.Limits) {
		err = errors.New("an unexpected reply")
	}
	if err != nil {
		return Decision{}, wrapCall("peek", c.policy.Name, err)
	}
	d := Decision{
		Policy: c.policy.Name,
		Now:    time.UnixMicro(reply[0]),
		At:     time.UnixMicro(reply[1]),
		HeldBy: c.heldBy(reply[2]),
		Limits: c.statuses(claim, reply[3:]),
	}
	if d.RetryAfter() == 0 {
		d.Outcome = Granted
	}
	return d, nil
}

// settle gives back what r took, to cancel, or takes the difference to what its task cost,
// to adjust: once, however often a call with that mark is made.
func (c *policyCalls) settle(ctx context.Context, operation string, r *Reservation, tokens []int64, mark string) error {
	cancels := operation == "cancel"
	keys := append(c.keys(r.claim), mark)
	if cancels && r.claim.request.Attempt != "" {
		keys = append(keys, c.attemptKey(r.claim)) // what is given back must not be given again
	} else {
		keys = append(keys, mark)
	}
	keys = append(keys, c.line.Key)
	args := c.args("settle", r.At.UnixMicro(), line.KeyName(r.claim.request.TaskID), cancels)
	for i := range tokens {
		args = append(args, tokens[i], r.receipts[2*i], r.receipts[2*i+1])
	}
	return wrapCall(operation, c.policy.Name, c.scripts.Limits.Run(ctx, c.redis, keys, args...).Err())
}

// newMark returns the key by which a script knows a call again that is repeated because the
// answer was lost on its way.
func (c *policyCalls) newMark() string { return line.KeyPrefix(c.policy.Name) + "/once:" + rand.Text() }

// heldBy names the limit that a reply holds responsible.
func (c *policyCalls) heldBy(number int64) string {
	switch {
	case number < 0:
		return HeldByFreeze
	case number == 0:
		return ""
	}
	return c.policy.Limits[number-1].Name
}

func (c *policyCalls) statuses(claim *claim, reply []int64) []LimitStatus {
	statuses := make([]LimitStatus, len(c.policy.Limits))
	for i := range statuses {
		limit := &c.policy.Limits[i]
		statuses[i] = LimitStatus{
			Name:       limit.Name,
			Key:        claim.keys[i],
			Cost:       claim.costs[i],
			Limit:      limit.Capacity(),
			Remaining:  reply[2*i],
			ResetAfter: time.Duration(reply[2*i+1]) * time.Microsecond,
		}
		if isAboutUpstream(limit) {
			statuses[i].Limit = 0
		}
	}
	return slices.DeleteFunc(statuses, LimitStatus.isUnknown)
}
