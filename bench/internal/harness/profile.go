package harness

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
)

// StartProfile writes a CPU profile to a file until it is stopped. Without a path
// it does nothing.
func StartProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("-cpuprofile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("-cpuprofile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
