package backlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// The release of BullMQ that takes part, and of the client that it was made with.
const (
	bullMQVersion  = "6.7.0"
	ioredisVersion = "5.11.1"
)

//go:embed bullmq.mjs
var bullMQScript []byte

// bullMQFiles is where BullMQ is installed, with the script that uses it.
type bullMQFiles struct{ node, script string }

const installTimeout = 2 * time.Minute

// installBullMQ has npm fetch BullMQ into .tools, unless it is there. The error
// tells why it can not be.
func installBullMQ(ctx context.Context) (*bullMQFiles, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, errors.New("there is no node")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, errors.New("there is no npm")
	}
	folder, err := filepath.Abs(filepath.Join(".tools", "bullmq-"+bullMQVersion))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(folder, "node_modules", "ioredis", "package.json")); err != nil {
		ctx, cancel := context.WithTimeout(ctx, installTimeout)
		defer cancel()
		install := exec.CommandContext(ctx, npm, "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts",
			"bullmq@"+bullMQVersion, "ioredis@"+ioredisVersion)
		if output, err := install.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm could not install it: %w: %s", err, lastLine(output))
		}
	}
	// Another version of the bench may be running: each has a script of its own.
	script := filepath.Join(folder, fmt.Sprintf("worker-%x.mjs", sha256.Sum256(bullMQScript)))
	return &bullMQFiles{node: node, script: script}, os.WriteFile(script, bullMQScript, 0o644)
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// enqueue has the script fill the queue.
func (b *bullMQFiles) enqueue(ctx context.Context, redis *redis.Options, lanes []lane, first int) error {
	text, err := json.Marshal(map[string]any{"redis": harness.URI(redis), "first": first, "lanes": lanes})
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, b.node, b.script)
	command.Env = append(os.Environ(), jobVariable+"="+string(text))
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(output))
	}
	return nil
}
