package worker

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// metrics are labelled by policy and limit only: both come from the policies
// file, so their number is bounded.
type metrics struct {
	wait       *prometheus.HistogramVec
	deferrals  *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	overloads  *prometheus.CounterVec
	rateLimits *prometheus.CounterVec
	upstream   *prometheus.CounterVec
	allowed    *prometheus.GaugeVec
	cuts       *prometheus.CounterVec
	reload     prometheus.Gauge // 1 if the last one succeeded
	reloadedAt prometheus.Gauge // the last one that did
	broken     atomic.Bool      // what reload tells, for us
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"policy"}, labels...))
	}
	m := &metrics{
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rampmeter_wait_seconds",
			Help:    "How long tasks waited in the worker before they started.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 5, 30},
		}, []string{"policy"}),
		deferrals: counter("rampmeter_deferred_total",
			"Attempts that ended by rescheduling the task, by what held it back.", "held_by"),
		refusals: counter("rampmeter_refused_total",
			"Tasks archived because they lack an attribute or can never pass."),
		overloads: counter("rampmeter_overload_total",
			"Tasks whose start was too far ahead, by what was done with them: reject, drop or degrade.", "strategy"),
		rateLimits: counter("rampmeter_rate_limited_total",
			"Calls the upstream refused because of its quota."),
		upstream: counter("rampmeter_upstream_readings_total",
			"What responses said of quotas: heard, stale, absurd, malformed, or unmatched by a limit.", "result"),
		allowed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rampmeter_upstream_limit",
			Help: "What the upstream last said a limit's quota is.",
		}, []string{"policy", "limit"}),
		cuts: counter("rampmeter_upstream_slowdowns_total",
			"How often refusals that do not say until when cut the rate."),
		// Named and valued as Prometheus's own are.
		reload: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rampmeter_policies_last_reload_successful",
			Help: "Whether the policies that were last read, or set by the program, are in force: 1 or 0.",
		}),
		reloadedAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rampmeter_policies_last_reload_success_timestamp_seconds",
			Help: "When the policies that are in force were read, or set by the program, in Unix time.",
		}),
	}
	m.reloaded(nil)
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.wait, m.deferrals, m.refusals, m.overloads, m.rateLimits, m.upstream, m.allowed, m.cuts, m.reload, m.reloadedAt,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// reloaded tells whether other policies are in force, or why not.
func (m *metrics) reloaded(err error) {
	m.broken.Store(err != nil)
	if err != nil {
		m.reload.Set(0)
		return
	}
	m.reload.Set(1)
	m.reloadedAt.SetToCurrentTime()
}

// isBroken reports whether the last reload has failed.
func (m *metrics) isBroken() bool { return m.broken.Load() }

func (m *metrics) started(policy string, waited time.Duration) {
	m.wait.WithLabelValues(policy).Observe(waited.Seconds())
}

func (m *metrics) deferred(err *throttle.ThrottledError) {
	heldBy := err.HeldBy
	if err.Cause != nil {
		heldBy = "redis"
	}
	m.deferrals.WithLabelValues(err.Policy, heldBy).Inc()
}

func (m *metrics) refused(policy string) { m.refusals.WithLabelValues(policy).Inc() }

func (m *metrics) overloaded(policy string, strategy policy.Overload) {
	m.overloads.WithLabelValues(policy, string(strategy)).Inc()
}

func (m *metrics) rateLimited(policy string) { m.rateLimits.WithLabelValues(policy).Inc() }

// heard counts what a response said of its upstream's quotas.
func (m *metrics) heard(report upstream.Report) {
	count := func(result string, n int) {
		if n > 0 {
			m.upstream.WithLabelValues(report.Policy, result).Add(float64(n))
		}
	}
	count("malformed", len(report.Malformed))
	count("unmatched", len(report.Unmatched))
	for limit, learned := range report.Heard.Quotas {
		switch {
		case learned.Absurd:
			count("absurd", 1)
		case learned.Stale:
			count("stale", 1)
		default:
			count("heard", 1)
		}
		if learned.Limit > 0 {
			m.allowed.WithLabelValues(report.Policy, limit).Set(float64(learned.Limit))
		}
	}
	if report.Heard.SlowedDown {
		m.cuts.WithLabelValues(report.Policy).Inc()
	}
}
