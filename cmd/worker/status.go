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

// serveStatus serves /healthz and /metrics for as long as the worker runs, its shutdown
// included: until the returned function is called, whose error is why the server had ended
// by itself. Should it end before that, it calls stop. Without a listener it serves nothing.
func serveStatus(listener net.Listener, p *probe, metrics *prometheus.Registry, log *zap.Logger, stop context.CancelFunc) (end func() error) {
	if listener == nil {
		return func() error { return nil }
	}
	complaints := zap.NewStdLog(log.Named("http"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.serveHealth)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: complaints}))
	server := http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          complaints,
	}
	ended := make(chan error, 1)
	log.Info("serving /healthz and /metrics", zap.String("address", listener.Addr().String()))
	go func() {
		defer stop()
		ended <- server.Serve(listener)
	}()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil { // requests are under way
			_ = server.Close()
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving /healthz and /metrics: %w", err)
		}
		return nil
	}
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
