package worker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// services are those of a dispatcher, one for each policy that is in force.
type services struct {
	mu       sync.Mutex
	byPolicy map[string]*service
	routes   []policy.Route // that are in force
}

// service is how one policy's line is served.
type service struct {
	nudged  chan struct{} // has something when there is something to do
	updated chan struct{} // has something when other policies are in force
	recalls chan struct{} // the same, for recall
	tempo   tempo         // of its slots
	stop    context.CancelFunc
	// rerouted is set once tasks may stand in line that are another policy's now.
	rerouted atomic.Bool
}

// follow serves the policies that are in force, until ctx ends. The tasks of one that is
// removed are recalled.
func (d *dispatcher) follow(ctx context.Context) {
	for {
		updated := d.limiter.Updated()
		removed := d.served.become(d.limiter.Config(), func(name string, on *service) {
			serving, stop := context.WithCancel(ctx)
			on.stop = stop
			d.ended.Go(func() { d.serve(serving, name, on) })
			d.ended.Go(func() { d.recall(serving, name, on.recalls) })
		})
		for _, name := range removed {
			d.ended.Go(func() { d.recall(ctx, name, nil) })
		}
		select {
		case <-updated:
		case <-ctx.Done():
			d.served.become(new(policy.Config), nil)
			return
		}
	}
}

// become ends the services of policies that are not in config, starts those that are
// missing, and tells the others that there was an update, and whether tasks which stand in
// line may be another policy's now. It returns the names of those that ended.
func (s *services) become(config *policy.Config, start func(string, *service)) (ended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, isRerouted := s.byPolicy, !slices.Equal(s.routes, config.Routes)
	s.byPolicy, s.routes = make(map[string]*service, len(config.Policies)), config.Routes
	for i := range config.Policies {
		name := config.Policies[i].Name
		on, known := before[name]
		if known {
			if isRerouted {
				on.rerouted.Store(true)
			}
			tell(on.updated)
			tell(on.recalls)
		} else {
			on = &service{nudged: make(chan struct{}, 1), updated: make(chan struct{}, 1), recalls: make(chan struct{}, 1)}
			start(name, on)
		}
		s.byPolicy[name] = on
	}
	for name, on := range before {
		if s.byPolicy[name] == nil {
			on.stop()
			ended = append(ended, name)
		}
	}
	return ended
}

// of returns the service of a policy, or nil.
func (s *services) of(policy string) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPolicy[policy]
}

// nudge tells the service of a policy that there is something to do.
func (s *services) nudge(policy string) {
	if on := s.of(policy); on != nil {
		tell(on.nudged)
	}
}

// hear tells the service of a policy how long a task held its slot.
func (s *services) hear(policy string, held time.Duration) {
	if on := s.of(policy); on != nil {
		on.tempo.hear(held)
	}
}

// repeat calls do until ctx ends: at once, and each time after what it returned.
func repeat(ctx context.Context, do func() time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(do())
		case <-ctx.Done():
			return
		}
	}
}

// tell puts something into a channel that has room for one.
func tell(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is told already
	}
}
