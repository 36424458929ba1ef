package throttletest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pidOf asks a server for its process ID.
func pidOf(t *testing.T, srv *Server) int {
	t.Helper()
	info, err := srv.Client().InfoMap(t.Context(), "server").Result()
	require.NoError(t, err)
	pid, err := strconv.Atoi(info["Server"]["process_id"])
	require.NoError(t, err)
	return pid
}

func TestRedisIsReaped(t *testing.T) {
	t.Parallel()
	srv := Redis(t)
	pid := pidOf(t, srv)
	require.NoError(t, syscall.Kill(pid, 0))
	require.NoError(t, srv.Close())
	// A zombie would still take signals.
	assert.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestCloseAfterRedisEndedByItself(t *testing.T) {
	t.Parallel()
	srv := Redis(t)
	require.NoError(t, syscall.Kill(pidOf(t, srv), syscall.SIGKILL))
	require.NoError(t, srv.Close())
}

func TestRedisEndsWithAKilledParent(t *testing.T) {
	t.Parallel()
	redisPath(t)
	self, err := os.Executable()
	require.NoError(t, err)

	owner := exec.CommandContext(t.Context(), self)
	owner.Env = append(os.Environ(), asChild+"=owner", "TMPDIR="+t.TempDir())
	stdin, err := owner.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	// The connection's end tells that the process which held it is no more.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimSpace(addr))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server outlived its parent")
}
