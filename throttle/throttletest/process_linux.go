package throttletest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the process when its parent ends without
// having done so: a test that panics, times out or is killed leaves no server.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
