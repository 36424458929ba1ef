package worker

import (
	"context"
	"sync"
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
	stop    context.CancelFunc
}

// follow serves the policies that are in force, until ctx ends. The tasks of one that is
// removed come back by themselves.
func (d *dispatcher) follow(ctx context.Context) {
	for {
		updated := d.limiter.Updated()
		policies := d.limiter.Config().Policies
		names := make([]string, len(policies))
		for i := range policies {
			names[i] = policies[i].Name
		}
		d.served.become(names, func(name string, on *service) {
			serving, stop := context.WithCancel(ctx)
			on.stop = stop
			d.ended.Go(func() { d.serve(serving, name, on) })
		})
		select {
		case <-updated:
		case <-ctx.Done():
			d.served.become(nil, nil)
			return
		}
	}
}

// become ends the services of policies that are not among the names, starts those that
// are missing, and tells the others that there was an update.
func (s *services) become(names []string, start func(string, *service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byPolicy
	s.byPolicy = make(map[string]*service, len(names))
	for _, name := range names {
		on, known := before[name]
		if known {
			tell(on.updated)
		} else {
			on = &service{nudged: make(chan struct{}, 1), updated: make(chan struct{}, 1)}
			start(name, on)
		}
		s.byPolicy[name] = on
	}
	for name, on := range before {
		if s.byPolicy[name] == nil {
			on.stop()
		}
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

// tell puts something into a channel that has room for one.
func tell(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is told already
	}
}
