package worker

import (
	"errors"
	"reflect"

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
