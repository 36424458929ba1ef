package throttle_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// simulation is a waiting line in virtual time: tasks ask, stand in line, are woken by one
// dispatcher and ask again. Redis is real; only its clock is the simulation's.
type simulation struct {
	t       *testing.T
	client  *redis.Client
	limiter *throttle.Limiter
	random  *rand.Rand

	now    time.Duration // since noon
	events events
	number int

	// What it is like.
	wait   time.Duration          // MaxWait of those who ask
	isLost func(task string) bool // wakes that reach nobody

	// What came of it.
	starts    []turn
	everybody tasks
	asked     map[string]int
	deleted   map[string]bool
	gone      []line.WokenTask // which the dispatcher found to be deleted
	wakes     int
	idle      bool // the dispatcher waits for a signal
}

// turn is the start of a task.
type turn struct {
	task, lane string
	at         time.Duration
}

const (
	simulationClock = "clock"
	latency         = 20 * time.Millisecond       // from a wake until the task asks
	near            = 350 * time.Millisecond      // how far ahead its dispatcher wakes
	ahead           = near + 100*time.Millisecond // and fills slots
	looks           = 50                          // at all keys, after so many events
)

// eachSimulation plays a scenario on both servers.
func eachSimulation(t *testing.T, policy policy.Policy, play func(t *testing.T, p *simulation)) {
	t.Helper()
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		play(t, newSimulation(t, server, policy))
	})
}

// simulate plays a scenario of n tasks on a real Redis, and one of few on the embedded
// server, which needs ten times as long for each under the race detector.
func simulate(t *testing.T, n, few int, policy policy.Policy, play func(t *testing.T, p *simulation, n int)) {
	t.Helper()
	eachSimulation(t, policy, func(t *testing.T, p *simulation) {
		if strings.HasSuffix(t.Name(), "/embedded") {
			play(t, p, few)
		} else {
			play(t, p, n)
		}
	})
}

func newSimulation(t *testing.T, server *throttletest.Server, policy policy.Policy) *simulation {
	t.Helper()
	p := &simulation{
		t: t, client: server.Client(), random: rand.New(rand.NewPCG(1, 2)),
		isLost: func(string) bool { return false }, everybody: tasks{}, asked: map[string]int{}, deleted: map[string]bool{}, idle: true,
	}
	p.config(policy)
	p.at(0)
	return p
}

// config gives the policy, "api", numbers that are in force from now on.
func (p *simulation) config(terms policy.Policy) {
	p.t.Helper()
	terms.Name = "api"
	config := &policy.Config{Policies: []policy.Policy{terms}}
	var err error
	if p.limiter == nil {
		p.limiter, err = throttle.New(p.client, config)
	} else {
		err = p.limiter.Update(config)
	}
	require.NoError(p.t, err)
	throttle.RunByClockKey(p.limiter, simulationClock)
}

// update does what a dispatcher does when others are in force.
func (p *simulation) update(policy policy.Policy) {
	p.t.Helper()
	p.config(policy)
	require.NoError(p.t, p.limiter.Line("api").Review(p.t.Context()))
	p.wake()
	p.recall()
}

// recall has the tasks of lines ask anew that are not served any more.
func (p *simulation) recall() {
	p.t.Helper()
	call, err := p.limiter.Line("api").Recall(p.t.Context(), line.Waking{As: "us", Near: near})
	require.NoError(p.t, err)
	for _, task := range call.Tasks {
		p.after(latency, func() { p.ask(task.TaskID, p.everybody[task.TaskID]) })
	}
	if call.Next > 0 {
		p.after(call.Next, p.recall)
	}
}

// at sets the clock.
func (p *simulation) at(now time.Duration) {
	p.t.Helper()
	p.now = now
	require.NoError(p.t, p.client.Set(p.t.Context(), simulationClock, noon.Add(now).UnixMicro(), 0).Err())
}

// after lets something happen, at the earliest now.
func (p *simulation) after(d time.Duration, do func()) {
	p.number++
	heap.Push(&p.events, event{max(p.now, p.now+d), p.number, do})
}

// run plays until nothing happens any more, or until an instant.
func (p *simulation) run(until time.Duration) {
	p.t.Helper()
	for len(p.events) > 0 && p.events[0].at <= until {
		next := heap.Pop(&p.events).(event) //nolint:forcetypeassert // it holds nothing else
		p.at(next.at)
		next.do()
		if next.number%looks == 0 {
			allExpire(p.t, p.client)
		}
	}
}

// ask lets a task ask, whether it was woken or not.
func (p *simulation) ask(task string, attributes map[string]string) {
	p.t.Helper()
	p.asked[task]++
	r := p.reserve(throttle.Request{Policy: "api", TaskID: task, Attributes: attributes, MaxWait: p.wait, Park: true})
	if r.Outcome == throttle.Granted {
		p.starts = append(p.starts, turn{task, attributes["lane"], r.At.Sub(noon)})
		return
	}
	require.NotNil(p.t, r.Place, "denied, but not in line")
	if p.idle {
		p.idle = false
		p.after(0, p.wake)
	}
}

