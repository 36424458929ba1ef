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
	var before []policy.Route
	for {
		updated := d.limiter.Updated()
		config := d.limiter.Config()
		names := make([]string, len(config.Policies))
		for i := range config.Policies {
			names[i] = config.Policies[i].Name
		}
		if before != nil && !slices.Equal(before, config.Routes) {
			d.served.reroute()
		}
		before = config.Routes
		removed := d.served.become(names, func(name string, on *service) {
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
			d.served.become(nil, nil)
			return
		}
	}
}

// become ends the services of policies that are not among the names, starts those that
// are missing, and tells the others that there was an update. It returns those that
// ended.
func (s *services) become(names []string, start func(string, *service)) (ended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byPolicy
	s.byPolicy = make(map[string]*service, len(names))
	for _, name := range names {
		on, known := before[name]
		if known {
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

// reroute notes that tasks which stand in line may be another policy's now.
func (s *services) reroute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, on := range s.byPolicy {
		on.rerouted.Store(true)
	}
}

// nudge tells the service of a policy that there is something to do.
func (s *services) nudge(policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on := s.byPolicy[policy]; on != nil {
		tell(on.nudged)
	}
}

// hear tells the service of a policy how long a task held its slot.
func (s *services) hear(policy string, held time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on := s.byPolicy[policy]; on != nil {
		on.tempo.hear(held)
	}
}

// tell puts something into a channel that has room for one.
func tell(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is told already
	}
}
