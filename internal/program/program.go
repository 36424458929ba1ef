// Package program is what this module's programs share: flags that environment variables
// stand in for, exit codes, signals, logs, and processes that work for others.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// Exit codes.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
)

// Context returns a context that ends with SIGINT or SIGTERM. A second signal ends the
// process at once: whoever asks twice does not want to wait.
func Context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(Failed)
	}()
	return ctx
}

// Lines is the value of a flag that may be given again and again; its variable has one
// value a line.
type Lines interface {
	flag.Value
	Lines()
}

// ReadEnvironment sets the flags that were not given, nor are among the others, from their
// environment variables.
func ReadEnvironment(flags *flag.FlagSet, getenv func(string) string, others ...string) error {
	given := map[string]bool{}
	for _, name := range others {
		given[name] = true
	}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var problems []error
	flags.VisitAll(func(f *flag.Flag) {
		text := getenv(Variable(f.Name))
		if given[f.Name] || text == "" {
			return
		}
		values := []string{text}
		if _, many := f.Value.(Lines); many {
			values = strings.Split(strings.TrimSpace(text), "\n")
		}
		for _, value := range values {
			if err := flags.Set(f.Name, value); err != nil {
				problems = append(problems, fmt.Errorf("%s=%q: %w", Variable(f.Name), value, err))
			}
		}
	})
	return errors.Join(problems...)
}

// Variable is the environment variable that stands in for a flag.
func Variable(flagName string) string {
	return "RAMPMETER_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// PrintFlags writes each flag's usage, default and variable for a help text.
func PrintFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		name, usage := flag.UnquoteUsage(f)
		line := strings.TrimSpace("-" + f.Name + " " + name)
		switch f.DefValue {
		case "", "false", "0", "0s":
		default:
			line += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		_, _ = fmt.Fprintf(w, "  %s\n      %s\n      %s\n", line, strings.ReplaceAll(usage, "\n", "\n      "), Variable(f.Name))
	})
}

// Counted is "1 task" or so many "tasks".
func Counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// IsTerminal reports whether somebody watches what is written to w.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// NewLogger returns a log on w: for people, with times of that layout, if w is a terminal,
// and otherwise one JSON object a line.
func NewLogger(w io.Writer, level zapcore.Level, layout string) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.TimeKey = "time"
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if IsTerminal(w) {
		config.EncodeTime = zapcore.TimeEncoderOfLayout(layout)
		config.EncodeLevel = zapcore.CapitalColorLevelEncoder
		encoder = zapcore.NewConsoleEncoder(config)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}
