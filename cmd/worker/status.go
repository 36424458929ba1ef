package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// listen takes the address, so that a port that is taken is known before any
// task starts. It returns nil for no address.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("cannot listen on %s: another program has that port\n"+
			"Stop it, or give another address with -listen ADDR", address)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w\nGive an address like :8080 with -listen", address, err)
	}
	return listener, nil
}

// statusServer serves /healthz and /metrics for as long as the worker runs, its
// shutdown included. A nil one serves nothing.
type statusServer struct {
	http http.Server
	// ended has Serve's error, once it has returned.
	ended chan error
}

// serveStatus answers in a goroutine of its own until close, which the caller
// owes. Should it end before that, it calls stop. It returns nil without a
// listener.
func serveStatus(listener net.Listener, p *probe, metrics *prometheus.Registry, log *zap.Logger, stop context.CancelFunc) *statusServer {
	if listener == nil {
		return nil
	}
	complaints := zap.NewStdLog(log.Named("http"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.serveHealth)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: complaints}))
	s := &statusServer{
		http: http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			ErrorLog:          complaints,
		},
		ended: make(chan error, 1),
	}
	log.Info("serving /healthz and /metrics", zap.String("address", listener.Addr().String()))
	go func() {
		defer stop()
		s.ended <- s.http.Serve(listener)
	}()
	return s
}

// close ends the server, after a second even if requests are under way. Its
// error is why the server had ended by itself.
func (s *statusServer) close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	if err := <-s.ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving /healthz and /metrics: %w", err)
	}
	return nil
}

// serveHealth answers 200 when Redis does, and otherwise 503 with the reason.
func (p *probe) serveHealth(w http.ResponseWriter, r *http.Request) {
	type health struct {
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}
	answer, status := health{Status: "ok"}, http.StatusOK
	if err := p.ask(r.Context(), healthProbeTimeout); err != nil {
		answer, status = health{"unavailable", err.Error()}, http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // whoever hung up needs no answer
}
