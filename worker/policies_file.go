package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// How often a policies file is looked at, and after how long again when it has changed:
// what two looks in a row have seen is no half of a file that is being written.
const (
	filePoll  = 200 * time.Millisecond
	fileCalms = 100 * time.Millisecond
)

// policiesFile reads a file whenever its content changes. It goes by the content alone,
// which works for any editor, for links that are turned to other files, as Kubernetes
// does, and over a network.
type policiesFile struct {
	path string
	// take is given what is new: policies, or why there are none.
	take func(*policy.Config, error) error

	mu    sync.Mutex // held while the file is taken
	seen  look       // the last one
	taken look       // the last one that something was made of
}

// look is what was found in place of a file: its content, or why there is none. The zero
// value is nothing that anybody found.
type look struct {
	isFound          bool
	content, problem string
}

// watch takes the file until ctx ends.
func (f *policiesFile) watch(ctx context.Context) { repeat(ctx, f.poll) }

// poll takes the file if it has changed, and is seen for the second time. It returns
// when to look again.
func (f *policiesFile) poll() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.look()
	isCalm := now == f.seen
	f.seen = now
	switch {
	case now == f.taken:
	case !isCalm:
		return fileCalms
	default:
		_ = f.takeNow(now, err) // take has told of it
	}
	return filePoll
}

// reload takes the file as it is now, even if nothing has changed.
func (f *policiesFile) reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.takeNow(f.look())
}

func (f *policiesFile) takeNow(now look, err error) error {
	f.taken = now
	if err != nil {
		return f.take(nil, err)
	}
	return f.take(policy.Parse(f.path, []byte(now.content)))
}

func (f *policiesFile) look() (look, error) {
	content, err := policy.Content(f.path)
	if err != nil {
		return look{problem: err.Error()}, err
	}
	return look{isFound: true, content: string(content)}, nil
}

// errNoFile is the error of a Reload where there is no file.
var errNoFile = errors.New("worker: there is no policies file to read; see MiddlewareConfig.PoliciesFile")