func (p *simulation) reserve(request throttle.Request) *throttle.Reservation {
	p.t.Helper()
	r, err := p.limiter.Reserve(p.t.Context(), request)
	require.NoError(p.t, err)
	return r
}

// inLane is the request of a task that stands in line.
func inLane(task, lane string) throttle.Request {
	return throttle.Request{Policy: "api", TaskID: task, Attributes: map[string]string{"lane": lane}, Park: true}
}

// tasks are who is there, by name.
type tasks map[string]map[string]string

// enqueue lets n tasks of a lane ask, one after the other.
func (p *simulation) enqueue(lane string, n int, attributes ...string) {
	p.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s/%06d", lane, i)
		p.everybody[name] = request(0, append(attributes, "lane", lane)...).Attributes
		p.ask(name, p.everybody[name])
	}
}

// wake is what the dispatcher does.
func (p *simulation) wake() {
	p.t.Helper()
	p.wakes++
	call, err := p.limiter.Line("api").Wake(p.t.Context(), line.Waking{As: "us", Near: near, Gone: p.gone})
	require.NoError(p.t, err)
	require.True(p.t, call.Leads)
	p.gone = nil
	for _, task := range call.Tasks {
		switch {
		case p.deleted[task.TaskID]:
			p.gone = append(p.gone, task)
		case p.isLost(task.TaskID):
		default:
			p.after(latency, func() { p.ask(task.TaskID, p.everybody[task.TaskID]) })
		}
	}
	if len(p.gone) > 0 {
		call.Next = time.Millisecond
	}
	if p.idle = call.Next == 0; !p.idle {
		p.after(call.Next, p.wake)
	}
}

// order returns the tasks of a lane in the order of their starts.
func (p *simulation) order(lane string) []string {
	var names []string
	for _, s := range p.starts {
		if s.lane == lane {
			names = append(names, s.task)
		}
	}
	return names
}

// times returns all starts, as the judging functions take them.
func (p *simulation) times() []time.Time {
	times := make([]time.Time, len(p.starts))
	for i, s := range p.starts {
		times[i] = noon.Add(s.at)
	}
	return times
}

// isEven asserts laws 1 and 6 of one task each time: from an instant on none started
// earlier than its slot, which would be over the limit, and no slot went unused.
func (p *simulation) isEven(from, every time.Duration) {
	p.t.Helper()
	var starts, slots []time.Duration
	for _, s := range p.starts {
		if s.at >= from {
			starts = append(starts, s.at)
			slots = append(slots, starts[0]+time.Duration(len(slots))*every)
		}
	}
	assert.Equal(p.t, slots, starts)
}

// isFair asserts law 7: as long as these lanes all have tasks, no two of them ever get
// more of each other's share than a task of each takes, which is the bound of start-time
// fair queueing. A share is a task's cost by its lane's weight.
func (p *simulation) isFair(shares map[string]float64) {
	p.t.Helper()
	from, to := 0, len(p.starts)
	for lane := range shares {
		own := p.order(lane)
		own = slices.DeleteFunc(own, func(task string) bool { return p.asked[task] == 1 }) // never in line
		from, to = max(from, p.turnOf(own[0])), min(to, p.turnOf(own[len(own)-1]))
	}
	require.Less(p.t, from, to, "they never were there together")
	for a := range shares {
		for b := range shares {
			if a == b {
				continue
			}
			lead, least, most := 0.0, 0.0, 0.0
			for _, s := range p.starts[from:to] {
				switch s.lane {
				case a:
					lead += shares[a]
				case b:
					lead -= shares[b]
				}
				least, most = min(least, lead), max(most, lead)
			}
			assert.LessOrEqual(p.t, most-least, shares[a]+shares[b]+1e-9, "%s and %s", a, b)
		}
	}
}

func (p *simulation) turnOf(task string) int {
	return slices.IndexFunc(p.starts, func(s turn) bool { return s.task == task })
}

// done is when the last task of a lane started.
func (p *simulation) done(lane string) (last time.Duration) {
	for _, s := range p.starts {
		if s.lane == lane {
			last = max(last, s.at)
		}
	}
	return last
}

// attempts is how often a task asked, on the average.
func (p *simulation) attempts() float64 {
	sum := 0
	for _, n := range p.asked {
		sum += n
	}
	return float64(sum) / float64(len(p.asked))
}

func cost(n int) string { return strconv.Itoa(n) }

type event struct {
	at     time.Duration
	number int
	do     func()
}

// events are a heap, the first to happen on top.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:forcetypeassert // for heap alone
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
