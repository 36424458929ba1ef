package throttle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSharedTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var timeout sharedTimeout
		first := timeout.context()
		time.Sleep(sharedFor - 1)
		assert.Same(t, first, timeout.context())
		time.Sleep(time.Nanosecond)
		second := timeout.context()
		assert.NotSame(t, first, second)
		ends, _ := second.Deadline()
		assert.Equal(t, callTimeout, time.Until(ends))

		require.NoError(t, first.Err(), "a call may be under way")
		time.Sleep(callTimeout - sharedFor)
		synctest.Wait()
		require.Error(t, first.Err())
		time.Sleep(sharedFor)
		synctest.Wait()
		require.Error(t, second.Err())
		require.NoError(t, timeout.context().Err())
	})
}
