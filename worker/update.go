package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Update puts other policies in force, for tasks that run, wait or stand in line, too:
// see [throttle.Limiter.Update]. It logs what has changed. If policies is not valid, or
// one of them degrades without a fallback, nothing changes and the error says why.
//
// Other Middlewares of the same Limiter need no Update of their own. In a program that
// has a policies file, [MiddlewareConfig].PoliciesFile calls it.
func (m *Middleware) Update(policies *policy.Config) error {
	err := m.update(policies)
	m.metrics.reloaded(err)
	return err
}

func (m *Middleware) update(policies *policy.Config) error {
	if err := policies.Validate(); err != nil {
		return err
	}
	if err := checkDegrading(policies, m.fallbacks); err != nil {
		return err
	}
	before := m.limiter.Config()
	if err := m.limiter.Update(policies); err != nil {
		return err
	}
	if changes := changesOf(before, policies); len(changes) > 0 {
		m.log.Info("policies updated", zap.Strings("changes", changes))
	}
	return nil
}

// Reload reads the policies file now, instead of within half a second of a change. It
// logs an error, too, and then the policies that are in force stay. Without a file it
// returns an error.
func (m *Middleware) Reload() error {
	if m.file == nil {
		return errNoFile
	}
	return m.file.reload()
}

// takeFile puts the policies of the file in force. Its errors are logged here, once for
// each content that the file has.
func (m *Middleware) takeFile(policies *policy.Config, err error) error {
	isMended := m.metrics.isBroken()
	if err == nil && reflect.DeepEqual(policies, m.limiter.Config()) {
		m.metrics.reloaded(nil)
		if isMended {
			m.log.Info("the policies file can be used again, nothing has changed", zap.String("file", m.file.path))
		}
		return nil
	}
	if err == nil {
		err = m.update(policies)
	}
	m.metrics.reloaded(err)
	if err == nil {
		return nil
	}
	if mistakes := (*policy.ConfigError)(nil); errors.As(err, &mistakes) && mistakes.File == "" {
		mistakes.File = m.file.path
	}
	m.log.Error("the policies file can not be used, the policies that are in force stay; mend it, it is looked at",
		zap.String("file", m.file.path), zap.Error(err))
	return err
}

// changesOf tells what is different after an update, one text for each: as in
// `api: calls.rate: 5/1s, now 200/1s`.
func changesOf(before, after *policy.Config) []string {
	var changes []string
	for i := range after.Policies {
		policy := &after.Policies[i]
		was := before.Policy(policy.Name)
		if was == nil {
			changes = append(changes, policy.Name+": added")
			continue
		}
		changes = append(changes, differences(policy.Name, was.Settings(), policy.Settings())...)
	}
	for i := range before.Policies {
		if name := before.Policies[i].Name; after.Policy(name) == nil {
			changes = append(changes, name+": removed")
		}
	}
	if !slices.Equal(before.Routes, after.Routes) {
		changes = append(changes, fmt.Sprintf("routes: %s, now %s", routes(before.Routes), routes(after.Routes)))
	}
	return changes
}

func differences(name string, before, after map[string]string) []string {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var changes []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch was, is := before[key], after[key]; {
		case was == is:
		case was == "":
			changes = append(changes, fmt.Sprintf("%s: %s: now %s", name, key, is))
		case is == "":
			changes = append(changes, fmt.Sprintf("%s: %s: %s, now left out", name, key, was))
		default:
			changes = append(changes, fmt.Sprintf("%s: %s: %s, now %s", name, key, was, is))
		}
	}
	return changes
}

func routes(list []policy.Route) string {
	texts := make([]string, len(list))
	for i, route := range list {
		texts[i] = route.Task + " to " + route.Policy
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

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
