package backlog

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
)

func TestAPIRecordsWhatHandlersTell(t *testing.T) {
	t.Parallel()
	a := listenAPI()
	defer a.server.Close()
	handler := newCaller(&job{API: a.server.URL, Concurrency: 1})
	defer handler.http.CloseIdleConnections()

	before := time.Now().Truncate(time.Microsecond)
	task := asynq.NewTaskWithHeaders(taskType, []byte("7"), map[string]string{tenantAttribute: "a b&c"})
	require.NoError(t, handler.ProcessTask(t.Context(), task))
	slotted := throttle.NewContext(context.Background(), &throttle.Reservation{Decision: throttle.Decision{At: noon}})
	require.NoError(t, handler.ProcessTask(slotted, task))

	calls := a.record()
	require.Len(t, calls, 2)
	assert.Equal(t, 7, calls[0].task)
	assert.Equal(t, "a b&c", calls[0].tenant)
	assert.False(t, calls[0].began.Before(before))
	assert.False(t, calls[0].arrived.Before(calls[0].began))
	assert.True(t, calls[0].slot.IsZero())
	assert.True(t, calls[1].slot.Equal(noon))
	count, last := a.count()
	assert.Equal(t, 2, count)
	assert.Equal(t, calls[1].arrived, last)
}

func TestAPIRefusesWhatIsNoTask(t *testing.T) {
	t.Parallel()
	a := listenAPI()
	defer a.server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.server.URL+"/?task=first", nil)
	require.NoError(t, err)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	assert.Equal(t, http.StatusBadRequest, response.StatusCode)
	assert.Empty(t, a.record())
}
